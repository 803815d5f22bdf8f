// Linear layers with f32 accuracy (packed.cu): many rows of x, on tensor cores.
#pragma once

#include "gated.cuh"
#include "overlap.cuh"
#include "packed_linear_rows16.cuh"
#include "packed_linear_tiles.cuh"
#include "parts.cuh"

using Product = Select<ROWS16, RowProduct, TileProduct>::Type;
using Weights = Product::Weights;

// Multiplies all chunks of a block, whose tokens are |rows| rows of |parts| from |top| on, a multiple of 8.
// Rows past the end keep their old contents, which are never used. One thread keeps STAGES - 1 stages filled
// or in flight, including the current one. The stage that it refills was released one chunk ago, so it rarely
// waits. The barrier `full` completes when the bytes of a stage have arrived, `empty` when every warp has
// read it.
__device__ __forceinline__ void multiply_all_wgmma(float (&acc)[GROUPS][FT][4], Weights &v, const u8 *parts,
                                                   u32 stages, int top, u32 rows, Chunks chunks) {
  const u32 full = stages + STAGES * STAGE_BYTES, empty = full + STAGES * 8;
  auto fill = [&](int chunk) {
    const int stage = chunk % STAGES;
    if (chunk >= STAGES) barrier_wait(empty + stage * 8, chunk / STAGES % 2 ^ 1);
    barrier_expect(full + stage * 8, rows * PART_CHUNK);
    for (int p = 0; p < PARTS; p++)
      copy_bulk(stages + stage * STAGE_BYTES + p * PLANE,
                parts + (((u64)chunks.at(chunk) * PARTS + p) * part_rows() + top) * 128, rows * 128,
                full + stage * 8);
  };
  auto enter = [&](int chunk) {  // releases the previous chunk and waits for this one
    if (chunk > 0) {
      if (threadIdx.x % 32 == 0) barrier_arrive(empty + (chunk - 1) % STAGES * 8);
      if (threadIdx.x == 0 && chunk + STAGES - 2 < chunks.count()) fill(chunk + STAGES - 2);
      __syncwarp();
    }
    barrier_wait(full + chunk % STAGES * 8, chunk / STAGES % 2);
    return stages + chunk % STAGES * STAGE_BYTES;
  };

  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++) {
      barrier_init<1>(full + i * 8);
      barrier_init(empty + i * 8, WARPS);
    }
    fence_async_proxy();
    for (int chunk = 0; chunk < STAGES - 1 && chunk < chunks.count(); chunk++) fill(chunk);
  }
  __syncthreads();
  Product::multiply_chunks_wgmma(acc, v, chunks, enter);
}

__device__ __forceinline__ void multiply_all_mma(float (&acc)[GROUPS][FT][4], Weights &v, const u8 *parts,
                                                 u32 stages, int top, int rows, Chunks chunks) {
  const int column = threadIdx.x / 32 / DOWN * WT;
  auto fill = [&](int chunk) {  // one group of copies per chunk, empty past the end
    const u32 stage = stages + chunk % STAGES * STAGE_BYTES;
    const u8 *from = parts + ((u64)chunks.at(chunk) * PARTS * part_rows() + top) * 128;
    for (int i = threadIdx.x; chunk < chunks.count() && i < rows * 8; i += THREADS)
#pragma unroll
      for (int p = 0; p < PARTS; p++)
        copy_async16(stage + p * PLANE + i * 16, from + ((u64)p * part_rows() * 8 + i) * 16);
    commit_copies();
  };
  auto enter = [&](int chunk) {
    wait_copies<STAGES - 2>();
    __syncthreads();  // this stage is filled, and all warps have read the one that is refilled next
    fill(chunk + STAGES - 1);
    return stages + chunk % STAGES * STAGE_BYTES;
  };
  for (int chunk = 0; chunk < STAGES - 1; chunk++) fill(chunk);
  Product::multiply_chunks(acc, v, column, chunks, enter);
}

// ---- epilogue: sums of the cluster, residual, activation, store ----

