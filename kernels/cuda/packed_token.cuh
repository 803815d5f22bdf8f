// One token (packed.cu with TOKEN): products of a vector with up to three matrices, and what stands before
// and after them in a network: RMS norm, bias, residual. A launch takes longer than any of these.
//
//   (x[K] f32, [gain[K] f32,] w, [w2, [w3,]] [bias[N] f32, [bias2, [bias3,]]] [residual[N] f32,]
//    y[N] f32 [, y2[N2] [, y3[N3]]])
//   y = x.w^T + bias + residual. With GAIN x is normalized first: x / sqrt(mean(x^2) + norm_eps) * gain.
//   N2, N3 are the rows of w2 and w3, 0 if there is none; BIAS: all matrices have one; RESIDUAL: only with
//   one matrix. Weights are tiles, or rows of 16 or 32 bits. K is at most 10240.
//   Launch: grid (ceil(N/R) + ceil(N2/R) + ceil(N3/R), 1, 1), R is 16, of rows of numbers 8; block (256, 1,
//   1); dynamic shared memory of tiles: ceil(K/128) * 784 + 4096 bytes, else none
//
// The norm's factor is the same for all columns: it multiplies the sum, so that no thread waits for it. Each
// warp loads its first weights before it waits for the previous kernel.
#pragma once

#include "overlap.cuh"
#include "packed_stream.cuh"

constexpr int TOKEN_ROWS = ROWS ? 8 : 16;  // of a block
__host__ __device__ constexpr int blocks_of(int rows) { return (rows + TOKEN_ROWS - 1) / TOKEN_ROWS; }
constexpr int BLOCKS = blocks_of(N) + blocks_of(N2) + blocks_of(N3);

// The matrix of a block, and its first row there.
struct Target {
  const u8 *w;
  const float *bias;
  float *y;
  int n, row;
};

// Adds the squares of a warp's part of x to |squares|.
__device__ __forceinline__ void store_squares(float *squares, float square) {
#pragma unroll
  for (int i = 16; i; i /= 2) square += __shfl_xor_sync(~0u, square, i);
  if (threadIdx.x % 32 == 0) squares[threadIdx.x / 32] = square;
}

// The factor of the norm.
__device__ __forceinline__ float norm_factor(const float *squares) {
  if constexpr (!GAIN) return 1;
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 8; i++) sum += squares[i];
  return 1 / sqrtf(sum / K + config.norm_eps);
}

__device__ __forceinline__ void store(const Target &to, int row, float v, const float *residual) {
  if (row >= to.n) return;
  if constexpr (BIAS) v += to.bias[row];
  if constexpr (RESIDUAL) v += residual[row];
  to.y[row] = v;
}

// Rows of numbers: a warp for each row.
struct TokenRows {
  static constexpr int PLANES = ROWS16 ? 2 : 1;  // a lane has 16 bytes: 8 neighbouring columns, or 4
  static constexpr int CHUNK = PLANES * 128;     // columns of a warp
  static constexpr int CHUNK_COUNT = (K + CHUNK - 1) / CHUNK;
  // Loads in flight of a lane. With few blocks they are the only way to keep memory busy.
  static constexpr int MOST = BLOCKS <= 132   ? 16
                              : BLOCKS <= 396 ? 8
                                              : 4,
                       DEPTH = CHUNK_COUNT < MOST ? CHUNK_COUNT : MOST;
  static constexpr int RESIDENT = BLOCKS <= 132 ? 1 : BLOCKS <= 396 ? 3 : 5;  // blocks of a multiprocessor

  struct Weights {
    const u8 *row;  // of this lane's first columns

    __device__ __forceinline__ Weights(const Target &from) {
      const int nth = from.row + threadIdx.x / 32;  // past the end: the last row again, not stored
      row =
          from.w + (u64)(nth < from.n ? nth : from.n - 1) * K * (PLANES == 2 ? 2 : 4) + threadIdx.x % 32 * 16;
    }
    __device__ __forceinline__ void load(uint4 &v, int chunk) const {
      v = make_uint4(0, 0, 0, 0);
      if (chunk * CHUNK + (int)threadIdx.x % 32 * PLANES * 4 < K) v = load_once128(row + (u64)chunk * 512);
    }
  };

  static __device__ __forceinline__ float2 widen(u32 pair) {
    return IS_F16 ? F16::widen2(pair) : Bf16::widen2(pair);
  }

