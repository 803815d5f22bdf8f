// v16 for x86-64 without AVX2: sixteen floats in four SSE2 registers. Implements the interface of vector.h.
// SSE2 has no fused multiply-add, so v_fma rounds twice.
#ifndef MLXCEL_KERNELS_CPU_VECTOR_SSE_H_
#define MLXCEL_KERNELS_CPU_VECTOR_SSE_H_

#include <emmintrin.h>
#include <stdint.h>

typedef struct v16 {
  __m128 a, b, c, d;
} v16;

#define EACH(f, ...) ((v16){f(a, __VA_ARGS__), f(b, __VA_ARGS__), f(c, __VA_ARGS__), f(d, __VA_ARGS__)})
#define ONE(part, f, x) f((x).part)
#define TWO(part, f, x, y) f((x).part, (y).part)
#define THREE(part, f, x, y, z) f((x).part, (y).part, (z).part)

INLINE v16 v_all(float x) {
  const __m128 all = _mm_set1_ps(x);
  return (v16){all, all, all, all};
}
INLINE v16 v_zero(void) { return v_all(0); }
INLINE v16 v_load(const float *p) {
  return (v16){_mm_loadu_ps(p), _mm_loadu_ps(p + 4), _mm_loadu_ps(p + 8), _mm_loadu_ps(p + 12)};
}
INLINE void v_store(float *p, v16 x) {
  _mm_storeu_ps(p, x.a);
  _mm_storeu_ps(p + 4, x.b);
  _mm_storeu_ps(p + 8, x.c);
  _mm_storeu_ps(p + 12, x.d);
}
INLINE __m128 fma4(__m128 x, __m128 y, __m128 sum) { return _mm_add_ps(_mm_mul_ps(x, y), sum); }
INLINE v16 v_add(v16 x, v16 y) { return EACH(TWO, _mm_add_ps, x, y); }
INLINE v16 v_sub(v16 x, v16 y) { return EACH(TWO, _mm_sub_ps, x, y); }
INLINE v16 v_mul(v16 x, v16 y) { return EACH(TWO, _mm_mul_ps, x, y); }
INLINE v16 v_div(v16 x, v16 y) { return EACH(TWO, _mm_div_ps, x, y); }
INLINE v16 v_max(v16 x, v16 y) { return EACH(TWO, _mm_max_ps, x, y); }
INLINE v16 v_min(v16 x, v16 y) { return EACH(TWO, _mm_min_ps, x, y); }
INLINE v16 v_fma(v16 x, v16 y, v16 sum) { return EACH(THREE, fma4, x, y, sum); }
INLINE __m128 round4(__m128 x) { return _mm_cvtepi32_ps(_mm_cvtps_epi32(x)); }  // |x| must fit an int32
INLINE v16 v_round(v16 x) { return EACH(ONE, round4, x); }
INLINE __m128 power4(__m128 whole) {
  return _mm_castsi128_ps(_mm_slli_epi32(_mm_add_epi32(_mm_cvtps_epi32(whole), _mm_set1_epi32(127)), 23));
}
INLINE v16 v_power2(v16 whole) { return EACH(ONE, power4, whole); }

