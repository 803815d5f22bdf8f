// Panels times one activation vector: in integers if the CPU has them, else in f32.
#include "panel_by_vector.h"

#include "panel_f32.h"

// Q2_K: each half of a block has its own scale and offset.
v16 mlx_q2_k_times_vector(const uint8_t *panel, const float *x, int columns) {
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

#if HAS_INTEGERS

INLINE __m512i dot(__m512i sum, __m512i codes, const int8_t *digits) {
  int32_t four;
  __builtin_memcpy(&four, digits, sizeof four);
  return _mm512_dpbusd_epi32(sum, codes, _mm512_set1_epi32(four));
}

// Octet |octet| of codes of 4 to 6 bits, as unsigned bytes.
INLINE void load_narrow_bytes(int32_t format, const uint8_t *codes, int octet, __m512i *more, __m512i *even,
                              __m512i *odd) {
  const __m512i words = _mm512_loadu_si512(codes + 64 * octet), low = _mm512_set1_epi8(15),
                all = _mm512_set1_epi8((char)((1 << code_bits(format)) - 1));
  __m512i first = words, second = _mm512_ror_epi32(words, 20);
  if (code_bits(format) > 4) {
    const __m512i high = load_high_bits(format, codes, octet, more),
                  next = code_bits(format) == 5 ? _mm512_ror_epi32(high, 17) : _mm512_ror_epi32(high, 18);
    first = _mm512_ternarylogic_epi32(low, first, high, 0xca);  // low ? first : high
    second = _mm512_ternarylogic_epi32(low, second, next, 0xca);
  }
  *even = _mm512_and_si512(first, all);
  *odd = _mm512_and_si512(second, all);
  if (properties[format].values) {
    const __m128i signs = _mm_set1_epi8((char)128), table = _mm_loadu_si128((const void *)values_of(format));
    const __m512i values = _mm512_broadcast_i32x4(_mm_xor_si128(table, signs));
    *even = _mm512_shuffle_epi8(values, *even);
    *odd = _mm512_shuffle_epi8(values, *odd);
  }
}

// Octet |octet| of codes of 8 bits, as unsigned bytes.
INLINE void load_code_bytes(int32_t format, const uint8_t *codes, int octet, __m512i *even, __m512i *odd) {
  codes += 128 * octet;
#define ROW(r, a, b, c, d) (r) + 16 * (a), (r) + 16 * (b), (r) + 16 * (c), (r) + 16 * (d)
#define ROWS(a, b, c, d)                                                               \
  {ROW(0, a, b, c, d),  ROW(1, a, b, c, d),  ROW(2, a, b, c, d),  ROW(3, a, b, c, d),  \
   ROW(4, a, b, c, d),  ROW(5, a, b, c, d),  ROW(6, a, b, c, d),  ROW(7, a, b, c, d),  \
   ROW(8, a, b, c, d),  ROW(9, a, b, c, d),  ROW(10, a, b, c, d), ROW(11, a, b, c, d), \
   ROW(12, a, b, c, d), ROW(13, a, b, c, d), ROW(14, a, b, c, d), ROW(15, a, b, c, d)}
  static const uint8_t first_order[64] = ROWS(0, 2, 1, 3),  // per row: even columns, then odd columns
      second_order[64] = ROWS(1, 3, 0, 2);                  // per row: odd columns, then even columns
#undef ROWS
#undef ROW
  const __m512i signs = is_unsigned(format) ? _mm512_setzero_si512() : _mm512_set1_epi8((char)128);
  const __m512i first = _mm512_permutexvar_epi8(_mm512_loadu_si512(first_order), _mm512_loadu_si512(codes));
  const __m512i second =
      _mm512_permutexvar_epi8(_mm512_loadu_si512(second_order), _mm512_loadu_si512(codes + 64));
  *even = _mm512_xor_si512(_mm512_mask_blend_epi16(0xaaaaaaaa, first, second), signs);
  *odd = _mm512_xor_si512(_mm512_mask_blend_epi16(0xaaaaaaaa, second, first), signs);
}

// Value that was added to the codes to make them unsigned.
INLINE int code_bias(int32_t format) { return properties[format].values ? 128 : -properties[format].least; }

// The product of a block, from the sums of its digits. The caller multiplies it by the block's power.
INLINE v16 join_digits(const __m512i sum[DIGITS]) {
  const __m512i low = _mm512_add_epi32(_mm512_slli_epi32(sum[1], 8), sum[0]);
  return v_fma(_mm512_cvtepi32_ps(sum[2]), v_all(65536), _mm512_cvtepi32_ps(low));
}

// Product of |octets| octets of the codes of a block, starting at column 16 * |half|.
INLINE v16 multiply_integers(int32_t format, const uint8_t *codes, const int8_t *digits,
                             int32_t (*const sums)[4], int half, int octets) {
  const int bias = code_bias(format);
  __m512i sum[DIGITS];
  for (int i = 0; i < DIGITS; ++i)
    sum[i] = _mm512_set1_epi32(-bias * (octets == 4 ? sums[0][i] + sums[1][i] : sums[half][i]));
  digits += 16 * half;
  __m512i more = _mm512_setzero_si512(), even, odd;
  for (int i = 2 * half; i < 2 * half + octets; ++i, digits += 8) {
    if (is_q8(format))
      load_code_bytes(format, codes, i, &even, &odd);
    else
      load_narrow_bytes(format, codes, i, &more, &even, &odd);
    for (int k = 0; k < DIGITS; ++k) sum[k] = dot(sum[k], even, digits + MLX_PANEL_BLOCK * k);
    for (int k = 0; k < DIGITS; ++k) sum[k] = dot(sum[k], odd, digits + MLX_PANEL_BLOCK * k + 4);
  }
  return join_digits(sum);
}

INLINE v16 multiply_codes(int32_t format, const uint8_t *panel, vectors_t *x, int columns) {
  const int64_t bytes = mlx_panel_block_stride(format);
  v16 total = v_zero();
  for (int k = 0; k < columns / MLX_PANEL_BLOCK; ++k, panel += bytes) {
    if (k % MLX_PANEL_GROUP == 0) panel += mlx_panel_group_bytes(format);
    const uint8_t *codes = panel + scale_bytes(format);
    const int8_t *digits = x->one.digits[k];
    int32_t(*const sums)[4] = x->one.digit_sums[k];
    const v16 power = v_all(x->one.power[k]);
    prefetch_ahead(panel, (int)bytes);
    const v16 product = multiply_integers(format, codes, digits, sums, 0, has_two_scales(format) ? 2 : 4);
    total = v_fma(load_scale(format, panel, k), v_mul(product, power), total);
    if (has_two_scales(format)) {
      const v16 second = multiply_integers(format, codes, digits, sums, 1, 2);
      total = v_fma(load_second(format, panel, k), v_mul(second, power), total);
    }
    if (has_offsets(format)) total = v_fma(load_second(format, panel, k), v_all(x->sums[k]), total);
  }
  return total;
}

#else

INLINE v16 multiply_codes(int32_t format, const uint8_t *panel, vectors_t *x, int columns) {
  return multiply_in_f32(format, panel, x->x[0], x->placed, x->sums, columns);
}

#endif

v16 mlx_panel_times_vector(int32_t format, const uint8_t *panel, vectors_t *x, int columns) {
#define CASE(format) \
  case MLX_PANEL_##format: return multiply_codes(MLX_PANEL_##format, panel, x, columns);
  switch (format) {
    CODE_FORMATS(CASE)
    default: return mlx_q2_k_times_vector(panel, x->x[0], columns);
  }
#undef CASE
}

#define PLAIN_CASE(format)                                                                                  \
  case MLX_PANEL_##format:                                                                                  \
    count == PLAIN_PANELS ? multiply_plain(MLX_PANEL_##format, PLAIN_PANELS, panel, bytes, x, columns, out) \
                          : multiply_plain(MLX_PANEL_##format, 1, panel, bytes, x, columns, out);           \
    break
int mlx_plain_panels_times_vector(int32_t format, int count, const uint8_t *panel, int64_t bytes,
                                  const float *x, int columns, v16 *out) {
  count = count < PLAIN_PANELS ? 1 : PLAIN_PANELS;
  switch (format) {
    PLAIN_CASE(F32);
    PLAIN_CASE(F16);
    PLAIN_CASE(BF16);
    default: break;
  }
  return count;
}
#undef PLAIN_CASE
