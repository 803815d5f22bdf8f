// Quantized linear layers (packed.cu): split x, or its norm, into bf16 or f16 parts, once for all matrices
// that multiply it.
#pragma once

#include "overlap.cuh"
#include "packed_parts.cuh"

__device__ __forceinline__ int row_threads() {
  return (run_count() + 3) / 4 * 64;
}  // threads that store a row

// The largest absolute value over the 256 threads of a block, in all of them. |shared|: memory of this only.
__device__ __forceinline__ float largest_of_block(float value, float (&shared)[8]) {
#pragma unroll
  for (int i = 16; i; i >>= 1) value = largest_of(value, __shfl_xor_sync(~0u, value, i));
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  float largest = 0;
#pragma unroll
  for (int i = 0; i < 8; i++) largest = largest_of(largest, shared[i]);
  return largest;
}

// The scale of the parts of |row|, whose numbers are at most |largest|. One thread stores its inverse.
__device__ __forceinline__ float scale_row(u8 *parts, int row, float largest) {
  const float scale = scale_below(largest);
  if (threadIdx.x == 0) row_scales(parts)[row] = inverse_of(scale);
  return scale;
}

#if GAIN

constexpr int KEPT = 2;  // units of 8 columns of a thread that stay in registers

// The sum over the 256 threads of a block, in all of them. |sums|: shared memory of this sum only.
__device__ __forceinline__ float sum_block(float value, float (&sums)[8]) {
#pragma unroll
  for (int i = 16; i; i >>= 1) value += __shfl_xor_sync(~0u, value, i);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
  __syncthreads();
  float total = 0;
#pragma unroll
  for (int i = 0; i < 8; i++) total += sums[i];
  return total;
}

// Adds the partial sums of a product to 8 columns of x, the residual, and stores them.
__device__ __forceinline__ void complete(float (&v)[8], const float *partials, int count, u64 at, float *x) {
  float sum[8] = {};
#pragma unroll 8
  for (int n = 0; n < count; n++) {
    float u[8];
    load8(u, partials + (u64)n * size_m() * size_k() + at);
#pragma unroll
    for (int i = 0; i < 8; i++) sum[i] += u[i];
  }
#pragma unroll
  for (int i = 0; i < 8; i++) v[i] += sum[i];
  *(float4 *)(x + at) = make_float4(v[0], v[1], v[2], v[3]);
  *(float4 *)(x + at + 4) = make_float4(v[4], v[5], v[6], v[7]);
}

#if LAYERNORM

__device__ __forceinline__ int has() { return size_parameter<2>(); }  // HAS

// A block normalizes one row: (x - mean) / sqrt(variance + NORM_EPS) * gain + bias. The deviations from the
// mean are squared, as in the generic path: the mean of the squares would lose accuracy.
extern "C" __global__ void __launch_bounds__(256)
    NAME(const float *__restrict__ x, const float *__restrict__ gain, const float *__restrict__ bias,
         u8 *__restrict__ parts, int, int, int) {
  start_next_kernel();
  __shared__ float totals[8], squares[8], deviations[8], biases[8];
  const int row = blockIdx.x;
  float g[KEPT][8], b[KEPT][8], v[KEPT][8] = {}, sum = 0, square = 0;
  auto load_weights = [&](int nth, float(&h)[8], float(&c)[8]) {
#pragma unroll
    for (int i = 0; i < 8; i++) h[i] = 1, c[i] = 0;
    if (nth * 8 < size_k() && (has() & MLX_HAS_GAIN)) load8(h, gain + nth * 8);
    if (nth * 8 < size_k() && (has() & MLX_HAS_BIAS)) load8(c, bias + nth * 8);
  };
#pragma unroll
  for (int i = 0; i < KEPT; i++) load_weights(threadIdx.x + i * 256, g[i], b[i]);
  wait_for_previous_kernel();
  x = after_wait(x);
  const float *from = x + (u64)row * size_k();
  auto add = [&](const float(&u)[8]) {
    sum += ((u[0] + u[1]) + (u[2] + u[3])) + ((u[4] + u[5]) + (u[6] + u[7]));
  };
#pragma unroll
  for (int i = 0; i < KEPT; i++) {
    if (row < size_m() && (threadIdx.x + i * 256) * 8 < size_k())
      load8(v[i], from + (threadIdx.x + i * 256) * 8);
    add(v[i]);
  }
#pragma unroll 1
  for (int nth = threadIdx.x + KEPT * 256; row < size_m() && nth * 8 < size_k(); nth += 256) {
    float u[8];
    load8(u, from + nth * 8);
    add(u);
  }
  const float mean = sum_block(sum, totals) / size_k();
  float deviation = 0, most_bias = 0;  // the largest ones, for the scale of the parts
  auto add_squares = [&](const float(&u)[8], const float(&h)[8], const float(&c)[8]) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
      square += (u[i] - mean) * (u[i] - mean);
      if constexpr (!ROWS16)
        deviation = largest_of(deviation, (u[i] - mean) * h[i]), most_bias = largest_of(most_bias, c[i]);
    }
  };
