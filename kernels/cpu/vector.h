// v16, a vector of sixteen floats: one register with AVX-512, two with AVX2, four with NEON (vector_neon.h)
// and SSE2 (vector_sse.h). Also exp, sine and cosine; activation_functions.h has the others.
#ifndef MLXCEL_KERNELS_CPU_VECTOR_H_
#define MLXCEL_KERNELS_CPU_VECTOR_H_

#include <stdint.h>

#define INLINE static inline __attribute__((always_inline))
#define NOT_INLINE __attribute__((noinline))

// AMX tiles for products in bf16, and instructions for products of codes in integers (vectors.h).
#if defined(__AMX_BF16__)
#define HAS_TILES 1
#else
#define HAS_TILES 0
#endif
#if HAS_TILES && defined(__AVX512VNNI__) && defined(__AVX512VBMI__)
#define HAS_INTEGERS 1
#else
#define HAS_INTEGERS 0
#endif

// Whether CODES_COLUMN() is a lookup in a register of 16 numbers.
#if defined(__AVX512F__)
#define V_LOOKS_UP 1
#else
#define V_LOOKS_UP 0
#endif

#if defined(__aarch64__)
#include "vector_neon.h"
#elif !defined(__AVX2__)
#include "vector_sse.h"
#else
#include <immintrin.h>

#if defined(__AVX512F__)

typedef __m512 v16;

INLINE v16 v_zero(void) { return _mm512_setzero_ps(); }
INLINE v16 v_all(float x) { return _mm512_set1_ps(x); }
INLINE v16 v_load(const float *p) { return _mm512_loadu_ps(p); }
INLINE void v_store(float *p, v16 x) { _mm512_storeu_ps(p, x); }
INLINE v16 v_add(v16 a, v16 b) { return _mm512_add_ps(a, b); }
INLINE v16 v_sub(v16 a, v16 b) { return _mm512_sub_ps(a, b); }
INLINE v16 v_mul(v16 a, v16 b) { return _mm512_mul_ps(a, b); }
INLINE v16 v_div(v16 a, v16 b) { return _mm512_div_ps(a, b); }
INLINE v16 v_max(v16 a, v16 b) { return _mm512_max_ps(a, b); }
INLINE v16 v_min(v16 a, v16 b) { return _mm512_min_ps(a, b); }
INLINE v16 v_fma(v16 a, v16 b, v16 c) { return _mm512_fmadd_ps(a, b, c); }
INLINE v16 v_round(v16 x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
INLINE v16 v_power2(v16 whole) { return _mm512_scalef_ps(_mm512_set1_ps(1), whole); }  // integers, -126..127
INLINE v16 v_load_f16(const void *p) { return _mm512_cvtph_ps(_mm256_loadu_si256(p)); }
INLINE v16 v_load_bf16(const void *p) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p)), 16));
}
// 16 pairs of bf16: the first and the second value of each.
INLINE v16 v_load_first(const void *p) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16));
}
INLINE v16 v_load_second(const void *p) {
  return _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32((int)0xffff0000)));
}
INLINE v16 v_load_i8(const void *p) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p))); }
INLINE v16 v_load_u8(const void *p) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(p))); }
INLINE void v_split(v16 x, __m256 *low, __m256 *high) {
  *low = _mm512_castps512_ps256(x);
  *high = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(x), 1));
}
// Lanes |count| and up become -infinity.
INLINE v16 v_keep_first(v16 x, int count) {
  const __mmask16 keep = count >= 16 ? 0xffff : count <= 0 ? 0 : (__mmask16)((1u << count) - 1);
  return _mm512_mask_blend_ps(keep, _mm512_set1_ps(-__builtin_inff()), x);
}
INLINE v16 v_where_above(v16 x, float limit, v16 y) {  // x > limit ? y : 0
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(limit), _CMP_GT_OQ), y);
}
INLINE int v_find(v16 x, float value) {  // index of the first lane equal to |value|, or 16
  return __builtin_ctz(_mm512_cmp_ps_mask(x, _mm512_set1_ps(value), _CMP_EQ_OQ) | 0x10000u);
}

