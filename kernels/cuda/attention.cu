// Attention over a paged KV pool of 16-bit numbers, on tensor cores: long segments of a step.
// attention_f32.cu computes the short ones and stores new tokens in the pool.
//
// Not attention_f32.cu with narrower parts. There, all launches give the same bits: keys are added in units
// that have a softmax and sums of their own, which are then merged, and a tile has queries of all heads that
// share a KV head. Here a tile has queries of one head, which stay in registers, and a warp has one online
// softmax, whose sums are the accumulators of all keys. For a bf16 pool and heads of 128 that takes 168
// registers of a thread; attention_f32.cu takes 255.
//
// The kernel is deterministic: one thread writes each element, and sums run in a fixed order. The result of a
// query does not depend on other segments, nor on the tile it is in.
//
// Macros:  NAME (symbol), SINKS (1: the kernel has them). attention_config.cuh has the other constants.
//
// attend   (q f32 [N, heads*HEAD_DIM] rotated, pool, batch, placed (place.cu), with SINKS also sinks f32
//           [heads], out 16-bit [N, heads*HEAD_DIM]: only rows of long segments are written; parameters as in
//           attention_f32.cu, of which part_rows is not used)
//          grid (heads, tiles, 1), block (32*WQ*WK, 1, 1); a tile has 16*WQ tokens
//          dynamic shared memory  max(WK*KEYS, WQ*WK*8) * PITCH * 8 + WQ*WK*128 bytes
//          WQ warps divide the queries, 16 each; WK warps divide the keys of a step, KEYS each. The compiler
//          chooses these numbers and computes the launch.

#include "overlap.cuh"

#include "attention_pages.cuh"
#include "attention_tiles.cuh"

// ---- attend ----

constexpr int WQ = config.wq, WK = config.wk, KEYS = config.keys;
constexpr int THREADS = 32 * WQ * WK;
constexpr int STEP = WK * KEYS;  // keys of a step
// Rows in shared memory have WIDTH columns. Those past HEAD_DIM are zero in queries and keys; in values they
// are not set, and their results are not used.
constexpr int WIDTH = (HEAD_DIM + 15) / 16 * 16;
constexpr int PITCH = WIDTH + 8;      // an odd number of 16-byte chunks, so that 8 rows use all banks
constexpr int CHUNKS = HEAD_DIM / 8;  // 16-byte chunks of a key
constexpr int FD = WIDTH / 8;         // fragments of 8 along the head dimension
constexpr int FK = KEYS / 8;          // fragments of 8 along a warp's keys
static_assert(HEAD_DIM % 8 == 0 && KEYS % 16 == 0 && KV_16, "shape");

__device__ __forceinline__ void multiply(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  PoolNumber::multiply(d, make_uint4(a[0], a[1], a[2], a[3]), make_uint2(b0, b1));
}

// Online softmax state of a warp's 16 queries. A lane holds rows lane/4 and lane/4 + 8 ([0] and [1]), and two
// columns of each fragment of 8: sum[f] is {row 0: a, b, row 1: a, b}.
struct Softmax {
  float sum[FD][4];  // sum of weight * value
  float peak[2];     // largest score so far
  float weight[2];   // sum of the weights, over this lane's columns only
};

// Adds KEYS keys to the online softmax of the warp's queries. `first` is the position of the first key, `own`
// the position of this lane's first query. Keys that a query must not see are masked.
__device__ __forceinline__ void add_keys(Softmax &soft, const u32 (&query)[FD / 2][4], u32 keys, u32 values,
                                         int first, int own, int window) {
  const int lane = threadIdx.x % 32;
  float score[FK][4] = {};
#pragma unroll
  for (int d = 0; d < FD / 2; d++)
#pragma unroll
    for (int j = 0; j < FK; j += 2) {  // 16 keys x 16 of the head
      u32 b[4];
      load_matrices(b, keys + ((j * 8 + lane % 8 + lane / 16 * 8) * PITCH + (d * 2 + lane / 8 % 2) * 8) * 2);
      multiply(score[j], query[d], b[0], b[1]);
      multiply(score[j + 1], query[d], b[2], b[3]);
    }

#pragma unroll
  for (int i = 0; i < FK * 4; i++) score[i / 4][i % 4] = cap_score(score[i / 4][i % 4]);
  // Some query of the warp must not see all keys.
  if (first + KEYS - 1 > own - lane / 4 || first <= own - lane / 4 + 15 - window)
#pragma unroll
    for (int j = 0; j < FK; j++)
#pragma unroll
      for (int e = 0; e < 4; e++)
        if (is_masked(first + j * 8 + lane % 4 * 2 + e % 2, own + e / 2 * 8, window))
          score[j][e] = -__int_as_float(0x7f800000);

#pragma unroll
  for (int half = 0; half < 2; half++) {
    float peak = soft.peak[half];
#pragma unroll
    for (int j = 0; j < FK; j++) peak = fmaxf(peak, fmaxf(score[j][half * 2], score[j][half * 2 + 1]));
    peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, 1));
    peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, 2));
    const float now = __fmul_rn(peak, SCALE2);  // same rounding as before: an unchanged peak gives rescale 1
    const float rescale = power2(__fmul_rn(soft.peak[half], SCALE2) - now);
    soft.peak[half] = peak;
    float weight = soft.weight[half] * rescale;
