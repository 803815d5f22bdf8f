// Mixture of experts (packed.cu with EXPERTS_GEMV): few tokens; reads only the matrices of the experts
// that are used. M is 1: a block has one vector x, as three bf16 parts in shared memory.
//
// PAIR 1   (x[tokens,K] f32, [gain[K] f32,] gate, up, [bias, bias2,] scores, [batch,] y[tokens * USED, N]
//          f32)
//   y = act(x.gate^T + bias) * (x.up^T + bias2) for each pair of a token and its expert (gated.cuh).
//   With GAIN x is normalized first, as in packed_token.cuh; K is then at most 10240
//   Launch: grid (ceil(N/(16*EACH)), tokens * USED, 1)
// PAIR 0   (x[tokens * USED, K] f32, w, [bias,] scores, [batch,] [residual[tokens,N] f32,] y[tokens,N] f32)
//   y = the sum of (x.w^T + bias) * weight over the experts of a token, with RESIDUAL plus the residual. x is
//   multiplied by the weight first, so that all experts of a token are one sum over USED * K columns.
//   Launch: grid (ceil(N/16), tokens, SPLIT). The SPLIT blocks of a cluster (sm_90) divide the experts
// Both: block (256, 1, 1); dynamic shared memory PANEL * UNIT_BYTES + 4096 * (1 + PAIR) * EACH bytes
// (cuda_launch.c). EACH (1 to 8; PAIR 0: 1): groups of 16 rows that a block computes one after the other.
// RESIDENT: blocks of a multiprocessor.
//
// Every block chooses the experts of its token by itself: scores, BATCH and SUM_TO_ONE as in experts.cu with
// ROUTE. That takes less time than another launch. PAIR 0 must follow PAIR 1 in the stream: it chooses and
// loads its first weights while PAIR 1 runs. The units of 128 columns (16-bit weights: 64) are
// assigned to the 8 warps of a block round-robin. The warps' sums are added in order.
#pragma once

#include "cluster.cuh"
#include "experts_weigh.cuh"
#include "gated.cuh"
#include "overlap.cuh"
#include "packed_experts_rows16.cuh"
#include "packed_stream.cuh"

constexpr int EACH = config.each, RESIDENT = config.resident;
constexpr int GEMV_GROUPS = 1 + PAIR;
constexpr int UNIT = ROWS16 ? 64 : 128;         // columns
constexpr int STEPS_K = (K + UNIT - 1) / UNIT;  // units of one matrix
constexpr int USED_EACH = USED / SPLIT;         // PAIR 0: experts of a block
constexpr int GEMV_UNITS = PAIR ? STEPS_K : USED_EACH * STEPS_K;
constexpr int FIT = ROWS16 ? 192 : 96, PANEL = GEMV_UNITS < FIT ? GEMV_UNITS : FIT;  // units
constexpr u64 MATRIX_BYTES = ROWS16 ? (u64)N * K * 2 : (u64)TILES * RUNS * TILE_BYTES;
static_assert(M == 1 && USED % SPLIT == 0 && (!PAIR || SPLIT == 1), "one vector");
static_assert(!GAIN || (PAIR && PANEL == GEMV_UNITS), "all of x fits shared memory");

using Stream = Select<ROWS16, RowStream<GEMV_GROUPS, PANEL>, TileStream<1, GEMV_GROUPS, PANEL>>::Type;
using Run = Stream::Run;
using Panel = Stream::Panel;

constexpr int OWN = (GEMV_UNITS + 7) / 8, TURNS = OWN * EACH;  // units of a warp: of a group, of all groups
static_assert(EACH <= 8 && (PAIR || EACH == 1), "a warp completes a group");

struct Shared {
  float4 sums[EACH][8][GEMV_GROUPS][32];
  Panel panel;
};

