// Attention computed in f32, over a paged KV pool of f32, 16-bit or 8-bit numbers: attention.cu without
// rounding queries and softmax weights to 16 bits.
//
// One NVRTC compilation gives both kernels, for one shape. A batch is ROWS sequences of TOKENS new tokens
// each, of which the first count[sequence] are real and the rest is padding. Token t of a sequence is at
// position start[sequence] + t. Position p is in page pages[sequence][p / PAGE], at index p % PAGE. Both
// kernels are deterministic: one thread writes each element, and sums run in a fixed order, which for a query
// depends on SPLIT alone.
//
// Macros:  ROWS (sequences), TOKENS, HEADS, KV_HEADS, HEAD_DIM (multiple of 16, up to 256),
//          ROW_PAGES (pages of a sequence), POOL_PAGES (pages of a layer), SCALE (of the scores, positive),
//          KV_F32, KV_BF16, KV_F16 or KV_Q8 (of the pool), TURN (1: apply RoPE); APPEND_NAME, ATTEND_NAME
//          (symbols, default append and attend)
// Pool:    [layers][POOL_PAGES][KV_HEADS][2: key, value][PAGE][HEAD_DIM]
//
// append   (q f32 [ROWS*TOKENS, HEADS*HEAD_DIM], k and v f32 [ROWS*TOKENS, KV_HEADS*HEAD_DIM],
//           with TURN also cosine and sine f32 [ROWS*TOKENS, HEAD_DIM/2],
//           start i32[ROWS], count i32[ROWS], pages i32[ROWS, ROW_PAGES],
//           pool in/out, rotated q f32; int layer)
//          Stores k and v in the pool. With TURN it applies RoPE to q and k first, else it only copies q.
//          grid (ceil(ROWS*TOKENS*(HEADS+2*KV_HEADS)*HEAD_DIM / 2048), 1, 1), block (256, 1, 1)
//          no dynamic shared memory
// attend   (q f32 [ROWS*TOKENS, HEADS*HEAD_DIM] rotated, pool, start, count, pages as above,
//           out f32 [ROWS*TOKENS, HEADS*HEAD_DIM], zero for padding tokens; int layer)
//          grid (KV_HEADS, ceil(TOKENS * HEADS/KV_HEADS / QUERIES), ROWS*SPLIT), block (THREADS, 1, 1)
//          dynamic shared memory  ((QUERIES + 2*STAGES*STEP) * (HEAD_DIM+4) + QUERIES * (STEP+4)) * 4 bytes
//          A block has QUERIES queries (token x head, for the heads that share keys) and processes STEP keys
//          at a time; STAGES steps are in shared memory. The compiler chooses these macros and THREADS.
//          SPLIT > 1 (sm_90 and later, not sm_12x) divides the steps of a head among the blocks of a cluster,
//          for few queries with a long history.

typedef unsigned int u32;
typedef unsigned long long u64;

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
static_assert(HEAD_DIM % 16 == 0 && QUERIES % DOWN == 0 && STEP % 16 == 0 && HEADS % KV_HEADS == 0, "shape");

__device__ __forceinline__ void copy_chunk(float *to, const float *from, bool valid) {  // 16 bytes, or zeros
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((u32)__cvta_generic_to_shared(to)),
               "l"(from), "r"(valid ? 16 : 0)
               : "memory");
}

// Copies four neighbouring numbers of a key (what 0) or a value (what 1), or zeros, into shared memory.
// |key|: see find_key.
__device__ __forceinline__ void copy_pool4(float *to, const pool_t *pool, u64 key, int what, int group,
                                           bool valid) {
#ifdef KV_Q8
  const Row8 row = {key, what};
  const u32 codes = valid ? *(const u32 *)(pool + row.codes() + group * 4) : 0;
  const float scale = valid ? *(const float *)(pool + row.scale()) : 0;
  *(float4 *)to =
      make_float4((float)(signed char)codes * scale, (float)(signed char)(codes >> 8) * scale,
                  (float)(signed char)(codes >> 16) * scale, (float)(signed char)(codes >> 24) * scale);
#else
  const pool_t *from = pool + (valid ? key + what * PAGE * HEAD_DIM + group * 4 : 0);
#if defined(KV_BF16) || defined(KV_F16)
  const uint2 raw = valid ? *(const uint2 *)from : make_uint2(0, 0);
  const float2 low = widen(raw.x), high = widen(raw.y);
  *(float4 *)to = make_float4(low.x, low.y, high.x, high.y);
#else
  copy_chunk(to, from, valid);
#endif
#endif
}

// Online softmax state of a thread's queries.
struct Softmax {
  float4 sum[RQ][RC];  // sum of weight * value, for this thread's columns
  float peak[RQ];      // largest score so far
  float weight[RQ];    // sum of the weights, over this thread's keys only
};

