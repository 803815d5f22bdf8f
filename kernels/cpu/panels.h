// Operations on panels of 16 rows, for every format of layout.h: panel times vector in f32, conversion to
// f32, and one row of a matrix as f32.
#ifndef MLXCEL_KERNELS_CPU_PANELS_H_
#define MLXCEL_KERNELS_CPU_PANELS_H_

#include <stdbool.h>

#include "layout.h"
#include "vector.h"

// ----------------------------------------------------------------------------------------------------------
// Panel times vector

INLINE v16 load_column(int32_t format, const uint8_t *panel, int column) {
  if (format == MLX_PANEL_F32) return v_load((const float *)(const void *)panel + (int64_t)column * 16);
  if (format == MLX_PANEL_F16) return v_load_f16(panel + (int64_t)column * 32);
  const uint8_t *pair = panel + (int64_t)(column / 2) * 64;
  return column % 2 ? v_load_second(pair) : v_load_first(pair);
}

// Prefetches |bytes| bytes to the L2 cache: more lines can be on their way there than to the L1 cache.
// prefetch_ahead starts AHEAD bytes after |at|: hardware prefetching stops at each 4 KB page.
#define AHEAD 8192
INLINE void prefetch(const uint8_t *at, int bytes) {
  for (int i = 0; i < bytes; i += 64) __builtin_prefetch(at + i, 0, 2);
}
INLINE void prefetch_ahead(const uint8_t *at, int bytes) { prefetch(at + AHEAD, bytes); }

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

