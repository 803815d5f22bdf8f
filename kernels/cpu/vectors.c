// Prepares activation vectors: sums of blocks and, with integers, digits.
#include "vectors.h"

#include "panel_codes.h"

#if HAS_INTEGERS

// 16 columns as integers, one byte per digit: [column][digit]. The fourth byte is the sign.
INLINE __m512i digits_of(v16 x, v16 up) {
  const __m512i half = _mm512_set1_epi32(0x00008080), whole = _mm512_cvtps_epi32(v_mul(x, up));
  // Adding 128 per byte carries a digit above 127 into the next digit.
  return _mm512_xor_si512(_mm512_add_epi32(whole, half), half);
}

// The digits 0 and 1 of 32 columns in the order that vectors.h describes, or digit 2 twice.
INLINE __m512i order_digits(__m512i low, __m512i high, int first) {
#define COLUMN(octet, column, byte) 4 * (8 * (octet) + (column)) + (byte)
#define EVEN(octet, byte) \
  COLUMN(octet, 0, byte), COLUMN(octet, 2, byte), COLUMN(octet, 4, byte), COLUMN(octet, 6, byte)
#define ODD(octet, byte) \
  COLUMN(octet, 5, byte), COLUMN(octet, 7, byte), COLUMN(octet, 1, byte), COLUMN(octet, 3, byte)
#define DIGIT(byte)                                                                                     \
  EVEN(0, byte), ODD(0, byte), EVEN(1, byte), ODD(1, byte), EVEN(2, byte), ODD(2, byte), EVEN(3, byte), \
      ODD(3, byte)
  static const uint8_t order[2][64] = {{DIGIT(0), DIGIT(1)}, {DIGIT(2), DIGIT(2)}};
#undef DIGIT
#undef ODD
#undef EVEN
#undef COLUMN
  return _mm512_permutex2var_epi8(low, _mm512_loadu_si512(order[first / 2]), high);
}

// Sums of each digit over 16 columns.
INLINE void sum_digits(__m512i digits, int32_t *sums) {
  static const uint8_t by_digit[64] = {0,  4,  8,  12, 1,  5,  9,  13, 2,  6,  10, 14, 3,  7,  11, 15,
                                       16, 20, 24, 28, 17, 21, 25, 29, 18, 22, 26, 30, 19, 23, 27, 31,
                                       32, 36, 40, 44, 33, 37, 41, 45, 34, 38, 42, 46, 35, 39, 43, 47,
                                       48, 52, 56, 60, 49, 53, 57, 61, 50, 54, 58, 62, 51, 55, 59, 63};
  const __m512i placed = _mm512_permutexvar_epi8(_mm512_loadu_si512(by_digit), digits);
  const __m512i four = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), placed);
  const __m256i two = _mm256_add_epi32(_mm512_castsi512_si256(four), _mm512_extracti64x4_epi64(four, 1));
  _mm_storeu_si128((void *)sums,
                   _mm_add_epi32(_mm256_castsi256_si128(two), _mm256_extracti128_si256(two, 1)));
}

// Sum, or largest integer, of each of 16 vectors: lane i belongs to v[i]. Halves are added in the order of
// v_sum().
INLINE v16 fold(v16 low, v16 high, bool largest) {
  if (!largest) return v_add(low, high);
  return _mm512_castsi512_ps(_mm512_max_epi32(_mm512_castps_si512(low), _mm512_castps_si512(high)));
}
INLINE v16 reduce_each(const v16 *v, bool largest) {
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
#define FOLD(shuffle, a, b, low, high) fold(shuffle(a, b, low), shuffle(a, b, high), largest)
  v16 eight[8], four[4], two[2];
  for (int i = 0; i < 8; ++i) eight[i] = FOLD(_mm512_shuffle_f32x4, v[2 * i], v[2 * i + 1], 0x44, 0xee);
  for (int i = 0; i < 4; ++i)
    four[i] = FOLD(_mm512_shuffle_f32x4, eight[2 * i], eight[2 * i + 1], 0x88, 0xdd);
  for (int i = 0; i < 2; ++i) two[i] = FOLD(_mm512_shuffle_ps, four[2 * i], four[2 * i + 1], 0x44, 0xee);
  return _mm512_permutexvar_ps(order, FOLD(_mm512_shuffle_ps, two[0], two[1], 0x88, 0xdd));
#undef FOLD
}

// Of 16 blocks of activations: their sums, the power of two of their integers, and its reciprocal.
#define MEASURED_BLOCKS 16
typedef struct measured {
  float sum[MEASURED_BLOCKS], power[MEASURED_BLOCKS], up[MEASURED_BLOCKS];
} measured_t;

// The largest value is less than 2^23 - 2^15 times the power, so that no digit overflows; the largest 1% of
// significands need one bit more for it. Blocks of tiny values use 2^-89, so that neither digits nor products
// are denormal: the tile unit takes those for zero. The power is NaN for a block with an infinity or a NaN,
// so that its product is NaN.
INLINE void measure_blocks(const float *x, int count, measured_t *out) {
  v16 sum[MEASURED_BLOCKS], size[MEASURED_BLOCKS];
  const __m512i mask = _mm512_set1_epi32(0x7fffffff);
  for (int k = 0; k < MEASURED_BLOCKS; ++k) {
    const float *at = x + (k < count ? k : count - 1) * MLX_PANEL_BLOCK;
    const v16 low = v_load(at), high = v_load(at + 16);
    sum[k] = v_add(low, high);
    size[k] = _mm512_castsi512_ps(_mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(low), mask),
                                                   _mm512_and_si512(_mm512_castps_si512(high), mask)));
  }
  v_store(out->sum, reduce_each(sum, false));
  const __m512i largest = _mm512_castps_si512(reduce_each(size, true)),
                rounded = _mm512_add_epi32(largest, _mm512_set1_epi32(0x12000)),
                exponent =
                    _mm512_sub_epi32(_mm512_max_epi32(_mm512_srli_epi32(rounded, 23), _mm512_set1_epi32(60)),
                                     _mm512_set1_epi32(22));
  const __mmask16 finite = _mm512_cmplt_epi32_mask(largest, _mm512_set1_epi32(0x7f800000));
  const __m512i power = _mm512_mask_slli_epi32(_mm512_set1_epi32(0x7fc00000), finite, exponent, 23);
  _mm512_storeu_si512(out->power, power);
  _mm512_storeu_si512(
      out->up, _mm512_maskz_slli_epi32(finite, _mm512_sub_epi32(_mm512_set1_epi32(254), exponent), 23));
}

