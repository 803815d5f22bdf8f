// Linear layers with f32 accuracy (packed_linear.cuh): weights that are rows of bf16 or f16.
//
// A lane loads 16 bytes, 8 neighbouring columns, of a row. They are the pairs that its lane of a tensor-core
// fragment holds, if columns are permuted: pair i of the quad's 8 columns is at 8 * i + 2 * quad of the piece
// of 32 columns. -DCUT with ROWS16 stores x in the same order.

constexpr int AHEAD = 4;  // chunks from a load to the prefetch into L2
// Units (a chunk of one group) that a warp holds in registers. With up to 32 tokens the sums leave room for
// four, and the loads take longer than the products. With 64 that pays off for o and down, unless they need
// two blocks on a multiprocessor: clusters of more than two blocks.
#ifndef DEPTH
#define DEPTH (!WGMMA ? GROUPS + 1 : FT <= 4 || (FT == 8 && SPLIT <= 2 && EPILOGUE == 1) ? 4 : 2)
#endif

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
__device__ __forceinline__ void begin_weights(Weights &v, int group, const u8 *w, int row, int run,
                                              int rows = N) {
  const int lane = threadIdx.x % 32, first = row + lane / 4;
  // Past the end: the last row again, whose result is not stored.
  v.column = run * 128 + lane % 4 * 8;
  v.upper[group] = w + ((u64)(first < rows ? first : rows - 1) * K + v.column) * 2;
  v.lower[group] = w + ((u64)(first + 8 < rows ? first + 8 : rows - 1) * K + v.column) * 2;
}

__device__ __forceinline__ void load16(u32 (&v)[4], const u8 *from, bool valid) {
  v[0] = v[1] = v[2] = v[3] = 0;
  if (valid)
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "l"(from));
}

// Loads chunk |nth| of this block, and prefetches a later one.
__device__ __forceinline__ void load_chunk(Chunk16 &to, const Weights &v, int group, int nth) {
#pragma unroll
  for (int piece = 0; piece < 2; piece++) {
    const bool valid = WHOLE_RUNS || v.column + nth * 64 + piece * 32 < K;
    load16(to.words[piece][0], v.upper[group] + nth * 128 + piece * 64, valid);
    load16(to.words[piece][1], v.lower[group] + nth * 128 + piece * 64, valid);
  }
  if (v.column + (nth + AHEAD) * 64 < K && threadIdx.x % 4 == 0) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(v.upper[group] + (nth + AHEAD) * 128));
    asm volatile("prefetch.global.L2 [%0];" ::"l"(v.lower[group] + (nth + AHEAD) * 128));
  }
}

// Loads the first units of a group: zeros past column K, nothing past the last run. Called before the
// previous kernel has ended.
__device__ __forceinline__ void preload(Weights &v, int group) {
#pragma unroll
  for (int unit = 0; unit < DEPTH - 1; unit++)
    if (unit % GROUPS == group) {
      const int nth = unit / GROUPS;
      if (v.column / 128 * 128 + nth * 64 < RUNS * 128) load_chunk(v.units[unit], v, group, nth);
    }
}

// The A operands of an m16k16 product: 16 columns of a piece, the first or the second |half|.
__device__ __forceinline__ void fragment_of(u32 (&a)[WEIGHT_PARTS][4], const Chunk16 &from, int piece,
                                            int half) {
#pragma unroll
  for (int i = 0; i < 4; i++) {
    u32 parts[WEIGHT_PARTS];
    weight_parts(parts, from.words[piece][i % 2][half * 2 + i / 2]);
#pragma unroll
    for (int part = 0; part < WEIGHT_PARTS; part++) a[part][i] = parts[part];
  }
}

#if WGMMA

// Starts the products of one group with one chunk. Smallest parts first, for accuracy.
__device__ __forceinline__ void start_chunk(float (&d)[FT][4], u32 (&a)[4][WEIGHT_PARTS][4], const Chunk16 &w,
                                            u32 stage) {
#pragma unroll
  for (int k = 0; k < 4; k++) fragment_of(a[k], w, k / 2, k % 2);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
  for (int order = 2; order >= 0; order--)
#pragma unroll
    for (int part = WEIGHT_PARTS - 1; part >= 0; part--)
      if (part <= order)
#pragma unroll
        for (int k = 0; k < 4; k++)
          multiply(d, a[k][part], matrix_descriptor(stage + (order - part) * PLANE) + k * 2,
                   order < 2 || part < WEIGHT_PARTS - 1 || k > 0);
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// The products of a unit have their own sum, which is then added, because tensor cores do not round sums to
// nearest. While a warpgroup adds a sum, the products of the other warpgroups run: with two sums of one
// warpgroup in flight, ptxas serializes the products. Weights are loaded DEPTH - 1 units ahead.
template <typename Enter>
__device__ __forceinline__ void multiply_chunks(float (&acc)[GROUPS][FT][4], Weights &v, Chunks chunks,
                                                Enter enter) {
  constexpr int EACH = 2 * GROUPS % DEPTH ? 4 * GROUPS : 2 * GROUPS;  // a run has two chunks
  static_assert(EACH % DEPTH == 0, "unit i of an iteration is at i % DEPTH");
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
      asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
      for (int i = 0; i < FT * 4; i++) acc[(group + GROUPS - 1) % GROUPS][i / 4][i % 4] += d[i / 4][i % 4];
      if (group == 0) stage = enter(unit / GROUPS);
      start_chunk(d, a[nth % 2], v.units[nth % DEPTH], stage);
      if (first + ahead < units)
        load_chunk(v.units[ahead % DEPTH], v, ahead % GROUPS, (first + ahead) / GROUPS);
    }
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
  for (int i = 0; i < FT * 4; i++) acc[GROUPS - 1][i / 4][i % 4] += d[i / 4][i % 4];
}

#else

// Multiplies one piece of a chunk, for all groups.
__device__ __forceinline__ void multiply_piece(float (&acc)[GROUPS][FT][4], const Chunk16 (&w)[GROUPS],
                                               u32 stage, int column, int piece) {
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
        float d[4] = {};                          // a separate sum: tensor cores do not round sums to nearest
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
__device__ __forceinline__ void multiply_chunks(float (&acc)[GROUPS][FT][4], Weights &v, int column,
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

#endif