#pragma unroll
  for (int i = 0; i < KEPT; i++)
    if (row < size_m() && (threadIdx.x + i * 256) * 8 < size_k()) add_squares(v[i], g[i], b[i]);
#pragma unroll 1
  for (int nth = threadIdx.x + KEPT * 256; row < size_m() && nth * 8 < size_k(); nth += 256) {
    float u[8], h[8], c[8];
    load8(u, from + nth * 8);
    load_weights(nth, h, c);
    add_squares(u, h, c);
  }
  const float scale = 1 / sqrtf(sum_block(square, squares) / size_k() + config.norm_eps);
  float part_scale = 1;
  if constexpr (!ROWS16) {
    const float varying = largest_of_block(deviation, deviations) * scale;
    part_scale = scale_row(parts, row, varying + largest_of_block(most_bias, biases));
  }
  auto store = [&](int nth, float(&u)[8], const float(&h)[8], const float(&c)[8]) {
#pragma unroll
    for (int i = 0; i < 8; i++)
      u[i] = row < size_m() && nth * 8 < size_k() ? (u[i] - mean) * scale * h[i] + c[i] : 0;
    store_parts(parts, row, nth, u, part_scale);
  };
#pragma unroll
  for (int i = 0; i < KEPT; i++)
    if (threadIdx.x + i * 256 < row_threads()) store(threadIdx.x + i * 256, v[i], g[i], b[i]);
#pragma unroll 1
  for (int nth = threadIdx.x + KEPT * 256; nth < row_threads(); nth += 256) {
    float u[8] = {}, h[8], c[8];
    if (row < size_m() && nth * 8 < size_k()) load8(u, from + nth * 8);
    load_weights(nth, h, c);
    store(nth, u, h, c);
  }
}

#else

constexpr const float *partials = nullptr;  // the name of a parameter that the kernel does not have

