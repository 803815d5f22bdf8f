// Linear layers with f32 accuracy (packed_linear.cuh): weights that are rows of bf16 or f16.
//
// A lane loads 16 bytes, 8 neighbouring columns, of a row. They are the pairs that its lane of a tensor-core
// fragment holds, if columns are permuted: pair i of the quad's 8 columns is at 8 * i + 2 * quad of the piece
// of 32 columns. packed_split.cuh stores x in the same order.
//
// Not a format of packed_linear_tiles.cuh: these weights are operands as they are loaded, so a warp keeps
// several chunks in registers. Codes are unpacked between the load and the product, and have scales.
#pragma once

#include "packed_linear_shape.cuh"
#include "packed_operands.cuh"

struct RowProduct {
  static constexpr int AHEAD = 4;  // chunks from a load to the prefetch into L2
  // Units (a chunk of one group) that a warp holds in registers. With up to 32 tokens the sums leave room for
  // four, and the loads take longer than the products. With 64 that pays off for o and down, unless they need
  // two blocks on a multiprocessor: clusters of more than two blocks.
  static constexpr int DEPTH = config.depth                                ? config.depth
                               : !WGMMA                                    ? GROUPS + 1
                               : FT <= 4 || (FT == 8 && SPLIT <= 2 && ADD) ? 4
                                                                           : 2;

  // The weights of a group in one chunk of 64 columns: two pieces of 32 columns, two rows.
  struct Chunk16 {
    u32 words[2][2][4];
  };

  struct Weights {
    const u8 *upper[GROUPS], *lower[GROUPS];  // this lane's first column in its row of rows 0..7 and 8..15
    int column;                               // this lane's first column
    Chunk16 units[DEPTH];                     // unit i is at i % DEPTH
  };

  // |rows| is the number of rows of w.
  static __device__ __forceinline__ void begin_weights(Weights &v, int group, const u8 *w, int row, int run,
                                                       int rows) {
    const int lane = threadIdx.x % 32, first = row + lane / 4;
    // Past the end: the last row again, whose result is not stored.
    v.column = run * 128 + lane % 4 * 8;
    v.upper[group] = w + ((u64)(first < rows ? first : rows - 1) * size_k() + v.column) * 2;
    v.lower[group] = w + ((u64)(first + 8 < rows ? first + 8 : rows - 1) * size_k() + v.column) * 2;
  }

  static __device__ __forceinline__ void load16(u32 (&v)[4], const u8 *from, bool valid) {
    v[0] = v[1] = v[2] = v[3] = 0;
    if (valid) load_once128_line(v, from);
  }

  // Loads chunk |nth| of this block, and prefetches a later one.
  static __device__ __forceinline__ void load_chunk(Chunk16 &to, const Weights &v, int group, int nth) {
#pragma unroll
    for (int piece = 0; piece < 2; piece++) {
      const bool valid = config.whole_runs || v.column + nth * 64 + piece * 32 < size_k();
      load16(to.words[piece][0], v.upper[group] + nth * 128 + piece * 64, valid);
      load16(to.words[piece][1], v.lower[group] + nth * 128 + piece * 64, valid);
    }
    if (v.column + (nth + AHEAD) * 64 < size_k() && threadIdx.x % 4 == 0) {
      prefetch_l2(v.upper[group] + (nth + AHEAD) * 128);
      prefetch_l2(v.lower[group] + (nth + AHEAD) * 128);
    }
  }

  // Loads the first units of a group: zeros past column K, nothing past the last run. Called before the
  // previous kernel has ended.
  static __device__ __forceinline__ void preload(Weights &v, int group) {
#pragma unroll
    for (int unit = 0; unit < DEPTH - 1; unit++)
      if (unit % GROUPS == group) {
        const int nth = unit / GROUPS;
        if (v.column / 128 * 128 + nth * 64 < run_count() * 128) load_chunk(v.units[unit], v, group, nth);
      }
  }

