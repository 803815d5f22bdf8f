// Linear layers with f32 accuracy (packed.cu): 9 to 16 rows of x, and rows of 16-bit weights. The kernel is
// bound by reading the weights once, so that it has as many bytes in flight as it can, from before the
// previous kernel ends until the last product.
//
// A cluster of SPLIT blocks computes TALL tiles of GROUPS * 16 rows. Each block multiplies a slice of the
// columns, which it keeps in shared memory as bf16 parts of x. A tile has ALONG warps in a block, which
// divide the slice. A warp copies its weights through its own ring of DEPTH pieces of 32 columns. A lane
// reads only what it copied itself, so that no warp waits for another one between the first product and the
// last. Columns are permuted as in packed_linear_rows16.cuh.
#pragma once

#include "cluster.cuh"
#include "gated.cuh"
#include "overlap.cuh"
#include "packed_operands.cuh"
#include "packed_parts.cuh"

constexpr bool ADD = EPILOGUE == MLX_EPILOGUE_ADD, GATED = EPILOGUE == MLX_EPILOGUE_GATED;
constexpr int GROUPS = config.groups, TALL = config.tall, ALONG = config.along, DEPTH = config.depth;
constexpr int WEIGHTS = GATED ? 2 : 1;
constexpr int THREADS = 32 * TALL * ALONG;
constexpr int TILE_GROUPS = GROUPS / WEIGHTS;  // groups of rows of y
constexpr int TILE_ROWS = TILE_GROUPS * 16;
constexpr int PIECE_BYTES = GROUPS * 1024;  // of a warp
constexpr int RING_BYTES = DEPTH * PIECE_BYTES;
constexpr int PLANE = 16 * 128;  // a part of x, 64 columns
constexpr int CHUNK_BYTES = 3 * PLANE;
constexpr int FRAGMENTS = TALL * TILE_GROUPS * 2;  // of 16 rows and 8 tokens, that a cluster computes
static_assert(GROUPS % WEIGHTS == 0, "tile");

// Runs of one block of a cluster, and pieces of one warp.
__device__ __forceinline__ int runs_each() { return (run_count() + SPLIT - 1) / SPLIT; }
__device__ __forceinline__ int pieces_each() { return (runs_each() * 4 + ALONG - 1) / ALONG; }

// The copies of a warp.
struct Ring {
  const u8 *from[GROUPS];  // this lane's first column in row lane/4 of a group; row lane/4 + 8 is |below| it
  int column;              // this lane's first column
  u32 slot;                // this lane's part of the first piece, in shared memory

  // |row|: the first row of the tile. Groups past the end are the last one again, whose result is not stored.
  __device__ __forceinline__ void begin(const u8 *w, const u8 *w2, int row, int first, u32 ring) {
    const int lane = threadIdx.x % 32;
    column = first + lane % 4 * 8;
    slot = ring + lane * 16;
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
      const int top = row + g / WEIGHTS * 16;
      from[g] = (g % WEIGHTS ? w2 : w) +
                ((u64)((top < size_n() ? top : size_n() - 16) + lane / 4) * size_k() + column) * 2;
    }
  }

  __device__ __forceinline__ void copy(int piece) const {
    const bool valid = config.whole_runs || column + piece * 32 < size_k();
    const u32 to = slot + piece % DEPTH * PIECE_BYTES;
#pragma unroll
    for (int i = 0; i < GROUPS * 2; i++)
      copy_async16_line(to + i * 512,
                        valid ? from[i / 2] + (u64)(i % 2 * 8) * size_k() * 2 + piece * 64 : from[0],
                        valid ? 16 : 0);
  }
};

// Multiplies 32 columns, whose parts begin at 16-byte piece |at| of the rows in |chunk|. |w|: this lane's
// weights in shared memory.
__device__ __forceinline__ void multiply_piece(float (&acc)[GROUPS][2][4], const uint4 *w, u32 chunk,
                                               int at) {
  u32 b[2][3][4];
#pragma unroll
  for (int i = 0; i < 6; i++) load_tokens(b[i / 3][i % 3], chunk + i % 3 * PLANE, 0, at + i / 3 * 2);
#pragma unroll
  for (int g = 0; g < GROUPS; g++) {
    const uint4 upper = w[g * 64], lower = w[g * 64 + 32];
    const u32 pairs[8] = {upper.x, lower.x, upper.y, lower.y, upper.z, lower.z, upper.w, lower.w};
    u32 a[2][WEIGHT_PARTS][4];
#pragma unroll
    for (int i = 0; i < 8; i++) {
      u32 part[WEIGHT_PARTS];
      weight_parts(part, pairs[i]);
#pragma unroll
      for (int p = 0; p < WEIGHT_PARTS; p++) a[i / 4][p][i % 4] = part[p];
    }
    float d[2][4] = {};  // separate sums: tensor cores do not round sums to nearest
#pragma unroll
    for (int order = 2; order >= 0; order--)  // smallest parts first, for accuracy
#pragma unroll
      for (int part = WEIGHT_PARTS - 1; part >= 0; part--)
        if (part <= order)
#pragma unroll
          for (int i = 0; i < 4; i++)
            mma(d[i % 2], a[i / 2][part], b[i / 2][order - part][i % 2 * 2],
                b[i / 2][order - part][i % 2 * 2 + 1]);
#pragma unroll
    for (int i = 0; i < 8; i++) acc[g][i / 4][i % 4] += d[i / 4][i % 4];
  }
}