__device__ __forceinline__ float dot4(float4 a, float4 b, float sum) {
  return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

__device__ __forceinline__ void score_keys(float (&score)[RQ][RK], const float *queries, const float *keys,
                                           int down, int across) {
#pragma unroll
  for (int i = 0; i < RQ * RK; i++) score[i / RK][i % RK] = 0;
#pragma unroll 4
  for (int c = 0; c < HEAD_DIM; c += 4) {
    float4 b[RK];
#pragma unroll
    for (int j = 0; j < RK; j++) b[j] = *(const float4 *)(keys + (across + j * 16) * PITCH + c);
#pragma unroll
    for (int i = 0; i < RQ; i++) {
      const float4 a = *(const float4 *)(queries + (down + i * DOWN) * PITCH + c);
#pragma unroll
      for (int j = 0; j < RK; j++) score[i][j] = dot4(a, b[j], score[i][j]);
    }
  }
}

// Converts scores to softmax weights in shared memory. Keys after a query's position are masked: `first` is
// the first query of the block, `ahead` the position of the thread's first key minus the position of token 0.
__device__ __forceinline__ void softmax_weights(Softmax &soft, float (&score)[RQ][RK], float *weights,
                                                int down, int across, int first, int ahead) {
#pragma unroll
  for (int i = 0; i < RQ; i++) {
    float peak = soft.peak[i];
    const int token = (first + down + i * DOWN) / SHARE;
#pragma unroll
    for (int j = 0; j < RK; j++) {
      if (ahead + j * 16 > token) score[i][j] = -__int_as_float(0x7f800000);
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

__device__ __forceinline__ void add_values(Softmax &soft, const float *weights, const float *values, int down,
                                           int across) {
#pragma unroll 2
  for (int key = 0; key < STEP; key += 4) {
    float4 w[RQ];
#pragma unroll
    for (int i = 0; i < RQ; i++) w[i] = *(const float4 *)(weights + (down + i * DOWN) * WEIGHT_PITCH + key);
#pragma unroll
    for (int c = 0; c < RC; c++) {
      if (GROUPS % 16 && across + c * 16 >= GROUPS) break;
      const float *from = values + key * PITCH + (across + c * 16) * 4;
#pragma unroll
      for (int n = 0; n < 4; n++) {
        const float4 v = *(const float4 *)(from + n * PITCH);
#pragma unroll
        for (int i = 0; i < RQ; i++)
          add_scaled(soft.sum[i][c], n == 0 ? w[i].x : n == 1 ? w[i].y : n == 2 ? w[i].z : w[i].w, v);
      }
    }
  }
}

#include "cluster.cuh"

extern "C" __global__ void CLUSTER __launch_bounds__(THREADS, 2)
    ATTEND_NAME(const float *__restrict__ q, const pool_t *__restrict__ pool, const int *__restrict__ start,
                const int *__restrict__ count, const int *__restrict__ pages, float *__restrict__ out,
                int layer) {
  extern __shared__ __align__(16) float memory[];
  float *queries = memory;                          // [QUERIES][PITCH]
  float *keys = queries + QUERIES * PITCH;          // [STAGES][STEP][PITCH]
  float *values = keys + STAGES * STEP * PITCH;     // [STAGES][STEP][PITCH]
  float *weights = values + STAGES * STEP * PITCH;  // [QUERIES][WEIGHT_PITCH]
  const int down = threadIdx.x / 16, across = threadIdx.x % 16;
  // Later queries see more keys. The last tiles start first and the rest follow in ascending order, so that a
  // multiprocessor with two blocks has a long and a short one.
  const int tiles = gridDim.y, order = blockIdx.y,
            tile = order < tiles / 2 ? tiles - 1 - order : order - tiles / 2;
  const int head = blockIdx.x, sequence = blockIdx.z / SPLIT, rank = blockIdx.z % SPLIT,
            first_query = tile * QUERIES;
  const int base = start[sequence], valid_tokens = count[sequence] < TOKENS ? count[sequence] : TOKENS;
  const int last = (first_query + QUERIES - 1) / SHARE + 1 < valid_tokens
                       ? (first_query + QUERIES - 1) / SHARE + 1
                       : valid_tokens;
  // Keys that the tile sees; 0 if all its queries are padding.
  const int visible = last > first_query / SHARE ? base + last : 0;
  const int share = (visible + STEP * SPLIT - 1) / (STEP * SPLIT) * STEP;  // keys of one block of the cluster
  const int begin = rank * share, end = begin + share < visible ? begin + share : visible;

  // Copies keys (what 0) or values (what 1) from `first` on, zeros past the end.
  auto fill = [&](float *to, int first, int what) {
#pragma unroll 4
    for (int i = threadIdx.x; first < end && i < STEP * GROUPS; i += THREADS) {
      const int key = i / GROUPS, group = i % GROUPS;
      u64 from = 0;
      const bool valid = first + key < visible && find_key(from, pages, sequence, first + key, layer, head);
      copy_pool4(to + (first / STEP % STAGES * STEP + key) * PITCH + group * 4, pool, from, what, group,
                 valid);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");  // always one group of copies, empty past the end
  };
  auto offset_of = [&](int query) {
    return ((u64)(sequence * TOKENS + query / SHARE) * HEADS + head * SHARE + query % SHARE) * HEAD_DIM;
  };
  for (int i = threadIdx.x; i < QUERIES * GROUPS; i += THREADS) {
    const int query = first_query + i / GROUPS, group = i % GROUPS;
    const bool valid = query < valid_tokens * SHARE;
    copy_chunk(queries + i / GROUPS * PITCH + group * 4, valid ? q + offset_of(query) + group * 4 : q, valid);
  }
#pragma unroll
  for (int i = 0; i < STAGES; i++) {
    fill(keys, begin + i * STEP, 0);  // the first group also has the queries
    fill(values, begin + i * STEP, 1);
  }

  Softmax soft;
#pragma unroll
  for (int i = 0; i < RQ; i++) {  // start with a finite peak: a query that sees no key then has weight zero
    soft.peak[i] = -1e30f, soft.weight[i] = 0;
#pragma unroll
    for (int c = 0; c < RC; c++) soft.sum[i][c] = make_float4(0, 0, 0, 0);
  }
  // Keys arrive while values are added, values while keys are scored.
  for (int first = begin; first < end; first += STEP) {
    float score[RQ][RK];
    const int stage = first / STEP % STAGES * STEP * PITCH;
    asm volatile("cp.async.wait_group %0;" ::"n"(2 * STAGES - 1) : "memory");
    __syncthreads();
    score_keys(score, queries, keys + stage, down, across);
    __syncthreads();
    fill(keys, first + STAGES * STEP, 0);
    softmax_weights(soft, score, weights, down, across, first_query, first + across - base);
    asm volatile("cp.async.wait_group %0;" ::"n"(2 * STAGES - 1) : "memory");
    __syncthreads();
    add_values(soft, weights, values + stage, down, across);
    __syncthreads();
    fill(values, first + STAGES * STEP, 1);
  }
  asm volatile("cp.async.wait_all;" ::: "memory");
#pragma unroll
  for (int i = 0; i < RQ; i++)
#pragma unroll
    for (int step = 8; step; step /= 2) soft.weight[i] += __shfl_xor_sync(~0u, soft.weight[i], step);

#if SPLIT == 1
#pragma unroll
  for (int i = 0; i < RQ; i++) {
    const int query = first_query + down + i * DOWN;
    const float scale = query < valid_tokens * SHARE ? 1 / soft.weight[i] : 0;
#pragma unroll
    for (int c = 0; c < RC; c++) {
      const float4 s = soft.sum[i][c];
      if (query < TOKENS * SHARE && across + c * 16 < GROUPS)
        *(float4 *)(out + offset_of(query) + (across + c * 16) * 4) =
            make_float4(s.x * scale, s.y * scale, s.z * scale, s.w * scale);
    }
  }
#else
  // The blocks of the cluster store their partial results, which are merged in the order of the blocks.
  float *sums = queries;                   // [QUERIES][PITCH]
  float *peak_here = weights;              // [QUERIES]
  float *weight_here = weights + QUERIES;  // [QUERIES]
  __syncthreads();                         // all threads have read the last queries and weights
#pragma unroll
  for (int i = 0; i < RQ; i++) {
#pragma unroll
    for (int c = 0; c < RC; c++)
      if (across + c * 16 < GROUPS)
        *(float4 *)(sums + (down + i * DOWN) * PITCH + (across + c * 16) * 4) = soft.sum[i][c];
    if (across == 0) peak_here[down + i * DOWN] = soft.peak[i], weight_here[down + i * DOWN] = soft.weight[i];
  }
  wait_cluster();
  for (int i = rank * THREADS + threadIdx.x; i < QUERIES * HEAD_DIM; i += THREADS * SPLIT) {
    const int line = i / HEAD_DIM, column = i % HEAD_DIM, query = first_query + line;
    float peak = -1e30f, sum = 0, weight = 0, other[SPLIT];
#pragma unroll
    for (int n = 0; n < SPLIT; n++) peak = fmaxf(peak, other[n] = read_cluster(peak_here + line, n));
#pragma unroll
    for (int n = 0; n < SPLIT; n++) {
      const float factor = power2(__fmul_rn(other[n], SCALE2) - __fmul_rn(peak, SCALE2));
      sum += factor * read_cluster(sums + line * PITCH + column, n);
      weight += factor * read_cluster(weight_here + line, n);
    }
    if (query < TOKENS * SHARE)
      out[offset_of(query) + column] = query < valid_tokens * SHARE ? sum / weight : 0;
  }
  wait_cluster();  // a block must not exit while others read its shared memory
#endif
}
