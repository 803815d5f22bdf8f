// v16 for aarch64: sixteen floats in four NEON registers. Implements the interface of vector.h.
//
// The byte dot products (dotprod, i8mm) are not used, because activations are f32. The bf16 products (bfmmla)
// are not used, because their sums are rounded to odd: three bf16 parts would not give the result of f32.
#ifndef MLXCEL_KERNELS_CPU_VECTOR_NEON_H_
#define MLXCEL_KERNELS_CPU_VECTOR_NEON_H_

#include <arm_neon.h>
#include <stdint.h>

typedef struct v16 {
  float32x4_t a, b, c, d;
} v16;

#define EACH(f, ...) ((v16){f(a, __VA_ARGS__), f(b, __VA_ARGS__), f(c, __VA_ARGS__), f(d, __VA_ARGS__)})
#define TWO(part, f, x, y) f((x).part, (y).part)
#define THREE(part, f, x, y, z) f((x).part, (y).part, (z).part)

INLINE v16 v_all(float x) {
  const float32x4_t all = vdupq_n_f32(x);
  return (v16){all, all, all, all};
}
INLINE v16 v_zero(void) { return v_all(0); }
INLINE v16 v_load(const float *p) {
  return (v16){vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)};
}
INLINE void v_store(float *p, v16 x) {
  vst1q_f32(p, x.a);
  vst1q_f32(p + 4, x.b);
  vst1q_f32(p + 8, x.c);
  vst1q_f32(p + 12, x.d);
}
INLINE v16 v_add(v16 x, v16 y) { return EACH(TWO, vaddq_f32, x, y); }
INLINE v16 v_sub(v16 x, v16 y) { return EACH(TWO, vsubq_f32, x, y); }
INLINE v16 v_mul(v16 x, v16 y) { return EACH(TWO, vmulq_f32, x, y); }
INLINE v16 v_div(v16 x, v16 y) { return EACH(TWO, vdivq_f32, x, y); }
INLINE v16 v_max(v16 x, v16 y) { return EACH(TWO, vmaxq_f32, x, y); }
INLINE v16 v_min(v16 x, v16 y) { return EACH(TWO, vminq_f32, x, y); }
INLINE v16 v_fma(v16 x, v16 y, v16 sum) { return EACH(THREE, vfmaq_f32, sum, x, y); }
INLINE v16 v_round(v16 x) {
  return (v16){vrndnq_f32(x.a), vrndnq_f32(x.b), vrndnq_f32(x.c), vrndnq_f32(x.d)};
}
INLINE float32x4_t power4(float32x4_t whole) {
  return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(whole), vdupq_n_s32(127)), 23));
}
INLINE v16 v_power2(v16 whole) {
  return (v16){power4(whole.a), power4(whole.b), power4(whole.c), power4(whole.d)};
}

INLINE float32x4_t half4(const uint16_t *p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
INLINE v16 v_load_f16(const void *p) {
  const uint16_t *at = p;
  return (v16){half4(at), half4(at + 4), half4(at + 8), half4(at + 12)};
}
INLINE float32x4_t bf16_4(const uint16_t *p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
INLINE v16 v_load_bf16(const void *p) {
  const uint16_t *at = p;
  return (v16){bf16_4(at), bf16_4(at + 4), bf16_4(at + 8), bf16_4(at + 12)};
}
// 16 pairs of bf16: the first and the second value of each.
INLINE v16 v_load_first(const void *p) {
  const uint32_t *at = p;
#define SHIFTED(nth) vreinterpretq_f32_u32(vshlq_n_u32(vld1q_u32(at + 4 * (nth)), 16))
  return (v16){SHIFTED(0), SHIFTED(1), SHIFTED(2), SHIFTED(3)};
#undef SHIFTED
}
INLINE v16 v_load_second(const void *p) {
  const uint32_t *at = p;
#define MASKED(nth) vreinterpretq_f32_u32(vandq_u32(vld1q_u32(at + 4 * (nth)), vdupq_n_u32(0xffff0000)))
  return (v16){MASKED(0), MASKED(1), MASKED(2), MASKED(3)};
#undef MASKED
}
INLINE v16 v_load_u8(const void *p) {
  const uint8x16_t bytes = vld1q_u8(p);
  const uint16x8_t low = vmovl_u8(vget_low_u8(bytes)), high = vmovl_high_u8(bytes);
  return (v16){vcvtq_f32_u32(vmovl_u16(vget_low_u16(low))), vcvtq_f32_u32(vmovl_high_u16(low)),
               vcvtq_f32_u32(vmovl_u16(vget_low_u16(high))), vcvtq_f32_u32(vmovl_high_u16(high))};
}
INLINE v16 v_load_i8(const void *p) {
  const int8x16_t bytes = vld1q_s8(p);
  const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_high_s8(bytes);
  return (v16){vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_high_s16(low)),
               vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_high_s16(high))};
}

