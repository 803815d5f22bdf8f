// Mixture of experts (experts.cu): products with small f32 matrices.
#pragma once

#include "config.cuh"
#include "overlap.cuh"

constexpr int N = config.n, K = config.k;

__device__ __forceinline__ float dot4(float4 a, float4 b, float sum) {
  return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

#if defined(SCORES_VECTOR)

extern "C" __global__ void __launch_bounds__(128)
    NAME(const float *__restrict__ x, const float *__restrict__ w, float *__restrict__ y, int tokens) {
  start_next_kernel();
  wait_for_previous_kernel();
  x = after_wait(x);
  const int lane = threadIdx.x % 32, row = blockIdx.x * 4 + threadIdx.x / 32;
  const float4 *from = (const float4 *)(w + (u64)row * K), *with = (const float4 *)(x + (u64)blockIdx.y * K);
  if (row >= N) return;
  float sum = 0;
#pragma unroll 16
  for (int i = lane; i < K / 4; i += 32) sum = dot4(from[i], with[i], sum);
#pragma unroll
  for (int i = 16; i; i /= 2) sum += __shfl_xor_sync(~0u, sum, i);
  if (lane == 0) y[(u64)blockIdx.y * N + row] = sum;
}

#else

// A block computes 16 tokens x 32 rows, 128 columns at a time. Each of its 8 warps multiplies 16 of these
// columns; a lane has 2 tokens x 8 rows. The sums of the warps are added in order.
constexpr int CHUNK = 128, LINE = CHUNK + 4;  // floats of a row in shared memory: no bank conflicts

extern "C" __global__ void __launch_bounds__(256)
    NAME(const float *__restrict__ x, const float *__restrict__ w, float *__restrict__ y, int tokens) {
  start_next_kernel();
  wait_for_previous_kernel();
  x = after_wait(x);
  __shared__ float4 chunk[48][LINE / 4];  // 16 tokens, 32 rows
  __shared__ float sums[8][16][33];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, top = blockIdx.x * 16, left = blockIdx.y * 32;
  float4 next[6];
  auto load = [&](int k) {  // past the end: the last row again, whose result is not stored
#pragma unroll
    for (int i = 0; i < 6; i++) {
      const int row = warp + i * 8, column = k + lane * 4;
      const float *from =
          row < 16 ? x + (u64)min(top + row, tokens - 1) * K : w + (u64)min(left + row - 16, N - 1) * K;
      next[i] = column < K ? *(const float4 *)(from + column) : make_float4(0, 0, 0, 0);
    }
  };
  float acc[2][8] = {};
  load(0);
  for (int k = 0; k < K; k += CHUNK) {
    __syncthreads();  // the previous chunk has been read
#pragma unroll
    for (int i = 0; i < 6; i++) chunk[warp + i * 8][lane] = next[i];
    __syncthreads();
    if (k + CHUNK < K) load(k + CHUNK);
#pragma unroll
    for (int step = 0; step < 4; step++) {
      float4 a[2], b[8];
#pragma unroll
      for (int i = 0; i < 2; i++) a[i] = chunk[lane / 4 + i * 8][warp * 4 + step];
#pragma unroll
      for (int i = 0; i < 8; i++) b[i] = chunk[16 + lane % 4 + i * 4][warp * 4 + step];
#pragma unroll
      for (int i = 0; i < 16; i++) acc[i / 8][i % 8] = dot4(a[i / 8], b[i % 8], acc[i / 8][i % 8]);
    }
  }
#pragma unroll
  for (int i = 0; i < 16; i++) sums[warp][lane / 4 + i / 8 * 8][lane % 4 + i % 8 * 4] = acc[i / 8][i % 8];
  __syncthreads();
  for (int i = threadIdx.x; i < 512; i += 256) {
    const int token = top + i / 32, row = left + i % 32;
    float sum = 0;
#pragma unroll
    for (int j = 0; j < 8; j++) sum += sums[j][i / 32][i % 32];
    if (token < tokens && row < N) y[(u64)token * N + row] = sum;
  }
}

#endif
