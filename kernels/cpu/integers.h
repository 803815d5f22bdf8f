// A vector as panels of codes want it; and their product in integers, where the CPU multiplies bytes (AVX-512
// with VNNI and VBMI).
//
// There a block of 32 numbers becomes 32 integers of 30 bits and a power of two that they share. What that
// takes from a number is 2^-30 of the block's largest one, 64 times less than an f32 sum of them keeps:
// activations are not quantised, this is f32's own accuracy. An integer has four digits of a byte, each from
// -128 to 127. Codes times digits are summed exactly; the four sums of a block become f32 at its end, where
// they are scaled. One instruction multiplies four columns of 16 rows with a digit: four do what eight of f32
// did, and no code has to become a float first.
//
// Digits lie as the instruction takes them: of 8 columns, for each digit that of columns 0 2 4 6, then for
// each digit that of columns 5 7 1 3. So a word with 8 codes of 4 bits needs one mask, and one rotation by 20
// bits with one mask.
#ifndef MLXCEL_KERNELS_CPU_INTEGERS_H_
#define MLXCEL_KERNELS_CPU_INTEGERS_H_

#include "panels.h"

#define MOST_BLOCKS (MLX_CPU_MOST_COLUMNS / MLX_PANEL_BLOCK)

#if defined(__AVX512VNNI__) && defined(__AVX512VBMI__)
#define HAS_INTEGERS 1
#define DIGITS 4
typedef struct integers {
  int8_t digits[128];       // [4 times 8 columns][even, odd columns][digit][4]
  int32_t sums[2][DIGITS];  // of the first and the second 16 columns' digits
  float power;
  int32_t padding[7];
} integers_t;
#else
#define HAS_INTEGERS 0
#endif

typedef struct vector {
  const float *x;
  bool packed;  // there is more than x: it can be multiplied with packed panels
#if HAS_INTEGERS
  _Alignas(64) integers_t blocks[MOST_BLOCKS];
#endif
  float sums[MOST_BLOCKS];  // of each block
} vector_t;

#if HAS_INTEGERS

// The digits of 16 columns, in their order, and the sums of them.
INLINE void take_digits(v16 x, v16 up, int8_t *digits, int32_t *sums) {
  static const uint8_t order[64] = {0,  8,  16, 24, 1,  9,  17, 25, 2,  10, 18, 26, 3,  11, 19, 27,
                                    20, 28, 4,  12, 21, 29, 5,  13, 22, 30, 6,  14, 23, 31, 7,  15,
                                    32, 40, 48, 56, 33, 41, 49, 57, 34, 42, 50, 58, 35, 43, 51, 59,
                                    52, 60, 36, 44, 53, 61, 37, 45, 54, 62, 38, 46, 55, 63, 39, 47};
  const __m512i half = _mm512_set1_epi32(0x00808080);
  const __m512i whole = _mm512_cvtps_epi32(v_mul(x, up));
  const __m512i bytes = _mm512_xor_si512(_mm512_add_epi32(whole, half),
                                         half);  // what a digit has above 127 goes to the next one
  const __m512i placed = _mm512_permutexvar_epi8(_mm512_loadu_si512(order), bytes);
  _mm512_storeu_si512(digits, placed);
  const __m512i four = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), placed);
  const __m256i two = _mm256_add_epi32(_mm512_castsi512_si256(four), _mm512_extracti64x4_epi64(four, 1));
  _mm_storeu_si128((void *)sums,
                   _mm_add_epi32(_mm256_castsi256_si128(two), _mm256_extracti128_si256(two, 1)));
}

INLINE float float_of_bits(uint32_t bits) {
  return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128((int)bits)));
}

// The largest number of a block is at most 2^30 then; that of one with anything infinite in it, or no number,
// stays so.
static void take_integers(const float *x, integers_t *out) {
  const __m512i mask = _mm512_set1_epi32(0x7fffffff);
  const __m512i low = _mm512_and_si512(_mm512_loadu_si512(x), mask),
                high = _mm512_and_si512(_mm512_loadu_si512(x + 16), mask);
  const uint32_t largest = (uint32_t)_mm512_reduce_max_epi32(_mm512_max_epi32(low, high)) >> 23,
                 exponent = largest < 30 ? 30 : largest;
  const v16 up = v_all(float_of_bits((283 - exponent) << 23));
  take_digits(v_load(x), up, out->digits, out->sums[0]);
  take_digits(v_load(x + 16), up, out->digits + 64, out->sums[1]);
  out->power = float_of_bits(largest == 255 ? 0x7fc00000 : (exponent - 29) << 23);
}

