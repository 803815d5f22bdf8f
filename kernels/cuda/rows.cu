// Small ops on rows of f32, so that IREE compiles no dispatch for them. One kernel per NVRTC compilation;
// sizes are parameters, so that one image serves all steps. The result of a row does not depend on other
// rows.
//
// Macros: NAME, and
//
// EMBED     with DTYPE_BF16 or DTYPE_F16
//           (ids i32 [N], table [VOCAB, WIDTH], y f32 [N, WIDTH], WIDTH, factor as the bits of an f32)
//           y = factor * rows of the table; WIDTH % 8 == 0
//           grid (N, 1, 1), block (256, 1, 1)
// NORM_EPS  with WARPS (1 or 8), the warps of a row
//           (x f32 [ROWS, WIDTH], gain f32 [WIDTH], residual f32 [ROWS, WIDTH], y f32 [ROWS, WIDTH], ROWS,
//           WIDTH, ADDS) y = RMS norm of each row * gain, and with ADDS + residual; WIDTH % 4 == 0. y may be
//           the residual grid (ceil(ROWS * WARPS / 8), 1, 1), block (256, 1, 1)
//           With ORDERED, |residual| is the order i32 [WIDTH] of the columns of y, and nothing is added
// PERMUTE   (x f32 [ROWS, WIDTH], order i32 [WIDTH], y f32 [ROWS, WIDTH], WIDTH)
//           y = the columns of x in that order; WIDTH % 4 == 0
//           grid (ceil(WIDTH / 1024), ROWS, 1), block (256, 1, 1)
//           with LAYERNORM
//           (x f32 [ROWS, WIDTH], gain f32 [GAINS, WIDTH], bias f32 [WIDTH], y f32 [ROWS, WIDTH], ROWS,
//           WIDTH, GAINS, HAS) y = (x - mean) / sqrt(variance + NORM_EPS) * gain + bias of each row. Row r
//           has gain r % GAINS. HAS: 1 if there is a gain, plus 2 if there is a bias; else they are not read.
//           Same launch
// ELEMENTS  (x f32 [ROWS, X_STRIDE], bias f32 [WIDTH], other f32 [ROWS, OTHER_STRIDE], other_bias f32
// [WIDTH],
//           y f32 [ROWS, WIDTH], WIDTH, X_STRIDE, X_START, OTHER_STRIDE, OTHER_START, HOW, NUMBER)
//           y = function(columns of x from X_START on + bias), then combined with columns of other +
//           other_bias. HOW: bits 0 to 7 the function, 8 to 15 the combination (below), 16 there is a bias,
//           17 there is a bias of other; operands that are not used are not read. NUMBER: the bits of an f32,
//           for some functions. All numbers of columns are multiples of 4 grid (ceil(WIDTH / 1024), ROWS, 1),
//           block (256, 1, 1)
// ROPE      with HALF, FREQUENCIES (HALF numbers) and SCALE
//           (batch, y f32 [N, HALF], N, SINE)
//           y = SCALE * cosine, or sine, of position * frequency; 0 is the position of padding
//           grid (ceil(N * HALF / 256), 1, 1), block (256, 1, 1)

#include "step.h"
#if defined(NORM_EPS) || defined(PERMUTE) || defined(ELEMENTS)
#include "overlap.cuh"
#endif

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#if defined(ORDERED) || defined(PERMUTE)

// Columns order[i] to order[i + 3] of a row. A damaged file must not lead out of bounds.
__device__ __forceinline__ float4 gather4(const float *row, const int *order, int i, int width) {
  const uint4 at = *(const uint4 *)(order + i);
  const u32 last = width - 1;
  return make_float4(row[min(at.x, last)], row[min(at.y, last)], row[min(at.z, last)], row[min(at.w, last)]);
}

#endif

#if defined(EMBED)

__device__ __forceinline__ float2 widen(u32 pair) {
#ifdef DTYPE_F16
  float2 v;
  asm("{ .reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h; }"
      : "=f"(v.x), "=f"(v.y)
      : "r"(pair));
  return v;
#else
  return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
#endif
}

extern "C" __global__ void __launch_bounds__(256)
    NAME(const int *__restrict__ ids, const u16 *__restrict__ table, float *__restrict__ y, int width,
         int factor_bits) {
  const float factor = __int_as_float(factor_bits);
  const u16 *from = table + (u64)ids[blockIdx.x] * width;
  float *to = y + (u64)blockIdx.x * width;
  for (int i = threadIdx.x * 8; i < width; i += 2048) {
    const uint4 v = *(const uint4 *)(from + i);
    const float2 a = widen(v.x), b = widen(v.y), c = widen(v.z), d = widen(v.w);
    *(float4 *)(to + i) = make_float4(a.x * factor, a.y * factor, b.x * factor, b.y * factor);
    *(float4 *)(to + i + 4) = make_float4(c.x * factor, c.y * factor, d.x * factor, d.y * factor);
  }
}