// Two pairs of columns of x: an item. Unit |i| has UNIT / 4 items; those of a thread are 256 apart.
struct Items {
  static constexpr int count = 4;  // loads that are in flight together
  float2 v[count][2];

  // Loads items |first|, |first| + 256, ... of x from unit |base| on, before unit |end|. x is multiplied by
  // the weights (PAIR 0) or by |gain| (GAIN). Returns the sum of the squares of x.
  __device__ __forceinline__ float load(const float *__restrict__ x, const float *__restrict__ gain,
                                        const float *weights, int base, int end, int first) {
    float square = 0;
    float2 g[count][2] = {};
    float factor[count];
#pragma unroll
    for (int i = 0; i < count; i++) {
      const int item = first + i * 256, unit = base + item / (UNIT / 4), nth = PAIR ? 0 : unit / STEPS_K;
      const int quad = item % 4, k = (unit - nth * STEPS_K) * UNIT + item / 4 % (UNIT / 16) * 16;
      // The columns of a lane are neighbours in rows.
      const int at = ROWS16 ? k / 32 * 32 + quad * 8 + k / 16 % 2 * 4 : k + quad * 2;
      const int next = at + (ROWS16 ? 2 : 8);
      v[i][0] = v[i][1] = make_float2(0, 0);
      factor[i] = 0;
      if (unit >= end || k >= K) continue;  // K is a multiple of 32, so all 16 columns are inside or outside
      v[i][0] = *(const float2 *)(x + (u64)nth * K + at);
      v[i][1] = *(const float2 *)(x + (u64)nth * K + next);
      if (!PAIR) factor[i] = weights[nth];
      if constexpr (GAIN) g[i][0] = *(const float2 *)(gain + at), g[i][1] = *(const float2 *)(gain + next);
    }
#pragma unroll
    for (int i = 0; i < count * 2; i++) {
      float2 &a = v[i / 2][i % 2];
      if constexpr (GAIN) {
        square += a.x * a.x + a.y * a.y;
        a = make_float2(a.x * g[i / 2][i % 2].x, a.y * g[i / 2][i % 2].y);
      }
      if (!PAIR) a = make_float2(a.x * factor[i / 2], a.y * factor[i / 2]);
    }
    return square;
  }

  // Splits them into parts. |units|: of the panel.
  __device__ __forceinline__ void store(Panel &panel, int units, int first) const {
#pragma unroll
    for (int i = 0; i < count; i++) {
      const int item = first + i * 256, unit = item / (UNIT / 4), step = item / 4 % (UNIT / 16);
      u32 low[3], high[3];
      if (unit >= units) break;  // with SUMS the whole warp
      split_bf16(low, v[i][0].x, v[i][0].y);
      split_bf16(high, v[i][1].x, v[i][1].y);
#pragma unroll
      for (int p = 0; p < 3; p++) panel.part[unit][step][0][p][item % 4] = make_uint2(low[p], high[p]);
      if constexpr (SUMS) Stream::store_sum(panel, item, (v[i][0].x + v[i][0].y) + (v[i][1].x + v[i][1].y));
    }
  }
};

// The matrices of this block's experts, at its rows.
struct Source {
  const u8 *w, *w2;
  const int *experts;

  // Unit |turn| of this warp; false if there is none.
  __device__ __forceinline__ bool find(int turn, int &nth, int &unit, int &group) const {
    unit = (turn % OWN) * 8 + threadIdx.x / 32;
    if (turn >= TURNS || unit >= GEMV_UNITS) return false;
    nth = PAIR ? 0 : unit / STEPS_K;
    unit -= nth * STEPS_K;
    group = blockIdx.x * EACH + turn / OWN;
    return true;
  }

  __device__ __forceinline__ void load(Run &to, int turn) const {
    int nth, unit, group;
    if (!find(turn, nth, unit, group)) return;
#pragma unroll
    for (int i = 0; i < GEMV_GROUPS * 2; i++) {
      const u8 *from = address((i / 2 ? w2 : w) + experts[nth] * MATRIX_BYTES, group * 2 + i % 2, unit);
      Stream::load(to, i, from, unit);
    }
  }

