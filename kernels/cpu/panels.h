// Panels of 16 rows, in every format that network.h describes: times a vector, widened, or one row of them.
#ifndef MLXCEL_KERNELS_CPU_PANELS_H_
#define MLXCEL_KERNELS_CPU_PANELS_H_

#include <stdbool.h>

#include "network.h"
#include "vector.h"

// ---------------------------------------------------------------------------------------------------------------------
// A panel times a vector. Four sums side by side: one would wait for itself.

INLINE v16 load_column(int32_t format, const uint8_t *panel, int column) {
  if (format == MLX_PANEL_F32) return v_load((const float *)(const void *)panel + (int64_t)column * 16);
  if (format == MLX_PANEL_F16) return v_load_f16(panel + (int64_t)column * 32);
  return v_load_bf16(panel + (int64_t)column * 32);
}

// Asks for what comes AHEAD of |bytes| at |at|: the processor's own prefetching stops at every page of 4 KB.
#define AHEAD 4096
INLINE void ask_ahead(const uint8_t *at, int bytes) {
  for (int i = 0; i < bytes; i += 64) _mm_prefetch((const char *)at + AHEAD + i, _MM_HINT_T0);
}

INLINE v16 multiply_plain(int32_t format, const uint8_t *panel, const float *x, int columns) {
  const int bytes = format == MLX_PANEL_F32 ? 64 : 32;
  v16 sum[4] = {v_zero(), v_zero(), v_zero(), v_zero()};
  int k = 0;
  for (; k + 4 <= columns; k += 4) {
    ask_ahead(panel + (int64_t)k * bytes, 4 * bytes);
    for (int i = 0; i < 4; ++i) sum[i] = v_fma(load_column(format, panel, k + i), v_all(x[k + i]), sum[i]);
  }
  for (; k < columns; ++k) sum[0] = v_fma(load_column(format, panel, k), v_all(x[k]), sum[0]);
  return v_add(v_add(sum[0], sum[1]), v_add(sum[2], sum[3]));
}

// A block's codes are multiplied as they are, and scaled together: d * sum(q x) + m * sum(x).
INLINE v16 multiply_q4(int32_t format, const uint8_t *panel, const float *x, const float *sums, int columns) {
  const int scales = format == MLX_PANEL_Q4_1 ? 64 : 32;
  const table_t table = table_from(format == MLX_PANEL_Q4_1 ? 0 : -8);
  v16 total = v_zero(), offset = v_zero();
  for (int k = 0; k < columns; k += MLX_PANEL_BLOCK, x += MLX_PANEL_BLOCK, panel += scales + 256) {
    v16 sum[4] = {v_zero(), v_zero(), v_zero(), v_zero()};
    ask_ahead(panel, scales + 256);
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
    total = v_fma(v_load_f16(panel), v_add(v_add(sum[0], sum[1]), v_add(sum[2], sum[3])), total);
    if (format == MLX_PANEL_Q4_1) offset = v_fma(v_load_f16(panel + 32), v_all(sums[k / MLX_PANEL_BLOCK]), offset);
  }
  return v_add(total, offset);
}

INLINE v16 multiply_q8(const uint8_t *panel, const float *x, int columns) {
  v16 total = v_zero();
  for (int k = 0; k < columns; k += MLX_PANEL_BLOCK, x += MLX_PANEL_BLOCK, panel += 544) {
    v16 sum[4] = {v_zero(), v_zero(), v_zero(), v_zero()};
    ask_ahead(panel, 544);
    for (int i = 0; i < MLX_PANEL_BLOCK; i += 4) {
      const uint8_t *codes = panel + 32 + 16 * i;
      sum[0] = v_fma(v_load_i8(codes), v_all(x[i]), sum[0]);
      sum[1] = v_fma(v_load_i8(codes + 16), v_all(x[i + 1]), sum[1]);
      sum[2] = v_fma(v_load_i8(codes + 32), v_all(x[i + 2]), sum[2]);
      sum[3] = v_fma(v_load_i8(codes + 48), v_all(x[i + 3]), sum[3]);
    }
    total = v_fma(v_load_f16(panel), v_add(v_add(sum[0], sum[1]), v_add(sum[2], sum[3])), total);
  }
  return total;
}

// |sums|: of each block of 32 of x. Only for the formats that want_sums.
INLINE bool wants_sums(int32_t format) { return format == MLX_PANEL_Q4_1; }

