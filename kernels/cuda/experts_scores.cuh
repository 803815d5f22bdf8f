// Mixture of experts (experts.cu): products with small matrices, and with one matrix for each head.
#pragma once

#include "config.cuh"
#include "overlap.cuh"
#include "types.cuh"

constexpr int N = config.n, K = config.k, HEADS = config.heads, X_DIM = config.x_dim ? config.x_dim : K;
using MatrixNumber = Select<config.matrix == Dtype::F16, F16, Bf16>::Type;  // of 16 bits
using matrix_t = Select<config.matrix == Dtype::F32, float, u16>::Type;

__device__ __forceinline__ float4 load_weights4(const float *from) { return *(const float4 *)from; }
__device__ __forceinline__ float4 load_weights4(const u16 *from) {
  const uint2 pairs = *(const uint2 *)from;
  const float2 low = MatrixNumber::widen2(pairs.x), high = MatrixNumber::widen2(pairs.y);
  return make_float4(low.x, low.y, high.x, high.y);
}

__device__ __forceinline__ float dot4(float4 a, float4 b, float sum) {
  return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

#if defined(SCORES_VECTOR)

extern "C" __global__ void __launch_bounds__(128)
    NAME(const float *__restrict__ x, const matrix_t *__restrict__ w, float *__restrict__ y, int tokens) {
  start_next_kernel();
  wait_for_previous_kernel();
  x = after_wait(x);
  const int lane = threadIdx.x % 32, row = blockIdx.x * 4 + threadIdx.x / 32, head = blockIdx.z;
  const matrix_t *from = w + ((u64)head * N + row) * K;
  const float4 *with = (const float4 *)(x + ((u64)blockIdx.y * HEADS + head) * X_DIM + config.x_start);
  if (row >= N) return;
  float sum = 0;
#pragma unroll 16
  for (int i = lane; i < K / 4; i += 32) sum = dot4(load_weights4(from + i * 4), with[i], sum);
#pragma unroll
  for (int i = 16; i; i /= 2) sum += __shfl_xor_sync(~0u, sum, i);
  if (lane == 0) y[((u64)blockIdx.y * HEADS + head) * N + row] = sum;
}

#else

// A block computes 16 tokens x 32 rows, 128 columns at a time. Each of its 8 warps multiplies 16 of these
// columns; a lane has 2 tokens x 8 rows. The sums of the warps are added in order.
constexpr int CHUNK = 128, LINE = CHUNK + 4;  // floats of a row in shared memory: no bank conflicts

extern "C" __global__ void __launch_bounds__(256)
    NAME(const float *__restrict__ x, const matrix_t *__restrict__ w, float *__restrict__ y, int tokens) {
  start_next_kernel();
  wait_for_previous_kernel();
  const int tiles = (N + 31) / 32, head = blockIdx.y / tiles;
  x = after_wait(x) + (u64)head * X_DIM + config.x_start;
  w += (u64)head * N * K;
  y += (u64)head * N;
  __shared__ float4 chunk[48][LINE / 4];  // 16 tokens, 32 rows
  __shared__ float sums[8][16][33];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, top = blockIdx.x * 16,
            left = blockIdx.y % tiles * 32;
  float4 next[6];
  auto load = [&](int k) {  // past the end: the last row again, whose result is not stored
#pragma unroll
    for (int i = 0; i < 6; i++) {
      const int row = warp + i * 8, column = k + lane * 4;
      const float *from = x + (u64)min(top + row, tokens - 1) * HEADS * X_DIM + column;
      const matrix_t *with = w + (u64)min(left + row - 16, N - 1) * K + column;
      next[i] = make_float4(0, 0, 0, 0);
      if (column < K) next[i] = i < 2 ? *(const float4 *)from : load_weights4(with);
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
    if (token < tokens && row < N) y[(u64)token * HEADS * N + row] = sum;
  }
}

#endif
