// Decode: sampling from the top-k tokens (sample.h defines it).
//
// All blocks publish their best score. The k-th best of these is a lower bound of the k-th best score of all,
// and few scores reach it. The blocks append those to one list. Then every block selects the k best and draws
// the token. The code is short: it runs once per token, and is fetched from L2 again each time. What is rare
// (typical sampling, long lists) is in functions of its own.
#pragma once

#include "decode_sums.cuh"

#define MLX_SAMPLE_CALL __device__ __forceinline__  // for sample.h
#include "sample.h"

struct Best {
  float value;
  int token;
  __device__ __forceinline__ void update(float v, int t) {
    if (v > value || (v == value && t < token)) value = v, token = t;
  }
};

// The largest logit of all consumer threads, returned to every thread.
static __device__ __forceinline__ Best best_of_block(Shared *s, Best best) {
#pragma unroll
  for (int i = 16; i; i >>= 1)
    best.update(__shfl_xor_sync(~0u, best.value, i), __shfl_xor_sync(~0u, best.token, i));
  if ((threadIdx.x & 31) == 0)
    s->reduce[threadIdx.x >> 5] = best.value, s->reduce_index[threadIdx.x >> 5] = best.token;
  sync_consumers();
#pragma unroll
  for (int i = 0; i < WARPS; ++i) best.update(s->reduce[i], s->reduce_index[i]);
  sync_consumers();
  return best;
}

// Whether the token may be another one than that with the largest logit.
static __device__ __forceinline__ bool needs_sampling(const int *sampling) {
  const mlx_sample_options_t o = mlx_sample_read(sampling);
  return !mlx_sample_is_greedy(&o) || sampling[MLX_SAMPLING_MASK_AT] ||
         sampling[MLX_SAMPLING_BIAS_COUNT] > 0 || sampling[MLX_SAMPLING_WINDOW] > 0;
}

constexpr int MAX_GATHERED =
    256;  // candidates of all blocks in shared memory; more are selected in global memory
constexpr u32 BLOCK_UNIT = 0x10000u;  // of the counter of candidates: the upper half counts blocks

struct Entry {  // of a candidate
  u64 order, weight;
};

// Overlaps the staged activations, which are not used any more.
struct Selection {
  __align__(16) Entry entries[MAX_GATHERED];
  __align__(16) u32 numbers[256];      // best keys of the blocks; the histogram of select
  u32 digit, remaining, equal, count;  // of the selection: see select
  u32 bound;                           // lower bound of the key of the k-th best score of all
  u32 best;                            // key of the best score of all
  u64 sum;                             // of the weights
  u64 candidates[MAX_CANDIDATES];      // of this block; the result of select
  u64 weights[MAX_CANDIDATES], near[MAX_CANDIDATES];
  int token;
};
static_assert(BLOCKS <= 256 && THREADS == 256, "find_bound: a number and a thread per block");
static_assert(MAX_GATHERED <= THREADS, "draw_fast: a thread per candidate");
static_assert(sizeof(Selection) <= sizeof(Work), "the selection overlaps the work memory");

// ----------------------------------------------------------------------------------------------------------
// Scores of this block's rows

// Tokens at the last positions up to |position|: this launch's are in shared memory, older ones in |history|.
static __device__ __forceinline__ int token_at(const Model &m, const Shared *s, int position) {
  return position > m.start ? s->sampled[position - m.start - 1] : m.history[position];
}

// Applies the penalties to this block's scores. The thread of the latest occurrence of a token in the window
// counts the others.
static __device__ __forceinline__ void penalize(const Model &m, Shared *s, int position) {
  const int *o = m.sampling;
  const int window = min(o[MLX_SAMPLING_WINDOW], position + 1), first = position + 1 - window;
#pragma unroll 1
  for (int i = threadIdx.x; i < window; i += THREADS) {
    const int token = token_at(m, s, first + i);
    if (token < s->vocab.begin || token >= s->vocab.end) continue;
    int count = 0;
#pragma unroll 1
    for (int other = 0; other < window; ++other) {
      const bool equal = token_at(m, s, first + other) == token;
      if (equal && other > i) count = -window;  // a later occurrence does it
      count += equal;
    }
    if (count < 1) continue;
    float *score = &m.scratch->scores[token];
    *score = mlx_sample_penalize(*score, count, __int_as_float(o[MLX_SAMPLING_REPEAT]),
                                 __int_as_float(o[MLX_SAMPLING_FREQUENCY]),
                                 __int_as_float(o[MLX_SAMPLING_PRESENCE]));
  }
}