// 4-bit codes of 16 rows x 8 columns. The permutation uses only the low 4 bits of a lane, so a code needs no
// mask: it selects its value from the table.
//
// Codes of other sizes are first made bytes, four columns of a row in a word: codes_field() shifts the words
// to the right by |shift| bits, or to the left if it is negative, and masks them. codes_lookup() replaces
// bytes from 0 to 15 by values of a table. codes_byte() is signed byte |nth| of each word. codes_placed() is
// the code in the bits |mask| of unsigned byte |nth| plus |least|, times 2^(8 nth): an exact f32 number
// without a shift. A code has at most 6 bits.
typedef struct codes {
  __m512i words;
} codes_t;
typedef __m512 table_t;
INLINE table_t table_from(float first) {
  const __m512 count = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  return _mm512_add_ps(count, _mm512_set1_ps(first));
}
INLINE codes_t codes_load(const void *p) { return (codes_t){_mm512_loadu_si512(p)}; }
#define CODES_COLUMN(table, codes, nth) \
  _mm512_permutexvar_ps(_mm512_srli_epi32((codes).words, 4 * (nth)), table)
INLINE codes_t codes_field(codes_t codes, int shift, uint32_t mask) {
  const __m512i words = shift < 0 ? _mm512_sllv_epi32(codes.words, _mm512_set1_epi32(-shift))
                                  : _mm512_srlv_epi32(codes.words, _mm512_set1_epi32(shift));
  return (codes_t){_mm512_and_si512(words, _mm512_set1_epi32((int)mask))};
}
INLINE codes_t codes_or(codes_t a, codes_t b) { return (codes_t){_mm512_or_si512(a.words, b.words)}; }
INLINE v16 codes_byte(codes_t codes, int nth) {
  const __m512i high = _mm512_sllv_epi32(codes.words, _mm512_set1_epi32(24 - 8 * nth));
  return _mm512_cvtepi32_ps(_mm512_srai_epi32(high, 24));
}
INLINE v16 codes_placed(codes_t codes, int nth, int mask, int least) {
  const __m512i code = _mm512_and_si512(codes.words, _mm512_set1_epi32(mask << 8 * nth));
  return _mm512_cvtepi32_ps(least ? _mm512_add_epi32(code, _mm512_set1_epi32(least * (1 << 8 * nth))) : code);
}

#else

typedef struct v16 {
  __m256 low, high;
} v16;

