// One panel times one vector in f32.
#ifndef MLXCEL_KERNELS_CPU_PANEL_F32_H_
#define MLXCEL_KERNELS_CPU_PANEL_F32_H_

#include "panel_codes.h"

// PANELS panels of plain values, |panel_bytes| apart, times x. Each panel has one sum, in the order of the
// columns: the order of multiply_tile, so that results do not depend on the number of tokens. Several panels
// hide the latency of the multiply-adds.
#define PLAIN_PANELS 4
INLINE void multiply_plain(int32_t format, int PANELS, const uint8_t *panel, int64_t panel_bytes,
                           const float *x, int columns, v16 *out) {
  const int bytes = format == MLX_PANEL_F32 ? 64 : 32;
  v16 sum[PLAIN_PANELS];
  int k = 0;
  for (int p = 0; p < PANELS; ++p) sum[p] = v_zero();
  for (; k + 2 <= columns; k += 2) {
    const v16 first = v_all(x[k]), second = v_all(x[k + 1]);
    for (int p = 0; p < PANELS; ++p) {
      const uint8_t *at = panel + p * panel_bytes;
      prefetch_ahead(at + (int64_t)k * bytes, 2 * bytes);
      sum[p] = v_fma(load_column(format, at, k), first, sum[p]);
      sum[p] = v_fma(load_column(format, at, k + 1), second, sum[p]);
    }
  }
  for (int p = 0; p < PANELS && k < columns; ++p)
    sum[p] = v_fma(load_column(format, panel + p * panel_bytes, k), v_all(x[k]), sum[p]);
  for (int p = 0; p < PANELS; ++p) out[p] = sum[p];
}

INLINE v16 sum_of_four(const v16 sum[4]) { return v_add(v_add(sum[0], sum[1]), v_add(sum[2], sum[3])); }

// The sum over a block uses unscaled codes and is scaled once: d * sum(q x) + m * sum(x).
INLINE v16 multiply_q4(int32_t format, const uint8_t *panel, const float *x, const float *sums, int columns) {
  const int scales = scale_bytes(format);
  const table_t table = codes_table(format);
  v16 total = v_zero(), offset = v_zero();
  for (int k = 0, nth = 0; k < columns;
       k += MLX_PANEL_BLOCK, x += MLX_PANEL_BLOCK, panel += scales + 256, ++nth) {
    v16 sum[4] = {v_zero(), v_zero(), v_zero(), v_zero()};
    if (nth % MLX_PANEL_GROUP == 0) panel += mlx_panel_group_bytes(format);
    prefetch_ahead(panel, scales + 256);
    for (int i = 0; i < 4; ++i) {
      const codes_t codes = codes_load(panel + scales + 64 * i);
      sum[0] = v_fma(CODES_COLUMN(table, codes, 0), v_all(x[8 * i]), sum[0]);
      sum[1] = v_fma(CODES_COLUMN(table, codes, 1), v_all(x[8 * i + 1]), sum[1]);
      sum[2] = v_fma(CODES_COLUMN(table, codes, 2), v_all(x[8 * i + 2]), sum[2]);
      sum[3] = v_fma(CODES_COLUMN(table, codes, 3), v_all(x[8 * i + 3]), sum[3]);
      sum[0] = v_fma(CODES_COLUMN(table, codes, 4), v_all(x[8 * i + 4]), sum[0]);
      sum[1] = v_fma(CODES_COLUMN(table, codes, 5), v_all(x[8 * i + 5]), sum[1]);
      sum[2] = v_fma(CODES_COLUMN(table, codes, 6), v_all(x[8 * i + 6]), sum[2]);
      sum[3] = v_fma(CODES_COLUMN(table, codes, 7), v_all(x[8 * i + 7]), sum[3]);
    }
    total = v_fma(load_scale(format, panel, nth), sum_of_four(sum), total);
    if (has_offsets(format)) offset = v_fma(load_second(format, panel, nth), v_all(sums[nth]), offset);
  }
  return v_add(total, offset);
}

// Sum over |count| columns of byte codes times x.
INLINE v16 multiply_bytes(int32_t format, const uint8_t *codes, const float *x, int count) {
  v16 sum[4] = {v_zero(), v_zero(), v_zero(), v_zero()};
  for (int i = 0; i < count; i += 4, codes += 64) {
    sum[0] = v_fma(load_bytes(format, codes), v_all(x[i]), sum[0]);
    sum[1] = v_fma(load_bytes(format, codes + 16), v_all(x[i + 1]), sum[1]);
    sum[2] = v_fma(load_bytes(format, codes + 32), v_all(x[i + 2]), sum[2]);
    sum[3] = v_fma(load_bytes(format, codes + 48), v_all(x[i + 3]), sum[3]);
  }
  return sum_of_four(sum);
}