  __device__ __forceinline__ void prefetch(int turn) const {
    int nth, unit, group;
    if (!find(turn, nth, unit, group)) return;
    for (int i = threadIdx.x % 32; i < GEMV_GROUPS * PREFETCH_LINES; i += 32)
      prefetch_l2(
          line((i / PREFETCH_LINES ? w2 : w) + experts[nth] * MATRIX_BYTES, group, i % PREFETCH_LINES, unit));
  }

  // PREFETCH_LINES: of a group; of rows one per row.
  static constexpr int TILE_LINES = (TILE_BYTES + 127) / 128, PREFETCH_LINES = ROWS16 ? 16 : 2 * TILE_LINES;

  // Of tile |tile|, or this lane's first 16 bytes of row |tile| * 8 + lane / 4. Past the end: the last one
  // again, not stored.
  static __device__ __forceinline__ const u8 *address(const u8 *matrix, int tile, int unit) {
    if constexpr (!ROWS16)
      return matrix + ((u64)(tile < TILES ? tile : TILES - 1) * RUNS + unit) * TILE_BYTES;
    const int row = tile * 8 + threadIdx.x % 32 / 4;
    return matrix + ((u64)(row < N ? row : N - 1) * K + unit * UNIT + threadIdx.x % 4 * 8) * 2;
  }

  static __device__ __forceinline__ const u8 *line(const u8 *matrix, int group, int nth, int unit) {
    if constexpr (!ROWS16)
      return address(matrix, group * 2 + nth / TILE_LINES, unit) + nth % TILE_LINES * 128;
    const int row = group * 16 + nth;
    return matrix + ((u64)(row < N ? row : N - 1) * K + unit * UNIT) * 2;
  }
};

// Units of a warp in registers, and those that are in L2 or on their way to it.
constexpr int DEPTH = PAIR && UNIT == 64 ? 1 : !PAIR && RESIDENT == 2 ? 4 : 2, AHEAD = 12;

// The sums of a block, into |memory|. |items| has the first numbers of x, |next| the first units of weights.
// |square|: of this thread's numbers of x.
__device__ __forceinline__ void multiply_experts(Shared &memory, Items &items, Run (&next)[DEPTH],
                                                 const Source &source, const float *__restrict__ x,
                                                 const float *__restrict__ gain, const float *weights,
                                                 float *squares, float square) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  auto stage = [&](int base, bool loaded) {  // one panel; overlaps with the loads of weights
    const int units = GEMV_UNITS - base < PANEL ? GEMV_UNITS - base : PANEL;
    for (int first = threadIdx.x; first < units * (UNIT / 4); first += 256 * Items::count) {
      // |items| has the first ones of the first panel only until the next load.
      if constexpr (!PAIR)
        items.load(x, gain, weights, base, base + units, first);
      else if (!loaded || first >= 256)
        square += items.load(x, gain, weights, base, base + units, first);
      items.store(memory.panel, units, first);
    }
  };
  if constexpr (PAIR) {
    stage(0, true);
    if constexpr (GAIN) {
#pragma unroll
      for (int i = 16; i; i /= 2) square += __shfl_xor_sync(~0u, square, i);
      if (lane == 0) squares[warp] = square;
    }
    __syncthreads();
  }
  float acc[GEMV_GROUPS][4] = {};
  for (int first = 0; first < TURNS; first += DEPTH)
