// Small ops on rows of f32, so that IREE compiles no dispatch for them. One kernel per NVRTC compilation;
// sizes are parameters, so that one image serves all steps. The result of a row does not depend on other
// rows.
//
// Macros: NAME, and one of those below. rows_config.cuh has the other constants.
//
// EMBED     (ids i32 [N], table [VOCAB, WIDTH], y f32 [N, WIDTH], VOCAB, WIDTH, factor as the bits of an f32)
//           y = factor * rows of the table, the first row for an ID past the table; WIDTH % 8 == 0
//           grid (N, 1, 1), block (256, 1, 1)
// NORM      (x f32 [ROWS, WIDTH], gain f32 [gains, WIDTH], residual f32 [ROWS, WIDTH], y f32 [ROWS, WIDTH],
//           ROWS, WIDTH, ADDS)
//           y = RMS norm of each row * gain, and with ADDS + residual; WIDTH % 4 == 0. y may be the residual.
//           Without gains, |gain| is not read
//           grid (ceil(ROWS * warps / 8), 1, 1), block (256, 1, 1)
//           With |ordered|, |residual| is the order i32 [WIDTH] of the columns of y, and nothing is added
// PERMUTE   (x f32 [ROWS, WIDTH], order i32 [WIDTH], y f32 [ROWS, WIDTH], WIDTH)
//           y = the columns of x in that order; WIDTH % 4 == 0
//           grid (ceil(WIDTH / 1024), ROWS, 1), block (256, 1, 1)
// NORM with LAYERNORM
//           (x f32 [ROWS, WIDTH], gain f32 [GAINS, WIDTH], bias f32 [WIDTH], y f32 [ROWS, WIDTH], ROWS,
//           WIDTH, GAINS, HAS) y = (x - mean) / sqrt(variance + eps) * gain + bias of each row. Row r
//           has gain r % GAINS. HAS: MLX_HAS_... of what there is; else it is not read.
//           Same launch
// ELEMENTS  (x f32 [ROWS, X_STRIDE], bias f32 [WIDTH], other f32 [ROWS, OTHER_STRIDE], other_bias f32
// [WIDTH],
//           y f32 [ROWS, WIDTH], WIDTH, X_STRIDE, X_START, OTHER_STRIDE, OTHER_START, HOW, NUMBER)
//           y = function(columns of x from X_START on + bias), then combined with columns of other +
//           other_bias. HOW (kernel_tables.h): function, combination and which biases there are; operands
//           that are not used are not read. NUMBER: the bits of an f32, for some functions. All numbers of
//           columns are multiples of 4
//           grid (ceil(WIDTH / 1024), ROWS, 1), block (256, 1, 1)
// HEAD_COLUMNS
//           (x f32 [ROWS, HEADS * HEAD_DIM], y f32 [ROWS, HEADS * COUNT], WIDTH of y, HEAD_DIM, START, COUNT)
//           y = columns [START, START + COUNT) of each head; any sizes
//           grid (ceil(WIDTH / 256), ROWS, 1), block (256, 1, 1)
// ROPE      (batch, y f32 [N, half], N, SINE)
//           y = scale * cosine, or sine, of position * frequency; 0 is the position of padding
//           grid (ceil(N * half / 256), 1, 1), block (256, 1, 1)

#include "config.cuh"
#include "ptx.cuh"
#include "step.h"
#if defined(NORM) || defined(PERMUTE) || defined(ELEMENTS) || defined(HEAD_COLUMNS)
#include "overlap.cuh"  // makes the image one that overlaps
#endif

// Columns order[i] to order[i + 3] of a row. A damaged file must not lead out of bounds.
__device__ __forceinline__ float4 gather4(const float *row, const int *order, int i, int width) {
  const uint4 at = *(const uint4 *)(order + i);
  const u32 last = width - 1;
  return make_float4(row[min(at.x, last)], row[min(at.y, last)], row[min(at.z, last)], row[min(at.w, last)]);
}

#if defined(EMBED)

__device__ __forceinline__ float2 widen(u32 pair) {
  return config.dtype == Dtype::F16 ? F16::widen2(pair) : Bf16::widen2(pair);
}

extern "C" __global__ void __launch_bounds__(256)
    NAME(const int *__restrict__ ids, const u16 *__restrict__ table, float *__restrict__ y, int vocab,
         int width, int factor_bits) {
  const float factor = __int_as_float(factor_bits);
  const int id = ids[blockIdx.x];
  const u16 *from = table + (u64)((u32)id < (u32)vocab ? id : 0) * width;
  float *to = y + (u64)blockIdx.x * width;
  for (int i = threadIdx.x * 8; i < width; i += 2048) {
    const uint4 v = *(const uint4 *)(from + i);
    const float2 a = widen(v.x), b = widen(v.y), c = widen(v.z), d = widen(v.w);
    *(float4 *)(to + i) = make_float4(a.x * factor, a.y * factor, b.x * factor, b.y * factor);
    *(float4 *)(to + i + 4) = make_float4(c.x * factor, c.y * factor, d.x * factor, d.y * factor);
  }
}

#elif defined(NORM)

constexpr int WARPS = config.warps, ROW_THREADS = 32 * WARPS, BLOCK_ROWS = 8 / WARPS;