#elif defined(NORM_EPS)

constexpr int ROW_THREADS = 32 * WARPS, BLOCK_ROWS = 8 / WARPS;

// The sum over the threads of a row, in all of them. |sums|: shared memory of this sum only.
__device__ __forceinline__ float sum_row(float value, float (&sums)[WARPS]) {
#pragma unroll
  for (int i = 16; i; i >>= 1) value += __shfl_xor_sync(~0u, value, i);
#if WARPS > 1
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
  __syncthreads();
  value = 0;
#pragma unroll
  for (int i = 0; i < WARPS; i++) value += sums[i];
#endif
  return value;
}

#ifdef LAYERNORM

extern "C" __global__ void __launch_bounds__(256)
    NAME(const float *__restrict__ x, const float *__restrict__ gain, const float *__restrict__ bias,
         float *__restrict__ y, int rows, int width, int gains, int has) {
  __shared__ float totals[WARPS], squares[WARPS];
  start_next_kernel();
  wait_for_previous_kernel();
  x = after_wait(x);
  const int row = blockIdx.x * BLOCK_ROWS + threadIdx.x / ROW_THREADS, nth = threadIdx.x % ROW_THREADS;
  if (row >= rows) return;  // all threads of the row
  const float *from = x + (u64)row * width, *own_gain = gain + (u64)(row % gains) * width;
  float total = 0, square = 0;
  for (int i = nth * 4; i < width; i += ROW_THREADS * 4) {
    const float4 v = *(const float4 *)(from + i);
    total += (v.x + v.y) + (v.z + v.w);
  }
  const float mean = sum_row(total, totals) / width;
  for (int i = nth * 4; i < width; i += ROW_THREADS * 4) {
    const float4 v = *(const float4 *)(from + i);
    const float a = v.x - mean, b = v.y - mean, c = v.z - mean, d = v.w - mean;
    square += (a * a + b * b) + (c * c + d * d);
  }
  const float scale = 1 / sqrtf(sum_row(square, squares) / width + NORM_EPS);
  for (int i = nth * 4; i < width; i += ROW_THREADS * 4) {
    const float4 v = *(const float4 *)(from + i);
    float4 r =
        make_float4((v.x - mean) * scale, (v.y - mean) * scale, (v.z - mean) * scale, (v.w - mean) * scale);
    if (has & 1) {
      const float4 g = *(const float4 *)(own_gain + i);
      r = make_float4(r.x * g.x, r.y * g.y, r.z * g.z, r.w * g.w);
    }
    if (has & 2) {
      const float4 b = *(const float4 *)(bias + i);
      r = make_float4(r.x + b.x, r.y + b.y, r.z + b.z, r.w + b.w);
    }
    *(float4 *)(y + (u64)row * width + i) = r;
  }
}

#else

extern "C" __global__ void __launch_bounds__(256)
    NAME(const float *__restrict__ x, const float *__restrict__ gain, const float *residual, float *y,
         int rows, int width, int adds) {
  __shared__ float squares[WARPS];
  start_next_kernel();
  wait_for_previous_kernel();
  x = after_wait(x);
  residual = after_wait(residual);
  const int row = blockIdx.x * BLOCK_ROWS + threadIdx.x / ROW_THREADS, nth = threadIdx.x % ROW_THREADS;
  if (row >= rows) return;  // all threads of the row
  const float *from = x + (u64)row * width;
  float square = 0;
  for (int i = nth * 4; i < width; i += ROW_THREADS * 4) {
    const float4 v = *(const float4 *)(from + i);
    square += (v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w);
  }
  const float scale = 1 / sqrtf(sum_row(square, squares) / width + NORM_EPS);
  for (int i = nth * 4; i < width; i += ROW_THREADS * 4) {
    const u64 at = (u64)row * width + i;
#ifdef ORDERED
    const int *order = (const int *)residual;
    const float4 v = gather4(from, order, i, width), g = gather4(gain, order, i, width);
#else
    const float4 v = *(const float4 *)(from + i), g = *(const float4 *)(gain + i);
#endif
    float4 r = make_float4(v.x * scale * g.x, v.y * scale * g.y, v.z * scale * g.z, v.w * scale * g.w);
    if (adds) {
      const float4 a = *(const float4 *)(residual + at);
      r = make_float4(a.x + r.x, a.y + r.y, a.z + r.z, a.w + r.w);
    }
    *(float4 *)(y + at) = r;
  }
}