INLINE __m512i dot(__m512i sum, __m512i codes, const int8_t *digits) {
  int32_t four;
  __builtin_memcpy(&four, digits, sizeof four);
  return _mm512_dpbusd_epi32(sum, codes, _mm512_set1_epi32(four));
}

// 8 columns' codes, as bytes without sign.
INLINE void take_bytes(int32_t format, const uint8_t *codes, __m512i *even, __m512i *odd) {
  if (is_q4(format)) {
    const __m512i words = _mm512_loadu_si512(codes), mask = _mm512_set1_epi8(15);
    *even = _mm512_and_si512(words, mask);
    *odd = _mm512_and_si512(_mm512_ror_epi32(words, 20), mask);
    return;
  }
#define ROW(r, a, b, c, d) (r) + 16 * (a), (r) + 16 * (b), (r) + 16 * (c), (r) + 16 * (d)
#define ROWS(a, b, c, d)                                                               \
  {ROW(0, a, b, c, d),  ROW(1, a, b, c, d),  ROW(2, a, b, c, d),  ROW(3, a, b, c, d),  \
   ROW(4, a, b, c, d),  ROW(5, a, b, c, d),  ROW(6, a, b, c, d),  ROW(7, a, b, c, d),  \
   ROW(8, a, b, c, d),  ROW(9, a, b, c, d),  ROW(10, a, b, c, d), ROW(11, a, b, c, d), \
   ROW(12, a, b, c, d), ROW(13, a, b, c, d), ROW(14, a, b, c, d), ROW(15, a, b, c, d)}
  static const uint8_t first_order[64] = ROWS(0, 2, 1, 3),
                       second_order[64] = ROWS(1, 3, 0, 2);  // of each row the even columns' half, then
#undef ROWS                                                  // the odd ones'; and the other way round
#undef ROW
  const __m512i signs = is_unsigned(format) ? _mm512_setzero_si512() : _mm512_set1_epi8((char)128);
  const __m512i first = _mm512_permutexvar_epi8(_mm512_loadu_si512(first_order), _mm512_loadu_si512(codes));
  const __m512i second =
      _mm512_permutexvar_epi8(_mm512_loadu_si512(second_order), _mm512_loadu_si512(codes + 64));
  *even = _mm512_xor_si512(_mm512_mask_blend_epi16(0xaaaaaaaa, first, second), signs);
  *odd = _mm512_xor_si512(_mm512_mask_blend_epi16(0xaaaaaaaa, second, first), signs);
}

// What the codes of |eights| times 8 columns, from column 16 * |half| on, give; without the block's power.
INLINE v16 multiply_integers(int32_t format, const uint8_t *codes, const integers_t *x, int half,
                             int eights) {
  const int bytes = is_q4(format) ? 64 : 128, above = format == MLX_PANEL_Q4_0 ? 8
                                                      : is_q4(format) || is_unsigned(format)
                                                          ? 0
                                                          : 128;  // codes have been raised by it
  const int8_t *digits = x->digits + 64 * half;
  __m512i sum[DIGITS];
  for (int i = 0; i < DIGITS; ++i)
    sum[i] = _mm512_set1_epi32(-above * (eights == 4 ? x->sums[0][i] + x->sums[1][i] : x->sums[half][i]));
  for (int i = 0; i < eights; ++i, codes += bytes, digits += 8 * DIGITS) {
    __m512i even, odd;
    take_bytes(format, codes, &even, &odd);
    for (int k = 0; k < DIGITS; ++k) sum[k] = dot(sum[k], even, digits + 4 * k);
    for (int k = 0; k < DIGITS; ++k) sum[k] = dot(sum[k], odd, digits + 4 * (DIGITS + k));
  }
  const __m512i low = _mm512_add_epi32(_mm512_slli_epi32(sum[1], 8), sum[0]),
                high = _mm512_add_epi32(_mm512_slli_epi32(sum[3], 8), sum[2]);
  return v_fma(_mm512_cvtepi32_ps(high), v_all(65536), _mm512_cvtepi32_ps(low));
}

