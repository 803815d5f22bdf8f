// Activation vectors, prepared for multiplication with quantized panels, and the product of one of them. CPUs
// with AVX-512 VNNI, VBMI and AMX multiply in integers; other CPUs multiply in f32 (panels.h).
//
// Integer path: a block of 32 activations becomes 32 integers of 24 bits that share a power of two. The
// rounding error is at most 2^-23 of the block's largest value. That is the error of a sum in f32, whose
// every addition rounds to 24 bits. So this is not activation quantization: the accuracy is that of f32. An
// integer has three digits of a byte, each from -128 to 127. Products of codes and digits are summed exactly.
// At the end of a block the sums become f32 and are scaled. One VNNI instruction multiplies four columns of
// 16 rows with a digit. Three of them replace eight f32 instructions, and no code has to be converted to
// float first.
//
// Digits are stored in the order in which the instruction needs them, digit by digit. For 8 columns: columns
// 0 2 4 6, then columns 5 7 1 3. So a u32 with 8 codes of 4 bits needs one mask for the first four, and a
// rotation by 20 bits and a mask for the others.
//
// together.h multiplies several vectors at once, on AMX tiles. There a digit is a bf16 number.
#ifndef MLXCEL_KERNELS_CPU_INTEGERS_H_
#define MLXCEL_KERNELS_CPU_INTEGERS_H_

#include "panels.h"

#if defined(__AVX512VNNI__) && defined(__AVX512VBMI__) && defined(__AMX_BF16__)
#define HAS_INTEGERS 1
#define DIGITS 3
#define MAX_VECTORS 64    // activation vectors that are prepared together
#define MAX_ENTRIES 3072  // prepared blocks, of all vectors together
#else
#define HAS_INTEGERS 0
#define MAX_VECTORS 16
#define MAX_ENTRIES 2048
#endif
#define MAX_BLOCKS (MLX_CPU_MAX_COLUMNS / MLX_PANEL_BLOCK)  // of one vector
#define GROUP_VECTORS 16                                    // rows of a tile
_Static_assert(MAX_BLOCKS <= MAX_ENTRIES, "a vector of MLX_CPU_MAX_COLUMNS can be prepared");

// Blocks |first| to |first| + |blocks| - 1 of |count| activation vectors. Several vectors are divided into
// groups of |group| vectors. Entries are in the order of entry_of().
typedef struct vectors {
  const float *x[MAX_VECTORS];
  int count, group, first, blocks;
  bool quantized;  // the arrays below are filled in: the vectors can be multiplied with quantized panels
#if HAS_INTEGERS
  union {
    struct {
      int8_t digits[MAX_BLOCKS][DIGITS * MLX_PANEL_BLOCK];  // [digit][8 groups of 4 columns]
      int32_t digit_sums[MAX_BLOCKS][2][4];  // per digit: over columns 0-15, and over columns 16-31
      float power[MAX_BLOCKS];               // power of two that scales the integers back to activations
    } one;
    // Several vectors, per group and block: [digit][vector][32 columns] in bf16, scaled to activations.
    _Alignas(64) uint16_t tiles[MAX_ENTRIES * DIGITS * MLX_PANEL_BLOCK];
  };
#endif
  float sums[MAX_ENTRIES];  // sum of each block, for the offsets
} vectors_t;

// Entry of block |block| of the first vector of group |nth|. The other vectors of the group follow.
INLINE int64_t entry_of(const vectors_t *x, int block, int nth) {
  return ((int64_t)nth * x->blocks + block) * x->group;
}

#if HAS_INTEGERS

// 16 columns as integers, one byte per digit: [column][digit]. The fourth byte is the sign.
INLINE __m512i digits_of(v16 x, v16 up) {
  const __m512i half = _mm512_set1_epi32(0x00008080), whole = _mm512_cvtps_epi32(v_mul(x, up));
  // Adding 128 per byte carries a digit above 127 into the next digit.
  return _mm512_xor_si512(_mm512_add_epi32(whole, half), half);
}

// The digits 0 and 1 of 32 columns in the order described above, or digit 2 twice.
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

INLINE __m512i dot(__m512i sum, __m512i codes, const int8_t *digits) {
  int32_t four;
  __builtin_memcpy(&four, digits, sizeof four);
  return _mm512_dpbusd_epi32(sum, codes, _mm512_set1_epi32(four));
}

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
  return is_q4(format) ? multiply_q4(format, panel, x->x[0], x->sums, columns)
                       : multiply_other(format, panel, x->x[0], x->sums, columns);
}