  static __device__ __forceinline__ float dot(const uint4 &w, const float4 (&x)[PLANES][32], float sum) {
    const float4 a = x[0][threadIdx.x % 32];
    if constexpr (ROWS16) {
      const float4 b = x[PLANES - 1][threadIdx.x % 32];
      float2 v = widen(w.x);
      sum = fmaf(v.y, a.y, fmaf(v.x, a.x, sum));
      v = widen(w.y);
      sum = fmaf(v.y, a.w, fmaf(v.x, a.z, sum));
      v = widen(w.z);
      sum = fmaf(v.y, b.y, fmaf(v.x, b.x, sum));
      v = widen(w.w);
      return fmaf(v.y, b.w, fmaf(v.x, b.z, sum));
    } else {
      sum = fmaf(__uint_as_float(w.y), a.y, fmaf(__uint_as_float(w.x), a.x, sum));
      return fmaf(__uint_as_float(w.w), a.w, fmaf(__uint_as_float(w.z), a.z, sum));
    }
  }

  static __device__ __forceinline__ float stage_vector(float4 (&panel)[CHUNK_COUNT][PLANES][32],
                                                       const float *__restrict__ x,
                                                       const float *__restrict__ gain) {
    float square = 0;
#pragma unroll 4
    for (int i = threadIdx.x; i < CHUNK_COUNT * PLANES * 32; i += 256) {
      float4 v = make_float4(0, 0, 0, 0);
      if (i * 4 < K) v = *(const float4 *)(x + i * 4);
      if constexpr (GAIN) {
        square += (v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w);
        if (i * 4 < K) {
          const float4 g = *(const float4 *)(gain + i * 4);
          v = make_float4(v.x * g.x, v.y * g.y, v.z * g.z, v.w * g.w);
        }
      }
      panel[i / (32 * PLANES)][i % PLANES][i / PLANES % 32] = v;
    }
    return square;
  }

  // The products of a block's rows.
  static __device__ __forceinline__ void multiply_rows(const Target &to, const float *__restrict__ x,
                                                       const float *__restrict__ gain,
                                                       const float *__restrict__ residual) {
    __shared__ float squares[8];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const Weights weights(to);
    __shared__ float4 panel[CHUNK_COUNT][PLANES][32];
    uint4 next[DEPTH];
#pragma unroll
    for (int d = 0; d < DEPTH; d++) weights.load(next[d], d);
    wait_for_previous_kernel();
    store_squares(squares, stage_vector(panel, after_wait(x), gain));
    __syncthreads();
    float sum = 0;
    for (int base = 0; base < CHUNK_COUNT; base += DEPTH)
#pragma unroll
      for (int d = 0; d < DEPTH; d++) {
        if (base + d >= CHUNK_COUNT) break;
        const uint4 now = next[d];
        if (base + d + DEPTH < CHUNK_COUNT) weights.load(next[d], base + d + DEPTH);
        sum = dot(now, panel[base + d], sum);
      }
#pragma unroll
    for (int i = 16; i; i /= 2) sum += __shfl_xor_sync(~0u, sum, i);
    if (lane == 0) store(to, to.row + warp, sum * norm_factor(squares), after_wait(residual));
  }
};

// Tiles: a block has 16 rows; its warps divide K.
struct TokenTiles {
  static constexpr int OWN = (RUNS + 7) / 8, DEPTH = OWN < 4 ? OWN : 4;  // runs of a warp; those in registers
  static constexpr int RESIDENT = BITS == 4 && OFFSET == 0 ? 3 : 2;      // blocks of a multiprocessor
  using Stream = TileStream<1, 1, RUNS>;
  using Run = Stream::Run;
  using Panel = Stream::Panel;

  struct TokenMemory {
    float4 sums[8][32];
    Panel panel;
  };

  struct Weights {
    const u8 *tiles[2];

    __device__ __forceinline__ Weights(const Target &from) {
      const int last = (from.n + 7) / 8 - 1;  // past the end: the last tile again, not stored
#pragma unroll
      for (int i = 0; i < 2; i++)
        tiles[i] = from.w + (u64)(from.row / 8 + i < last ? from.row / 8 + i : last) * RUNS * TILE_BYTES;
    }
    __device__ __forceinline__ void load(Run &to, int run) const {
      if (run >= RUNS) return;
#pragma unroll
      for (int i = 0; i < 2; i++) Stream::load(to, i, tiles[i] + (u64)run * TILE_BYTES, run);
    }
  };