#pragma unroll
    for (int j = 0; j < FK; j++)
#pragma unroll
      for (int e = half * 2; e < half * 2 + 2; e++) {
        score[j][e] = power2(fmaf(score[j][e], SCALE2, -now));
        weight += score[j][e];
      }
    soft.weight[half] = weight;
#pragma unroll
    for (int f = 0; f < FD; f++) {
      soft.sum[f][half * 2] *= rescale;
      soft.sum[f][half * 2 + 1] *= rescale;
    }
  }

#pragma unroll
  for (int j = 0; j < FK; j += 2) {  // the scores already have the layout of the A operand
    const u32 a[4] = {narrow(score[j][0], score[j][1]), narrow(score[j][2], score[j][3]),
                      narrow(score[j + 1][0], score[j + 1][1]), narrow(score[j + 1][2], score[j + 1][3])};
#pragma unroll
    for (int f = 0; f < FD; f += 2) {
      u32 b[4];
      load_transposed(b, values + ((j * 8 + lane % 16) * PITCH + (f + lane / 16) * 8) * 2);
      multiply(soft.sum[f], a, b[0], b[1]);
      multiply(soft.sum[f + 1], a, b[2], b[3]);
    }
  }
}

// The results of a head for the queries of a tile.
struct Output {
  u16 *to;
  Tile tile;
  int heads, head;
  // Two numbers of query |t| of the segment.
  __device__ __forceinline__ void store(int t, int column, float low, float high, float scale) const {
    if (t < tile.tokens && column < HEAD_DIM)
      *(u32 *)(to + ((u64)(tile.first + t) * heads + head) * HEAD_DIM + column) =
          narrow(low * scale, high * scale);
  }
};

// Stores the results of a warp's queries, which begin |below| the first one of the tile. Adds the sums of the
// warps that divided the keys.
__device__ __forceinline__ void finish(const Softmax &soft, unsigned char *memory, const Output &out,
                                       int below, const float *sinks) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, t0 = out.tile.query + below + lane / 4;
  if constexpr (WK == 1) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const float scale = final_scale(soft.peak[half], soft.weight[half], sinks, out.head);
