// Mixture of experts (experts.cu): experts of each token, pairs grouped by expert, and the weighted sum.
#pragma once

#include "experts_weigh.cuh"
#include "overlap.cuh"

#if defined(ROUTE)

// The names of parameters that the kernel does not have.
constexpr const int *batch = nullptr;
constexpr const float *correction = nullptr, *factors = nullptr;
#if !BATCH
constexpr int *results = nullptr;
constexpr int width = 0, at = 0;
#endif

extern "C" __global__ void __launch_bounds__(128) NAME(const float *__restrict__ scores,
#if BATCH
                                                       const int *__restrict__ batch,
#endif
#if CORRECTION
                                                       const float *__restrict__ correction,
#endif
#if FACTORS
                                                       const float *__restrict__ factors,
#endif
#if BATCH
                                                       int *__restrict__ results,
#endif
                                                       int *__restrict__ routing,
#if BATCH
                                                       int width, int at,
#endif
                                                       int tokens) {
  start_next_kernel();
  wait_for_previous_kernel();
  const int lane = threadIdx.x % 32, token = blockIdx.x * 4 + threadIdx.x / 32;
  if (token >= tokens) return;
  Choice mine = {-1, 0};
  int *routes = nullptr;
  if (!is_padding<BATCH>(batch, token)) {
    routes = routes_of<BATCH>(batch, results, token, width, at);
    mine = choose_weighed(after_wait(scores) + (u64)token * EXPERTS, correction, factors, USED);
  }
  if (lane >= USED) return;
  if (routes) routes[lane] = mine.expert;
  routing[token * USED + lane] = mine.expert;
  routing[(tokens + token) * USED + lane] = __float_as_int(mine.weight);
}

#else

constexpr int TILE = config.tile;

// Where the parts of |groups| are, for |tokens| tokens.
struct Layout {
  int list, rows;  // [R] pair of each row, [P] row of each pair

  __device__ __forceinline__ explicit Layout(int tokens) {
    const int pairs = tokens * USED, most = pairs < EXPERTS ? pairs : EXPERTS;
    list = 4 + 4 * (pairs / TILE + most);
    rows = list + (pairs + 7 * most + 7) / 8 * 8;
  }
};

#if defined(GROUP)

constexpr int WARPS = 16;

// Numbers of pairs, starting rows and starting tiles of the experts. A warp sorts consecutive pairs.
struct Memory {
  unsigned short before[WARPS][EXPERTS];  // pairs of the expert in this warp; then in the warps before it
  int count[EXPERTS], row[EXPERTS], tile[EXPERTS];
  int tiles;
};
static_assert(EXPERTS <= MLX_EXPERTS_MOST, "shared memory");

// Calls |visit| for each pair of this warp with the number of the expert's pairs in earlier warps and lanes.
template <typename Visit>
__device__ __forceinline__ void visit_pairs(Memory &m, const int *routing, int pairs, Visit visit) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int each = (pairs + WARPS * 32 - 1) / (WARPS * 32) * 32;
  for (int i = warp * each + lane; i < (warp + 1) * each; i += 32) {
    const int expert = i < pairs ? routing[i] : -1;
    const u32 same = __match_any_sync(~0u, expert);
    if (expert >= 0) visit(i, expert, m.before[warp][expert] + __popc(same & ((1u << lane) - 1)));
    __syncwarp();
    if (expert >= 0 && lane == __ffs(same) - 1) m.before[warp][expert] += __popc(same);
    __syncwarp();
  }
}

__device__ __forceinline__ int scan_of_warp(int v) {  // inclusive
#pragma unroll
  for (int i = 1; i < 32; i *= 2) {
    const int other = __shfl_up_sync(~0u, v, i);
    if (threadIdx.x % 32 >= i) v += other;
  }
  return v;
}