// Splits columns [first, first + 64 * chunks) of x into bf16 parts. Eight neighbouring threads have 64
// columns of a row; 128 threads have a chunk. With GAIN x is multiplied by |gain|, and |squares| gets the
// sum of squares of x over each chunk and row.
__device__ __forceinline__ void cut_slice(u8 *to, const float *x, const float *gain, float *squares,
                                          int first, int chunks) {
  constexpr int LOADS = 4;  // loads in flight
  for (int base = threadIdx.x; base < chunks * 128; base += LOADS * THREADS) {
    float v[LOADS][8] = {};
#pragma unroll
    for (int i = 0; i < LOADS; i++) {
      const int at = base + i * THREADS, row = at / 8 % 16, column = first + (at / 128 * 8 + at % 8) * 8;
      if (at < chunks * 128 && row < size_m() && column < size_k())
        load8(v[i], x + (u64)row * size_k() + column);
    }
#pragma unroll
    for (int i = 0; i < LOADS; i++) {
      const int at = base + i * THREADS;
      if (at >= chunks * 128) break;  // the same for all threads of a warp
      if constexpr (GAIN) {
        const int column = first + (at / 128 * 8 + at % 8) * 8;
        float square = 0, g[8] = {};
        if (column < size_k()) load8(g, gain + column);
#pragma unroll
        for (int e = 0; e < 8; e++) square += v[i][e] * v[i][e], v[i][e] *= g[e];
#pragma unroll
        for (int step = 1; step < 8; step *= 2) square += __shfl_xor_sync(~0u, square, step);
        if (at % 8 == 0) squares[at / 8] = square;
      }
      store_parts(to, at / 8 % 16, at / 128 * 8 + at % 8, v[i], 1);
    }
  }
}

// ---- epilogue: sums of the cluster, scale of the norm, residual, activation ----

__device__ __forceinline__ void meet() {
  if constexpr (SPLIT > 1)
    wait_cluster();
  else
    __syncthreads();
}

// This lane's sums of a fragment, at |from| in the ring of the first warp of its tile; in a fixed order.
__device__ __forceinline__ void sum_fragment(float (&v)[4], const u8 *memory, u32 from) {
#pragma unroll
  for (int i = 0; i < SPLIT * ALONG; i++) {
    const u8 *at = memory + i % ALONG * TALL * RING_BYTES + from;
    float4 p;
    if constexpr (SPLIT > 1)
      p = read_cluster4(shared_address(at), i / ALONG);
    else
      p = *(const float4 *)at;
    v[0] += p.x, v[1] += p.y, v[2] += p.z, v[3] += p.w;
  }
}

// The scale of a row, whose sum of squares in this block is at |square|.
__device__ __forceinline__ float scale_of(const float *square) {
  float sum = 0;
#pragma unroll
  for (int rank = 0; rank < SPLIT; rank++) sum += SPLIT > 1 ? read_cluster(square, rank) : *square;
  return 1 / sqrtf(sum / size_k() + config.norm_eps);
}

// Stores the parts of a number at a column of x of the next product.
__device__ __forceinline__ void store_part(u8 *parts, int row, int column, float v) {
  u32 part[3];
  split_bf16(part, v, 0);
#pragma unroll
  for (int i = 0; i < 3; i++) ((u16 *)part_word(parts, 16, i, row, column / 2 * 2))[column % 2] = part[i];
}

using Output = Select<config.y_parts, u8, float>::Type;  // u8: parts of x of the next product