#define BOTH(expression_low, expression_high) ((v16){expression_low, expression_high})
INLINE v16 v_zero(void) { return BOTH(_mm256_setzero_ps(), _mm256_setzero_ps()); }
INLINE v16 v_all(float x) { return BOTH(_mm256_set1_ps(x), _mm256_set1_ps(x)); }
INLINE v16 v_load(const float *p) { return BOTH(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)); }
INLINE void v_store(float *p, v16 x) {
  _mm256_storeu_ps(p, x.low);
  _mm256_storeu_ps(p + 8, x.high);
}
INLINE v16 v_add(v16 a, v16 b) { return BOTH(_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)); }
INLINE v16 v_sub(v16 a, v16 b) { return BOTH(_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)); }
INLINE v16 v_mul(v16 a, v16 b) { return BOTH(_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)); }
INLINE v16 v_div(v16 a, v16 b) { return BOTH(_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)); }
INLINE v16 v_max(v16 a, v16 b) { return BOTH(_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)); }
INLINE v16 v_min(v16 a, v16 b) { return BOTH(_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)); }
INLINE v16 v_fma(v16 a, v16 b, v16 c) {
  return BOTH(_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high));
}
INLINE __m256 round8(__m256 x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
INLINE v16 v_round(v16 x) { return BOTH(round8(x.low), round8(x.high)); }
INLINE __m256 power8(__m256 whole) {
  return _mm256_castsi256_ps(
      _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(whole), _mm256_set1_epi32(127)), 23));
}
INLINE v16 v_power2(v16 whole) { return BOTH(power8(whole.low), power8(whole.high)); }
INLINE v16 v_load_f16(const void *p) {
  const __m128i *at = p;
  return BOTH(_mm256_cvtph_ps(_mm_loadu_si128(at)), _mm256_cvtph_ps(_mm_loadu_si128(at + 1)));
}
INLINE __m256 bf16_8(const __m128i *p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(p)), 16));
}
INLINE v16 v_load_bf16(const void *p) { return BOTH(bf16_8(p), bf16_8((const __m128i *)p + 1)); }
INLINE __m256 first_of_8(const __m256i *p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(p), 16));
}
INLINE __m256 second_of_8(const __m256i *p) {
  return _mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256(p), _mm256_set1_epi32((int)0xffff0000)));
}
INLINE v16 v_load_first(const void *p) { return BOTH(first_of_8(p), first_of_8((const __m256i *)p + 1)); }
INLINE v16 v_load_second(const void *p) { return BOTH(second_of_8(p), second_of_8((const __m256i *)p + 1)); }
INLINE v16 v_load_i8(const void *p) {
  const __m128i low = _mm_loadl_epi64(p), high = _mm_loadl_epi64((const void *)((const char *)p + 8));
  return BOTH(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(low)), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(high)));
}
INLINE v16 v_load_u8(const void *p) {
  const __m128i low = _mm_loadl_epi64(p), high = _mm_loadl_epi64((const void *)((const char *)p + 8));
  return BOTH(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(low)), _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(high)));
}
INLINE void v_split(v16 x, __m256 *low, __m256 *high) {
  *low = x.low;
  *high = x.high;
}
INLINE __m256 first8(__m256 x, int count) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256 keep = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(count), lane));
  return _mm256_blendv_ps(_mm256_set1_ps(-__builtin_inff()), x, keep);
}
INLINE v16 v_keep_first(v16 x, int count) { return BOTH(first8(x.low, count), first8(x.high, count - 8)); }
INLINE __m256 above8(__m256 x, float limit, __m256 y) {
  return _mm256_and_ps(_mm256_cmp_ps(x, _mm256_set1_ps(limit), _CMP_GT_OQ), y);
}
INLINE v16 v_where_above(v16 x, float limit, v16 y) {
  return BOTH(above8(x.low, limit, y.low), above8(x.high, limit, y.high));
}
INLINE unsigned equal8(__m256 x, float value) {
  return (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(x, _mm256_set1_ps(value), _CMP_EQ_OQ));
}
INLINE int v_find(v16 x, float value) {
  return __builtin_ctz(equal8(x.low, value) | equal8(x.high, value) << 8 | 0x10000u);
}

typedef struct codes {
  __m256i low, high;
} codes_t;
typedef __m256 table_t;  // the value of code 0, in all lanes
INLINE table_t table_from(float first) { return _mm256_set1_ps(first); }
INLINE codes_t codes_load(const void *p) {
  const __m256i *at = p;
  return (codes_t){_mm256_loadu_si256(at), _mm256_loadu_si256(at + 1)};
}
INLINE __m256 column8(__m256 first, __m256i words) {
  return _mm256_add_ps(_mm256_cvtepi32_ps(_mm256_and_si256(words, _mm256_set1_epi32(15))), first);
}
#define CODES_COLUMN(table, codes, nth)                           \
  BOTH(column8(table, _mm256_srli_epi32((codes).low, 4 * (nth))), \
       column8(table, _mm256_srli_epi32((codes).high, 4 * (nth))))
INLINE __m256i field8(__m256i words, int shift, uint32_t mask) {
  words = shift < 0 ? _mm256_slli_epi32(words, -shift) : _mm256_srli_epi32(words, shift);
  return _mm256_and_si256(words, _mm256_set1_epi32((int)mask));
}
INLINE codes_t codes_field(codes_t codes, int shift, uint32_t mask) {
  return (codes_t){field8(codes.low, shift, mask), field8(codes.high, shift, mask)};
}
INLINE codes_t codes_or(codes_t a, codes_t b) {
  return (codes_t){_mm256_or_si256(a.low, b.low), _mm256_or_si256(a.high, b.high)};
}
INLINE __m256 byte8(__m256i words, int nth) {
  return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(words, 24 - 8 * nth), 24));
}
INLINE v16 codes_byte(codes_t codes, int nth) { return BOTH(byte8(codes.low, nth), byte8(codes.high, nth)); }
INLINE __m256 placed8(__m256i words, int nth, int mask, int least) {
  const __m256i code = _mm256_and_si256(words, _mm256_set1_epi32(mask << 8 * nth));
  return _mm256_cvtepi32_ps(least ? _mm256_add_epi32(code, _mm256_set1_epi32(least * (1 << 8 * nth))) : code);
}
INLINE v16 codes_placed(codes_t codes, int nth, int mask, int least) {
  return BOTH(placed8(codes.low, nth, mask, least), placed8(codes.high, nth, mask, least));
}