#pragma unroll
    for (int d = 0; d < DEPTH; d++) {
      const int turn = first + d, unit = turn % OWN * 8;  // of the first warp
      if (turn >= TURNS) break;
      if (unit % PANEL == 0 && (PANEL < GEMV_UNITS ? !PAIR || turn > 0 : !PAIR)) {
        if (turn > 0) __syncthreads();
        stage(unit, false);
        __syncthreads();
      }
      const Run now = next[d];
      source.load(next[d], turn + DEPTH);
      source.prefetch(turn + AHEAD);
      if (unit + warp < GEMV_UNITS) Stream::multiply_run(acc, now, memory.panel, unit % PANEL + warp);
      if (turn % OWN != OWN - 1) continue;
#pragma unroll
      for (int g = 0; g < GEMV_GROUPS; g++) {
        memory.sums[turn / OWN][warp][g][lane] = make_float4(acc[g][0], acc[g][1], acc[g][2], acc[g][3]);
        acc[g][0] = acc[g][1] = acc[g][2] = acc[g][3] = 0;
      }
    }
  __syncthreads();
}

// Adds the sums of the warps, applies the norm, biases and the activation, and stores the result.
__device__ __forceinline__ void finish(float *__restrict__ y, const Shared &memory, const int *experts,
                                       const float *weights, const float *squares,
                                       const float *__restrict__ bias, const float *__restrict__ bias2,
                                       const float *__restrict__ residual) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (warp >= EACH) return;
  float2 total[GEMV_GROUPS];  // rows lane/4 and lane/4 + 8
#pragma unroll
  for (int g = 0; g < GEMV_GROUPS; g++) {
    float4 sum = make_float4(0, 0, 0, 0);
    for (int i = 0; i < 8; i++) {
      const float4 s = memory.sums[warp][i][g][lane];
      sum = make_float4(sum.x + s.x, sum.y + s.y, sum.z + s.z, sum.w + s.w);
    }
    total[g] = sum_parts(sum);
  }
  if constexpr (SPLIT > 1) {  // the first block adds the sums of the others
    __shared__ float2 partial[32];
    partial[lane] = total[0];
    wait_cluster();
    for (int i = 1; blockIdx.z == 0 && i < SPLIT; i++) {
      const float2 other = read_cluster2((const float *)&partial[lane], i);
      total[0].x += other.x, total[0].y += other.y;
    }
    wait_cluster();  // a block must not exit while the first one reads its shared memory
    if (blockIdx.z) return;
  }
  if constexpr (GAIN) {
    float total_square = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) total_square += squares[i];
    const float factor = 1 / sqrtf(total_square / K + config.norm_eps);
#pragma unroll
    for (int g = 0; g < GEMV_GROUPS; g++) total[g].x *= factor, total[g].y *= factor;
  }
  if (lane % 4) return;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int row = (blockIdx.x * EACH + warp) * 16 + half * 8 + lane / 4;
    float v = half ? total[0].y : total[0].x;
    if (row >= N) break;
    if constexpr (PAIR) {
      float up = half ? total[PAIR].y : total[PAIR].x;
      if constexpr (BIAS) {
        v += bias[(u64)experts[0] * N + row];
        up += bias2[(u64)experts[0] * N + row];
      }
      v = gated(v, up);
    } else if constexpr (BIAS) {
      for (int i = 0; i < USED; i++) v = fmaf(weights[i], bias[(u64)experts[i] * N + row], v);
    }
    if constexpr (RESIDUAL) v += residual[(u64)blockIdx.y * N + row];
    y[(u64)blockIdx.y * N + row] = v;
  }
}

// Names of parameters that the kernel does not have.
constexpr const float *gain = nullptr, *bias = nullptr, *bias2 = nullptr, *residual = nullptr;
constexpr const u8 *w2 = nullptr;
constexpr const int *batch = nullptr;
constexpr const float *correction = nullptr, *factors = nullptr;
#if !(BATCH && PAIR)
constexpr int *results = nullptr;
constexpr int width = 0, at = 0;
#endif