// Sum over |octets| octets of codes of a table times x. The order is that of multiply_bytes().
INLINE v16 multiply_narrow(int32_t format, const uint8_t *codes, int octet, int octets, const float *x) {
  v16 sum[4] = {v_zero(), v_zero(), v_zero(), v_zero()};
  for (int i = octet; i < octet + octets; ++i, x += 8) {
    const codes_t even = load_narrow(format, codes, i, 0), odd = load_narrow(format, codes, i, 1);
    sum[0] = v_fma(narrow_column(format, even, 0), v_all(x[0]), sum[0]);
    sum[1] = v_fma(narrow_column(format, odd, 0), v_all(x[1]), sum[1]);
    sum[2] = v_fma(narrow_column(format, even, 1), v_all(x[2]), sum[2]);
    sum[3] = v_fma(narrow_column(format, odd, 1), v_all(x[3]), sum[3]);
    sum[0] = v_fma(narrow_column(format, even, 2), v_all(x[4]), sum[0]);
    sum[1] = v_fma(narrow_column(format, odd, 2), v_all(x[5]), sum[1]);
    sum[2] = v_fma(narrow_column(format, even, 3), v_all(x[6]), sum[2]);
    sum[3] = v_fma(narrow_column(format, odd, 3), v_all(x[7]), sum[3]);
  }
  return sum_of_four(sum);
}

// The same for codes without a table. |placed|: x of place_columns().
INLINE v16 multiply_placed(int32_t format, const uint8_t *codes, int octet, int octets, const float *placed) {
  v16 sum[4] = {v_zero(), v_zero(), v_zero(), v_zero()};
  for (int i = octet; i < octet + octets; ++i, placed += 8) {
    const codes_t even = load_placed(format, codes, i, 0), odd = load_placed(format, codes, i, 1);
    sum[0] = v_fma(placed_column(format, even, 0), v_all(placed[0]), sum[0]);
    sum[1] = v_fma(placed_column(format, odd, 0), v_all(placed[1]), sum[1]);
    sum[2] = v_fma(placed_column(format, even, 1), v_all(placed[2]), sum[2]);
    sum[3] = v_fma(placed_column(format, odd, 1), v_all(placed[3]), sum[3]);
    sum[0] = v_fma(placed_column(format, even, 2), v_all(placed[4]), sum[0]);
    sum[1] = v_fma(placed_column(format, odd, 2), v_all(placed[5]), sum[1]);
    sum[2] = v_fma(placed_column(format, even, 3), v_all(placed[6]), sum[2]);
    sum[3] = v_fma(placed_column(format, odd, 3), v_all(placed[7]), sum[3]);
  }
  return sum_of_four(sum);
}

// Sum over |count| columns of codes times x, starting at column |column| of a block.
INLINE v16 multiply_columns(int32_t format, const uint8_t *codes, int column, const float *x, int count) {
  if (is_q8(format)) return multiply_bytes(format, codes + 16 * column, x, count);
  return is_placed(format) ? multiply_placed(format, codes, column / 8, count / 8, x)
                           : multiply_narrow(format, codes, column / 8, count / 8, x);
}

// Every format but Q2_K, and but those that multiply_q4() looks up. |x|: of place_columns() if
// is_placed().
INLINE v16 multiply_other(int32_t format, const uint8_t *panel, const float *x, const float *sums,
                          int columns) {
  const int scales = scale_bytes(format), bytes = (int)mlx_panel_block_stride(format);
  v16 total = v_zero(), second = v_zero();
  for (int k = 0, nth = 0; k < columns; k += MLX_PANEL_BLOCK, x += MLX_PANEL_BLOCK, panel += bytes, ++nth) {
    if (nth % MLX_PANEL_GROUP == 0) panel += mlx_panel_group_bytes(format);
    prefetch_ahead(panel, bytes);
    const uint8_t *codes = panel + scales;
    if (has_two_scales(format)) {
      total = v_fma(load_scale(format, panel, nth), multiply_columns(format, codes, 0, x, 16), total);
      second =
          v_fma(load_second(format, panel, nth), multiply_columns(format, codes, 16, x + 16, 16), second);
    } else {
      total = v_fma(load_scale(format, panel, nth), multiply_columns(format, codes, 0, x, MLX_PANEL_BLOCK),
                    total);
    }
    if (has_offsets(format)) second = v_fma(load_second(format, panel, nth), v_all(sums[nth]), second);
  }
  return v_add(total, second);
}

// A vector register with 16 numbers looks a code up in one instruction, so codes of 4 bits are not placed.
INLINE bool has_lookup(int32_t format) { return V_LOOKS_UP && is_q4(format); }

// Every format but Q2_K. |placed|: x of place_columns().
INLINE v16 multiply_in_f32(int32_t format, const uint8_t *panel, const float *x, const float *placed,
                           const float *sums, int columns) {
  if (has_lookup(format)) return multiply_q4(format, panel, x, sums, columns);
  return multiply_other(format, panel, is_placed(format) ? placed : x, sums, columns);
}

#endif  // MLXCEL_KERNELS_CPU_PANEL_F32_H_