// Stores and returns the score of a row, without biases and penalties.
static __device__ __forceinline__ float store_score(const Model &m, int row, float logit) {
  const int at = m.sampling[MLX_SAMPLING_MASK_AT];
  const bool allowed = !at || ((u32)m.batch[at + row / 32] >> row % 32 & 1);
  return m.scratch->scores[row] =
             allowed && mlx_bits_are_finite(__float_as_uint(logit)) ? logit : MINUS_INFINITY;
}

static __device__ __forceinline__ bool adjusts_scores(const int *sampling) {
  return sampling[MLX_SAMPLING_BIAS_COUNT] > 0 || sampling[MLX_SAMPLING_WINDOW] > 0;
}

// Applies biases and penalties to this block's scores and returns the best one.
static __device__ __noinline__ Best adjust_scores(const Model &m, Shared *s, int position) {
  const int *o = m.sampling, *biases = m.batch + o[MLX_SAMPLING_BIAS_AT];
#pragma unroll 1
  for (int i = threadIdx.x; i < o[MLX_SAMPLING_BIAS_COUNT]; i += THREADS) {  // tokens are distinct
    const int token = biases[2 * i];
    if (token >= s->vocab.begin && token < s->vocab.end)
      m.scratch->scores[token] = __fadd_rn(m.scratch->scores[token], __int_as_float(biases[2 * i + 1]));
  }
  sync_consumers();
  if (o[MLX_SAMPLING_WINDOW] > 0) penalize(m, s, position);
  sync_consumers();
  Best best = {MINUS_INFINITY, VOCAB - 1};
#pragma unroll 1
  for (int row = s->vocab.begin + (int)threadIdx.x; row < s->vocab.end; row += THREADS)
    best.update(m.scratch->scores[row], row);
  return best_of_block(s, best);
}

// ----------------------------------------------------------------------------------------------------------
// Selection of the k largest keys

// Finds the digit of the k-th largest key in the histogram, where k is |remaining|. Called by one warp.
static __device__ __forceinline__ void find_digit(Selection *g, u32 remaining) {
  const u32 lane = threadIdx.x & 31;
  u32 own = 0, sum;
#pragma unroll
  for (u32 i = 0; i < 8; ++i) own += g->numbers[255 - lane * 8 - i];
  sum = own;
#pragma unroll
  for (int i = 1; i < 32; i <<= 1) {
    const u32 other = __shfl_up_sync(~0u, sum, i);
    if (lane >= (u32)i) sum += other;
  }
  u32 before = sum - own;
  if (lane == 31 && sum < remaining) g->digit = 0, g->remaining = 0, g->equal = 0;  // fewer than k
  if (before >= remaining || sum < remaining) return;
  u32 bin = 255 - lane * 8;
#pragma unroll 1
  for (; before + g->numbers[bin] < remaining; --bin) before += g->numbers[bin];
  g->digit = bin;
  g->remaining = remaining - before;
  g->equal = g->numbers[bin];
}

// Selects the |k| best of |n| elements, or all if there are fewer: those with the largest keys, of equal ones
// those with the lowest tokens. key(i) is 0 for an element that does not take part. The order of the result
// is arbitrary. |n| and |k| are the same in all threads.
template <typename Key, typename Token>
static __device__ __noinline__ void select(Selection *g, int n, u32 k, Key key, Token token) {
  u32 prefix = 0, remaining = k;
  bool all = false;
#pragma unroll 1
  for (int shift = 24; shift >= 0 && !all; shift -= 8) {
    g->numbers[threadIdx.x] = 0;
    sync_consumers();
#pragma unroll 1
    for (int i = threadIdx.x; i < n; i += THREADS) {
      const u32 own = key(i);
      if (own && (shift == 24 || own >> (shift + 8) == prefix)) atomicAdd(&g->numbers[own >> shift & 255], 1);
    }
    sync_consumers();
    if (threadIdx.x < 32) find_digit(g, remaining);
    if (threadIdx.x == 0) g->count = 0;
    sync_consumers();
    all = g->remaining == 0;
    prefix = prefix << 8 | g->digit;
    remaining = g->remaining;
  }
  const u32 threshold = all ? 0 : prefix, equal = all ? 0 : g->equal;
#pragma unroll 1
  for (int i = threadIdx.x; i < n; i += THREADS) {
    const u32 own = key(i);
    bool taken = own > threshold;
    if (own && own == threshold) {
      u32 lower = 0;  // equal keys with a lower token
#pragma unroll 1
      for (int j = 0; equal > remaining && j < n; ++j) lower += key(j) == own && token(j) < token(i);
      taken = lower < remaining;
    }
    if (!taken) continue;
    g->candidates[atomicAdd(&g->count, 1)] = (u64)own << 32 | (u32)~token(i);
  }
  sync_consumers();
}

