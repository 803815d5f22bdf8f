// Linear layers with f32 accuracy (packed_linear.cuh): how a product is divided.
#pragma once

#include "cluster.cuh"
#include "packed_sizes.cuh"
#include "ptx.cuh"

constexpr int BM = config.bm, BN = config.bn, STAGES = config.stages, WARPS = config.warps;
constexpr bool WGMMA = HAS_WGMMA && WARPS % 4 == 0;
constexpr bool ADD = EPILOGUE == MLX_EPILOGUE_ADD, GATED = EPILOGUE == MLX_EPILOGUE_GATED,
               GROUP = EPILOGUE == MLX_EPILOGUE_GROUP, PARTIAL = EPILOGUE == MLX_EPILOGUE_PARTIAL;
constexpr int WEIGHTS = GATED ? 2 : 1;
constexpr int THREADS = 32 * WARPS;
constexpr int PLANE = BM * 128, STAGE_BYTES = PARTS * PLANE;

// A product has rows of weights as its rows and tokens as its columns. A warp computes FR groups of 16 rows
// for WT tokens. The groups are assigned round-robin to the DOWN warps that share these tokens. With EPILOGUE
// 2 a warp computes its groups of both matrices. The sums of a group are FT fragments of 16 x 8, in which a
// lane holds {row lane/4, row lane/4 + 8} x {token 2*(lane%4), the next}.
constexpr int ACROSS = WGMMA || WARPS < 4 || BM < 32 ? 1 : 2;
constexpr int DOWN = WARPS / ACROSS;
constexpr int FR = BN / (16 * DOWN);
constexpr int GROUPS = FR * WEIGHTS;
constexpr int WT = BM / ACROSS, FT = WT / 8;
static_assert(FR * 16 * DOWN == BN && WT % 16 == 0 && STAGES >= 3, "tile");

// Runs of one block of a cluster. PARTIAL: no cluster, the blocks of a tile store a sum each.
static_assert(!PARTIAL || SPLIT == 1, "the grid divides K");
__device__ __forceinline__ int runs_each() {
  if constexpr (PARTIAL) return (run_count() + (int)gridDim.z - 1) / (int)gridDim.z;
  return (run_count() + SPLIT - 1) / SPLIT;
}
constexpr int FRAGMENTS = FR * FT;
constexpr int FRAGMENTS_EACH = (FRAGMENTS + SPLIT - 1) / SPLIT;  // fragments that a thread completes
static_assert(SPLIT == 1 || BM * BN * WEIGHTS * 4 <= STAGES * STAGE_BYTES,
              "the partial sums must fit in the memory of the stages");

// The chunks that a block reads for `runs` runs, starting at `first`: with SUMS the chunks of the sums,
// then those of x.
struct Chunks {
  int first, runs;

  __device__ __forceinline__ int lead() const {
    return SUMS && runs > 0 ? (first + runs - 1) / 16 - first / 16 + 1 : 0;
  }
  __device__ __forceinline__ int count() const { return lead() + runs * 2; }
  __device__ __forceinline__ int at(int nth) const {
    return nth < lead() ? chunk_count() + first / 16 + nth : first * 2 + nth - lead();
  }
};

// ---- with wgmma: d[64 rows, BM tokens] (+)= a[64, 16] . b[BM, 16]^T, b in shared memory ----

// The products of all tokens of the tile, or the parts of 16 tokens at once: their planes follow each other
// in shared memory. An instruction with few columns takes as long as one with 48.
template <int FRAGMENTS>
__device__ __forceinline__ void multiply(float (&d)[FRAGMENTS][4], const u32 (&a)[4], u64 tile, bool add) {
  static_assert(BM == 16 || BM == 32 || BM == 64 || BM == 128, "rows of a tile");
  wgmma<PARTS == 2>(d, a, tile, add);
}
