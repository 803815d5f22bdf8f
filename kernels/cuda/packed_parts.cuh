// Linear layers (packed.cu): the parts of x, in global or shared memory.
#pragma once

#include "packed_sizes.cuh"
#include "parts.cuh"

// Exchanges words between four neighbouring lanes: lane q gets word q of each lane.
__device__ __forceinline__ void transpose(u32 (&v)[4]) {
#pragma unroll
  for (int step = 1; step <= 2; step *= 2) {
    const bool high = threadIdx.x & step;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      if (i & step) continue;
      const u32 other = __shfl_xor_sync(~0u, high ? v[i] : v[i + step], step);
      if (high)
        v[i] = other;
      else
        v[i + step] = other;
    }
  }
}

// The parts of a pair of floats.
__device__ __forceinline__ void split_pair(u32 (&part)[3], float low, float high) {
  split_bf16(part, low, high);
}
__device__ __forceinline__ void split_pair(u32 (&part)[2], float low, float high) {
  split_f16(part[0], part[1], low, high);
}

// Stores the parts of 8 neighbouring columns of a row, 16 bytes of each part. For tiles they are multiplied
// by |scale|, and the first of the four threads of a block of 32 columns stores its sum. Called by all
// threads of four runs.
__device__ __forceinline__ void store_parts(u8 *parts, int row, int nth, const float (&v)[8], float scale) {
  const int run = nth / 16;
  u32 part[4][PARTS];
#pragma unroll
  for (int i = 0; i < 4; i++) split_pair(part[i], v[i * 2] * scale, v[i * 2 + 1] * scale);
  auto address_of = [&](int chunk, int i, int piece) {
    return parts + (((u64)chunk * PARTS + i) * part_rows() + row) * 128 + (piece ^ row % 8) * 16;
  };
  if constexpr (ROWS16) {
    // A piece of 16 bytes has one pair of each of the four threads.
#pragma unroll
    for (int i = 0; i < PARTS; i++) {
      u32 pairs[4] = {part[0][i], part[1][i], part[2][i], part[3][i]};
      transpose(pairs);
      if (run < run_count())
        *(uint4 *)address_of(nth / 8, i, nth % 8 / 4 * 4 + nth % 4) =
            make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    }
  } else {
    if (run < run_count())
#pragma unroll
      for (int i = 0; i < PARTS; i++)
        *(uint4 *)address_of(nth / 8, i, nth % 8) =
            make_uint4(part[0][i], part[1][i], part[2][i], part[3][i]);
    u32 total[PARTS];
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) sum += v[i * 2] + v[i * 2 + 1];
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    split_pair(total, sum * scale * SUM_SCALE, 0);
    if (nth % 4) return;
#pragma unroll
    for (int i = 0; i < PARTS; i++)
      ((u16 *)address_of(chunk_count() + run / 16, i, run % 16 / 2))[nth / 4 % 4 * 2 + run % 2] = total[i];
  }
}

__device__ __forceinline__ void load8(float (&v)[8], const float *from) {
  const float4 a = *(const float4 *)from, b = *(const float4 *)(from + 4);
  v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}