// ----------------------------------------------------------------------------------------------------------
// The candidates of all blocks

// This thread's next four scores.
static __device__ __forceinline__ void load_scores(float (&score)[4], const float *scores, int first,
                                                   int rows) {
#pragma unroll
  for (int i = 0; i < 4; ++i)
    score[i] = first + i * THREADS < rows ? scores[first + i * THREADS] : MINUS_INFINITY;
}

// Finds the largest of the published best scores and the k-th largest; 0 if there are fewer than k blocks.
// Also collects |not_finite|.
static __device__ __forceinline__ void find_bound(Shared *s, Selection *g, float (*best)[2]) {
  const int i = threadIdx.x, k = s->draw.k;
  u32 own = 0;
  if (i == 0) g->bound = k <= s->blocks ? ~0u : 0, g->count = 0, g->token = -1;
  if (i < s->blocks) {
    const float2 word = receive2(best[i]);
    if (__float_as_int(word.y) >> 30) s->not_finite = 1;
    own = mlx_bits_are_finite(__float_as_uint(word.x)) ? mlx_sample_key(word.x) : 0;
  }
  g->numbers[i] = own;
  sync_consumers();
  if (i < s->blocks) {
    int better = 0;
#pragma unroll 2
    for (int j = 0; j < s->blocks; j += 4) {  // numbers after the last block are 0
      const uint4 other = *(const uint4 *)(g->numbers + j);
      better += (other.x > own) + (other.y > own) + (other.z > own) + (other.w > own);
    }
    if (better == 0) g->best = own;
    if (better < k) atomicMin(&g->bound, own);
  }
  sync_consumers();
}

// Lists the scores of this block that reach the bound, or the k best if there are more than fit. |score|: the
// first scores of this thread.
static __device__ __forceinline__ void list_candidates(Shared *s, Selection *g, const float *scores,
                                                       float (&score)[4]) {
  const int begin = s->vocab.begin, rows = s->vocab.end - begin;
  const float largest = 3.40282347e38f, bound = fmaxf(mlx_sample_unkey(g->bound), -largest);
#pragma unroll 1
  for (int first = threadIdx.x;;) {
    u32 found = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) found |= score[i] >= bound && score[i] <= largest ? 1u << i : 0;
    for (; found; found &= found - 1) {
      const int i = __ffs((int)found) - 1;
      const float own = i & 2 ? i & 1 ? score[3] : score[2] : i & 1 ? score[1] : score[0];
      const u32 at = atomicAdd(&g->count, 1);
      if (at < MAX_CANDIDATES) g->candidates[at] = mlx_sample_pack(own, begin + first + i * THREADS);
    }
    if ((first += 4 * THREADS) >= rows) break;
    load_scores(score, scores, first, rows);
  }
  sync_consumers();
  if (g->count <= MAX_CANDIDATES) return;
  select(
      g, rows, (u32)s->draw.k,
      [=](int i) { return mlx_bits_are_finite(__float_as_uint(scores[i])) ? mlx_sample_key(scores[i]) : 0u; },
      [=](int i) { return begin + i; });
}

// Appends this block's candidates to the list of all. The first word of |list| counts candidates and blocks;
// the pairs of score and token begin at the third. Called by one warp.
static __device__ __forceinline__ void publish_candidates(const Selection *g, float *list) {
  const u32 lane = threadIdx.x & 31, count = g->count;
  u32 at = 0;
  if (lane == 0) at = atomicAdd((u32 *)list, BLOCK_UNIT + count) - EMPTY;
  at = __shfl_sync(~0u, at, 0) % BLOCK_UNIT;
#pragma unroll 1
  for (u32 i = lane; i < count; i += 32) {
    publish(list + 2 + (at + i) * 2, mlx_sample_score(g->candidates[i]));
    publish(list + 3 + (at + i) * 2, __int_as_float(mlx_sample_id(g->candidates[i])));
  }
}

// Waits until all blocks have appended to the list and returns the number of candidates.
static __device__ __forceinline__ u32 count_candidates(const float *list, int blocks) {
  u32 counted;
  do counted = __float_as_uint(load_relaxed(list)) - EMPTY;
  while (counted / BLOCK_UNIT < (u32)blocks);
  return counted % BLOCK_UNIT;
}

// ----------------------------------------------------------------------------------------------------------
// The draw

