// Panels of 16 rows, for every format of layout.h: the properties of a format, and loading columns, codes,
// scales and offsets of a block.
#ifndef MLXCEL_KERNELS_CPU_PANEL_CODES_H_
#define MLXCEL_KERNELS_CPU_PANEL_CODES_H_

#include <stdbool.h>

#include "layout.h"
#include "vector.h"

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

// A row of MLX_PANEL_TABLE.
typedef enum number { NUMBER_F32, NUMBER_F16, NUMBER_BF16, NUMBER_U8 } number_t;
typedef struct properties {
  uint8_t number, scales, offsets, bits;
  int16_t least;
  uint8_t values, grouped;
} properties_t;
#define ROW(format, number, scales, offsets, bits, least, values, grouped, text) \
  {NUMBER_##number, scales, offsets, bits, least, MLX_PANEL_VALUES_##values, grouped},
static const properties_t properties[MLX_PANEL_FORMATS] = {MLX_PANEL_TABLE(ROW)};  // in the table's order
#undef ROW

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
  static const int8_t values[][16] = {
      [MLX_PANEL_VALUES_IQ4] = {MLX_PANEL_IQ4}, [MLX_PANEL_VALUES_MXFP4] = {MLX_PANEL_MXFP4_DOUBLED}};
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

// Codes of 4 to 6 bits without a table of values can be multiplied without a shift: as numbers of the octet
// times 2^(8 (column / 2)), with vectors that are divided by that power (place_columns()). Both are exact, so
// the products are. Words of load_placed() have the columns of load_narrow(), and undefined bits around codes
// of 4 bits.
INLINE bool is_placed(int32_t format) { return code_bits(format) < 8 && !properties[format].values; }
INLINE codes_t load_placed(int32_t format, const uint8_t *codes, int octet, int odd) {
  if (code_bits(format) > 4) return load_narrow(format, codes, octet, odd);
  return codes_field(codes_load(codes + 64 * octet), 4 * odd, UINT32_MAX);
}
INLINE v16 placed_column(int32_t format, codes_t codes, int nth) {
  return codes_placed(codes, nth, (1 << code_bits(format)) - 1, properties[format].least);
}
// The power of two that divides column |column| of an octet.
INLINE float placed_factor(int column) {
  static const float factors[] = {1, 0x1p-8f, 0x1p-16f, 0x1p-24f};
  return factors[column / 2];
}
// |columns| columns of a vector, a multiple of 16. Exact for numbers from 2^-102 on.
INLINE void place_columns(const float *x, int columns, float *out) {
  float factors[16];
  for (int i = 0; i < 16; ++i) factors[i] = placed_factor(i % 8);
  for (int k = 0; k < columns; k += 16) v_store(out + k, v_mul(v_load(x + k), v_load(factors)));
}

#if HAS_INTEGERS
// The bits above the low four of each code, for octet |octet|: in bits 4 and up of each byte, for the columns
// 0 2 4 6. Rotated to the right by the number of these bits: for the columns 1 3 5 7. Other bits are
// undefined. |more| keeps the words from one octet to the next one.
INLINE __m512i load_high_bits(int32_t format, const uint8_t *codes, int octet, __m512i *more) {
  const int octets = code_bits(format) == 5 ? 4 : 2;
  if (octet % octets == 0) {
    *more = _mm512_rol_epi32(_mm512_loadu_si512(codes + 256 + 64 * (octet / octets)), 4);
  } else {
    *more = octets == 4 ? _mm512_ror_epi32(*more, 2) : _mm512_ror_epi32(*more, 4);
  }
  return *more;
}
#endif

// Every quantized format but Q2_K, which all CPUs multiply in f32, vector by vector.
#define CODE_FORMATS(X) \
  X(Q4_0)               \
  X(Q4_1)               \
  X(Q4_WIDE)            \
  X(Q4_BF16)            \
  X(Q4_K)               \
  X(Q5_0)               \
  X(Q5_1)               \
  X(Q5_K)               \
  X(Q6_K)               \
  X(Q8_0)               \
  X(Q8_1)               \
  X(Q8_BF16)            \
  X(Q8_WIDE)            \
  X(Q8_HALVES)          \
  X(IQ4_NL)             \
  X(IQ4_XS)             \
  X(MXFP4)              \
  X(Q3_K)

#endif  // MLXCEL_KERNELS_CPU_PANEL_CODES_H_
