// Quantized linear layers (packed.cu): split x, or its RMS norm, into bf16 parts, once for all matrices that
// multiply it.

#define ROW_THREADS ((RUNS + 3) / 4 * 64)  // threads that store a row

#include "packed_parts.cuh"

#ifdef NORM_EPS

constexpr int KEPT = 2;  // units of 8 columns of a thread that stay in registers

#ifdef PARTIALS
// Adds the partial sums of a product to 8 columns of x, the residual, and stores them.
__device__ __forceinline__ void complete(float (&v)[8], const float *partials, int count, u64 at, float *x) {
  float sum[8] = {};
#pragma unroll 8
  for (int n = 0; n < count; n++) {
    float u[8];
    load8(u, partials + (u64)n * M * K + at);
#pragma unroll
    for (int i = 0; i < 8; i++) sum[i] += u[i];
  }
#pragma unroll
  for (int i = 0; i < 8; i++) v[i] += sum[i];
  *(float4 *)(x + at) = make_float4(v[0], v[1], v[2], v[3]);
  *(float4 *)(x + at + 4) = make_float4(v[4], v[5], v[6], v[7]);
}
#endif

// A block normalizes one row: x / sqrt(mean(x^2) + NORM_EPS) * gain.
#ifdef PARTIALS
extern "C" __global__ void __launch_bounds__(256)
    NAME(const float *__restrict__ gain, const float *__restrict__ partials, float *x,
         u8 *__restrict__ parts SIZE_PARAMETERS) {
#else
extern "C" __global__ void __launch_bounds__(256)
    NAME(const float *__restrict__ x, const float *__restrict__ gain,
         u8 *__restrict__ parts SIZE_PARAMETERS) {
#endif
  start_next_kernel();
  __shared__ float squares[8];
  const int row = blockIdx.x;
  float g[KEPT][8], v[KEPT][8] = {}, square = 0;
#pragma unroll
  for (int i = 0; i < KEPT; i++)
    if ((threadIdx.x + i * 256) * 8 < K) load8(g[i], gain + (threadIdx.x + i * 256) * 8);
  wait_for_previous_kernel();
  x = after_wait(x);
#ifdef PARTIALS
  partials = after_wait(partials);
#endif
  auto load = [&](float(&u)[8], int nth) {  // 8 columns of x, complete; adds their squares
    const u64 at = (u64)row * K + nth * 8;
    load8(u, x + at);
#ifdef PARTIALS
    complete(u, partials, PARTIALS, at, x);
#endif
#pragma unroll
    for (int i = 0; i < 8; i += 4)
      square += (u[i] * u[i] + u[i + 1] * u[i + 1]) + (u[i + 2] * u[i + 2] + u[i + 3] * u[i + 3]);
  };
#pragma unroll
  for (int i = 0; i < KEPT; i++)
    if (row < M && (threadIdx.x + i * 256) * 8 < K) load(v[i], threadIdx.x + i * 256);
#pragma unroll 1
  for (int nth = threadIdx.x + KEPT * 256; row < M && nth * 8 < K; nth += 256) {
    float u[8];
    load(u, nth);
  }
#pragma unroll
  for (int i = 16; i; i >>= 1) square += __shfl_xor_sync(~0u, square, i);
  if (threadIdx.x % 32 == 0) squares[threadIdx.x / 32] = square;
  __syncthreads();
  float total = 0;
#pragma unroll
  for (int i = 0; i < 8; i++) total += squares[i];
  const float scale = 1 / sqrtf(total / K + NORM_EPS);
  auto store = [&](int nth, float(&u)[8], const float(&h)[8]) {
#pragma unroll
    for (int i = 0; i < 8; i++) u[i] = nth * 8 < K ? u[i] * scale * h[i] : 0;
    store_parts(parts, row, nth, u);
  };
#pragma unroll
  for (int i = 0; i < KEPT; i++)
    if (threadIdx.x + i * 256 < ROW_THREADS) store(threadIdx.x + i * 256, v[i], g[i]);
#pragma unroll 1
  for (int nth = threadIdx.x + KEPT * 256; nth < ROW_THREADS; nth += 256) {
    float u[8] = {}, h[8] = {};
    if (row < M && nth * 8 < K) {
      load8(u, x + (u64)row * K + nth * 8);
      load8(h, gain + nth * 8);
    }
    store(nth, u, h);
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
  // A block has one row: dividing by a variable would take as long as the rest.
  const int row = blockIdx.y, nth = blockIdx.x * 256 + threadIdx.x;
  if (nth >= ROW_THREADS) return;  // the 64 threads of four runs return together
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