// A row of MLX_PANEL_TABLE.
typedef enum number { NUMBER_F32, NUMBER_F16, NUMBER_BF16, NUMBER_U8 } number_t;
typedef struct properties {
  uint8_t number, scales, offsets, bits;
  int16_t least;
  uint8_t values, grouped;
} properties_t;
static const properties_t properties[MLX_PANEL_FORMATS] = {
#define ROW(format, number, scales, offsets, bits, least, values, grouped, text) \
  [MLX_PANEL_##format] = {NUMBER_##number, scales, offsets, bits, least, MLX_PANEL_VALUES_##values, grouped},
    MLX_PANEL_TABLE(ROW)
#undef ROW
};

// Properties of a format. |format| is a compile-time constant in most callers, so these fold to constants.
INLINE bool is_quantized(int32_t format) { return properties[format].bits; }
INLINE bool has_super_blocks(int32_t format) { return properties[format].grouped; }
INLINE bool has_two_scales(int32_t format) { return properties[format].scales == 2; }
// One offset per block, and unsigned codes.
INLINE bool has_offsets(int32_t format) { return properties[format].offsets == 1; }
INLINE bool has_f32_scales(int32_t format) { return properties[format].number == NUMBER_F32; }
INLINE bool has_bf16_scales(int32_t format) { return properties[format].number == NUMBER_BF16; }
INLINE int code_bits(int32_t format) { return properties[format].bits; }
// 4-bit codes that are their own values, with one scale per block, or Q2_K: codes_table() has their values.
INLINE bool is_q4(int32_t format) {
  return code_bits(format) == 4 && !properties[format].values && format != MLX_PANEL_Q3_K;
}
INLINE bool is_q8(int32_t format) { return code_bits(format) == 8; }
// The table of the values of the 16 codes of a format that has one.
INLINE const int8_t *values_of(int32_t format) {
  static const int8_t values[][16] = {[MLX_PANEL_VALUES_IQ4] = {MLX_PANEL_IQ4},
                                      [MLX_PANEL_VALUES_MXFP4] = {MLX_PANEL_MXFP4_DOUBLED}};
  return values[properties[format].values];
}
// Bytes of the scales and offsets of a block; the codes follow.
INLINE int scale_bytes(int32_t format) {
  return (int)mlx_panel_block_stride(format) - 64 * code_bits(format);
}
// 16 powers of two, from their exponents. Two factors keep the argument of v_power2() in its range.
INLINE v16 powers_of_two(const uint8_t *exponents) {
  const v16 power = v_sub(v_load_u8(exponents), v_all(MLX_PANEL_POWER_BIAS)),
            part = v_max(v_min(power, v_all(63)), v_all(-64));
  return v_mul(v_power2(part), v_power2(v_sub(power, part)));
}

// Scale or offset number |which| of block |nth| at |block|. Order: the scale, then the offset; with two
// scales per block, both scales, then both offsets. In a super-block the factor is multiplied by the block's
// bytes.
INLINE v16 load_scale_or_offset(int32_t format, const uint8_t *block, int nth, int which) {
  if (has_super_blocks(format)) {
    const uint8_t *group =
        block - nth % MLX_PANEL_GROUP * mlx_panel_block_stride(format) - mlx_panel_group_bytes(format);
    const bool offset = which >= (has_two_scales(format) ? 2 : 1);
    const v16 factors =
        properties[format].offsets ? v_load_u8(block + 16 * which) : v_load_i8(block + 16 * which);
    return v_mul(v_load_f16(group + (offset ? 32 : 0)), factors);
  }
  if (has_f32_scales(format)) return v_load((const float *)(const void *)(block + 64 * which));
  if (properties[format].number == NUMBER_U8) return powers_of_two(block);
  return has_bf16_scales(format) ? v_load_bf16(block + 32 * which) : v_load_f16(block + 32 * which);
}
INLINE v16 load_scale(int32_t format, const uint8_t *block, int nth) {
  return load_scale_or_offset(format, block, nth, 0);
}
INLINE v16 load_second(int32_t format, const uint8_t *block, int nth) {
  return load_scale_or_offset(format, block, nth, 1);
}
INLINE bool is_unsigned(int32_t format) { return has_offsets(format); }
INLINE v16 load_bytes(int32_t format, const uint8_t *codes) {
  return is_unsigned(format) ? v_load_u8(codes) : v_load_i8(codes);
}
INLINE table_t codes_table(int32_t format) { return table_from(format == MLX_PANEL_Q4_0 ? -8 : 0); }

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

// Q2_K: each half of a block has its own scale and offset.
static v16 multiply_q2_k(const uint8_t *panel, const float *x, int columns) {
  const int32_t format = MLX_PANEL_Q2_K;
  const int scales = scale_bytes(format);
  const table_t table = codes_table(format);
  v16 total = v_zero(), offset = v_zero();
  for (int k = 0, nth = 0; k < columns; k += MLX_PANEL_BLOCK, panel += scales + 256, ++nth) {
    if (nth % MLX_PANEL_GROUP == 0) panel += mlx_panel_group_bytes(format);
    prefetch_ahead(panel, scales + 256);
    for (int half = 0; half < 2; ++half, x += 16) {
      v16 sum[4] = {v_zero(), v_zero(), v_zero(), v_zero()};
      for (int i = 0; i < 2; ++i) {
        const codes_t codes = codes_load(panel + scales + 128 * half + 64 * i);
        sum[0] = v_fma(CODES_COLUMN(table, codes, 0), v_all(x[8 * i]), sum[0]);
        sum[1] = v_fma(CODES_COLUMN(table, codes, 1), v_all(x[8 * i + 1]), sum[1]);
        sum[2] = v_fma(CODES_COLUMN(table, codes, 2), v_all(x[8 * i + 2]), sum[2]);
        sum[3] = v_fma(CODES_COLUMN(table, codes, 3), v_all(x[8 * i + 3]), sum[3]);
        sum[0] = v_fma(CODES_COLUMN(table, codes, 4), v_all(x[8 * i + 4]), sum[0]);
        sum[1] = v_fma(CODES_COLUMN(table, codes, 5), v_all(x[8 * i + 5]), sum[1]);
        sum[2] = v_fma(CODES_COLUMN(table, codes, 6), v_all(x[8 * i + 6]), sum[2]);
        sum[3] = v_fma(CODES_COLUMN(table, codes, 7), v_all(x[8 * i + 7]), sum[3]);
      }
      total = v_fma(load_scale_or_offset(format, panel, nth, half), sum_of_four(sum), total);
      offset = v_fma(load_scale_or_offset(format, panel, nth, 2 + half), v_all(v_sum(v_load(x))), offset);
    }
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

// Four columns of octet |octet| of codes of 4 to 6 bits, as bytes: columns 0 2 4 6, or columns 1 3 5 7. The
// low 4 bits of all codes come first, then the other bits: vectors of 16 words, with the bits of four or two
// octets (layout.h).
INLINE codes_t load_narrow(int32_t format, const uint8_t *codes, int octet, int odd) {
  const int more = code_bits(format) - 4;
  const codes_t low = codes_field(codes_load(codes + 64 * octet), 4 * odd, 0x0f0f0f0f);
  if (properties[format].values) return codes_lookup(low, values_of(format));
  if (!more) return low;
  const int octets = 4 / more, at = (octet % octets * 2 + odd) * more;
  const codes_t high = codes_load(codes + 256 + 64 * (octet / octets));
  return codes_or(low, codes_field(high, at - 4, more == 1 ? 0x10101010 : 0x30303030));
}
INLINE v16 narrow_column(int32_t format, codes_t codes, int nth) {
  const v16 code = codes_byte(codes, nth);
  return properties[format].least ? v_add(code, v_all(properties[format].least)) : code;
}

// Sum over |octets| octets of such codes times x. The order is that of multiply_bytes().
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

// Sum over |count| columns of codes times x, starting at column |column| of a block.
INLINE v16 multiply_columns(int32_t format, const uint8_t *codes, int column, const float *x, int count) {
  return is_q8(format) ? multiply_bytes(format, codes + 16 * column, x, count)
                       : multiply_narrow(format, codes, column / 8, count / 8, x);
}

// Formats other than those of multiply_q4() and multiply_q2_k().
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
      second = v_fma(load_second(format, panel, nth), multiply_columns(format, codes, 16, x + 16, 16), second);
    } else {
      total =
          v_fma(load_scale(format, panel, nth), multiply_columns(format, codes, 0, x, MLX_PANEL_BLOCK), total);
    }
    if (has_offsets(format)) second = v_fma(load_second(format, panel, nth), v_all(sums[nth]), second);
  }
  return v_add(total, second);
}