#endif  // LAYERNORM

#elif defined(PERMUTE)

extern "C" __global__ void __launch_bounds__(256)
    NAME(const float *__restrict__ x, const int *__restrict__ order, float *__restrict__ y, int width) {
  start_next_kernel();
  wait_for_previous_kernel();
  x = after_wait(x);
  const int i = (blockIdx.x * 256 + threadIdx.x) * 4;
  if (i >= width) return;
  *(float4 *)(y + (u64)blockIdx.y * width + i) = gather4(x + (u64)blockIdx.y * width, order, i, width);
}

#elif defined(ELEMENTS)

// As mlx_elements_function_t and mlx_elements_combination_t (compiler/lower_cuda_rows.h).
enum { SILU, GELU, GELU_TANH, RELU, RELU2, SIGMOID, SOFTCAP, CLIP, SCALE };
enum { ALONE, ADD, MULTIPLY, MULTIPLY_ROWS };

__device__ __forceinline__ float apply(int function, float v, float number) {
  switch (function) {
    case SILU: return v / (1 + expf(-v));
    case GELU: return 0.5f * v * (1 + erff(v * 0.70710678118654752f));
    case GELU_TANH: return 0.5f * v * (1 + tanhf(0.79788456080286536f * (v + 0.044715f * v * v * v)));
    case RELU: return fmaxf(v, 0.0f);
    case RELU2: return fmaxf(v, 0.0f) * fmaxf(v, 0.0f);
    case SIGMOID: return 1 / (1 + expf(-v));
    case SOFTCAP: return number * tanhf(v / number);
    case CLIP: return fminf(fmaxf(v, -number), number);
    case SCALE: return v * number;
    default: return v;
  }
}

__device__ __forceinline__ float4 add4(float4 a, float4 b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

extern "C" __global__ void __launch_bounds__(256)
    NAME(const float *__restrict__ x, const float *__restrict__ bias, const float *__restrict__ other,
         const float *__restrict__ other_bias, float *__restrict__ y, int width, int x_stride, int x_start,
         int other_stride, int other_start, int how, int number_bits) {
  start_next_kernel();
  wait_for_previous_kernel();
  x = after_wait(x);
  other = after_wait(other);
  const int row = blockIdx.y, at = (blockIdx.x * 256 + threadIdx.x) * 4;
  const int function = how & 255, combination = how >> 8 & 255;
  const float number = __int_as_float(number_bits);
  if (at >= width) return;
  float4 v = *(const float4 *)(x + (u64)row * x_stride + x_start + at);
  if (how & 1 << 16) v = add4(v, *(const float4 *)(bias + at));
  v = make_float4(apply(function, v.x, number), apply(function, v.y, number), apply(function, v.z, number),
                  apply(function, v.w, number));
  if (combination == MULTIPLY_ROWS) {
    const float factor = other[row];
    v = make_float4(v.x * factor, v.y * factor, v.z * factor, v.w * factor);
  } else if (combination != ALONE) {
    float4 u = *(const float4 *)(other + (u64)row * other_stride + other_start + at);
    if (how & 1 << 17) u = add4(u, *(const float4 *)(other_bias + at));
    v = combination == ADD ? add4(v, u) : make_float4(v.x * u.x, v.y * u.y, v.z * u.z, v.w * u.w);
  }
  *(float4 *)(y + (u64)row * width + at) = v;
}

#elif defined(ROPE)

__constant__ const float frequencies[HALF] = {FREQUENCIES};

// The angle is reduced modulo 2 pi as in compiler/lower_attention.c.
extern "C" __global__ void __launch_bounds__(256)
    NAME(const int *__restrict__ batch, float *__restrict__ y, int n, int sine) {
  const int index = blockIdx.x * 256 + threadIdx.x;
  if (index >= n * HALF) return;
  const int position = max(batch[MLX_STEP_POSITIONS_AT(n) + index / HALF], 0);
  float angle = __fmul_rn((float)position, frequencies[index % HALF]);
  const float rotations = rintf(__fmul_rn(angle, 0.15915494309189535f));
  angle = __fsub_rn(angle, __fmul_rn(rotations, 6.28125f));
  angle = __fsub_rn(angle, __fmul_rn(rotations, 0.0019350051879882812f));
  angle = __fsub_rn(angle, __fmul_rn(rotations, 3.019916050561733e-07f));
  y[index] = (sine ? sinf(angle) : cosf(angle)) * SCALE;
}

#endif