// The integers of a block are its values times |factor|.
static void prepare_one(const float *x, float factor, int8_t *digits, int32_t (*sums)[4]) {
  const v16 up = v_all(factor);
  const __m512i first = digits_of(v_load(x), up), second = digits_of(v_load(x + 16), up);
  _mm512_storeu_si512(digits, order_digits(first, second, 0));
  _mm256_storeu_si256((void *)(digits + 64), _mm512_castsi512_si256(order_digits(first, second, 2)));
  sum_digits(first, sums[0]);
  sum_digits(second, sums[1]);
}

// The upper halves of 32 columns, as pairs of columns 0 4, 1 5, 2 6 and 3 7 of each 8 columns.
INLINE __m512i order_columns(v16 low, v16 high) {
#define PAIR(octet, column) 16 * (octet) + 2 * (column) + 1, 16 * (octet) + 2 * (column) + 9
#define OCTET(octet) PAIR(octet, 0), PAIR(octet, 1), PAIR(octet, 2), PAIR(octet, 3)
  static const uint16_t order[32] = {OCTET(0), OCTET(1), OCTET(2), OCTET(3)};
#undef OCTET
#undef PAIR
  return _mm512_permutex2var_epi16(_mm512_castps_si512(low), _mm512_loadu_si512(order),
                                   _mm512_castps_si512(high));
}

// The digits of integers above |unit|, where the digits of digits_of() divide them: at |unit| / 2 less
// |below|. Adding a large number rounds the sum to a multiple of |unit|.
INLINE v16 digits_above(v16 whole, float unit, float below) {
  const v16 large = v_all(unit * 0x1.8p23f);
  return v_sub(v_add(v_add(whole, v_all(below + 0.5f)), large), large);
}

// Stores the digits of a block as bf16 numbers that are scaled to activations, |stride| values apart.
// |factor| is the reciprocal of |scale|.
static void prepare_tile_row(const float *x, float factor, float scale, uint16_t *to, int64_t stride) {
  const v16 power = v_all(scale), up = v_all(factor);
  v16 digit[DIGITS][2];
  for (int half = 0; half < 2; ++half) {
    const v16 whole = v_round(v_mul(v_load(x + 16 * half), up)), high = digits_above(whole, 65536, 128),
              low = v_sub(whole, high), middle = digits_above(low, 256, 0);
    digit[0][half] = v_mul(v_sub(low, middle), power);
    digit[1][half] = v_mul(middle, power);
    digit[2][half] = v_mul(high, power);
  }
  for (int i = 0; i < DIGITS; ++i)
    _mm512_storeu_si512(to + i * stride, order_columns(digit[i][0], digit[i][1]));
}

// Prepares blocks |first| to |first| + |count| - 1 of vector |t|, at most MEASURED_BLOCKS, which start at
// |at|.
INLINE void prepare_blocks(const float *at, int t, int first, int count, vectors_t *out) {
  measured_t m;
  measure_blocks(at, count, &m);
  for (int i = 0; i < count; ++i, at += MLX_PANEL_BLOCK) {
    const int k = first + i;
    const int64_t entry = entry_of(out, k, t / out->group), nth = t % out->group;
    out->sums[entry + nth] = m.sum[i];
    if (out->count == 1) {
      out->one.power[k] = m.power[i];
      prepare_one(at, m.up[i], out->one.digits[k], out->one.digit_sums[k]);
    } else {
      prepare_tile_row(at, m.up[i], m.power[i], out->tiles + (entry * DIGITS + nth) * MLX_PANEL_BLOCK,
                       out->group * MLX_PANEL_BLOCK);
    }
  }
}

#else

#define MEASURED_BLOCKS 1
INLINE void prepare_blocks(const float *at, int t, int first, int count, vectors_t *out) {
  (void)count;
  out->sums[entry_of(out, first, t / out->group) + t % out->group] =
      v_sum(v_add(v_load(at), v_load(at + 16)));
  if (out->count == 1) place_columns(at, MLX_PANEL_BLOCK, out->placed + first * MLX_PANEL_BLOCK);
}
#endif

void mlx_prepare_vectors(const float *const *x, int count, int first, int blocks, bool quantized,
                         vectors_t *out) {
  out->count = count;
  out->group = group_size(count);
  out->first = first;
  out->blocks = blocks;
  out->quantized = quantized;
  for (int t = 0; t < count; ++t) {
    out->x[t] = x[t];
    for (int k = 0; quantized && k < blocks; k += MEASURED_BLOCKS)
      prepare_blocks(x[t] + (first + k) * MLX_PANEL_BLOCK, t, k,
                     blocks - k < MEASURED_BLOCKS ? blocks - k : MEASURED_BLOCKS, out);
  }
}