  // Splits x, times |gain|, into parts. Returns the sum of this thread's squares. The loads of four items are
  // in flight together: an item is two pairs of columns, {2 * quad, +1} and {2 * quad + 8, +9} of 16.
  static __device__ __forceinline__ float stage_vector(Panel &panel, const float *__restrict__ x,
                                                       const float *__restrict__ gain) {
    float square = 0;
    for (int first = threadIdx.x; first < RUNS * 32; first += 1024) {
      float2 v[4][2] = {};
      float2 g[4][2] = {};
#pragma unroll
      for (int i = 0; i < 8; i++) {
        const int item = first + i / 2 * 256, k = item / 4 * 16 + item % 4 * 2 + i % 2 * 8;
        if (item / 4 * 16 >= K) continue;
        v[i / 2][i % 2] = *(const float2 *)(x + k);
        if constexpr (GAIN) g[i / 2][i % 2] = *(const float2 *)(gain + k);
      }
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int item = first + i * 256, quad = item % 4, step = item / 4;
        float2 &a = v[i][0], &b = v[i][1];
        if (item >= RUNS * 32) break;  // the whole warp
        if constexpr (GAIN) {
          square += (a.x * a.x + a.y * a.y) + (b.x * b.x + b.y * b.y);
          a = make_float2(a.x * g[i][0].x, a.y * g[i][0].y),
          b = make_float2(b.x * g[i][1].x, b.y * g[i][1].y);
        }
        u32 low[3], high[3];
        split_bf16(low, a.x, a.y);
        split_bf16(high, b.x, b.y);
#pragma unroll
        for (int p = 0; p < 3; p++) panel.part[step / 8][step % 8][0][p][quad] = make_uint2(low[p], high[p]);
        if (SUMS) Stream::store_sum(panel, item, (a.x + a.y) + (b.x + b.y));
      }
    }
    return square;
  }

  // The products of a block's rows.
  static __device__ __forceinline__ void multiply_rows(const Target &to, const float *__restrict__ x,
                                                       const float *__restrict__ gain,
                                                       const float *__restrict__ residual) {
    __shared__ float squares[8];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const Weights weights(to);
    extern __shared__ __align__(16) unsigned char bytes[];
    TokenMemory &memory = *(TokenMemory *)bytes;
    Run next[DEPTH];
#pragma unroll
    for (int d = 0; d < DEPTH; d++) weights.load(next[d], warp + d * 8);
    wait_for_previous_kernel();
    store_squares(squares, stage_vector(memory.panel, after_wait(x), gain));
    __syncthreads();
    float acc[1][4] = {};
    for (int base = 0; base < OWN; base += DEPTH)
#pragma unroll
      for (int d = 0; d < DEPTH; d++) {
        const int run = (base + d) * 8 + warp;
        if (run >= RUNS) break;
        const Run now = next[d];
        weights.load(next[d], run + DEPTH * 8);
        Stream::multiply_run(acc, now, memory.panel, run);
      }
    memory.sums[warp][lane] = make_float4(acc[0][0], acc[0][1], acc[0][2], acc[0][3]);
    __syncthreads();
    if (warp) return;
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const float4 s = memory.sums[i][lane];
      sum = make_float4(sum.x + s.x, sum.y + s.y, sum.z + s.z, sum.w + s.w);
    }
    const float2 total = sum_parts(sum);
    const float factor = norm_factor(squares);
    if (lane % 4) return;
    store(to, to.row + lane / 4, total.x * factor, after_wait(residual));
    store(to, to.row + lane / 4 + 8, total.y * factor, after_wait(residual));
  }
};

using Products = Select<ROWS, TokenRows, TokenTiles>::Type;

// Names of parameters that the kernel does not have.
constexpr const float *gain = nullptr, *residual = nullptr, *bias1 = nullptr, *bias2 = nullptr,
                      *bias3 = nullptr;
constexpr const u8 *w2 = nullptr, *w3 = nullptr;
constexpr float *y2 = nullptr, *y3 = nullptr;

extern "C" __global__ void __launch_bounds__(256, Products::RESIDENT) NAME(const float *__restrict__ x,
#if GAIN
                                                                           const float *__restrict__ gain,
#endif
                                                                           const u8 *__restrict__ w,
#if MATRICES > 1
                                                                           const u8 *__restrict__ w2,
#endif
#if MATRICES > 2
                                                                           const u8 *__restrict__ w3,
#endif
#if BIAS
                                                                           const float *__restrict__ bias1,
#endif
#if BIAS && MATRICES > 1
                                                                           const float *__restrict__ bias2,
#endif
#if BIAS && MATRICES > 2
                                                                           const float *__restrict__ bias3,
#endif
#if RESIDUAL
                                                                           const float *__restrict__ residual,
#endif
                                                                           float *__restrict__ y
#if MATRICES > 1
                                                                           ,
                                                                           float *__restrict__ y2
#endif
#if MATRICES > 2
                                                                           ,
                                                                           float *__restrict__ y3
#endif
) {
  start_next_kernel();
  const int block = blockIdx.x;
  Target to = {w, bias1, y, N, block * TOKEN_ROWS};
  constexpr int second = blocks_of(N), third = second + blocks_of(N2);
  if (N2 && block >= second) to = {w2, bias2, y2, N2, (block - second) * TOKEN_ROWS};
  if (N3 && block >= third) to = {w3, bias3, y3, N3, (block - third) * TOKEN_ROWS};
  for (int i = threadIdx.x * 32; GAIN && i < K; i += 8192) prefetch_l2(gain + i);
  Products::multiply_rows(to, x, gain, residual);
}
