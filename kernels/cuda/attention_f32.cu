// Attention computed in f32, over a paged KV pool of f32, 16-bit or 8-bit numbers: attention.cu without
// rounding queries and softmax weights to 16 bits.
//
// One NVRTC compilation gives both kernels, for one shape. Both kernels are deterministic: one thread writes
// each element, and sums run in a fixed order. The result of a query depends neither on other segments, nor
// on the tile it is in, nor on QUERIES, SPLIT, STAGES and THREADS: keys are added in chunks of CHUNK
// positions, each with its own softmax, and the chunks are merged in ascending order. A chunk that a query
// does not see changes nothing, not even a rounding.
//
// Macros:  LAYERS, HEADS, KV_HEADS, HEAD_DIM (multiple of 16, up to 256),
//          SCALE (of the scores, positive), KV_F32, KV_BF16, KV_F16 or KV_Q8 (of the pool), OUT_16 (1: the
//          result has the 16-bit type of the pool), TURN (1: append applies RoPE), WINDOW (positions of a
//          sliding window; 0: none), SOFTCAP (of the scores; undefined: none), SINKS (1: the kernel has
//          them), TILES (0: the short tiles of |placed|, 1: the long ones); APPEND_NAME, ATTEND_NAME
//          (symbols, default append and attend)
// Pool:    [pages][LAYERS][KV_HEADS][2: key, value][PAGE][HEAD_DIM]
//
// append   see attention.cu
// attend   (q f32 [N, HEADS*HEAD_DIM] rotated, pool, batch, placed (place.cu), with SINKS also sinks f32
// [HEADS],
//           out f32 or 16-bit [N, HEADS*HEAD_DIM]: only rows of the tiles are written, and zeros for padding
//           tokens that a tile names; int layer)
//          grid (KV_HEADS, tiles, SPLIT), block (THREADS, 1, 1)
//          dynamic shared memory
//            ((SPLIT > 1 ? 2 : 1) * QUERIES * (HEAD_DIM+4) + QUERIES * (STEP+4)) * 4 + 2*STAGES*STEP*ROW
//            bytes with ROW = 4 * (HEAD_DIM+4) for f32, 2 * (HEAD_DIM+8) for 16-bit, HEAD_DIM+16 for 8-bit
//            pools
//          A block has QUERIES queries (token x head, for the heads that share keys) and processes STEP keys
//          at a time; STAGES steps are in shared memory. The compiler chooses these macros and THREADS.
//          SPLIT > 1 (sm_90 and later, not sm_12x) divides the chunks among the blocks of a cluster, for few
//          queries with a long history.

typedef unsigned int u32;
typedef unsigned long long u64;

#include "overlap.cuh"

#if defined(KV_BF16) || defined(KV_F16)
#ifdef KV_BF16
#define TYPE "bf16"
#else
#define TYPE "f16"
#endif
typedef unsigned short pool_t;