  // The A operands of an m16k16 product: 16 columns of a piece, the first or the second |half|.
  static __device__ __forceinline__ void fragment_of(u32 (&a)[WEIGHT_PARTS][4], const Chunk16 &from,
                                                     int piece, int half) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      u32 parts[WEIGHT_PARTS];
      weight_parts(parts, from.words[piece][i % 2][half * 2 + i / 2]);
#pragma unroll
      for (int part = 0; part < WEIGHT_PARTS; part++) a[part][i] = parts[part];
    }
  }

  // Starts the products of one group with one chunk. Smallest parts first, for accuracy.
  static __device__ __forceinline__ void start_chunk(float (&d)[FT][4], u32 (&a)[4][WEIGHT_PARTS][4],
                                                     const Chunk16 &w, u32 stage) {
#pragma unroll
    for (int k = 0; k < 4; k++) fragment_of(a[k], w, k / 2, k % 2);
    wgmma_fence();
#pragma unroll
    for (int order = 2; order >= 0; order--)
#pragma unroll
      for (int part = WEIGHT_PARTS - 1; part >= 0; part--)
        if (part <= order)
#pragma unroll
          for (int k = 0; k < 4; k++)
            multiply(d, a[k][part], matrix_descriptor(stage + (order - part) * PLANE) + k * 2,
                     order < 2 || part < WEIGHT_PARTS - 1 || k > 0);
    wgmma_commit();
  }

  // The products of a unit have their own sum, which is then added, because tensor cores do not round sums to
  // nearest. While a warpgroup adds a sum, the products of the other warpgroups run: with two sums of one
  // warpgroup in flight, ptxas serializes the products. Weights are loaded DEPTH - 1 units ahead.
  template <typename Enter>
  static __device__ __forceinline__ void multiply_chunks_wgmma(float (&acc)[GROUPS][FT][4], Weights &v,
                                                               Chunks chunks, Enter enter) {
    constexpr int EACH = 2 * GROUPS % DEPTH ? 4 * GROUPS : 2 * GROUPS;  // a run has two chunks
    static_assert(!WGMMA || EACH % DEPTH == 0, "unit i of an iteration is at i % DEPTH");
    const int units = chunks.count() * GROUPS;
    float d[FT][4] = {};
    u32 a[2][4][WEIGHT_PARTS][4];
    u32 stage = 0;
#pragma unroll 1
    for (int first = 0; first < units; first += EACH)
#pragma unroll
      for (int nth = 0; nth < EACH; nth++) {
        const int unit = first + nth, group = nth % GROUPS, ahead = nth + DEPTH - 1;
        if (nth >= 2 * GROUPS && unit >= units) break;
        wgmma_wait<0>();
#pragma unroll
        for (int i = 0; i < FT * 4; i++) acc[(group + GROUPS - 1) % GROUPS][i / 4][i % 4] += d[i / 4][i % 4];
        if (group == 0) stage = enter(unit / GROUPS);
        start_chunk(d, a[nth % 2], v.units[nth % DEPTH], stage);
        if (first + ahead < units)
          load_chunk(v.units[ahead % DEPTH], v, ahead % GROUPS, (first + ahead) / GROUPS);
      }
    wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < FT * 4; i++) acc[GROUPS - 1][i / 4][i % 4] += d[i / 4][i % 4];
  }

  // Multiplies one piece of a chunk, for all groups.
  static __device__ __forceinline__ void multiply_piece(float (&acc)[GROUPS][FT][4],
                                                        const Chunk16 (&w)[GROUPS], u32 stage, int column,
                                                        int piece) {
#pragma unroll
    for (int j = 0; j < FT; j += 2) {  // two fragments of 8 tokens at a time
      u32 b[2][3][4];
#pragma unroll
      for (int i = 0; i < 6; i++)
        load_tokens(b[i / 3][i % 3], stage + i % 3 * PLANE, column + j * 8, piece * 4 + i / 3 * 2);
#pragma unroll
      for (int g = 0; g < GROUPS; g++) {
        u32 a[2][WEIGHT_PARTS][4];
#pragma unroll
        for (int k = 0; k < 2; k++) fragment_of(a[k], w[g], piece, k);
#pragma unroll
        for (int n = 0; n < 2; n++) {
          float d[4] = {};  // a separate sum: tensor cores do not round sums to nearest
#pragma unroll
          for (int order = 2; order >= 0; order--)  // smallest parts first, for accuracy
#pragma unroll
            for (int part = WEIGHT_PARTS - 1; part >= 0; part--)
              if (part <= order)
#pragma unroll
                for (int k = 0; k < 2; k++)
                  mma(d, a[k][part], b[k][order - part][n * 2], b[k][order - part][n * 2 + 1]);
#pragma unroll
          for (int e = 0; e < 4; e++) acc[g][j + n][e] += d[e];
        }
      }
    }
  }

  template <typename Enter>
  static __device__ __forceinline__ void multiply_chunks(float (&acc)[GROUPS][FT][4], Weights &v, int column,
                                                         Chunks chunks, Enter enter) {
    const int count = chunks.count();
    Chunk16 w[GROUPS], next[GROUPS];
#pragma unroll
    for (int g = 0; g < GROUPS; g++) next[g] = v.units[g];
#pragma unroll 1
    for (int chunk = 0; chunk < count; chunk++) {
      const u32 stage = enter(chunk);
#pragma unroll
      for (int g = 0; g < GROUPS; g++) w[g] = next[g];
#pragma unroll
      for (int g = 0; g < GROUPS && chunk + 1 < count; g++) load_chunk(next[g], v, g, chunk + 1);
#pragma unroll
      for (int piece = 0; piece < 2; piece++) multiply_piece(acc, w, stage, column, piece);
    }
  }
};