// ----------------------------------------------------------------------------------------------------------
// Conversion to f32: columns [from, from + count) to out[column * step][16]; |from| is a multiple of the
// block

// The product is rounded before the sum, as the reference dequantizers do. With scales in f32 a fused
// multiply-add would give other values.
INLINE v16 scale_codes(v16 codes, v16 scale, v16 offset) { return v_add(v_mul(codes, scale), offset); }

INLINE void dequantize_q4(int32_t format, const uint8_t *block, int nth, float *out, int64_t step) {
  const table_t table = codes_table(format);
  v16 scale = load_scale(format, block, nth),
      offset = has_offsets(format) ? load_second(format, block, nth) : v_zero();
  if (has_two_scales(format)) offset = load_scale_or_offset(format, block, nth, 2);
  for (int i = 0; i < 4; ++i, out += 8 * step) {
    const codes_t codes = codes_load(block + scale_bytes(format) + 64 * i);
    if (has_two_scales(format) && i == 2) {
      scale = load_scale_or_offset(format, block, nth, 1);
      offset = load_scale_or_offset(format, block, nth, 3);
    }
    v_store(out, scale_codes(CODES_COLUMN(table, codes, 0), scale, offset));
    v_store(out + step, scale_codes(CODES_COLUMN(table, codes, 1), scale, offset));
    v_store(out + 2 * step, scale_codes(CODES_COLUMN(table, codes, 2), scale, offset));
    v_store(out + 3 * step, scale_codes(CODES_COLUMN(table, codes, 3), scale, offset));
    v_store(out + 4 * step, scale_codes(CODES_COLUMN(table, codes, 4), scale, offset));
    v_store(out + 5 * step, scale_codes(CODES_COLUMN(table, codes, 5), scale, offset));
    v_store(out + 6 * step, scale_codes(CODES_COLUMN(table, codes, 6), scale, offset));
    v_store(out + 7 * step, scale_codes(CODES_COLUMN(table, codes, 7), scale, offset));
  }
}

// Formats other than those of dequantize_q4().
INLINE void dequantize_other(int32_t format, const uint8_t *block, int nth, float *out, int64_t step) {
  const uint8_t *codes = block + scale_bytes(format);
  const v16 first = load_scale(format, block, nth),
            second = has_two_scales(format) ? load_second(format, block, nth) : first;
  const v16 offset = has_offsets(format) ? load_second(format, block, nth) : v_zero();
  for (int i = 0; is_q8(format) && i < MLX_PANEL_BLOCK; ++i)
    v_store(out + i * step, scale_codes(load_bytes(format, codes + 16 * i), i < 16 ? first : second, offset));
  for (int i = 0; !is_q8(format) && i < 8; ++i) {
    const codes_t four = load_narrow(format, codes, i / 2, i % 2);
    const v16 scale = i < 4 ? first : second;
    float *to = out + (8 * (i / 2) + i % 2) * step;
    v_store(to, scale_codes(narrow_column(format, four, 0), scale, offset));
    v_store(to + 2 * step, scale_codes(narrow_column(format, four, 1), scale, offset));
    v_store(to + 4 * step, scale_codes(narrow_column(format, four, 2), scale, offset));
    v_store(to + 6 * step, scale_codes(narrow_column(format, four, 3), scale, offset));
  }
}