INLINE __m128 pick4(__m128i where, __m128 x, __m128 otherwise) {
  const __m128 mask = _mm_castsi128_ps(where);
  return _mm_or_ps(_mm_and_ps(mask, x), _mm_andnot_ps(mask, otherwise));
}
// Converts the f16 in the low 16 bits of each lane. Subnormals are computed as multiples of 2^-24, because
// this code runs with subnormal floats flushed to zero.
INLINE __m128 half4(__m128i bits) {
  const __m128i magnitude = _mm_and_si128(bits, _mm_set1_epi32(0x7fff)),
                sign = _mm_slli_epi32(_mm_and_si128(bits, _mm_set1_epi32(0x8000)), 16);
  const __m128i no_number = _mm_cmpgt_epi32(magnitude, _mm_set1_epi32(0x7bff)),
                small = _mm_cmplt_epi32(magnitude, _mm_set1_epi32(0x0400));
  const __m128i bias =
      _mm_add_epi32(_mm_set1_epi32(112 << 23), _mm_and_si128(no_number, _mm_set1_epi32(112 << 23)));
  const __m128 normal = _mm_castsi128_ps(_mm_add_epi32(_mm_slli_epi32(magnitude, 13), bias));
  const __m128 subnormal = _mm_mul_ps(_mm_cvtepi32_ps(magnitude), _mm_set1_ps(0x1p-24f));
  return _mm_or_ps(pick4(small, subnormal, normal), _mm_castsi128_ps(sign));
}
INLINE v16 v_load_f16(const void *p) {
  const __m128i zero = _mm_setzero_si128(), low = _mm_loadu_si128(p),
                high = _mm_loadu_si128((const __m128i *)p + 1);
  return (v16){half4(_mm_unpacklo_epi16(low, zero)), half4(_mm_unpackhi_epi16(low, zero)),
               half4(_mm_unpacklo_epi16(high, zero)), half4(_mm_unpackhi_epi16(high, zero))};
}
INLINE v16 v_load_bf16(const void *p) {
  const __m128i zero = _mm_setzero_si128(), low = _mm_loadu_si128(p),
                high = _mm_loadu_si128((const __m128i *)p + 1);
  return (v16){
      _mm_castsi128_ps(_mm_unpacklo_epi16(zero, low)), _mm_castsi128_ps(_mm_unpackhi_epi16(zero, low)),
      _mm_castsi128_ps(_mm_unpacklo_epi16(zero, high)), _mm_castsi128_ps(_mm_unpackhi_epi16(zero, high))};
}
// 16 pairs of bf16: the first and the second value of each.
INLINE v16 v_load_first(const void *p) {
  const __m128i *at = p;
#define SHIFTED(nth) _mm_castsi128_ps(_mm_slli_epi32(_mm_loadu_si128(at + (nth)), 16))
  return (v16){SHIFTED(0), SHIFTED(1), SHIFTED(2), SHIFTED(3)};
#undef SHIFTED
}
INLINE v16 v_load_second(const void *p) {
  const __m128i *at = p, mask = _mm_set1_epi32((int)0xffff0000);
#define MASKED(nth) _mm_castsi128_ps(_mm_and_si128(_mm_loadu_si128(at + (nth)), mask))
  return (v16){MASKED(0), MASKED(1), MASKED(2), MASKED(3)};
#undef MASKED
}
// The highest byte of each lane, sign-extended.
INLINE __m128 byte4(__m128i top) { return _mm_cvtepi32_ps(_mm_srai_epi32(top, 24)); }
INLINE v16 v_load_u8(const void *p) {
  const __m128i zero = _mm_setzero_si128(), bytes = _mm_loadu_si128(p);
  const __m128i low = _mm_unpacklo_epi8(bytes, zero), high = _mm_unpackhi_epi8(bytes, zero);
  return (v16){_mm_cvtepi32_ps(_mm_unpacklo_epi16(low, zero)), _mm_cvtepi32_ps(_mm_unpackhi_epi16(low, zero)),
               _mm_cvtepi32_ps(_mm_unpacklo_epi16(high, zero)),
               _mm_cvtepi32_ps(_mm_unpackhi_epi16(high, zero))};
}
INLINE v16 v_load_i8(const void *p) {
  const __m128i zero = _mm_setzero_si128(), bytes = _mm_loadu_si128(p);
  const __m128i low = _mm_unpacklo_epi8(zero, bytes), high = _mm_unpackhi_epi8(zero, bytes);
  return (v16){byte4(_mm_unpacklo_epi16(zero, low)), byte4(_mm_unpackhi_epi16(zero, low)),
               byte4(_mm_unpacklo_epi16(zero, high)), byte4(_mm_unpackhi_epi16(zero, high))};
}

INLINE __m128 first4(__m128 x, int count) {
  return pick4(_mm_cmpgt_epi32(_mm_set1_epi32(count), _mm_setr_epi32(0, 1, 2, 3)), x,
               _mm_set1_ps(-__builtin_inff()));
}
// Lanes |count| and up become -infinity.
INLINE v16 v_keep_first(v16 x, int count) {
  return (v16){first4(x.a, count), first4(x.b, count - 4), first4(x.c, count - 8), first4(x.d, count - 12)};
}
INLINE __m128 above4(__m128 x, __m128 limit, __m128 y) { return _mm_and_ps(_mm_cmpgt_ps(x, limit), y); }
INLINE v16 v_where_above(v16 x, float limit, v16 y) {  // x > limit ? y : 0
  const v16 limits = v_all(limit);
  return EACH(THREE, above4, x, limits, y);
}
INLINE unsigned equal4(__m128 x, float value) {
  return (unsigned)_mm_movemask_ps(_mm_cmpeq_ps(x, _mm_set1_ps(value)));
}
INLINE int v_find(v16 x, float value) {  // index of the first lane equal to |value|, or 16
  const unsigned low = equal4(x.a, value) | equal4(x.b, value) << 4,
                 high = equal4(x.c, value) | equal4(x.d, value) << 4;
  return __builtin_ctz(low | high << 8 | 0x10000u);
}