// Reads the options once per launch. Called by one thread.
static __device__ __noinline__ void prepare_draw(Draw *d, const int *sampling) {
  const mlx_sample_options_t o = mlx_sample_read(sampling);
  const bool fits = o.top_k >= 1 && o.top_k < MAX_CANDIDATES;
  d->k = mlx_sample_is_greedy(&o) ? 1 : fits ? o.top_k : MAX_CANDIDATES;
  d->typical = o.typical_p < 1;
  d->top_p = o.top_p;
  d->log_min_p = o.min_p > 0 ? mlx_sample_log_min_p(o.min_p) : MINUS_INFINITY;
  d->temperature = o.temperature > 0 ? o.temperature : 1;  // 0: there is one candidate
  d->random = mlx_sample_stream(o.seed, 0);
}

// mlx_sample_candidates without typical sampling, with a thread per candidate. The first pass computes the
// weights without temperature, which the filters need; the second one those of the draw. A pass counts the
// candidates and adds up the weights before this thread's candidate: the first in descending order of
// candidates, the second in ascending order of IDs.
static __device__ __forceinline__ void draw_fast(Shared *s, Selection *g, const float *list, u32 total,
                                                 int position) {
  const u32 i = threadIdx.x, k = (u32)s->draw.k;
  const float best = mlx_sample_unkey(g->best);
  float2 word = {best, 0};
  if (i < total) word = receive2(list + 2 + 2 * i);
  const u64 own = mlx_sample_pack(word.x, __float_as_int(word.y));
  float x = MLX_FSUB(word.x, best);
  u64 order = own, weight, before, sum;
  u32 last = min(k, total);
  bool kept = i < total;
#pragma unroll 1
  for (int pass = 0;; ++pass) {
    weight = kept ? mlx_sample_weight(x) : 0;
    g->entries[i] = {order, weight};
    sync_consumers();
    u32 nth = 1;
    before = 0;
#pragma unroll 2
    for (u32 j = 0; j < total; ++j) {
      const ulonglong2 other = *(const ulonglong2 *)&g->entries[j];
      if (other.x > order) before += other.y, ++nth;
    }
    if (i < total && nth == last) g->sum = before + weight;
    sync_consumers();
    sum = g->sum;
    if (pass) break;
    const u64 need = s->draw.top_p < 1 ? mlx_sample_top_p_need(s->draw.top_p, sum) : ~0ull;
    kept = kept && nth <= k && before < need && word.x >= MLX_FADD(best, s->draw.log_min_p);
    x = MLX_FDIV(x, s->draw.temperature);
    order = (u32)own;  // ~ID
    last = total;
  }
  const u64 target = mlx_sample_target(mlx_sample_random_at(s->draw.random, (u64)(u32)(position + 1)), sum);
  if (weight && before <= target && target - before < weight) g->token = mlx_sample_id(own);
}

// The same for typical sampling, and for more candidates than there are threads.
static __device__ __noinline__ void draw_slow(Shared *s, Selection *g, const float *list, int total,
                                              int position, const int *sampling) {
  select(
      g, total, (u32)s->draw.k, [=](int i) { return mlx_sample_key(receive(list + 2 + 2 * i)); },
      [=](int i) { return __float_as_int(receive(list + 3 + 2 * i)); });
  if (threadIdx.x < 32) {
    const mlx_sample_options_t o = mlx_sample_read(sampling);
    const mlx_sample_list_t all = {g->candidates, g->weights, g->near, (int)g->count, (int)threadIdx.x, 32};
    g->token = mlx_sample_id(mlx_sample_candidates(&all, &o, position + 1, 0));
  }
}

// Called by all consumers of all blocks, when the best adjusted score of the block is published. Returns the
// token, or -1 if every token is excluded.
static __device__ __noinline__ int draw_token(const Model &m, Shared *s, int epoch, int position,
                                              bool *not_finite) {
  Selection *g = (Selection *)&s->work;
  Scratch *w = m.scratch;
  const float *scores = w->scores + s->vocab.begin;
  float *list = &w->candidates[epoch & 3][0][0], score[4];
  if (position == m.start) {
    if (threadIdx.x == 0) prepare_draw(&s->draw, m.sampling);
    sync_consumers();
  }
  load_scores(score, scores, threadIdx.x, s->vocab.end - s->vocab.begin);
  find_bound(s, g, w->best[epoch & 3]);
  list_candidates(s, g, scores, score);
  if (threadIdx.x < 32) publish_candidates(g, list);
  const u32 total = count_candidates(list, s->blocks);
  if (total <= MAX_GATHERED && !s->draw.typical)
    draw_fast(s, g, list, total, position);
  else
    draw_slow(s, g, list, (int)total, position, m.sampling);
  sync_consumers();
  *not_finite = s->not_finite;
  return g->token;
}