#endif

#if !defined(__AVX512F__)
INLINE codes_t codes_lookup(codes_t codes, const int8_t table[16]) {
  const __m256i values = _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)table));
  return (codes_t){_mm256_shuffle_epi8(values, codes.low), _mm256_shuffle_epi8(values, codes.high)};
}
#elif defined(__AVX512BW__)
INLINE codes_t codes_lookup(codes_t codes, const int8_t table[16]) {
  const __m512i values = _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)table));
  return (codes_t){_mm512_shuffle_epi8(values, codes.words)};
}
#else
#error "the CPU levels with AVX-512 have AVX512BW"
#endif

// Sum of all lanes, in the same order on every CPU, so that results are bit-identical.
INLINE float v_sum(v16 x) {
  __m256 low, high;
  v_split(x, &low, &high);
  const __m256 eight = _mm256_add_ps(low, high);
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}

INLINE float v_reduce_max(v16 x) {
  __m256 low, high;
  v_split(x, &low, &high);
  const __m256 eight = _mm256_max_ps(low, high);
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

INLINE float square_root(float x) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))); }
INLINE uint16_t f16_bits(float x) {
  return (uint16_t)_mm_extract_epi16(_mm_cvtps_ph(_mm_set_ss(x), _MM_FROUND_TO_NEAREST_INT), 0);
}
INLINE void spin_pause(void) { _mm_pause(); }  // for spin loops

#endif  // x86-64 with AVX2

// e^x with an error of about one ulp. Results below the smallest normal number are zero.
INLINE v16 v_exp(v16 exponent) {
  const v16 x = v_min(v_max(exponent, v_all(-87.33654f)), v_all(88.02969f));
  const v16 whole = v_round(v_mul(x, v_all(1.44269504f)));
  v16 r = v_fma(whole, v_all(-0.693359375f), x);
  r = v_fma(whole, v_all(2.12194440e-4f), r);
  v16 p = v_all(1.9875691500e-4f);
  p = v_fma(p, r, v_all(1.3981999507e-3f));
  p = v_fma(p, r, v_all(8.3334519073e-3f));
  p = v_fma(p, r, v_all(4.1665795894e-2f));
  p = v_fma(p, r, v_all(1.6666665459e-1f));
  p = v_fma(p, r, v_all(5.0000001201e-1f));
  p = v_fma(p, v_mul(r, r), v_add(r, v_all(1)));
  return v_where_above(exponent, -87.33654f, v_mul(p, v_power2(whole)));
}

// Sine and cosine of an f32 angle, computed in double: correctly rounded to f32 except for ties, for angles
// up to a million rotations.
INLINE void sine_and_cosine(float angle, float *sine, float *cosine) {
  const double x = angle, quarters = x * 0.63661977236758134308;  // angle in quarter rotations
  const double whole = (double)(int64_t)(quarters < 0 ? quarters - 0.5 : quarters + 0.5);
  const double r = (x - whole * 1.57079632673412561417) - whole * 6.07710050650619224932e-11, z = r * r;
  const double s =
      r + r * z *
              (-1.66666666666666324348e-01 +
               z * (8.33333333332248946124e-03 +
                    z * (-1.98412698298579493134e-04 +
                         z * (2.75573137070700676789e-06 +
                              z * (-2.50507602534068634195e-08 + z * 1.58969099521155010221e-10)))));
  const double c = 1 - z / 2 +
                   z * z *
                       (4.16666666666666019037e-02 +
                        z * (-1.38888888888741095749e-03 +
                             z * (2.48015872894767294178e-05 +
                                  z * (-2.75573143513906633035e-07 +
                                       z * (2.08757232129817482790e-09 + z * -1.13596475577881948265e-11)))));
  const int64_t quarter = (int64_t)whole & 3;
  *sine = (float)(quarter == 0 ? s : quarter == 1 ? c : quarter == 2 ? -s : -c);
  *cosine = (float)(quarter == 0 ? c : quarter == 1 ? -s : quarter == 2 ? -c : s);
}

#endif  // MLXCEL_KERNELS_CPU_VECTOR_H_
