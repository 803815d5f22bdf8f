// Mixture of experts (packed.cu with EXPERTS and GEMV): few tokens; reads only the matrices of the experts
// that are used. M is 1: a block has one vector x, as three bf16 parts in shared memory.
//
// PAIR 1   (x[tokens,K] f32, [gain[K] f32,] gate, up, [bias, bias2,] scores, [batch,] y[tokens * USED, N]
// f32)
//   y = act(x.gate^T + bias) * (x.up^T + bias2) for each pair of a token and its expert (experts_act.cuh).
//   With NORM_EPS x is normalized first, as in packed_token.cuh; K is then at most 10240
//   Launch: grid (ceil(N/16), tokens * USED, 1)
// PAIR 0   (x[tokens * USED, K] f32, w, [bias,] scores, [batch,] [residual[tokens,N] f32,] y[tokens,N] f32)
//   y = the sum of (x.w^T + bias) * weight over the experts of a token, with RESIDUAL plus the residual. x is
//   multiplied by the weight first, so that all experts of a token are one sum over USED * K columns.
//   Launch: grid (ceil(N/16), tokens, 1)
// Both: block (256, 1, 1); dynamic shared memory PANEL * UNIT_BYTES + 4096 * (1 + PAIR) bytes (cuda_launch.c)
//
// Every block chooses the experts of its token by itself: scores, BATCH and SUM_TO_ONE as in experts.cu with
// -DROUTE. That takes less time than another launch. PAIR 0 must follow PAIR 1 in the stream: it chooses and
// loads its first weights while PAIR 1 runs. The units of 128 columns (16-bit weights: 64) are
// assigned to the 8 warps of a block round-robin. The warps' sums are added in order.

#define GEMV_GROUPS (1 + PAIR)
#define GEMV_WARPS 8
#ifdef ROWS16
constexpr int UNIT = 64;  // columns
#else
constexpr int UNIT = 128;
#endif
constexpr int STEPS_K = (K + UNIT - 1) / UNIT;  // units of one matrix
#define GEMV_UNITS (PAIR ? STEPS_K : USED * STEPS_K)
static_assert(M == 1, "one vector");

#ifdef ROWS16
#include "experts_rows16.cuh"
#else
#include "packed_gemv.cuh"
constexpr u64 MATRIX_BYTES = (u64)TILES * RUNS * TILE_BYTES;
#endif
#include "experts_choose.cuh"
#if PAIR
#include "experts_act.cuh"
#endif

struct Shared {
  float4 sums[8][GEMV_GROUPS][32];
  Panel panel;
};

#ifdef NORM_EPS
#define GAIN_PARAMETER const float *__restrict__ gain,
#define GAIN gain
static_assert(PAIR && PANEL == GEMV_UNITS, "all of x fits shared memory");
#else
#define GAIN_PARAMETER
#define GAIN nullptr
#endif

// Splits |count| units of x from |base| on into parts. x is multiplied by the weights (PAIR 0) or by |gain|
// (NORM_EPS). |threads| threads call it, with the indices |thread|. Returns the sum of this thread's squares.
__device__ __forceinline__ float stage_units(Panel &panel, const float *__restrict__ x, const float *gain,
                                             const float *weights, int base, int count, int thread,
                                             int threads) {
  float square = 0;
  for (int i = thread; i < count * UNIT / 4; i += threads) {
    const int quad = i % 4, step = i / 4, unit = base + step / (UNIT / 16);
    const int nth = PAIR ? 0 : unit / STEPS_K, k = (unit - nth * STEPS_K) * UNIT + step % (UNIT / 16) * 16;
    const float factor = PAIR ? 1.0f : weights[nth];
    float2 a = make_float2(0, 0), b = a;
    if (k < K) {  // K is a multiple of 32, so all 16 columns are inside or outside
#ifdef ROWS16     // the columns of a lane are neighbours
      const int at = k / 32 * 32 + quad * 8 + k / 16 % 2 * 4, next = at + 2;
#else
      const int at = k + quad * 2, next = at + 8;
#endif
      const float *from = x + (u64)nth * K;
      a = *(const float2 *)(from + at), b = *(const float2 *)(from + next);
#ifdef NORM_EPS
      square += (a.x * a.x + a.y * a.y) + (b.x * b.x + b.y * b.y);
      const float2 c = *(const float2 *)(gain + at), d = *(const float2 *)(gain + next);
      a = make_float2(a.x * c.x, a.y * c.y), b = make_float2(b.x * d.x, b.y * d.y);
#endif
    }
    u32 low[3], high[3];
    split_bf16(low, a.x * factor, a.y * factor);
    split_bf16(high, b.x * factor, b.y * factor);
#pragma unroll
    for (int p = 0; p < 3; p++)
      panel.part[step / (UNIT / 16)][step % (UNIT / 16)][0][p][quad] = make_uint2(low[p], high[p]);
  }
#ifndef ROWS16
  for (int i = thread; SUMS && i < count * 4; i += threads) {
    const int unit = base + i / 4, nth = PAIR ? 0 : unit / STEPS_K,
              k = (unit - nth * STEPS_K) * UNIT + i % 4 * 32;
    const float factor = PAIR ? 1.0f : weights[nth];
    float sum = 0;
    for (int j = 0; k < K && j < 32; j += 4) {
      float4 v = *(const float4 *)(x + (u64)nth * K + k + j);
#ifdef NORM_EPS
      const float4 g = *(const float4 *)(gain + k + j);
      v = make_float4(v.x * g.x, v.y * g.y, v.z * g.z, v.w * g.w);
#endif
      sum += (v.x * factor + v.y * factor) + (v.z * factor + v.w * factor);
    }
    panel.sum[i / 4][i % 4][0] = sum;
  }
#endif
  return square;
}