INLINE float32x4_t first4(float32x4_t x, int count) {
  static const int32_t lanes[4] = {0, 1, 2, 3};
  return vbslq_f32(vcgtq_s32(vdupq_n_s32(count), vld1q_s32(lanes)), x, vdupq_n_f32(-__builtin_inff()));
}
// Lanes |count| and up become -infinity.
INLINE v16 v_keep_first(v16 x, int count) {
  return (v16){first4(x.a, count), first4(x.b, count - 4), first4(x.c, count - 8), first4(x.d, count - 12)};
}
INLINE float32x4_t above4(float32x4_t x, float32x4_t limit, float32x4_t y) {
  return vreinterpretq_f32_u32(vandq_u32(vcgtq_f32(x, limit), vreinterpretq_u32_f32(y)));
}
INLINE v16 v_where_above(v16 x, float limit, v16 y) {  // x > limit ? y : 0
  const v16 limits = v_all(limit);
  return EACH(THREE, above4, x, limits, y);
}
INLINE int v_find(v16 x, float value) {  // index of the first lane equal to |value|, or 16
  float lanes[16];
  v_store(lanes, x);
  for (int i = 0; i < 16; ++i) {
    if (lanes[i] == value) return i;
  }
  return 16;
}

// 4-bit codes of 16 rows x 8 columns; the table is the value of code 0.
typedef struct codes {
  uint32x4_t a, b, c, d;
} codes_t;
typedef float32x4_t table_t;
INLINE table_t table_from(float first) { return vdupq_n_f32(first); }
INLINE codes_t codes_load(const void *p) {
  const uint32_t *at = p;
  return (codes_t){vld1q_u32(at), vld1q_u32(at + 4), vld1q_u32(at + 8), vld1q_u32(at + 12)};
}
INLINE float32x4_t column4(float32x4_t first, uint32x4_t words, int nth) {
  const uint32x4_t codes = vandq_u32(vshlq_u32(words, vdupq_n_s32(-4 * nth)), vdupq_n_u32(15));
  return vaddq_f32(vcvtq_f32_u32(codes), first);
}
INLINE v16 codes_column(float32x4_t first, codes_t codes, int nth) {
  return (v16){column4(first, codes.a, nth), column4(first, codes.b, nth), column4(first, codes.c, nth),
               column4(first, codes.d, nth)};
}
#define CODES_COLUMN(table, codes, nth) codes_column(table, codes, nth)
#define EACH_CODES(f, ...)                                                              \
  ((codes_t){f(codes.a, __VA_ARGS__), f(codes.b, __VA_ARGS__), f(codes.c, __VA_ARGS__), \
             f(codes.d, __VA_ARGS__)})
INLINE uint32x4_t field4(uint32x4_t words, int shift, uint32_t mask) {
  return vandq_u32(vshlq_u32(words, vdupq_n_s32(-shift)), vdupq_n_u32(mask));
}
INLINE codes_t codes_field(codes_t codes, int shift, uint32_t mask) {
  return EACH_CODES(field4, shift, mask);
}
INLINE codes_t codes_or(codes_t x, codes_t y) {
  return (codes_t){vorrq_u32(x.a, y.a), vorrq_u32(x.b, y.b), vorrq_u32(x.c, y.c), vorrq_u32(x.d, y.d)};
}
INLINE uint32x4_t lookup4(uint32x4_t words, const int8_t table[16]) {
  return vreinterpretq_u32_s8(vqtbl1q_s8(vld1q_s8(table), vreinterpretq_u8_u32(words)));
}
INLINE codes_t codes_lookup(codes_t codes, const int8_t table[16]) { return EACH_CODES(lookup4, table); }
INLINE float32x4_t signed4(uint32x4_t words, int nth) {
  const int32x4_t high = vreinterpretq_s32_u32(vshlq_u32(words, vdupq_n_s32(24 - 8 * nth)));
  return vcvtq_f32_s32(vshrq_n_s32(high, 24));
}
INLINE v16 codes_byte(codes_t codes, int nth) {
  return (v16){signed4(codes.a, nth), signed4(codes.b, nth), signed4(codes.c, nth), signed4(codes.d, nth)};
}
INLINE float32x4_t placed4(uint32x4_t words, int nth, int mask, int least) {
  const int32x4_t code = vreinterpretq_s32_u32(vandq_u32(words, vdupq_n_u32((uint32_t)mask << 8 * nth)));
  return vcvtq_f32_s32(vaddq_s32(code, vdupq_n_s32(least * (1 << 8 * nth))));
}
INLINE v16 codes_placed(codes_t codes, int nth, int mask, int least) {
  return (v16){placed4(codes.a, nth, mask, least), placed4(codes.b, nth, mask, least),
               placed4(codes.c, nth, mask, least), placed4(codes.d, nth, mask, least)};
}
#undef EACH_CODES

// Adds in the same order as v_sum of vector.h.
INLINE float v_sum(v16 x) {
  const float32x4_t four = vaddq_f32(vaddq_f32(x.a, x.c), vaddq_f32(x.b, x.d));
  const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
INLINE float v_reduce_max(v16 x) { return vmaxvq_f32(vmaxq_f32(vmaxq_f32(x.a, x.b), vmaxq_f32(x.c, x.d))); }

INLINE float square_root(float x) { return vget_lane_f32(vsqrt_f32(vdup_n_f32(x)), 0); }
INLINE uint16_t f16_bits(float x) {
  return vget_lane_u16(vreinterpret_u16_f16(vcvt_f16_f32(vdupq_n_f32(x))), 0);
}
// isb, because yield is a nop on most CPUs; isb takes about as long as pause on x86.
INLINE void spin_pause(void) { __asm__ volatile("isb" ::: "memory"); }

#endif  // MLXCEL_KERNELS_CPU_VECTOR_NEON_H_
