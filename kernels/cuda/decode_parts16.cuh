// Decode: activations as 16-bit parts, for weights of 16 bits. Three bf16 parts hold all 24 bits of a number.
#pragma once

#include "decode_state.cuh"

// Byte offset in a staged piece of activation pair |pair| of |lane|: see stage().
static __device__ __forceinline__ int staged_at(int lane, int pair) {
  const int quad = lane >> 1 & 3, fragment = lane & 1;
  return (pair * 4 + quad) * PARTS * 8 + fragment * 4;
}

// This lane's B fragment of a staged piece; zero for columns past the last part.
static __device__ __forceinline__ uint2 staged_fragment16(const Shared *s, int run, int piece) {
  const int lane = threadIdx.x & 31, quad = lane & 3, part = lane >> 2 & 3, half = lane >> 4;
  const u8 *from = s->work.runs[threadIdx.x >> 5] + run * RUN16_BYTES + piece * PIECE16_BYTES +
                   ((half * 4 + quad) * PARTS + part) * 8;
  return part < PARTS ? *(const uint2 *)from : uint2{0, 0};
}

template <int K, typename S>
static __device__ __forceinline__ uint2 fragment_of(const S *s, const Activations16<K> &x, int run,
                                                    int piece) {
  return Tiling<K>::in_registers ? x.fragment[Tiling<K>::in_registers ? run : 0][piece]
                                 : staged_fragment16(s, run, piece);
}

// Stores the parts of activations 4i to 4i + 3 of the run, held by lane i, in the order of the instruction.
static __device__ __forceinline__ void stage(Shared *s, int run, float4 x) {
  const int lane = threadIdx.x & 31;
  u8 *to = s->work.runs[threadIdx.x >> 5] + run * RUN16_BYTES + (lane >> 3) * PIECE16_BYTES;
#pragma unroll
  for (int i = 0; i < PARTS; ++i) {
    const u32 first = Number::narrow2(x.x, x.y), second = Number::narrow2(x.z, x.w);
    *(u32 *)(to + staged_at(lane, 0) + i * 8) = first;
    *(u32 *)(to + staged_at(lane, 1) + i * 8) = second;
    x = {x.x - Number::low(first), x.y - Number::high(first), x.z - Number::low(second),
         x.w - Number::high(second)};
  }
}

// Scales the warp's values by a power of two, so that the largest is near 2^14: f16 parts neither overflow
// nor lose the small values. Row sums are multiplied by |unscale|.
template <int K>
static __device__ __forceinline__ void scale_for_f16(Activations16<K> &x, float4 (&value)[Tiling<K>::runs]) {
  u32 largest = 0;  // floats of one sign are ordered as their bits
#pragma unroll
  for (int i = 0; i < Tiling<K>::runs; ++i) {
    const float4 v = value[i];
    largest =
        max(largest, __float_as_uint(fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)))));
  }
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes <<= 1) largest = max(largest, __shfl_xor_sync(~0u, largest, lanes));
  const int exponent = min(max((int)(largest >> 23), 16), 240);  // biased; both factors stay normal numbers
  const float scale = __uint_as_float((u32)(127 + 127 + 14 - exponent) << 23);
  x.unscale = __uint_as_float((u32)(exponent - 14) << 23);
#pragma unroll
  for (int i = 0; i < Tiling<K>::runs; ++i) {
    const float4 v = value[i];
    value[i] = {v.x * scale, v.y * scale, v.z * scale, v.w * scale};
  }
}

// Converts the values of this warp's columns to activation fragments.
template <int K>
static __device__ __forceinline__ void stage_all(Shared *s, Activations16<K> &x,
                                                 float4 (&value)[Tiling<K>::runs]) {
  using C = Tiling<K>;
  constexpr int staged = Activations16<K>::staged;
  if constexpr (config.dtype == Dtype::F16) scale_for_f16(x, value);
#pragma unroll
  for (int begin = 0; begin < C::runs; begin += staged) {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < staged && begin + i < C::runs; ++i) stage(s, i, value[begin + i]);
    __syncwarp();
    if (!C::in_registers) return;
#pragma unroll
    for (int i = 0; i < 4 * staged && begin + i / 4 < C::runs; ++i)
      x.fragment[begin + i / 4][i % 4] = staged_fragment16(s, i / 4, i % 4);
  }
}