// 4-bit codes of 16 rows x 8 columns; the table is the value of code 0.
typedef struct codes {
  __m128i a, b, c, d;
} codes_t;
typedef __m128 table_t;
INLINE table_t table_from(float first) { return _mm_set1_ps(first); }
INLINE codes_t codes_load(const void *p) {
  const __m128i *at = p;
  return (codes_t){_mm_loadu_si128(at), _mm_loadu_si128(at + 1), _mm_loadu_si128(at + 2),
                   _mm_loadu_si128(at + 3)};
}
INLINE __m128 column4(__m128 first, __m128i words, int nth) {
  return _mm_add_ps(_mm_cvtepi32_ps(_mm_and_si128(_mm_srli_epi32(words, 4 * nth), _mm_set1_epi32(15))),
                    first);
}
INLINE v16 codes_column(__m128 first, codes_t codes, int nth) {
  return (v16){column4(first, codes.a, nth), column4(first, codes.b, nth), column4(first, codes.c, nth),
               column4(first, codes.d, nth)};
}
#define CODES_COLUMN(table, codes, nth) codes_column(table, codes, nth)
#define EACH_CODES(f, ...)                                                              \
  ((codes_t){f(codes.a, __VA_ARGS__), f(codes.b, __VA_ARGS__), f(codes.c, __VA_ARGS__), \
             f(codes.d, __VA_ARGS__)})
INLINE __m128i field4(__m128i words, int shift, uint32_t mask) {
  words = shift < 0 ? _mm_slli_epi32(words, -shift) : _mm_srli_epi32(words, shift);
  return _mm_and_si128(words, _mm_set1_epi32((int)mask));
}
INLINE codes_t codes_field(codes_t codes, int shift, uint32_t mask) {
  return EACH_CODES(field4, shift, mask);
}
INLINE codes_t codes_or(codes_t x, codes_t y) {
  return (codes_t){_mm_or_si128(x.a, y.a), _mm_or_si128(x.b, y.b), _mm_or_si128(x.c, y.c),
                   _mm_or_si128(x.d, y.d)};
}
INLINE __m128i lookup4(__m128i words, const int8_t table[16]) {  // SSE2 has no byte permutation
  uint8_t bytes[16];
  _mm_storeu_si128((void *)bytes, words);
  for (int i = 0; i < 16; ++i) bytes[i] = (uint8_t)table[bytes[i]];
  return _mm_loadu_si128((const void *)bytes);
}
INLINE codes_t codes_lookup(codes_t codes, const int8_t table[16]) { return EACH_CODES(lookup4, table); }
INLINE __m128 signed4(__m128i words, int nth) {
  return _mm_cvtepi32_ps(_mm_srai_epi32(_mm_slli_epi32(words, 24 - 8 * nth), 24));
}
INLINE v16 codes_byte(codes_t codes, int nth) {
  return (v16){signed4(codes.a, nth), signed4(codes.b, nth), signed4(codes.c, nth), signed4(codes.d, nth)};
}
INLINE __m128 placed4(__m128i words, int nth, int mask, int least) {
  const __m128i code = _mm_and_si128(words, _mm_set1_epi32(mask << 8 * nth));
  return _mm_cvtepi32_ps(_mm_add_epi32(code, _mm_set1_epi32(least * (1 << 8 * nth))));
}
INLINE v16 codes_placed(codes_t codes, int nth, int mask, int least) {
  return (v16){placed4(codes.a, nth, mask, least), placed4(codes.b, nth, mask, least),
               placed4(codes.c, nth, mask, least), placed4(codes.d, nth, mask, least)};
}
#undef EACH_CODES

// Adds in the same order as v_sum of vector.h.
INLINE float v_sum(v16 x) {
  __m128 four = _mm_add_ps(_mm_add_ps(x.a, x.c), _mm_add_ps(x.b, x.d));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_shuffle_ps(four, four, 1)));
}
INLINE float v_reduce_max(v16 x) {
  __m128 four = _mm_max_ps(_mm_max_ps(x.a, x.c), _mm_max_ps(x.b, x.d));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_shuffle_ps(four, four, 1)));
}

INLINE float square_root(float x) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))); }

// Rounds to the nearest f16, ties to even.
INLINE uint16_t f16_bits(float x) {
  const uint32_t bits = (uint32_t)_mm_cvtsi128_si32(_mm_castps_si128(_mm_set_ss(x))),
                 magnitude = bits & 0x7fffffff;
  const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
  if (magnitude > 0x7f800000) return sign | 0x7e00;
  if (magnitude >= 0x477ff000) return sign | 0x7c00;
  if (magnitude < 0x38800000) {  // subnormal: a multiple of 2^-24
    return sign | (uint16_t)_mm_cvtss_si32(_mm_set_ss(
                      _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128((int)magnitude))) * 0x1p24f));
  }
  return sign | (uint16_t)((magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13);
}
INLINE void spin_pause(void) { _mm_pause(); }

#endif  // MLXCEL_KERNELS_CPU_VECTOR_SSE_H_