// Stores the parts of a fragment of y, which is x of the next product: tokens from |token| on, below |end|,
// and columns from |column| on. Lanes of neighbouring columns exchange a token, so that a lane has two
// columns of one token.
__device__ __forceinline__ void store_fragment(u8 *parts, const float (&v)[4], int token, int end,
                                               int column) {
  const int lane = threadIdx.x % 32;
  const bool odd = lane / 4 % 2;
  float low[2], high[2];
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const float other = __shfl_xor_sync(~0u, odd ? v[i * 2] : v[i * 2 + 1], 4);
    low[i] = odd ? other : v[i * 2], high[i] = odd ? v[i * 2 + 1] : other;
  }
  token += lane % 4 * 2 + odd;
  column += lane / 8 * 2;
  u32 part[2][3];
  split_bf16(part[0], low[0], high[0]);
  split_bf16(part[1], low[1], high[1]);
  if (token >= end || column >= size_n()) return;
#pragma unroll
  for (int i = 0; i < 3; i++)
    *(uint2 *)part_word(parts, part_rows(), i, token, column) = make_uint2(part[0][i], part[1][i]);
}

using Output = Select<config.y_parts, u8, float>::Type;  // u8: parts of x of the next product

// Experts: a block multiplies one tile of rows of one expert; |groups| has the tiles. This block's: expert,
// first row, end of the rows.
__device__ __forceinline__ int4 tile_of(const int *groups) { return load_again(groups + 4 + blockIdx.x * 4); }
static_assert(!MIXTURE || SPLIT == 1, "a tile is summed by one block");

// The bytes of the matrix of an expert.
__device__ __forceinline__ u64 matrix_bytes() {
  if constexpr (ROWS16) return (u64)size_n() * size_k() * 2;
  return (u64)((size_n() + 7) / 8) * run_count() * TILE_BYTES;
}

// The result of an expert for element |e| of a fragment; |at| is the index of its bias.
__device__ __forceinline__ float finish_expert(const float (&v)[WEIGHTS][4], int e, const float *bias,
                                               const float *bias2, u64 at) {
  if constexpr (GATED)
    return gated(BIAS ? v[0][e] + bias[at] : v[0][e],
                 BIAS ? v[WEIGHTS - 1][e] + bias2[at] : v[WEIGHTS - 1][e]);
  return BIAS ? v[0][e] + bias[at] : v[0][e];
}

// A block's tile of y.
struct Tile {
  unsigned char *memory;  // of the stages
  const float *scales;    // with f16 parts: of the result of each token
  int top, end;           // its first token; the end of all tokens
  int left, rows;         // its first row of the matrix; all rows
  int warp, lane;
};