static v16 multiply_panel(int32_t format, const uint8_t *panel, const float *x, const float *sums, int columns) {
  switch (format) {
    case MLX_PANEL_F32: return multiply_plain(MLX_PANEL_F32, panel, x, columns);
    case MLX_PANEL_F16: return multiply_plain(MLX_PANEL_F16, panel, x, columns);
    case MLX_PANEL_BF16: return multiply_plain(MLX_PANEL_BF16, panel, x, columns);
    case MLX_PANEL_Q4_0: return multiply_q4(MLX_PANEL_Q4_0, panel, x, sums, columns);
    case MLX_PANEL_Q4_1: return multiply_q4(MLX_PANEL_Q4_1, panel, x, sums, columns);
    default: return multiply_q8(panel, x, columns);
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// A panel as f32: columns [from, from + count) to out[column * step][16]; |from| is a multiple of the block

INLINE void widen_q4(int32_t format, const uint8_t *block, float *out, int64_t step) {
  const int scales = format == MLX_PANEL_Q4_1 ? 64 : 32;
  const table_t table = table_from(format == MLX_PANEL_Q4_1 ? 0 : -8);
  const v16 scale = v_load_f16(block), offset = format == MLX_PANEL_Q4_1 ? v_load_f16(block + 32) : v_zero();
  for (int i = 0; i < 4; ++i, out += 8 * step) {
    const codes_t codes = codes_load(block + scales + 64 * i);
    v_store(out, v_fma(CODES_COLUMN(table, codes, 0), scale, offset));
    v_store(out + step, v_fma(CODES_COLUMN(table, codes, 1), scale, offset));
    v_store(out + 2 * step, v_fma(CODES_COLUMN(table, codes, 2), scale, offset));
    v_store(out + 3 * step, v_fma(CODES_COLUMN(table, codes, 3), scale, offset));
    v_store(out + 4 * step, v_fma(CODES_COLUMN(table, codes, 4), scale, offset));
    v_store(out + 5 * step, v_fma(CODES_COLUMN(table, codes, 5), scale, offset));
    v_store(out + 6 * step, v_fma(CODES_COLUMN(table, codes, 6), scale, offset));
    v_store(out + 7 * step, v_fma(CODES_COLUMN(table, codes, 7), scale, offset));
  }
}

static void widen_panel(int32_t format, const uint8_t *panel, int from, int count, float *out, int64_t step) {
  if (format <= MLX_PANEL_BF16) {
    for (int k = 0; k < count; ++k) v_store(out + k * step, load_column(format, panel, from + k));
    return;
  }
  const int64_t bytes = mlx_panel_block_bytes(format);
  const uint8_t *block = panel + from / MLX_PANEL_BLOCK * bytes;
  for (int k = 0; k < count; k += MLX_PANEL_BLOCK, block += bytes, out += MLX_PANEL_BLOCK * step) {
    if (format == MLX_PANEL_Q4_0) widen_q4(MLX_PANEL_Q4_0, block, out, step);
    if (format == MLX_PANEL_Q4_1) widen_q4(MLX_PANEL_Q4_1, block, out, step);
    for (int i = 0; format == MLX_PANEL_Q8_0 && i < MLX_PANEL_BLOCK; ++i) {
      v_store(out + i * step, v_mul(v_load_i8(block + 32 + 16 * i), v_load_f16(block)));
    }
  }
}

// Row |row| of a matrix, as f32.
static void widen_row(int32_t format, const uint8_t *matrix, int row, int columns, float *out) {
  const uint8_t *panel = matrix + row / MLX_PANEL_ROWS * mlx_panel_bytes(format, columns);
  float wide[MLX_PANEL_BLOCK][16];
  for (int k = 0; k < columns; k += MLX_PANEL_BLOCK) {
    const int count = columns - k < MLX_PANEL_BLOCK ? columns - k : MLX_PANEL_BLOCK;
    widen_panel(format, panel, k, count, wide[0], 16);
    for (int i = 0; i < count; ++i) out[k + i] = wide[i][row % MLX_PANEL_ROWS];
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Several panels, widened, times several vectors: as many sums as there are registers for

#if defined(__AVX512F__)
#define TILE_PANELS 4
#define TILE_TOKENS 6
#else
#define TILE_PANELS 2
#define TILE_TOKENS 3
#endif
#define TILE_ROWS (TILE_PANELS * MLX_PANEL_ROWS)

// sums [TILE_TOKENS][TILE_ROWS] += wide [columns][TILE_ROWS] times x[token][column]
INLINE void multiply_tile(const float *wide, const float *const x[TILE_TOKENS], int columns, float *sums) {
  v16 sum[TILE_TOKENS][TILE_PANELS];
  for (int t = 0; t < TILE_TOKENS; ++t) {
    for (int p = 0; p < TILE_PANELS; ++p) sum[t][p] = v_load(sums + t * TILE_ROWS + 16 * p);
  }
  for (int k = 0; k < columns; ++k, wide += TILE_ROWS) {
    v16 w[TILE_PANELS];
    for (int p = 0; p < TILE_PANELS; ++p) w[p] = v_load(wide + 16 * p);
    for (int t = 0; t < TILE_TOKENS; ++t) {
      const v16 each = v_all(x[t][k]);
      for (int p = 0; p < TILE_PANELS; ++p) sum[t][p] = v_fma(w[p], each, sum[t][p]);
    }
  }
  for (int t = 0; t < TILE_TOKENS; ++t) {
    for (int p = 0; p < TILE_PANELS; ++p) v_store(sums + t * TILE_ROWS + 16 * p, sum[t][p]);
  }
}

#endif  // MLXCEL_KERNELS_CPU_PANELS_H_