INLINE v16 multiply_codes(int32_t format, const uint8_t *panel, const vector_t *x, int columns) {
  const int64_t bytes = mlx_panel_block_stride(format);
  v16 total = v_zero(), second = v_zero();
  for (int k = 0; k < columns / MLX_PANEL_BLOCK; ++k, panel += bytes) {
    if (k % MLX_PANEL_GROUP == 0) panel += mlx_panel_group_bytes(format);
    const integers_t *block = &x->blocks[k];
    const uint8_t *codes = panel + scale_bytes(format);
    const v16 power = v_all(block->power);
    ask_ahead(panel, (int)bytes);
    if (is_halves(format)) {
      total = v_fma(load_scale(format, panel, k), v_mul(multiply_integers(format, codes, block, 0, 2), power),
                    total);
      second = v_fma(load_second(format, panel, k),
                     v_mul(multiply_integers(format, codes + 256, block, 1, 2), power), second);
    } else {
      total = v_fma(load_scale(format, panel, k), v_mul(multiply_integers(format, codes, block, 0, 4), power),
                    total);
    }
    if (has_offsets(format)) second = v_fma(load_second(format, panel, k), v_all(x->sums[k]), second);
  }
  return v_add(total, second);
}

#else

INLINE v16 multiply_codes(int32_t format, const uint8_t *panel, const vector_t *x, int columns) {
  return is_q4(format) ? multiply_q4(format, panel, x->x, x->sums, columns)
                       : multiply_q8(format, panel, x->x, x->sums, columns);
}

#endif

// |columns| of |x|, which stays where it is; whole blocks if they are to be multiplied with |packed| panels.
static void take_vector(const float *x, int columns, bool packed, vector_t *out) {
  out->x = x;
  out->packed = packed;
  for (int k = 0; packed && k < columns / MLX_PANEL_BLOCK; ++k, x += MLX_PANEL_BLOCK) {
    out->sums[k] = v_sum(v_add(v_load(x), v_load(x + 16)));
#if HAS_INTEGERS
    take_integers(x, &out->blocks[k]);
#endif
  }
}

static v16 multiply_panel(int32_t format, const uint8_t *panel, const vector_t *x, int columns) {
  switch (format) {
    case MLX_PANEL_F32: return multiply_plain(MLX_PANEL_F32, panel, x->x, columns);
    case MLX_PANEL_F16: return multiply_plain(MLX_PANEL_F16, panel, x->x, columns);
    case MLX_PANEL_BF16: return multiply_plain(MLX_PANEL_BF16, panel, x->x, columns);
    case MLX_PANEL_Q4_0: return multiply_codes(MLX_PANEL_Q4_0, panel, x, columns);
    case MLX_PANEL_Q4_1: return multiply_codes(MLX_PANEL_Q4_1, panel, x, columns);
    case MLX_PANEL_Q4_WIDE: return multiply_codes(MLX_PANEL_Q4_WIDE, panel, x, columns);
    case MLX_PANEL_Q4_BF16: return multiply_codes(MLX_PANEL_Q4_BF16, panel, x, columns);
    case MLX_PANEL_Q4_K: return multiply_codes(MLX_PANEL_Q4_K, panel, x, columns);
    case MLX_PANEL_Q5_K: return multiply_codes(MLX_PANEL_Q5_K, panel, x, columns);
    case MLX_PANEL_Q6_K: return multiply_codes(MLX_PANEL_Q6_K, panel, x, columns);
    case MLX_PANEL_Q8_0: return multiply_codes(MLX_PANEL_Q8_0, panel, x, columns);
    case MLX_PANEL_Q8_1: return multiply_codes(MLX_PANEL_Q8_1, panel, x, columns);
    case MLX_PANEL_Q8_BF16: return multiply_codes(MLX_PANEL_Q8_BF16, panel, x, columns);
    case MLX_PANEL_Q8_WIDE: return multiply_codes(MLX_PANEL_Q8_WIDE, panel, x, columns);
    case MLX_PANEL_Q2_K: return multiply_q2_k(panel, x->x, columns);
    default: return multiply_codes(MLX_PANEL_Q8_HALVES, panel, x, columns);
  }
}

#endif  // MLXCEL_KERNELS_CPU_INTEGERS_H_
