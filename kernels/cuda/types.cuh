// Integers, a choice of types, and numbers of 16 bits with their tensor-core instruction.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// A if CONDITION, else B.
template <bool CONDITION, typename A, typename B>
struct Select {
  using Type = A;
};
template <typename A, typename B>
struct Select<false, A, B> {
  using Type = B;
};

// bf16 and f16: conversions, rounded to nearest even, of a number or of a pair in one word; and sum += a . b
// for a 16 x 16 and a 16 x 8 matrix.
struct Bf16 {
  static __device__ __forceinline__ u16 narrow(float x) {
    u16 y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
  }
  static __device__ __forceinline__ u32 narrow2(float low, float high) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
  }
  static __device__ __forceinline__ float widen(u16 x) { return __uint_as_float((u32)x << 16); }
  static __device__ __forceinline__ float low(u32 pair) { return __uint_as_float(pair << 16); }
  static __device__ __forceinline__ float high(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }
  static __device__ __forceinline__ float2 widen2(u32 pair) { return make_float2(low(pair), high(pair)); }
  static __device__ __forceinline__ void multiply(float (&sum)[4], uint4 a, uint2 b) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y));
  }
  static __device__ __forceinline__ void multiply_once(float (&product)[4], uint4 a, uint2 b) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %10, %10, %10};"
        : "=f"(product[0]), "=f"(product[1]), "=f"(product[2]), "=f"(product[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y), "f"(0.0f));
  }
};

struct F16 {
  static __device__ __forceinline__ u16 narrow(float x) {
    u16 y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
  }
  static __device__ __forceinline__ u32 narrow2(float low, float high) {
    u32 pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
  }
  static __device__ __forceinline__ float widen(u16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
    return y;
  }
  static __device__ __forceinline__ float low(u32 pair) { return widen((u16)pair); }
  static __device__ __forceinline__ float high(u32 pair) { return widen((u16)(pair >> 16)); }
  static __device__ __forceinline__ float widen_word(u32 word) {  // its low half, without a 16-bit register
    float y;
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l; }" : "=f"(y) : "r"(word));
    return y;
  }
  static __device__ __forceinline__ float2 widen2(u32 pair) {
    float2 v;
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h; }"
        : "=f"(v.x), "=f"(v.y)
        : "r"(pair));
    return v;
  }
  static __device__ __forceinline__ void multiply(float (&sum)[4], uint4 a, uint2 b) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y));
  }
};

// A pair of floats as pairs of f16: |high| + |low| has 22 bits of each.
__device__ __forceinline__ void split_f16(u32 &high, u32 &low, float a, float b) {
  high = F16::narrow2(a, b);
  const float2 rounded = F16::widen2(high);
  low = F16::narrow2(a - rounded.x, b - rounded.y);
}