static void dequantize_panel(int32_t format, const uint8_t *panel, int from, int count, float *out,
                             int64_t step) {
  if (format == MLX_PANEL_BF16) {  // |from| is even
    for (int k = 0; k < count; k += 2) {
      v_store(out + k * step, load_column(MLX_PANEL_BF16, panel, from + k));
      if (k + 1 < count) v_store(out + (k + 1) * step, load_column(MLX_PANEL_BF16, panel, from + k + 1));
    }
    return;
  }
  if (format <= MLX_PANEL_F16) {
    for (int k = 0; k < count; ++k) v_store(out + k * step, load_column(format, panel, from + k));
    return;
  }
  for (int k = 0; k < count; k += MLX_PANEL_BLOCK, out += MLX_PANEL_BLOCK * step) {
    const int nth = (from + k) / MLX_PANEL_BLOCK;
    const uint8_t *block = panel + mlx_panel_block_at(format, nth);
    switch (format) {
      case MLX_PANEL_Q4_0: dequantize_q4(MLX_PANEL_Q4_0, block, nth, out, step); break;
      case MLX_PANEL_Q4_1: dequantize_q4(MLX_PANEL_Q4_1, block, nth, out, step); break;
      case MLX_PANEL_Q4_WIDE: dequantize_q4(MLX_PANEL_Q4_WIDE, block, nth, out, step); break;
      case MLX_PANEL_Q4_BF16: dequantize_q4(MLX_PANEL_Q4_BF16, block, nth, out, step); break;
      case MLX_PANEL_Q4_K: dequantize_q4(MLX_PANEL_Q4_K, block, nth, out, step); break;
      case MLX_PANEL_Q2_K: dequantize_q4(MLX_PANEL_Q2_K, block, nth, out, step); break;
      case MLX_PANEL_Q5_0: dequantize_other(MLX_PANEL_Q5_0, block, nth, out, step); break;
      case MLX_PANEL_Q5_1: dequantize_other(MLX_PANEL_Q5_1, block, nth, out, step); break;
      case MLX_PANEL_Q8_0: dequantize_other(MLX_PANEL_Q8_0, block, nth, out, step); break;
      case MLX_PANEL_Q8_1: dequantize_other(MLX_PANEL_Q8_1, block, nth, out, step); break;
      case MLX_PANEL_Q8_BF16: dequantize_other(MLX_PANEL_Q8_BF16, block, nth, out, step); break;
      case MLX_PANEL_Q8_WIDE: dequantize_other(MLX_PANEL_Q8_WIDE, block, nth, out, step); break;
      case MLX_PANEL_IQ4_NL: dequantize_other(MLX_PANEL_IQ4_NL, block, nth, out, step); break;
      case MLX_PANEL_MXFP4: dequantize_other(MLX_PANEL_MXFP4, block, nth, out, step); break;
      case MLX_PANEL_Q5_K: dequantize_other(MLX_PANEL_Q5_K, block, nth, out, step); break;
      case MLX_PANEL_Q6_K: dequantize_other(MLX_PANEL_Q6_K, block, nth, out, step); break;
      case MLX_PANEL_Q3_K: dequantize_other(MLX_PANEL_Q3_K, block, nth, out, step); break;
      case MLX_PANEL_IQ4_XS: dequantize_other(MLX_PANEL_IQ4_XS, block, nth, out, step); break;
      default: dequantize_other(MLX_PANEL_Q8_HALVES, block, nth, out, step); break;
    }
  }
}

// Row |row| of a matrix, as f32.
static void dequantize_row(int32_t format, const uint8_t *matrix, int row, int columns, float *out) {
  const uint8_t *panel = matrix + row / MLX_PANEL_ROWS * mlx_panel_bytes(format, columns);
  float wide[MLX_PANEL_BLOCK][16];
  for (int k = 0; k < columns; k += MLX_PANEL_BLOCK) {
    const int count = columns - k < MLX_PANEL_BLOCK ? columns - k : MLX_PANEL_BLOCK;
    dequantize_panel(format, panel, k, count, wide[0], 16);
    for (int i = 0; i < count; ++i) out[k + i] = wide[i][row % MLX_PANEL_ROWS];
  }
}

// ----------------------------------------------------------------------------------------------------------
// Several f32 panels times several vectors: as many sums as fit in registers

#if defined(__AVX512F__)
#define TILE_PANELS 4
#define TILE_TOKENS 6
#elif defined(__AVX2__) || defined(__aarch64__)
#define TILE_PANELS 2
#define TILE_TOKENS 3
#else
#define TILE_PANELS 2
#define TILE_TOKENS 1
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