// The matrices of this block's experts, at its rows.
struct Source {
  const u8 *w, *w2;
  const int *experts;

  __device__ __forceinline__ void load(Run &to, int unit) const {
    if (unit >= GEMV_UNITS) return;
    const int nth = PAIR ? 0 : unit / STEPS_K, at = unit - nth * STEPS_K;
#pragma unroll
    for (int i = 0; i < GEMV_GROUPS * 2; i++) {
      const u8 *from = address((i / 2 ? w2 : w) + experts[nth] * MATRIX_BYTES, i % 2, at);
#ifdef ROWS16
      load_rows(to, i, from, K % UNIT == 0 || at + 1 < STEPS_K);
#else
      load_tile(to, i, from, at);
#endif
    }
  }

  __device__ __forceinline__ void prefetch(int unit) const {
    if (unit >= GEMV_UNITS) return;
    const int nth = PAIR ? 0 : unit / STEPS_K, at = unit - nth * STEPS_K;
    for (int i = threadIdx.x % 32; i < GEMV_GROUPS * PREFETCH_LINES; i += 32)
      asm volatile("prefetch.global.L2 [%0];" ::"l"(
          line((i / PREFETCH_LINES ? w2 : w) + experts[nth] * MATRIX_BYTES, i % PREFETCH_LINES, at)));
  }

#ifdef ROWS16
  static constexpr int PREFETCH_LINES = 16;  // one per row

  // This lane's first 16 bytes of row |half| * 8 + lane / 4. Past the end: the last row again, not stored.
  static __device__ __forceinline__ const u8 *address(const u8 *matrix, int half, int unit) {
    const int row = blockIdx.x * 16 + half * 8 + threadIdx.x % 32 / 4;
    return matrix + ((u64)(row < N ? row : N - 1) * K + unit * UNIT + threadIdx.x % 4 * 8) * 2;
  }

  static __device__ __forceinline__ const u8 *line(const u8 *matrix, int nth, int unit) {
    const int row = blockIdx.x * 16 + nth;
    return matrix + ((u64)(row < N ? row : N - 1) * K + unit * UNIT) * 2;
  }
#else
  static constexpr int TILE_LINES = (TILE_BYTES + 127) / 128, PREFETCH_LINES = 2 * TILE_LINES;

  static __device__ __forceinline__ const u8 *address(const u8 *matrix, int half, int unit) {
    const int at = blockIdx.x * 2 + half;
    return matrix + ((u64)(at < TILES ? at : TILES - 1) * RUNS + unit) * TILE_BYTES;
  }

  static __device__ __forceinline__ const u8 *line(const u8 *matrix, int nth, int unit) {
    return address(matrix, nth / TILE_LINES, unit) + nth % TILE_LINES * 128;
  }
#endif
};

// Blocks of a multiprocessor. Three of gate and up hold all rows of most models at once.
#if !defined(ROWS16) && PAIR && BITS == 4 && OFFSET == 0
#define RESIDENT 3
#else
#define RESIDENT 2
#endif