__device__ __forceinline__ u32 narrow(float low, float high) {
  u32 pair;
  asm("cvt.rn." TYPE "x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
__device__ __forceinline__ float2 widen(u32 pair) {
#ifdef KV_BF16
  return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
#else
  float2 f;
  asm("{ .reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h; }"
      : "=f"(f.x), "=f"(f.y)
      : "r"(pair));
  return f;
#endif
}
__device__ __forceinline__ void store4(pool_t *to, float4 f) {
  *(uint2 *)to = make_uint2(narrow(f.x, f.y), narrow(f.z, f.w));
}
#elif defined(KV_Q8)
typedef unsigned char pool_t;
#else
typedef float pool_t;
__device__ __forceinline__ void store4(pool_t *to, float4 f) { *(float4 *)to = f; }
#endif

#include "attention_append.cuh"

// ---- results ----

#if OUT_16
typedef unsigned short out_t;
__device__ __forceinline__ void put4(out_t *to, float4 f) { store4(to, f); }
__device__ __forceinline__ void put1(out_t *to, float f) { *to = (out_t)narrow(f, 0); }
#else
typedef float out_t;
__device__ __forceinline__ void put4(out_t *to, float4 f) { *(float4 *)to = f; }
__device__ __forceinline__ void put1(out_t *to, float f) { *to = f; }
#endif

// ---- keys and values in shared memory, as the pool stores them ----

#if defined(KV_Q8)
constexpr int ROW = HEAD_DIM + 16;  // bytes: codes, then the scale
#elif defined(KV_BF16) || defined(KV_F16)
constexpr int ROW = 2 * (HEAD_DIM + 8);
#else
constexpr int ROW = 4 * (HEAD_DIM + 4);  // 8 rows of a column use different banks
#endif
constexpr int CHUNKS16 = HEAD_DIM * sizeof(pool_t) / 16;  // 16-byte chunks of a key

template <int BYTES>  // 4, or 16 past the first-level cache
__device__ __forceinline__ void copy_bytes(void *to, const void *from, bool valid) {  // or zeros
  const u32 at = (u32)__cvta_generic_to_shared(to), count = valid ? BYTES : 0;
  if (BYTES == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(count) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(at), "l"(from), "r"(count) : "memory");
}

// The scale of a row in shared memory.
__device__ __forceinline__ float row_scale(const unsigned char *row) {
#ifdef KV_Q8
  return *(const float *)(row + HEAD_DIM);
#else
  return 1;
#endif
}

// Four neighbouring numbers of a row in shared memory, from column |at| on.
__device__ __forceinline__ float4 row4(const unsigned char *row, int at, float scale) {
#if defined(KV_Q8)
  const u32 codes = *(const u32 *)(row + at);
  return make_float4((float)(signed char)codes * scale, (float)(signed char)(codes >> 8) * scale,
                     (float)(signed char)(codes >> 16) * scale, (float)(signed char)(codes >> 24) * scale);
#elif defined(KV_BF16) || defined(KV_F16)
  const uint2 raw = *(const uint2 *)(row + at * 2);
  const float2 low = widen(raw.x), high = widen(raw.y);
  return make_float4(low.x, low.y, high.x, high.y);
#else
  return *(const float4 *)(row + at * 4);
#endif
}

// ---- attend ----

// Thread (down of DOWN, across of 16) has the queries down, down + DOWN, ... In products with keys it has
// keys across, across + 16, ... of a step. In products with values it has the groups of 4 columns across,
// across + 16, ... of the head. The 16 threads of a query are half a warp: they reduce by shuffles and
// exchange weights through shared memory without a barrier.
constexpr int SHARE = HEADS / KV_HEADS;  // query heads per KV head; query n belongs to token n / SHARE
constexpr int DOWN = THREADS / 16, RQ = QUERIES / DOWN, RK = STEP / 16;
constexpr int PITCH = HEAD_DIM + 4,
              WEIGHT_PITCH = STEP + 4;  // floats; 8 rows of a column use different banks
constexpr int GROUPS = HEAD_DIM / 4, RC = (GROUPS + 15) / 16;  // groups of 4 columns, and groups per thread
constexpr int CHUNK = 256, CHUNK_STEPS = CHUNK / STEP;         // positions and steps of a chunk
static_assert(HEAD_DIM % 16 == 0 && QUERIES % DOWN == 0 && STEP % 16 == 0 && HEADS % KV_HEADS == 0, "shape");
static_assert(CHUNK % STEP == 0, "steps");

// Online softmax state of a thread's queries.
struct Softmax {
  float4 sum[RQ][RC];  // sum of weight * value, for this thread's columns
  float peak[RQ];      // largest score so far
  float weight[RQ];    // sum of the weights, over this thread's keys only until the chunk ends
};

__device__ __forceinline__ void clear(Softmax &soft) {
#pragma unroll
  for (int i = 0; i < RQ; i++) {
    soft.peak[i] = NO_SCORE, soft.weight[i] = 0;
#pragma unroll
    for (int c = 0; c < RC; c++) soft.sum[i][c] = make_float4(0, 0, 0, 0);
  }
}

__device__ __forceinline__ float dot4(float4 a, float4 b, float sum) {
  return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

__device__ __forceinline__ void score_keys(float (&score)[RQ][RK], const float *queries,
                                           const unsigned char *keys, int down, int across) {
  float scale[RK];
#pragma unroll
  for (int i = 0; i < RQ * RK; i++) score[i / RK][i % RK] = 0;
#pragma unroll
  for (int j = 0; j < RK; j++) scale[j] = row_scale(keys + (across + j * 16) * ROW);
#pragma unroll 4
  for (int c = 0; c < HEAD_DIM; c += 4) {
    float4 b[RK];
#pragma unroll
    for (int j = 0; j < RK; j++) b[j] = row4(keys + (across + j * 16) * ROW, c, scale[j]);
#pragma unroll
    for (int i = 0; i < RQ; i++) {
      const float4 a = *(const float4 *)(queries + (down + i * DOWN) * PITCH + c);
#pragma unroll
      for (int j = 0; j < RK; j++) score[i][j] = dot4(a, b[j], score[i][j]);
    }
  }
}

// Converts scores to softmax weights in shared memory. `first` is the first query of the block, `ahead` the
// position of the thread's first key minus the position of the segment's first token.
__device__ __forceinline__ void softmax_weights(Softmax &soft, float (&score)[RQ][RK], float *weights,
                                                int down, int across, int first, int ahead) {
#pragma unroll
  for (int i = 0; i < RQ; i++) {
    float peak = soft.peak[i];
    const int token = (first + down + i * DOWN) / SHARE;
#pragma unroll
    for (int j = 0; j < RK; j++) {
      score[i][j] = is_masked(ahead + j * 16, token) ? -__int_as_float(0x7f800000) : cap_score(score[i][j]);
      peak = fmaxf(peak, score[i][j]);
    }
#pragma unroll
    for (int step = 8; step; step /= 2) peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, step));
    const float now = __fmul_rn(peak, SCALE2);  // same rounding as before: an unchanged peak gives rescale 1
    const float rescale = power2(__fmul_rn(soft.peak[i], SCALE2) - now);
    soft.peak[i] = peak;
    soft.weight[i] *= rescale;
#pragma unroll
    for (int j = 0; j < RK; j++) {
      const float weight = power2(fmaf(score[i][j], SCALE2, -now));
      soft.weight[i] += weight;
      weights[(down + i * DOWN) * WEIGHT_PITCH + across + j * 16] = weight;
    }
#pragma unroll
    for (int c = 0; c < RC; c++) {
      float4 &s = soft.sum[i][c];
      s = make_float4(s.x * rescale, s.y * rescale, s.z * rescale, s.w * rescale);
    }
  }
}

__device__ __forceinline__ void add_scaled(float4 &sum, float weight, float4 v) {
  sum.x = fmaf(weight, v.x, sum.x);
  sum.y = fmaf(weight, v.y, sum.y);
  sum.z = fmaf(weight, v.z, sum.z);
  sum.w = fmaf(weight, v.w, sum.w);
}

__device__ __forceinline__ void add_values(Softmax &soft, const float *weights, const unsigned char *values,
                                           int down, int across) {
#pragma unroll 2
  for (int key = 0; key < STEP; key += 4) {
    float4 w[RQ];
#pragma unroll
    for (int i = 0; i < RQ; i++) w[i] = *(const float4 *)(weights + (down + i * DOWN) * WEIGHT_PITCH + key);
#pragma unroll
    for (int c = 0; c < RC; c++) {
      if (GROUPS % 16 && across + c * 16 >= GROUPS) break;
#pragma unroll
      for (int n = 0; n < 4; n++) {
        const unsigned char *row = values + (key + n) * ROW;
        const float4 v = row4(row, (across + c * 16) * 4, row_scale(row));
#pragma unroll
        for (int i = 0; i < RQ; i++)
          add_scaled(soft.sum[i][c], n == 0 ? w[i].x : n == 1 ? w[i].y : n == 2 ? w[i].z : w[i].w, v);
      }
    }
  }
}

// ---- merging chunks ----

// The factors of the old sums and of a chunk's sums. |peak| becomes the larger one. If the chunk has no key,
// they are 1 and 0.
struct Factors {
  float old, chunk;
};
__device__ __forceinline__ Factors merge_peaks(float &peak, float chunk) {
  const float before = __fmul_rn(peak, SCALE2), other = __fmul_rn(chunk, SCALE2);
  peak = fmaxf(peak, chunk);
  const float now = fmaxf(before, other);
  return {power2(before - now), power2(other - now)};
}
__device__ __forceinline__ float merge(Factors f, float old, float chunk) {
  return fmaf(f.chunk, chunk, __fmul_rn(f.old, old));
}

__device__ __forceinline__ void sum_weights(Softmax &soft) {  // over the 16 threads of a query
#pragma unroll
  for (int i = 0; i < RQ; i++)
#pragma unroll
    for (int step = 8; step; step /= 2) soft.weight[i] += __shfl_xor_sync(~0u, soft.weight[i], step);
}

#include "cluster.cuh"

#if SPLIT == 1
typedef Softmax Total;

__device__ __forceinline__ void merge_chunk(Total &total, const Softmax &soft) {
#pragma unroll
  for (int i = 0; i < RQ; i++) {
    const Factors f = merge_peaks(total.peak[i], soft.peak[i]);
    total.weight[i] = merge(f, total.weight[i], soft.weight[i]);
#pragma unroll
    for (int c = 0; c < RC; c++) {
      float4 &t = total.sum[i][c];
      const float4 s = soft.sum[i][c];
      t = make_float4(merge(f, t.x, s.x), merge(f, t.y, s.y), merge(f, t.z, s.z), merge(f, t.w, s.w));
    }
  }
}
#else
// The blocks of a cluster compute a chunk each and share them through shared memory. Thread n of the cluster
// has the elements n, n + THREADS * SPLIT, ... of the block's [QUERIES][HEAD_DIM] results.
constexpr int ELEMENTS = (QUERIES * HEAD_DIM + THREADS * SPLIT - 1) / (THREADS * SPLIT);
struct Total {
  float sum[ELEMENTS], peak[ELEMENTS], weight[ELEMENTS];
};

__device__ __forceinline__ void clear(Total &total) {
#pragma unroll
  for (int e = 0; e < ELEMENTS; e++) total.sum[e] = 0, total.peak[e] = NO_SCORE, total.weight[e] = 0;
}

// |parts| is [QUERIES][PITCH], |peaks| and |chunk_weights| are [QUERIES], all in shared memory.
__device__ __forceinline__ void merge_chunks(Total &total, const Softmax &soft, float *parts, float *peaks,
                                             float *chunk_weights, int down, int across, int rank) {
#pragma unroll
  for (int i = 0; i < RQ; i++) {
    const int line = down + i * DOWN;
#pragma unroll
    for (int c = 0; c < RC; c++)
      if (across + c * 16 < GROUPS)
        *(float4 *)(parts + line * PITCH + (across + c * 16) * 4) = soft.sum[i][c];
    if (across == 0) peaks[line] = soft.peak[i], chunk_weights[line] = soft.weight[i];
  }
  wait_cluster();
#pragma unroll
  for (int e = 0; e < ELEMENTS; e++) {
    const int nth = rank * THREADS + threadIdx.x + e * THREADS * SPLIT;
    if (nth >= QUERIES * HEAD_DIM) break;
    const int line = nth / HEAD_DIM, column = nth % HEAD_DIM;
#pragma unroll
    for (int n = 0; n < SPLIT; n++) {
      const Factors f = merge_peaks(total.peak[e], read_cluster(peaks + line, n));
      total.weight[e] = merge(f, total.weight[e], read_cluster(chunk_weights + line, n));
      total.sum[e] = merge(f, total.sum[e], read_cluster(parts + line * PITCH + column, n));
    }
  }
  wait_cluster();  // before a block overwrites its parts, or exits
}
#endif

// Zeros for a padding token: its heads that share the keys of |head|.
__device__ __forceinline__ void clear_token(out_t *out, int token, int head) {
  out_t *to = out + ((u64)token * HEADS + head * SHARE) * HEAD_DIM;
  for (int i = threadIdx.x * 4; i < SHARE * HEAD_DIM; i += THREADS * 4) put4(to + i, make_float4(0, 0, 0, 0));
}

extern "C" __global__ void CLUSTER __launch_bounds__(THREADS, 2)
    ATTEND_NAME(const float *__restrict__ q, const pool_t *__restrict__ pool, const int *__restrict__ batch,
                const int *__restrict__ placed,
#if SINKS
                const float *__restrict__ sinks,
#endif
                out_t *__restrict__ out, int layer) {
  start_next_kernel();
  wait_for_previous_kernel();
  q = after_wait(q);
  pool = after_wait(pool);
  batch = after_wait(batch);
  placed = after_wait(placed);
  extern __shared__ __align__(16) float memory[];
#if !SINKS
  const float *sinks = nullptr;
#endif
  float *queries = memory;                                                    // [QUERIES][PITCH]
  float *weights = queries + QUERIES * PITCH;                                 // [QUERIES][WEIGHT_PITCH]
  unsigned char *keys = (unsigned char *)(weights + QUERIES * WEIGHT_PITCH);  // [STAGES][STEP] rows
  unsigned char *values = keys + STAGES * STEP * ROW;                         // [STAGES][STEP] rows
  const int down = threadIdx.x / 16, across = threadIdx.x % 16;
  const int head = blockIdx.x, rank = blockIdx.z;
  const Tile tile = read_tile(placed, blockIdx.y);  // the same for all blocks of a cluster
  if (tile.slot < 0) {
    if (tile.first >= 0 && rank == 0) clear_token(out, tile.first, head);
    return;
  }
  const Pages pages(batch, tile.slot);
  const int first_query = tile.query, query_count = tile.tokens * SHARE, base = tile.position;
  const int end_query = first_query + QUERIES < query_count ? first_query + QUERIES : query_count;
  const int visible = base + (end_query - 1) / SHARE + 1;  // keys that the tile sees
  // The first chunk that a query of the tile sees, and the number of steps of each block of the cluster.
  const int own = base + first_query / SHARE,
            chunk0 = WINDOW && own >= WINDOW ? (own - WINDOW + 1) / CHUNK : 0;
  const int chunks = (visible + CHUNK - 1) / CHUNK - chunk0,
            steps = (chunks + SPLIT - 1) / SPLIT * CHUNK_STEPS;
  // The first block of a cluster computes a single chunk alone: merging with nothing changes no bit.
  const bool alone = SPLIT == 1 || chunks == 1;
  if (alone && rank > 0) return;

  auto key_of = [&](int step) {  // the first key of a step of this block
    return (chunk0 + step / CHUNK_STEPS * SPLIT + rank) * CHUNK + step % CHUNK_STEPS * STEP;
  };
  // Copies the keys (what 0) or values (what 1) of a step, zeros past the end.
  auto fill = [&](unsigned char *to, int step, int what) {
    const int first = key_of(step);
    unsigned char *stage = to + step % STAGES * STEP * ROW;
    const bool some = step < steps && first < visible;
#pragma unroll 4
    for (int i = threadIdx.x; some && i < STEP * CHUNKS16; i += THREADS) {
      const int key = i / CHUNKS16, chunk = i % CHUNKS16;
      u64 from = 0;
      const bool valid = first + key < visible && pages.find_key(from, first + key, layer, head);
#ifdef KV_Q8
      const Row8 row = {from, what};
      if (chunk == 0) copy_bytes<4>(stage + key * ROW + HEAD_DIM, pool + (valid ? row.scale() : 0), valid);
      const pool_t *source = pool + (valid ? row.codes() + chunk * 16 : 0);
#else
      const pool_t *source =
          pool + (valid ? from + what * PAGE * HEAD_DIM + chunk * (16 / sizeof(pool_t)) : 0);
#endif
      copy_bytes<16>(stage + key * ROW + chunk * 16, source, valid);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");  // always one group of copies, empty past the end
  };
  auto offset_of = [&](int query) {
    return ((u64)(tile.first + query / SHARE) * HEADS + head * SHARE + query % SHARE) * HEAD_DIM;
  };
  auto store = [&](const Softmax &result) {
#pragma unroll
    for (int i = 0; i < RQ; i++) {
      const int query = first_query + down + i * DOWN;
      if (query >= end_query) continue;
      const float scale = final_scale(result.peak[i], result.weight[i], sinks, head * SHARE + query % SHARE);
#pragma unroll
      for (int c = 0; c < RC; c++) {
        const float4 s = result.sum[i][c];
        if (across + c * 16 < GROUPS)
          put4(out + offset_of(query) + (across + c * 16) * 4,
               make_float4(s.x * scale, s.y * scale, s.z * scale, s.w * scale));
      }
    }
  };
  for (int i = threadIdx.x; i < QUERIES * GROUPS; i += THREADS) {
    const int query = first_query + i / GROUPS, group = i % GROUPS;
    const bool valid = query < end_query;
    copy_bytes<16>(queries + i / GROUPS * PITCH + group * 4, valid ? q + offset_of(query) + group * 4 : q,
                   valid);
  }
#pragma unroll
  for (int i = 0; i < STAGES; i++) {
    fill(keys, i, 0);  // the first group also has the queries
    fill(values, i, 1);
  }

  Softmax soft;
  Total total;
  clear(soft);
  clear(total);
  // Keys arrive while values are added, values while keys are scored.
  for (int step = 0; step < steps; step++) {
    const int first = key_of(step), stage = step % STAGES * STEP * ROW;
    if (first < visible) {  // after the first step past the end there are only such steps
      float score[RQ][RK];
      asm volatile("cp.async.wait_group %0;" ::"n"(2 * STAGES - 1) : "memory");
      __syncthreads();
      score_keys(score, queries, keys + stage, down, across);
      __syncthreads();
      fill(keys, step + STAGES, 0);
      softmax_weights(soft, score, weights, down, across, first_query, first + across - base);
      asm volatile("cp.async.wait_group %0;" ::"n"(2 * STAGES - 1) : "memory");
      __syncthreads();
      add_values(soft, weights, values + stage, down, across);
      __syncthreads();
      fill(values, step + STAGES, 1);
    }
    if (step % CHUNK_STEPS != CHUNK_STEPS - 1) continue;
    sum_weights(soft);
#if SPLIT == 1
    merge_chunk(total, soft);
#else
    if (alone) {
      store(soft);
      return;
    }
    float *parts = (float *)(values + STAGES * STEP * ROW);  // [QUERIES][PITCH]
    merge_chunks(total, soft, parts, weights, weights + QUERIES, down, across, rank);
#endif
    clear(soft);
  }

#if SPLIT == 1
  store(total);
#else
#pragma unroll
  for (int e = 0; e < ELEMENTS; e++) {
    const int nth = rank * THREADS + threadIdx.x + e * THREADS * SPLIT, query = first_query + nth / HEAD_DIM;
    if (nth >= QUERIES * HEAD_DIM || query >= end_query) break;
    const float scale = final_scale(total.peak[e], total.weight[e], sinks, head * SHARE + query % SHARE);
    put1(out + offset_of(query) + nth % HEAD_DIM, total.sum[e] * scale);
  }
#endif
}