// A block normalizes one row: x / sqrt(mean(x^2) + NORM_EPS) * gain.
extern "C" __global__ void __launch_bounds__(256)
#if PARTIALS
    NAME(const float *__restrict__ gain, const float *__restrict__ partials, float *x, u8 *__restrict__ parts,
         int, int, int) {
#else
    NAME(const float *__restrict__ x, const float *__restrict__ gain, u8 *__restrict__ parts, int, int) {
#endif
  start_next_kernel();
  __shared__ float squares[8], products[8];
  const int row = blockIdx.x;
  float g[KEPT][8], v[KEPT][8] = {}, square = 0, largest = 0;
#pragma unroll
  for (int i = 0; i < KEPT; i++)
    if ((threadIdx.x + i * 256) * 8 < size_k()) load8(g[i], gain + (threadIdx.x + i * 256) * 8);
  wait_for_previous_kernel();
  x = after_wait(x);
  const float *added = nullptr;
  if constexpr (PARTIALS) added = after_wait(partials);
  auto load = [&](float(&u)[8], const float(&h)[8], int nth) {  // 8 columns of x, complete; adds squares
    const u64 at = (u64)row * size_k() + nth * 8;
    load8(u, x + at);
    if constexpr (PARTIALS) complete(u, added, size_parameter<2>(), at, (float *)x);
#pragma unroll
    for (int i = 0; i < 8; i += 4)
      square += (u[i] * u[i] + u[i + 1] * u[i + 1]) + (u[i + 2] * u[i + 2] + u[i + 3] * u[i + 3]);
#pragma unroll
    for (int i = 0; i < 8 && !ROWS16; i++) largest = largest_of(largest, u[i] * h[i]);
  };
#pragma unroll
  for (int i = 0; i < KEPT; i++)
    if (row < size_m() && (threadIdx.x + i * 256) * 8 < size_k()) load(v[i], g[i], threadIdx.x + i * 256);
#pragma unroll 1
  for (int nth = threadIdx.x + KEPT * 256; row < size_m() && nth * 8 < size_k(); nth += 256) {
    float u[8], h[8] = {};
    if constexpr (!ROWS16) load8(h, gain + nth * 8);
    load(u, h, nth);
  }
  const float scale = 1 / sqrtf(sum_block(square, squares) / size_k() + config.norm_eps);
  float part_scale = 1;
  if constexpr (!ROWS16) part_scale = scale_row(parts, row, largest_of_block(largest, products) * scale);
  auto store = [&](int nth, float(&u)[8], const float(&h)[8]) {
#pragma unroll
    for (int i = 0; i < 8; i++) u[i] = nth * 8 < size_k() ? u[i] * scale * h[i] : 0;
    store_parts(parts, row, nth, u, part_scale);
  };
#pragma unroll
  for (int i = 0; i < KEPT; i++)
    if (threadIdx.x + i * 256 < row_threads()) store(threadIdx.x + i * 256, v[i], g[i]);
#pragma unroll 1
  for (int nth = threadIdx.x + KEPT * 256; nth < row_threads(); nth += 256) {
    float u[8] = {}, h[8] = {};
    if (row < size_m() && nth * 8 < size_k()) {
      load8(u, x + (u64)row * size_k() + nth * 8);
      load8(h, gain + nth * 8);
    }
    store(nth, u, h);
  }
}

#endif  // LAYERNORM

#else

constexpr const int *groups = nullptr;  // the name of a parameter that the kernel does not have
constexpr int HELD = 8;                 // units of 8 columns of a thread that stay in registers

// A block splits one row.
extern "C" __global__ void __launch_bounds__(256)
#if MIXTURE
    NAME(const float *__restrict__ x, const int *__restrict__ groups, u8 *__restrict__ parts, int, int, int,
         int, int) {
#else
    NAME(const float *__restrict__ x, u8 *__restrict__ parts, int, int) {
#endif
  start_next_kernel();
  wait_for_previous_kernel();
  x = after_wait(x);
  const int *pairs = nullptr;
  if constexpr (MIXTURE) pairs = after_wait(groups);
  const int row = blockIdx.x;
  int from = row;
  if constexpr (MIXTURE) {
    const int pair = pairs[size_parameter<3>() + row];        // LIST_AT
    from = config.sorted ? row : pair / size_parameter<4>();  // USED
    if (pair < 0) return;                                     // no product uses this row
  }
  auto load = [&](float(&u)[8], int nth) {
#pragma unroll
    for (int i = 0; i < 8; i++) u[i] = 0;
    if (from < size_m() && nth * 8 < size_k()) load8(u, x + (u64)from * size_k() + nth * 8);
  };
  float v[HELD][8], scale = 1;
#pragma unroll
  for (int i = 0; i < HELD; i++) load(v[i], threadIdx.x + i * 256);
  if constexpr (!ROWS16) {
    __shared__ float shared[8];
    float largest = 0;
#pragma unroll
    for (int i = 0; i < HELD * 8; i++) largest = largest_of(largest, v[i / 8][i % 8]);
#pragma unroll 1
    for (int nth = threadIdx.x + HELD * 256; nth * 8 < size_k(); nth += 256) {
      float u[8];
      load(u, nth);
#pragma unroll
      for (int i = 0; i < 8; i++) largest = largest_of(largest, u[i]);
    }
    scale = scale_row(parts, row, largest_of_block(largest, shared));
  }
  // The 64 threads of four runs store or leave together.
#pragma unroll
  for (int i = 0; i < HELD; i++)
    if (threadIdx.x + i * 256 < row_threads()) store_parts(parts, row, threadIdx.x + i * 256, v[i], scale);
#pragma unroll 1
  for (int nth = threadIdx.x + HELD * 256; nth < row_threads(); nth += 256) {
    float u[8];
    load(u, nth);
    store_parts(parts, row, nth, u, scale);
  }
}

#endif
