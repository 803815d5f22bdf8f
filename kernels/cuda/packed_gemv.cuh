// Quantized linear layers (packed.cu): few rows of x; bound by reading the weights once.
//
// A team of GEMV_WARPS warps computes GEMV_GROUPS groups of 16 rows, then advances by the whole grid to its
// next groups. The tiles along K are assigned to the warps of a team round-robin, so that many loads are in
// flight even with few rows.
#pragma once

#include "overlap.cuh"
#include "packed_stream.cuh"

constexpr int GEMV_GROUPS = config.groups, GEMV_WARPS = config.warps;
constexpr int TEAMS = 8 / GEMV_WARPS;
constexpr int STEPS = (N + 16 * GEMV_GROUPS * TEAMS - 1) / (16 * GEMV_GROUPS * TEAMS);
constexpr int AHEAD = 4;  // runs of a warp that are prefetched into L2, besides the one loaded to registers
constexpr int FIT =
    65536 / (M * 784) / 8 * 8;  // runs; a multiple of 8, so a warp has the same runs for any M
constexpr int PANEL = RUNS < FIT ? RUNS : FIT;
static_assert(GEMV_GROUPS <= GEMV_WARPS, "one warp per group in the epilogue");

using Stream = TileStream<M, GEMV_GROUPS, PANEL>;
using Run = Stream::Run;

struct Memory {
  float4 sums[2][8][GEMV_GROUPS][32];
  Stream::Panel panel;
};

// Position of a warp in its runs. It visits all its runs of one step, then those of the next step.
struct Cursor {
  int step, run;

  __device__ __forceinline__ void advance() {
    run += GEMV_WARPS;
    if (run < RUNS) return;
    run = threadIdx.x / 32 % GEMV_WARPS;
    step += gridDim.x;
  }

  // Past the end it returns the last tile again; that result is not stored.
  __device__ __forceinline__ const u8 *tile(const u8 *w, int nth) const {
    const int at = (step * TEAMS + threadIdx.x / 32 / GEMV_WARPS) * GEMV_GROUPS * 2 + nth;
    return w + ((u64)(TILES % (GEMV_GROUPS * TEAMS * 2) == 0 || at < TILES ? at : TILES - 1) * RUNS + run) *
                   TILE_BYTES;
  }

  __device__ __forceinline__ void load(Run &to, const u8 *w) const {
    if (step >= STEPS) return;
#pragma unroll
    for (int i = 0; i < GEMV_GROUPS * 2; i++) Stream::load(to, i, tile(w, i), run);
  }

  __device__ __forceinline__ void prefetch(const u8 *w) const {
    constexpr int LINES = (TILE_BYTES + 127) / 128;
    for (int i = threadIdx.x % 32; step < STEPS && i < GEMV_GROUPS * 2 * LINES; i += 32)
      prefetch_l2(tile(w, i / LINES) + i % LINES * 128);
  }
};

extern "C" __global__ void __launch_bounds__(256, GEMV_GROUPS == 1 && BITS == 4 ? 3 : 2)
    NAME(const float *__restrict__ x, const u8 *__restrict__ w, float *__restrict__ y) {
  start_next_kernel();
  extern __shared__ __align__(16) unsigned char bytes[];
  Memory &memory = *(Memory *)bytes;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  Cursor near = {warp % GEMV_WARPS < RUNS ? (int)blockIdx.x : STEPS, warp % GEMV_WARPS}, far = near;
  for (int i = 0; i < AHEAD; i++) far.prefetch(w), far.advance();
  Run next;
  near.load(next, w);  // overlaps with the staging of x
  wait_for_previous_kernel();
  x = after_wait(x);

  for (int step = blockIdx.x, buffer = 0; step < STEPS; step += gridDim.x, buffer ^= 1) {
    float acc[GEMV_GROUPS][4] = {};
    for (int base = 0; base < RUNS; base += PANEL) {
      const int count = RUNS - base < PANEL ? RUNS - base : PANEL;
      if (PANEL < RUNS || step == blockIdx.x) {
        __syncthreads();
        Stream::stage(memory.panel, x, base, count);
        __syncthreads();
      }
      for (int nth = warp % GEMV_WARPS; nth < count; nth += GEMV_WARPS) {
        const Run now = next;
        near.advance();
        near.load(next, w);
        far.prefetch(w);
        far.advance();
        Stream::multiply_run(acc, now, memory.panel, nth);
      }
    }
#pragma unroll
    for (int g = 0; g < GEMV_GROUPS; g++)
      memory.sums[buffer][warp][g][lane] = make_float4(acc[g][0], acc[g][1], acc[g][2], acc[g][3]);
    __syncthreads();                            // also: the sums of the previous iteration have been read
    if (warp >= GEMV_GROUPS * TEAMS) continue;  // the first warps complete a group of 16 rows each
    float4 total = make_float4(0, 0, 0, 0);
    for (int i = 0; i < GEMV_WARPS; i++) {
      const float4 s = memory.sums[buffer][warp / GEMV_GROUPS * GEMV_WARPS + i][warp % GEMV_GROUPS][lane];
      total = make_float4(total.x + s.x, total.y + s.y, total.z + s.z, total.w + s.w);
    }
    auto store = [&](int m, int row, float v) {
      if (m < M && row < N) y[(u64)m * N + row] = v;
    };
    const int row = (step * GEMV_GROUPS * TEAMS + warp) * 16 + lane / 4, quad = lane % 4;
    if (Stream::PASSES == 1) {
      auto column = [&](int n, float even, float odd) {
        return __shfl_sync(~0u, n % 2 ? odd : even, lane - quad + n / 2);
      };
#pragma unroll
      for (int m = 0; m < M; m++) {  // smallest parts first, for accuracy
        const float upper = (column(2 * M + m, total.x, total.y) + column(M + m, total.x, total.y)) +
                            column(m, total.x, total.y);
        const float lower = (column(2 * M + m, total.z, total.w) + column(M + m, total.z, total.w)) +
                            column(m, total.z, total.w);
        if (quad == 0) store(m, row, upper), store(m, row + 8, lower);
      }
    } else {
      store(quad * 2, row, total.x);
      store(quad * 2 + 1, row, total.y);
      store(quad * 2, row + 8, total.z);
      store(quad * 2 + 1, row + 8, total.w);
    }
  }
}