// Adds the sums of the cluster, and the residual or the activation, and stores them.
__device__ __forceinline__ void finish(Output *y, const u8 *memory, const float *squares,
                                       const float *residual) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll 1
  for (int f = blockIdx.z + SPLIT * warp; f < FRAGMENTS; f += SPLIT * TALL * ALONG) {
    const int tile = f / (TILE_GROUPS * 2), group = f / 2 % TILE_GROUPS, token = f % 2 * 8 + lane % 4 * 2;
    const int row = (blockIdx.y * TALL + tile) * TILE_ROWS + group * 16 + lane / 4;
    auto index_of = [&](int e) {  // index in y of element e
      const int below = row + e / 2 * 8;
      return token + e % 2 < size_m() && below < size_n() ? (u32)(token + e % 2) * size_n() + below : ~0u;
    };
    float add[4];
#pragma unroll
    for (int e = 0; ADD && e < 4; e++)
      add[e] = size_parameter<3>() && index_of(e) != ~0u ? residual[index_of(e)] : 0;  // ADDS
    float v[WEIGHTS][4] = {};
#pragma unroll
    for (int n = 0; n < WEIGHTS; n++)
      sum_fragment(v[n], memory, tile * RING_BYTES + ((group * WEIGHTS + n) * 2 + f % 2) * 512 + lane * 16);
    if constexpr (GAIN) {
      const float scale[2] = {scale_of(squares + token), scale_of(squares + token + 1)};
#pragma unroll
      for (int i = 0; i < WEIGHTS * 4; i++) v[i / 4][i % 4] *= scale[i % 2];
    }
#pragma unroll
    for (int e = 0; e < 4; e++) {
      if (index_of(e) == ~0u) continue;
      if constexpr (ADD)
        y[index_of(e)] = add[e] + v[0][e];
      else if constexpr (config.y_parts)
        store_part((u8 *)y, token + e % 2, row + e / 2 * 8, gated(v[0][e], v[WEIGHTS - 1][e]));
      else
        y[index_of(e)] = gated(v[0][e], v[WEIGHTS - 1][e]);
    }
  }
}

// Names of parameters that the kernel does not have.
constexpr const float *gain = nullptr, *residual = nullptr;
constexpr const u8 *w2 = nullptr;

extern "C" __global__ void CLUSTER __launch_bounds__(THREADS, THREADS <= 256 ? 2 : 1)
    NAME(const float *__restrict__ x,
#if GAIN
         const float *__restrict__ gain,
#endif
         const u8 *__restrict__ w,
#if EPILOGUE == MLX_EPILOGUE_GATED
         const u8 *__restrict__ w2,
#else
         const float *residual,  // no __restrict__: it may be y
#endif
         Output *y, int, int, int, int) {
  start_next_kernel();
  extern __shared__ __align__(1024) unsigned char memory[];
  const u32 shared = shared_address(memory);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int begin = blockIdx.z * runs_each();
  // The last blocks of a cluster may have fewer runs, or none, and the last warps of a tile fewer pieces.
  const int runs = begin >= run_count()                ? 0
                   : run_count() - begin < runs_each() ? run_count() - begin
                                                       : runs_each();
  const int skip = warp / TALL * pieces_each(), left = runs * 4 - skip;
  const int pieces = left < 0 ? 0 : left < pieces_each() ? left : pieces_each();

  Ring ring;
  ring.begin(w, GATED ? w2 : w, (blockIdx.y * TALL + warp % TALL) * TILE_ROWS, begin * 128 + skip * 32,
             shared + warp * RING_BYTES);
#pragma unroll
  for (int piece = 0; piece < DEPTH; piece++) {
    if (piece < pieces) ring.copy(piece);
    commit_copies();
  }
  u8 *const slice = memory + TALL * ALONG * RING_BYTES;
  // Sums of squares of x: [row] of the block, then [chunk][row].
  float *const squares = (float *)(slice + runs_each() * 2 * CHUNK_BYTES);
  wait_for_previous_kernel();
  x = after_wait(x);
  const float *added = nullptr;
  if constexpr (ADD) added = after_wait(residual);
  cut_slice(slice, x, gain, squares + 16, begin * 128, runs * 2);
  __syncthreads();
  if (GAIN && threadIdx.x < 16) {  // read after the products of all warps
    float sum = 0;
    for (int i = 0; i < runs * 2; i++) sum += squares[16 + i * 16 + threadIdx.x];
    squares[threadIdx.x] = sum;
  }

  float acc[GROUPS][2][4] = {};
  const u32 parts = shared + TALL * ALONG * RING_BYTES;
  u8 *const mine = memory + warp * RING_BYTES + lane * 16;
#pragma unroll 1
  for (int piece = 0; piece < pieces; piece++) {
    wait_copies<DEPTH - 1>();
    const int at = skip + piece;
    multiply_piece(acc, (const uint4 *)(mine + piece % DEPTH * PIECE_BYTES), parts + at / 2 * CHUNK_BYTES,
                   at % 2 * 4);
    if (piece + DEPTH < pieces) ring.copy(piece + DEPTH);
    commit_copies();
  }

  // The sums of a warp replace its first piece.
#pragma unroll
  for (int i = 0; i < GROUPS * 2; i++) {
    const float(&s)[4] = acc[i / 2][i % 2];
    *(float4 *)(mine + i * 512) = make_float4(s[0], s[1], s[2], s[3]);
  }
  meet();
  finish(y, memory, squares, added);
  meet();  // a block must not exit while others read its shared memory
}