// The first warp: where the rows and the tiles of each expert start.
__device__ __forceinline__ void place_experts(Memory &m) {
  int row = 0, tile = 0;
  for (int first = 0; first < EXPERTS; first += 32) {
    const int expert = first + threadIdx.x % 32, count = expert < EXPERTS ? m.count[expert] : 0;
    const int rows = (count + 7) / 8 * 8, tiles = (count + TILE - 1) / TILE;
    const int row_end = scan_of_warp(rows), tile_end = scan_of_warp(tiles);
    if (expert < EXPERTS) m.row[expert] = row + row_end - rows, m.tile[expert] = tile + tile_end - tiles;
    row += __shfl_sync(~0u, row_end, 31);
    tile += __shfl_sync(~0u, tile_end, 31);
  }
  if (threadIdx.x == 0) m.tiles = tile;
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    NAME(const int *__restrict__ routing, int *__restrict__ groups, int tokens) {
  start_next_kernel();
  wait_for_previous_kernel();
  routing = after_wait(routing);
  __shared__ Memory m;
  const int pairs = tokens * USED;
  const Layout at(tokens);
  for (int i = threadIdx.x; i < WARPS * EXPERTS; i += 32 * WARPS) m.before[i / EXPERTS][i % EXPERTS] = 0;
  for (int i = at.list + threadIdx.x; i < at.rows; i += 32 * WARPS) groups[i] = -1;
  __syncthreads();
  visit_pairs(m, routing, pairs, [](int, int, int) {});
  __syncthreads();
  for (int expert = threadIdx.x; expert < EXPERTS; expert += 32 * WARPS) {
    int sum = 0;
    for (int warp = 0; warp < WARPS; warp++) {
      const int count = m.before[warp][expert];
      m.before[warp][expert] = sum;
      sum += count;
    }
    m.count[expert] = sum;
  }
  __syncthreads();
  if (threadIdx.x < 32) place_experts(m);
  __syncthreads();
  visit_pairs(m, routing, pairs, [&](int pair, int expert, int nth) {
    groups[at.list + m.row[expert] + nth] = pair;
    groups[at.rows + pair] = m.row[expert] + nth;
  });
  for (int expert = threadIdx.x; expert < EXPERTS; expert += 32 * WARPS)
    for (int i = 0; i * TILE < m.count[expert]; i++) {
      const int end = i * TILE + TILE < m.count[expert] ? i * TILE + TILE : m.count[expert];
      ((int4 *)groups)[1 + m.tile[expert] + i] =
          make_int4(expert, m.row[expert] + i * TILE, m.row[expert] + end, 0);
    }
  if (threadIdx.x == 0) *(int4 *)groups = make_int4(m.tiles, 0, 0, 0);
}

#else

constexpr int N = config.n;
constexpr const float *residual = nullptr;  // the name of a parameter that the kernel does not have

extern "C" __global__ void __launch_bounds__(256)
    NAME(const float *__restrict__ x, const int *__restrict__ routing, const int *__restrict__ groups,
#if RESIDUAL
         const float *__restrict__ residual,
#endif
         float *__restrict__ y, int tokens) {
  start_next_kernel();
  wait_for_previous_kernel();
  x = after_wait(x);
  routing = after_wait(routing);
  groups = after_wait(groups);
  const float *added = nullptr;
  if constexpr (RESIDUAL) added = after_wait(residual);
  const int column = (blockIdx.x * 256 + threadIdx.x) * 4, token = blockIdx.y;
  const Layout at(tokens);
  if (column >= N) return;
  float4 sum = make_float4(0, 0, 0, 0);
  for (int i = 0; i < USED; i++) {
    const int pair = token * USED + i;
    if (routing[pair] < 0) break;  // padding
    const float weight = __int_as_float(routing[tokens * USED + pair]);
    const float4 v = *(const float4 *)(x + (u64)groups[at.rows + pair] * N + column);
    sum.x = fmaf(v.x, weight, sum.x), sum.y = fmaf(v.y, weight, sum.y);
    sum.z = fmaf(v.z, weight, sum.z), sum.w = fmaf(v.w, weight, sum.w);
  }
  if constexpr (RESIDUAL) {
    const float4 old = *(const float4 *)(added + (u64)token * N + column);
    sum = make_float4(old.x + sum.x, old.y + sum.y, old.z + sum.z, old.w + sum.w);
  }
  *(float4 *)(y + (u64)token * N + column) = sum;
}

#endif
#endif
