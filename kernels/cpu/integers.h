// One activation vector, prepared for multiplication with quantized panels, and that product. CPUs with
// AVX-512 VNNI and VBMI multiply in integers; other CPUs multiply in f32 (panels.h).
//
// Integer path: a block of 32 activations becomes 32 integers of 30 bits that share a power of two. The
// rounding error is 2^-30 of the block's largest value, 64 times less than the error of an f32 sum. So this
// is not activation quantization: the accuracy is that of f32. An integer has four digits of a byte, each
// from -128 to 127. Products of codes and digits are summed exactly. At the end of a block the four sums
// become f32 and are scaled. One VNNI instruction multiplies four columns of 16 rows with a digit. Four of
// them replace eight f32 instructions, and no code has to be converted to float first.
//
// Digits are stored in the order in which the instruction needs them. For 8 columns: each digit of columns
// 0 2 4 6, then each digit of columns 5 7 1 3. So a u32 with 8 codes of 4 bits needs one mask for the first
// four, and a rotation by 20 bits and a mask for the others.
#ifndef MLXCEL_KERNELS_CPU_INTEGERS_H_
#define MLXCEL_KERNELS_CPU_INTEGERS_H_

#include "panels.h"

#define MAX_BLOCKS (MLX_CPU_MAX_COLUMNS / MLX_PANEL_BLOCK)

#if defined(__AVX512VNNI__) && defined(__AVX512VBMI__)
#define HAS_INTEGERS 1
#define DIGITS 4
typedef struct integers {
  int8_t digits[128];       // [4 groups of 8 columns][even, odd columns][digit][4]
  int32_t sums[2][DIGITS];  // per digit: the sum over columns 0-15, and over columns 16-31
  float power;              // power of two that scales the integers back to activations
  int32_t padding[7];
} integers_t;
#else
#define HAS_INTEGERS 0
#endif

typedef struct vector {
  const float *x;
  bool quantized;  // blocks and sums are filled in: the vector can be multiplied with quantized panels
#if HAS_INTEGERS
  _Alignas(64) integers_t blocks[MAX_BLOCKS];
#endif
  float sums[MAX_BLOCKS];  // sum of each block, for the offsets
} vector_t;

#if HAS_INTEGERS

// Splits 16 columns into digits, stored in the order described above, and sums each digit over the columns.
INLINE void split_digits(v16 x, v16 up, int8_t *digits, int32_t *sums) {
  static const uint8_t order[64] = {0,  8,  16, 24, 1,  9,  17, 25, 2,  10, 18, 26, 3,  11, 19, 27,
                                    20, 28, 4,  12, 21, 29, 5,  13, 22, 30, 6,  14, 23, 31, 7,  15,
                                    32, 40, 48, 56, 33, 41, 49, 57, 34, 42, 50, 58, 35, 43, 51, 59,
                                    52, 60, 36, 44, 53, 61, 37, 45, 54, 62, 38, 46, 55, 63, 39, 47};
  const __m512i half = _mm512_set1_epi32(0x00808080);
  const __m512i whole = _mm512_cvtps_epi32(v_mul(x, up));
  // Adding 128 per byte carries a digit above 127 into the next digit.
  const __m512i bytes = _mm512_xor_si512(_mm512_add_epi32(whole, half), half);
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

// Scales a block so that its largest value becomes at most 2^30. A block with an infinity or a NaN gets a NaN
// as its power, so that the result is NaN too.
static void scale_to_integers(const float *x, integers_t *out) {
  const __m512i mask = _mm512_set1_epi32(0x7fffffff);
  const __m512i low = _mm512_and_si512(_mm512_loadu_si512(x), mask),
                high = _mm512_and_si512(_mm512_loadu_si512(x + 16), mask);
  const uint32_t largest = (uint32_t)_mm512_reduce_max_epi32(_mm512_max_epi32(low, high)) >> 23,
                 exponent = largest < 30 ? 30 : largest;
  const v16 up = v_all(float_of_bits((283 - exponent) << 23));
  split_digits(v_load(x), up, out->digits, out->sums[0]);
  split_digits(v_load(x + 16), up, out->digits + 64, out->sums[1]);
  out->power = float_of_bits(largest == 255 ? 0x7fc00000 : (exponent - 29) << 23);
}

INLINE __m512i dot(__m512i sum, __m512i codes, const int8_t *digits) {
  int32_t four;
  __builtin_memcpy(&four, digits, sizeof four);
  return _mm512_dpbusd_epi32(sum, codes, _mm512_set1_epi32(four));
}

// The codes of 8 columns, as unsigned bytes.
INLINE void load_code_bytes(int32_t format, const uint8_t *codes, __m512i *even, __m512i *odd) {
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

// Product of the codes of |octets| groups of 8 columns, starting at column 16 * |half|. The caller multiplies
// the result by the block's power.
INLINE v16 multiply_integers(int32_t format, const uint8_t *codes, const integers_t *x, int half,
                             int octets) {
  const int bytes = is_q4(format) ? 64 : 128;
  // Value that was added to the codes to make them unsigned.
  const int bias = format == MLX_PANEL_Q4_0 ? 8 : is_q4(format) || is_unsigned(format) ? 0 : 128;
  const int8_t *digits = x->digits + 64 * half;
  __m512i sum[DIGITS];
  for (int i = 0; i < DIGITS; ++i)
    sum[i] = _mm512_set1_epi32(-bias * (octets == 4 ? x->sums[0][i] + x->sums[1][i] : x->sums[half][i]));
  for (int i = 0; i < octets; ++i, codes += bytes, digits += 8 * DIGITS) {
    __m512i even, odd;
    load_code_bytes(format, codes, &even, &odd);
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
    prefetch_ahead(panel, (int)bytes);
    if (has_two_scales(format)) {
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

// Prepares |columns| values of |x|, which the vector keeps a pointer to. For quantized panels |columns| must
// be a multiple of the block.
static void prepare_vector(const float *x, int columns, bool quantized, vector_t *out) {
  out->x = x;
  out->quantized = quantized;
  for (int k = 0; quantized && k < columns / MLX_PANEL_BLOCK; ++k, x += MLX_PANEL_BLOCK) {
    out->sums[k] = v_sum(v_add(v_load(x), v_load(x + 16)));
#if HAS_INTEGERS
    scale_to_integers(x, &out->blocks[k]);
#endif
  }
}

// One panel of a quantized format.
static v16 multiply_panel(int32_t format, const uint8_t *panel, const vector_t *x, int columns) {
  switch (format) {
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

// Up to PLAIN_PANELS panels of plain values.
#define PLAIN_CASE(format)                                                                   \
  case MLX_PANEL_##format:                                                                   \
    count == PLAIN_PANELS                                                                    \
        ? multiply_plain(MLX_PANEL_##format, PLAIN_PANELS, panel, bytes, x->x, columns, out) \
        : multiply_plain(MLX_PANEL_##format, 1, panel, bytes, x->x, columns, out);           \
    break
// Returns how many panels it multiplied: 1 or PLAIN_PANELS.
static int multiply_plain_panels(int32_t format, int count, const uint8_t *panel, int64_t bytes,
                                 const vector_t *x, int columns, v16 *out) {
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

#endif  // MLXCEL_KERNELS_CPU_INTEGERS_H_