#endif

// Groups of |count| vectors, of equal size.
INLINE int group_count(int count) { return (count + GROUP_VECTORS - 1) / GROUP_VECTORS; }
INLINE int group_size(int count) { return (count + group_count(count) - 1) / group_count(count); }
// Blocks of |count| vectors that can be prepared together: whole super-blocks.
INLINE int prepared_blocks(int count) {
  return MAX_ENTRIES / (group_count(count) * group_size(count)) / MLX_PANEL_GROUP * MLX_PANEL_GROUP;
}

// Prepares blocks |first| to |first| + |count| - 1 of vector |t|, at most MEASURED_BLOCKS, which start at
// |at|.
#if HAS_INTEGERS
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
}
#endif

// Prepares blocks |first| to |first| + |blocks| - 1 of the |count| vectors |x|, which |out| keeps pointers
// to. |blocks| is at most prepared_blocks(count). For plain panels |quantized| is false.
static void prepare_vectors(const float *const *x, int count, int first, int blocks, bool quantized,
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

// One panel of a quantized format times a single vector.
static v16 multiply_panel(int32_t format, const uint8_t *panel, vectors_t *x, int columns) {
  switch (format) {
    case MLX_PANEL_Q4_0: return multiply_codes(MLX_PANEL_Q4_0, panel, x, columns);
    case MLX_PANEL_Q4_1: return multiply_codes(MLX_PANEL_Q4_1, panel, x, columns);
    case MLX_PANEL_Q4_WIDE: return multiply_codes(MLX_PANEL_Q4_WIDE, panel, x, columns);
    case MLX_PANEL_Q4_BF16: return multiply_codes(MLX_PANEL_Q4_BF16, panel, x, columns);
    case MLX_PANEL_Q4_K: return multiply_codes(MLX_PANEL_Q4_K, panel, x, columns);
    case MLX_PANEL_Q5_0: return multiply_codes(MLX_PANEL_Q5_0, panel, x, columns);
    case MLX_PANEL_Q5_1: return multiply_codes(MLX_PANEL_Q5_1, panel, x, columns);
    case MLX_PANEL_IQ4_NL: return multiply_codes(MLX_PANEL_IQ4_NL, panel, x, columns);
    case MLX_PANEL_MXFP4: return multiply_codes(MLX_PANEL_MXFP4, panel, x, columns);
    case MLX_PANEL_Q3_K: return multiply_codes(MLX_PANEL_Q3_K, panel, x, columns);
    case MLX_PANEL_IQ4_XS: return multiply_codes(MLX_PANEL_IQ4_XS, panel, x, columns);
    case MLX_PANEL_Q5_K: return multiply_codes(MLX_PANEL_Q5_K, panel, x, columns);
    case MLX_PANEL_Q6_K: return multiply_codes(MLX_PANEL_Q6_K, panel, x, columns);
    case MLX_PANEL_Q8_0: return multiply_codes(MLX_PANEL_Q8_0, panel, x, columns);
    case MLX_PANEL_Q8_1: return multiply_codes(MLX_PANEL_Q8_1, panel, x, columns);
    case MLX_PANEL_Q8_BF16: return multiply_codes(MLX_PANEL_Q8_BF16, panel, x, columns);
    case MLX_PANEL_Q8_WIDE: return multiply_codes(MLX_PANEL_Q8_WIDE, panel, x, columns);
    case MLX_PANEL_Q2_K: return multiply_q2_k(panel, x->x[0], columns);
    default: return multiply_codes(MLX_PANEL_Q8_HALVES, panel, x, columns);
  }
}

// Up to PLAIN_PANELS panels of plain values times |x|. Returns how many panels it multiplied: 1 or
// PLAIN_PANELS.
#define PLAIN_CASE(format)                                                                                  \
  case MLX_PANEL_##format:                                                                                  \
    count == PLAIN_PANELS ? multiply_plain(MLX_PANEL_##format, PLAIN_PANELS, panel, bytes, x, columns, out) \
                          : multiply_plain(MLX_PANEL_##format, 1, panel, bytes, x, columns, out);           \
    break
static int multiply_plain_panels(int32_t format, int count, const uint8_t *panel, int64_t bytes,
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

#endif  // MLXCEL_KERNELS_CPU_INTEGERS_H_