// The sum over the threads of a row, in all of them. |sums|: shared memory of this sum only.
__device__ __forceinline__ float sum_row(float value, float (&sums)[WARPS]) {
#pragma unroll
  for (int i = 16; i; i >>= 1) value += __shfl_xor_sync(~0u, value, i);
  if constexpr (WARPS > 1) {
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
    __syncthreads();
    value = 0;
#pragma unroll
    for (int i = 0; i < WARPS; i++) value += sums[i];
  }
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
  const float scale = 1 / sqrtf(sum_row(square, squares) / width + config.norm_eps);
  for (int i = nth * 4; i < width; i += ROW_THREADS * 4) {
    const float4 v = *(const float4 *)(from + i);
    float4 r =
        make_float4((v.x - mean) * scale, (v.y - mean) * scale, (v.z - mean) * scale, (v.w - mean) * scale);
    if (has & MLX_HAS_GAIN) {
      const float4 g = *(const float4 *)(own_gain + i);
      r = make_float4(r.x * g.x, r.y * g.y, r.z * g.z, r.w * g.w);
    }
    if (has & MLX_HAS_BIAS) {
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
  if constexpr (config.gains > 1) gain += (u64)(row % config.gains) * width;
  float square = 0;
  for (int i = nth * 4; i < width; i += ROW_THREADS * 4) {
    const float4 v = *(const float4 *)(from + i);
    square += (v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w);
  }
  const float scale = 1 / sqrtf(sum_row(square, squares) / width + config.norm_eps);
  for (int i = nth * 4; i < width; i += ROW_THREADS * 4) {
    const u64 at = (u64)row * width + i;
    float4 v, g;
    if constexpr (config.gains == 0) {
      v = *(const float4 *)(from + i), g = make_float4(1, 1, 1, 1);
    } else if constexpr (config.ordered) {
      const int *order = (const int *)residual;
      v = gather4(from, order, i, width), g = gather4(gain, order, i, width);
    } else {
      v = *(const float4 *)(from + i), g = *(const float4 *)(gain + i);
    }
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

#include "activate.cuh"

#define ENUMERATOR(name) name,
enum { BEFORE_FUNCTIONS = (int)Activation::COUNT - 1, MLX_ELEMENTS_FUNCTION_TABLE(ENUMERATOR) };
enum { MLX_ELEMENTS_COMBINATION_TABLE(ENUMERATOR) };
#undef ENUMERATOR

__device__ __forceinline__ float apply(int function, float v, const ActNumbers &numbers) {
  const float number = numbers.values[0];
  switch (function) {
#define ACTIVATION_CASE(name, text) \
  case (int)Activation::name: return activate<Activation::name>(v, numbers);
    MLX_ACTIVATION_TABLE(ACTIVATION_CASE)
#undef ACTIVATION_CASE
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
         int other_stride, int other_start, int how, int number0, int number1, int number2, int number3) {
  start_next_kernel();
  wait_for_previous_kernel();
  x = after_wait(x);
  other = after_wait(other);
  const int row = blockIdx.y, at = (blockIdx.x * 256 + threadIdx.x) * 4;
  const int function = MLX_ELEMENTS_FUNCTION(how), combination = MLX_ELEMENTS_COMBINATION(how);
  const ActNumbers numbers = {
      {__int_as_float(number0), __int_as_float(number1), __int_as_float(number2), __int_as_float(number3)}};
  if (at >= width) return;
  float4 v = *(const float4 *)(x + (u64)row * x_stride + x_start + at);
  if (how & MLX_ELEMENTS_BIAS) v = add4(v, *(const float4 *)(bias + at));
  v = make_float4(apply(function, v.x, numbers), apply(function, v.y, numbers), apply(function, v.z, numbers),
                  apply(function, v.w, numbers));
  if (combination == MULTIPLY_ROWS || combination == MULTIPLY_SIGMOIDS) {
    const float number = other[row];
    const float factor = combination == MULTIPLY_ROWS ? number : 1 / (1 + expf(-number));
    v = make_float4(v.x * factor, v.y * factor, v.z * factor, v.w * factor);
  } else if (combination != ALONE) {
    float4 u = *(const float4 *)(other + (u64)row * other_stride + other_start + at);
    if (how & MLX_ELEMENTS_OTHER_BIAS) u = add4(u, *(const float4 *)(other_bias + at));
    v = combination == ADD ? add4(v, u) : make_float4(v.x * u.x, v.y * u.y, v.z * u.z, v.w * u.w);
  }
  *(float4 *)(y + (u64)row * width + at) = v;
}

#elif defined(HEAD_COLUMNS)

extern "C" __global__ void __launch_bounds__(256)
    NAME(const float *__restrict__ x, float *__restrict__ y, int width, int head_dim, int start, int count) {
  start_next_kernel();
  wait_for_previous_kernel();
  x = after_wait(x);
  const int i = blockIdx.x * 256 + threadIdx.x;
  if (i >= width) return;
  const u64 heads = (u64)blockIdx.y * (width / count) + i / count;
  y[(u64)blockIdx.y * width + i] = x[heads * head_dim + start + i % count];
}

#elif defined(ROPE)

constexpr int HALF = config.half;

// The angle is reduced modulo 2 pi as in compiler/lower_attention.c.
extern "C" __global__ void __launch_bounds__(256)
    NAME(const int *__restrict__ batch, float *__restrict__ y, int n, int sine) {
  const int index = blockIdx.x * 256 + threadIdx.x;
  if (index >= n * HALF) return;
  const int position = max(batch[MLX_STEP_POSITIONS_AT(n) + index / HALF], 0);
  float angle = __fmul_rn((float)position, constant_at<Tables::frequencies>(index % HALF));
  const float rotations = rintf(__fmul_rn(angle, 0.15915494309189535f));
  angle = __fsub_rn(angle, __fmul_rn(rotations, 6.28125f));
  angle = __fsub_rn(angle, __fmul_rn(rotations, 0.0019350051879882812f));
  angle = __fsub_rn(angle, __fmul_rn(rotations, 3.019916050561733e-07f));
  y[index] = (sine ? sinf(angle) : cosf(angle)) * config.scale;
}

#endif