extern "C" __global__ void CLUSTER __launch_bounds__(256, RESIDENT) NAME(const float *__restrict__ x,
#if GAIN
                                                                         const float *__restrict__ gain,
#endif
                                                                         const u8 *__restrict__ w,
#if PAIR
                                                                         const u8 *__restrict__ w2,
#endif
#if BIAS
                                                                         const float *__restrict__ bias,
#endif
#if BIAS && PAIR
                                                                         const float *__restrict__ bias2,
#endif
                                                                         const float *__restrict__ scores,
#if BATCH
                                                                         const int *__restrict__ batch,
#endif
#if CORRECTION
                                                                         const float *__restrict__ correction,
#endif
#if FACTORS
                                                                         const float *__restrict__ factors,
#endif
#if RESIDUAL
                                                                         const float *__restrict__ residual,
#endif
#if BATCH && PAIR
                                                                         int *__restrict__ results,
#endif
                                                                         float *__restrict__ y
#if BATCH && PAIR
                                                                         ,
                                                                         int width, int at
#endif
) {
  extern __shared__ __align__(16) unsigned char bytes[];
  __shared__ int experts[PAIR ? 1 : USED];
  __shared__ float weights[PAIR ? 1 : USED];
  __shared__ float squares[8];
  Shared &memory = *(Shared *)bytes;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, mine = blockIdx.y;  // a pair, or a token
  const int token = PAIR ? mine / USED : mine, nth_expert = PAIR ? mine % USED : 0;
  const bool padding = is_padding<BATCH>(batch, token);
  // The first block of the last expert knows all experts of the token. Reads the batch before it waits.
  int *routes = nullptr;
  if (PAIR && nth_expert == USED - 1 && blockIdx.x == 0 && warp == 0 && !padding)
    routes = routes_of<(BATCH && PAIR)>(batch, results, token, width, at);
  const int own = SPLIT > 1 ? blockIdx.z * USED_EACH : 0;  // PAIR 0: first expert of this block
  const Source source = {w, PAIR ? w2 : w, experts + own};
  if constexpr (PAIR) {
    for (int i = threadIdx.x * 32; GAIN && i < K; i += 8192) prefetch_l2(gain + i);
    wait_for_previous_kernel();
    start_next_kernel();  // after the wait: see PAIR 0
    x = after_wait(x) + (u64)token * K;
  } else {
    // The launch of gate and up comes before this one and started it after waiting for the scores, so that
    // they are complete. Only x is not.
    start_next_kernel();
  }
  Items items;
  float square = 0;
  if constexpr (PAIR) square = padding ? 0 : items.load(x, gain, weights, 0, PANEL, threadIdx.x);
  if (warp == 0 && !padding) {
    const Choice choice = choose_weighed(after_wait(scores) + (u64)token * EXPERTS, correction, factors,
                                         PAIR ? nth_expert + 1 : USED);
    const int own_expert = lane - nth_expert;
    if (own_expert >= 0 && own_expert < (PAIR ? 1 : USED)) experts[own_expert] = choice.expert;
    if (routes && lane < USED) routes[lane] = choice.expert;
    if (!PAIR && lane < USED) weights[lane] = choice.weight;
  }
  __syncthreads();
  Run next[DEPTH];
  if (!padding) {
#pragma unroll
    for (int d = 0; d < DEPTH; d++) source.load(next[d], d);
    for (int i = DEPTH; i < AHEAD; i++) source.prefetch(i);
  }
  if constexpr (!PAIR) {
    wait_for_previous_kernel();
    x = after_wait(x) + ((u64)token * USED + own) * K;
  }
  const float *added = nullptr;
  if constexpr (RESIDUAL) added = after_wait(residual);
  if (padding) {
    const int row = blockIdx.x * 16 * EACH + threadIdx.x;
    if (threadIdx.x < 16 * EACH && row < N) y[(u64)mine * N + row] = 0;
    return;
  }
  multiply_experts(memory, items, next, source, x, gain, weights + own, squares, square);
  finish(y, memory, experts, weights, squares, bias, bias2, added);
}