extern "C" __global__ void __launch_bounds__(256, RESIDENT)
    NAME(const float *__restrict__ x, GAIN_PARAMETER const u8 *__restrict__ w,
#if PAIR
         const u8 *__restrict__ w2,
#endif
#if BIAS
         const float *__restrict__ bias,
#if PAIR
         const float *__restrict__ bias2,
#endif
#endif
         const float *__restrict__ scores,
         BATCH_PARAMETER
#ifdef RESIDUAL
         const float *__restrict__ residual,
#endif
         float *__restrict__ y) {
  extern __shared__ __align__(16) unsigned char bytes[];
  __shared__ int experts[PAIR ? 1 : USED];
  __shared__ float weights[PAIR ? 1 : USED];
  Shared &memory = *(Shared *)bytes;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, mine = blockIdx.y;  // a pair, or a token
  const int token = PAIR ? mine / USED : mine, nth_expert = PAIR ? mine % USED : 0;
  const bool padding = IS_PADDING(token);
#if PAIR
  const Source source = {w, w2, experts};
#ifdef NORM_EPS
  __shared__ float squares[7];
  for (int i = threadIdx.x * 32; i < K; i += 8192) asm volatile("prefetch.global.L2 [%0];" ::"l"(gain + i));
#endif
  wait_for_previous_kernel();
  start_next_kernel();  // after the wait: see PAIR 0
  x = after_wait(x) + (u64)token * K;
#else
  // The launch of gate and up comes before this one and started it after waiting for the scores, so that they
  // are complete. Only x is not.
  const Source source = {w, w, experts};
  start_next_kernel();
#endif
  if (warp == 0 && !padding) {
    const Choice choice = choose(after_wait(scores) + (u64)token * EXPERTS, PAIR ? nth_expert + 1 : USED);
    const int at = lane - nth_expert;
    if (at >= 0 && at < (PAIR ? 1 : USED)) experts[at] = choice.expert, weights[at] = choice.weight;
  }
#if PAIR  // the other warps stage x meanwhile
  if (warp > 0 && !padding) {
    float square = stage_units(memory.panel, x, GAIN, weights, 0, PANEL, threadIdx.x - 32, 224);
#ifdef NORM_EPS
#pragma unroll
    for (int i = 16; i; i /= 2) square += __shfl_xor_sync(~0u, square, i);
    if (lane == 0) squares[warp - 1] = square;
#endif
  }
#endif
  __syncthreads();
  // Units of a warp in registers, and those that are in L2 or on their way to it.
  constexpr int DEPTH = !PAIR ? 4 : UNIT == 64 ? 1 : 2, AHEAD = 12;
  static_assert(PANEL == GEMV_UNITS || PANEL % (8 * DEPTH) == 0, "a unit has one place in |next|");
  Run next[DEPTH];
  if (!padding) {
#pragma unroll
    for (int d = 0; d < DEPTH; d++) source.load(next[d], warp + d * 8);
    for (int i = DEPTH; i < AHEAD; i++) source.prefetch(warp + i * 8);
  }
#if !PAIR
  wait_for_previous_kernel();
  x = after_wait(x) + (u64)token * USED * K;
#endif
#ifdef RESIDUAL
  residual = after_wait(residual);
#endif
  if (padding) {
    const int row = blockIdx.x * 16 + threadIdx.x;
    if (threadIdx.x < 16 && row < N) y[(u64)mine * N + row] = 0;
    return;
  }
  float acc[GEMV_GROUPS][4] = {};
  for (int base = 0; base < GEMV_UNITS; base += PANEL) {
    const int count = GEMV_UNITS - base < PANEL ? GEMV_UNITS - base : PANEL;
    if (!PAIR || base) {
      __syncthreads();
      stage_units(memory.panel, x, GAIN, weights, base, count, threadIdx.x, 256);
      __syncthreads();
    }
    for (int first = warp; first < count; first += 8 * DEPTH)
#pragma unroll
      for (int d = 0; d < DEPTH; d++) {
        const int nth = first + d * 8;
        if (nth >= count) break;
        const Run now = next[d];
        source.load(next[d], base + nth + DEPTH * 8);
        source.prefetch(base + nth + AHEAD * 8);
        multiply_run(acc, now, memory.panel, nth);
      }
  }
#pragma unroll
  for (int g = 0; g < GEMV_GROUPS; g++)
    memory.sums[warp][g][lane] = make_float4(acc[g][0], acc[g][1], acc[g][2], acc[g][3]);
  __syncthreads();
  if (warp > 0) return;
  float2 total[GEMV_GROUPS];  // rows lane/4 and lane/4 + 8
#pragma unroll
  for (int g = 0; g < GEMV_GROUPS; g++) {
    float4 sum = make_float4(0, 0, 0, 0);
    for (int i = 0; i < 8; i++) {
      const float4 s = memory.sums[i][g][lane];
      sum = make_float4(sum.x + s.x, sum.y + s.y, sum.z + s.z, sum.w + s.w);
    }
    total[g] = sum_parts(sum);
  }
#ifdef NORM_EPS
  float square = 0;
#pragma unroll
  for (int i = 0; i < 7; i++) square += squares[i];
  const float factor = 1 / sqrtf(square / K + NORM_EPS);
#pragma unroll
  for (int g = 0; g < GEMV_GROUPS; g++) total[g].x *= factor, total[g].y *= factor;
#endif
  if (lane % 4) return;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int row = blockIdx.x * 16 + half * 8 + lane / 4;
    float v = half ? total[0].y : total[0].x;
    if (row >= N) break;
#if PAIR
    float up = half ? total[1].y : total[1].x;
#if BIAS
    v += bias[(u64)experts[0] * N + row];
    up += bias2[(u64)experts[0] * N + row];
#endif
    v = gated(v, up);
#elif BIAS
    for (int i = 0; i < USED; i++) v = fmaf(weights[i], bias[(u64)experts[i] * N + row], v);
#endif
#ifdef RESIDUAL
    v += residual[(u64)mine * N + row];
#endif
    y[(u64)mine * N + row] = v;
  }
}