// Adds the sums of the cluster, and the residual, biases or the activation, and stores them.
__device__ __forceinline__ void finish(const float *__restrict__ bias, const float *__restrict__ bias2,
                                       const int *__restrict__ groups, Output *y,
                                       const float (&acc)[GROUPS][FT][4], const Tile &at,
                                       const float *residual) {
  const int warp = at.warp, lane = at.lane;
  // Each block of a cluster completes MINE fragments, starting at `from`.
  const int from = SPLIT == 1 ? 0 : blockIdx.z * FRAGMENTS_EACH;
  if constexpr (SPLIT > 1) {
    __syncthreads();  // all products are complete: the memory of the stages is free
    float4 *shared = (float4 *)at.memory;
#pragma unroll
    for (int i = 0; i < GROUPS * FT; i++) {
      const float(&s)[4] = acc[i / FT][i % FT];
      shared[i * THREADS + threadIdx.x] = make_float4(s[0], s[1], s[2], s[3]);
    }
  }
  int4 mine = make_int4(0, at.top, at.end, 0);
  if constexpr (MIXTURE) mine = tile_of(groups);  // read again, to free registers
  const int first = mine.y, last = mine.z;
  constexpr u32 OUTSIDE = ~0u;
  auto row_of = [&](int f, int e) {  // of the matrix: element e of fragment f
    return at.left + (f / FT * DOWN + warp % DOWN) * 16 + lane / 4 + e / 2 * 8;
  };
  auto index_of = [&](int f, int e) {  // the same in y
    const int token = first + warp / DOWN * WT + f % FT * 8 + lane % 4 * 2 + e % 2, row = row_of(f, e);
    return token < last && row < at.rows && f < FRAGMENTS ? (u32)token * at.rows + row : OUTSIDE;
  };
  if constexpr (PARTIAL) y += (u64)blockIdx.z * size_m() * size_n();
  auto scale = [&](float(&u)[4], int j) {  // a fragment of tokens from j * 8 on
    if constexpr (PARTS == 2) {
      const float2 by = *(const float2 *)(at.scales + warp / DOWN * WT + j * 8 + lane % 4 * 2);
      u[0] *= by.x, u[1] *= by.y, u[2] *= by.x, u[3] *= by.y;
    }
  };
  float add[FRAGMENTS_EACH][4];  // all reads are issued before the first write, so that they overlap
#pragma unroll
  for (int i = 0; ADD && i < FRAGMENTS_EACH * 4; i++) {
    const u32 index = index_of(from + i / 4, i % 4);
    add[i / 4][i % 4] = size_parameter<3>() && index != OUTSIDE ? residual[index] : 0;  // ADDS
  }
  if constexpr (SPLIT > 1) wait_cluster();
#pragma unroll
  for (int i = 0; i < FRAGMENTS_EACH; i++) {
    const int f = from + i, group = f / FT * WEIGHTS, j = f % FT;
    if (f >= FRAGMENTS) break;
    float v[WEIGHTS][4] = {};
#pragma unroll
    for (int n = 0; n < WEIGHTS; n++) {
      if constexpr (SPLIT > 1) {
#pragma unroll
        for (int rank = 0; rank < SPLIT; rank++) {  // fixed order
          const float4 p = read_cluster4(
              shared_address(at.memory) + (((group + n) * FT + j) * THREADS + threadIdx.x) * 16, rank);
          v[n][0] += p.x, v[n][1] += p.y, v[n][2] += p.z, v[n][3] += p.w;
        }
      } else {
#pragma unroll
        for (int e = 0; e < 4; e++) v[n][e] = acc[group + n][j][e];
      }
      scale(v[n], j);
    }
    if constexpr (config.y_parts) {
      float u[4];
#pragma unroll
      for (int e = 0; e < 4; e++) u[e] = gated(v[0][e], v[WEIGHTS - 1][e]);
      store_fragment((u8 *)y, u, first + warp / DOWN * WT + j * 8, last,
                     at.left + (f / FT * DOWN + warp % DOWN) * 16);
      continue;
    }
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const u32 index = index_of(f, e);
      if (index == OUTSIDE) continue;
      if constexpr (ADD)
        y[index] = add[i][e] + v[0][e];
      else if constexpr (MIXTURE)
        y[index] = finish_expert(v, e, bias, bias2, (u64)mine.x * size_n() + row_of(f, e));
      else if constexpr (GATED)
        y[index] = gated(v[0][e], v[WEIGHTS - 1][e]);
      else
        y[index] = v[0][e];
    }
  }
  if constexpr (SPLIT > 1) wait_cluster();  // a block must not exit while others read its shared memory
}

__device__ __forceinline__ int size_n2() { return size_parameter<3>(); }  // GROUP

// Names of parameters that the kernel does not have.
constexpr const u8 *w2 = nullptr, *w3 = nullptr;
constexpr const float *residual = nullptr, *bias = nullptr, *bias2 = nullptr;
constexpr const int *groups = nullptr, *batch = nullptr;
constexpr float *y2 = nullptr, *y3 = nullptr;