#pragma unroll
      for (int f = 0; f < FD; f++)
        out.store(t0 + half * 8, f * 8 + lane % 4 * 2, soft.sum[f][half * 2], soft.sum[f][half * 2 + 1],
                  scale);
    }
    return;
  }
  // The warps that divided the keys store their partial results, which are merged in the order of the warps.
  float *sums = (float *)memory;               // [WK*WQ*16][PITCH]
  float *peaks = sums + WQ * WK * 16 * PITCH;  // [WK*WQ*16]
  float *weights = peaks + WQ * WK * 16;       // [WK*WQ*16]
  __syncthreads();                             // all warps have read the last keys
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int line = warp * 16 + lane / 4 + half * 8;
#pragma unroll
    for (int f = 0; f < FD; f++)
      *(float2 *)(sums + line * PITCH + f * 8 + lane % 4 * 2) =
          make_float2(soft.sum[f][half * 2], soft.sum[f][half * 2 + 1]);
    if (lane % 4 == 0) peaks[line] = soft.peak[half], weights[line] = soft.weight[half];
  }
  __syncthreads();
  for (int i = threadIdx.x; i < 16 * WQ * HEAD_DIM / 2; i += THREADS) {
    const int line = i / (HEAD_DIM / 2), column = i % (HEAD_DIM / 2) * 2;
    float peak = NO_SCORE, low = 0, high = 0, weight = 0;
    for (int n = 0; n < WK; n++) peak = fmaxf(peak, peaks[n * WQ * 16 + line]);
    for (int n = 0; n < WK; n++) {
      const int part = n * WQ * 16 + line;
      const float factor = power2(__fmul_rn(peaks[part], SCALE2) - __fmul_rn(peak, SCALE2));
      const float2 pair = *(const float2 *)(sums + part * PITCH + column);
      low += factor * pair.x;
      high += factor * pair.y;
      weight += factor * weights[part];
    }
    out.store(out.tile.query + line, column, low, high, final_scale(peak, weight, sinks, out.head));
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    NAME(const float *__restrict__ q, const u16 *__restrict__ pool, const int *__restrict__ batch,
         const int *__restrict__ placed, SINKS_PARAMETER u16 *__restrict__ out, int layer, int page,
         int before, int share, u32 inverse, int window, int) {
  start_next_kernel();
  wait_for_previous_kernel();
  q = after_wait(q);
  pool = after_wait(pool);
  batch = after_wait(batch);
  placed = after_wait(placed);
  extern __shared__ __align__(16) unsigned char memory[];
  const u32 stages = shared_address(memory);  // [2 stages][2: keys, values][STEP][PITCH] 16-bit
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, wq = warp % WQ, wk = warp / WQ;
  const Tile tile = read_tile(placed, blockIdx.y);
  if (tile.slot < 0) return;
  const int heads = gridDim.x, kv_head = Share{share, inverse}.divide(blockIdx.x);
  const Pages pages(batch, tile.slot, {layer, page, before});
  const int head = blockIdx.x, base = tile.position, first_token = tile.query;  // of the tile, in its segment
  const int t0 = first_token + wq * 16 + lane / 4;  // this lane's queries: t0 and t0 + 8
  const int end_token = first_token + 16 * WQ < tile.tokens ? first_token + 16 * WQ : tile.tokens;
  const int visible = base + end_token;  // keys that the tile sees
  // The first key that a query of the tile sees, rounded down to a step.
  const int lowest = base + first_token >= window ? base + first_token - window + 1 : 0,
            begin = lowest / STEP * STEP;

  auto fill = [&](int first) {  // copies keys and values from `first` on, zeros past the end
    const u32 stage = stages + first / STEP % 2 * (4 * STEP * PITCH);
#pragma unroll 4
    for (int i = threadIdx.x; i < STEP * CHUNKS; i += THREADS) {
      const int key = i / CHUNKS, chunk = i % CHUNKS;
      u64 from = 0;
      const bool valid = first + key < visible && pages.find_key(from, first + key, kv_head);
      const u16 *source = valid ? pool + from + chunk * 8 : pool;
      const u32 to = stage + (key * PITCH + chunk * 8) * 2;
      copy_async16(to, source, valid ? 16 : 0);
      copy_async16(to + STEP * PITCH * 2, source + (valid ? PAGE * HEAD_DIM : 0), valid ? 16 : 0);
    }
    commit_copies();
  };
  if (WIDTH > HEAD_DIM)
    for (int i = threadIdx.x; i < 2 * STEP; i += THREADS)
      *(uint4 *)(memory + (i / STEP * 2 * STEP + i % STEP) * PITCH * 2 + HEAD_DIM * 2) = uint4{0, 0, 0, 0};
  if (begin < visible) fill(begin);

  u32 query[FD / 2][4];
#pragma unroll
  for (int d = 0; d < FD / 2; d++)
#pragma unroll
    for (int e = 0; e < 4; e++) {  // {t0, t0 + 8} at column 16*d + ..., then 8 columns later
      const int t = t0 + e % 2 * 8, column = d * 16 + e / 2 * 8 + lane % 4 * 2;
      const float *from = q + ((u64)(tile.first + t) * heads + head) * HEAD_DIM + column;
      const float2 pair = t < tile.tokens && column < HEAD_DIM ? *(const float2 *)from : make_float2(0, 0);
      query[d][e] = narrow(pair.x, pair.y);
    }

  // Start with a finite peak: a warp that sees no key then has weight zero instead of NaN.
  Softmax soft = {{}, {NO_SCORE, NO_SCORE}, {0, 0}};
  for (int first = begin; first < visible; first += STEP) {
    wait_all_copies();
    __syncthreads();  // this stage is filled, and all warps have read the other one
    if (first + STEP < visible) fill(first + STEP);
    const u32 keys = stages + first / STEP % 2 * (4 * STEP * PITCH) + wk * KEYS * PITCH * 2;
    if (first + wk * KEYS <= base + t0 - lane / 4 + 15)
      add_keys(soft, query, keys, keys + STEP * PITCH * 2, first + wk * KEYS, base + t0, window);
  }
#pragma unroll
  for (int half = 0; half < 2; half++) {
    soft.weight[half] += __shfl_xor_sync(~0u, soft.weight[half], 1);
    soft.weight[half] += __shfl_xor_sync(~0u, soft.weight[half], 2);
  }

  finish(soft, memory, Output{out, tile, heads, head}, wq * 16, sinks);
}
