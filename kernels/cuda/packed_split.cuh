// Quantized linear layers (packed.cu): split x, or its RMS norm, into bf16 parts, once for all matrices that
// multiply it.

#define ROW_THREADS ((RUNS + 3) / 4 * 64)  // threads that store a row

#include "packed_parts.cuh"

#ifdef NORM_EPS

// A block normalizes one row: x / sqrt(mean(x^2) + NORM_EPS) * gain.
extern "C" __global__ void __launch_bounds__(256)
    NAME(const float *__restrict__ x, const float *__restrict__ gain,
         u8 *__restrict__ parts SIZE_PARAMETERS) {
  start_next_kernel();
  wait_for_previous_kernel();
  x = after_wait(x);
  __shared__ float squares[8];
  const int row = blockIdx.x;
  const float *from = x + (u64)row * K;
  float square = 0;
  if (row < M)
    for (int i = threadIdx.x * 4; i < K; i += 1024) {
      const float4 v = *(const float4 *)(from + i);
      square += (v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w);
    }
#pragma unroll
  for (int i = 16; i; i >>= 1) square += __shfl_xor_sync(~0u, square, i);
  if (threadIdx.x % 32 == 0) squares[threadIdx.x / 32] = square;
  __syncthreads();
  float total = 0;
#pragma unroll
  for (int i = 0; i < 8; i++) total += squares[i];
  const float scale = 1 / sqrtf(total / K + NORM_EPS);
  for (int nth = threadIdx.x; nth < ROW_THREADS; nth += 256) {
    float v[8] = {}, g[8];
    if (row < M && nth * 8 < K) {
      load8(v, from + nth * 8);
      load8(g, gain + nth * 8);
#pragma unroll
      for (int i = 0; i < 8; i++) v[i] = v[i] * scale * g[i];
    }
    store_parts(parts, row, nth, v);
  }
}

#else

extern "C" __global__ void __launch_bounds__(256) NAME(const float *__restrict__ x,
#ifdef EXPERTS
                                                       const int *__restrict__ groups,
#endif
                                                       u8 *__restrict__ parts SIZE_PARAMETERS) {
  start_next_kernel();
  wait_for_previous_kernel();
  x = after_wait(x);
#ifdef EXPERTS
  groups = after_wait(groups);
#endif
#if defined(SIZES) && !defined(EXPERTS)  // a block has one row: dividing by a variable would take as long as
                                         // the rest
  const int row = blockIdx.y, nth = blockIdx.x * 256 + threadIdx.x;
  if (nth >= ROW_THREADS) return;  // the 64 threads of four runs return together
#else
  const u64 index = (u64)blockIdx.x * 256 + threadIdx.x;
  const int row = index / ROW_THREADS, nth = index % ROW_THREADS;
  if (row >= MP) return;
#endif
#ifdef EXPERTS
  const int pair = groups[LIST_AT + row];
  const int from = SORTED ? row : pair / USED;
  if (pair < 0) return;  // no product uses this row
#else
  const int from = row;
#endif
  float v[8] = {};
  if (from < M && nth * 8 < K) load8(v, x + (u64)from * K + nth * 8);
  store_parts(parts, row, nth, v);
}

#endif