extern "C" __global__ void CLUSTER __launch_bounds__(THREADS, 1)
    NAME(const u8 *__restrict__ parts, const u8 *__restrict__ w,
#if EPILOGUE == MLX_EPILOGUE_GATED || MATRICES > 1
         const u8 *__restrict__ w2,
#endif
#if MATRICES > 2
         const u8 *__restrict__ w3,
#endif
#if EPILOGUE == MLX_EPILOGUE_ADD
         const float *residual,  // no __restrict__: it may be y
#endif
#if BIAS
         const float *__restrict__ bias,
#endif
#if BIAS && EPILOGUE == MLX_EPILOGUE_GATED
         const float *__restrict__ bias2,
#endif
#if MIXTURE
         const int *__restrict__ groups,
#elif EPILOGUE == MLX_EPILOGUE_NONE
         const int *__restrict__ batch,
#endif
         Output *y
#if MATRICES > 1
         ,
         float *y2
#endif
#if MATRICES > 2
         ,
         float *y3
#endif
         ,
         int, int, int
#if MATRICES > 1
         ,
         int, int
#elif !MIXTURE && EPILOGUE != MLX_EPILOGUE_PARTIAL
         ,
         int
#endif
    ) {
  start_next_kernel();
  extern __shared__ __align__(1024) unsigned char memory[];
  const u32 stages = shared_address(memory);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int left = blockIdx.y * BN, rows = size_n();  // of the matrix of this block
  if (GROUP && left >= size_n() + size_n2()) {
    if constexpr (MATRICES > 2)
      w = w3, y = (Output *)y3, left -= size_n() + size_n2(), rows = size_parameter<4>();
  } else if (GROUP && left >= size_n()) {
    w = w2, y = (Output *)y2, left -= size_n(), rows = size_n2();
  }
  int top = blockIdx.x * BM, end = size_m();  // neighbouring blocks share w, so it is read once
  const int *tiles = nullptr;
  const u8 *second = w2;
  if constexpr (MIXTURE) {
    wait_for_previous_kernel();  // which chose the experts
    tiles = after_wait(groups);
    if (blockIdx.x >= tiles[0]) return;
    const int4 tile = tile_of(tiles);
    top = tile.y, end = tile.z;
    w += tile.x * matrix_bytes();
    if constexpr (GATED) second += tile.x * matrix_bytes();
  } else if constexpr (EPILOGUE == MLX_EPILOGUE_NONE) {
    if (top >= batch[size_parameter<3>()]) return;  // the host wrote the batch before the step
  }
  const int begin = blockIdx.z * runs_each();
  // The last blocks of a cluster may have fewer runs, or none.
  const int runs = run_count() - begin < runs_each() ? run_count() - begin : runs_each();

  float acc[GROUPS][FT][4] = {};
  Weights weights;
#pragma unroll
  for (int g = 0; g < GROUPS; g++) {
    const int row = left + (g / WEIGHTS * DOWN + warp % DOWN) * 16;
    Product::begin_weights(weights, g, GATED && g % 2 ? second : w, row, begin < run_count() ? begin : 0,
                           GROUP ? rows : size_n());
    Product::preload(weights, g);
  }
  if constexpr (!MIXTURE) wait_for_previous_kernel();
  parts = after_wait(parts);
  const float *added = nullptr;
  if constexpr (ADD) added = after_wait(residual);
  const int tokens = ((end + 7) / 8 * 8) - top, used = tokens < BM ? tokens : BM;
  const Chunks chunks = {begin, runs > 0 ? runs : 0};
  float *scales = (float *)(memory + STAGES * (STAGE_BYTES + 16));
  if constexpr (PARTS == 2) {
    if (threadIdx.x < used) scales[threadIdx.x] = row_scales(parts)[top + threadIdx.x];
    if constexpr (!WGMMA) __syncthreads();
  }
  if constexpr (WGMMA)
    multiply_all_wgmma(acc, weights, parts, stages, top, used, chunks);
  else
    multiply_all_mma(acc, weights, parts, stages, top, used, chunks);
  finish(bias, bias2, tiles, y, acc, Tile{memory, scales, top, end, left, rows, warp, lane}, added);
}
