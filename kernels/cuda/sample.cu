// Sampling: one token for each wanted row of a step's logits, as docs/sampling.md defines it. sample.h has
// the arithmetic and the steps on short lists; kernels/sample_row.h is the same for a CPU. Both give the same
// tokens and the same log-probabilities, bit for bit.
//
// mlx_sample   (batch i32 [?], logits f32 [W, vocab], history i32 [?] in/out, results i32 [W, 48] in/out,
//              vocab: at most 393,216)
//              The layouts are those of kernels/step.h. Writes rows 0 to wanted count - 1 of |results|, and
//              the sampled tokens into |history|, one position after their wanted tokens. |logits| is not
//              changed.
//              grid (W, 1, 1), block (1024, 1, 1), no dynamic shared memory
//
// A block samples one row. It reads the row in chunks of 4096 logits; a warp has 128 consecutive ones of each
// chunk. Without mask, biases and penalties it reads 16384 at a time, because it waits for memory. The first
// pass finds the best candidate of each thread. The k-th best of those is a lower bound of the k-th best of
// the row, so the second pass lists few candidates. If there are more than LIST, thresholds are found by
// radix selection, with a pass over the row for each digit.
#include "kernel_tables.h"
#include "overlap.cuh"
#include "sample.h"

using u32 = mlx_u32;
using u64 = mlx_u64;

constexpr int THREADS = 1024, WARPS = 32;
constexpr int TILE = 128, CHUNK = TILE * WARPS;  // logits of a warp and of a block at a time
constexpr int PER_LANE = TILE / 32;
constexpr int LIST = 1024;       // most candidates of a list: one per thread
constexpr int LIST_TOP_K = 512;  // largest top-k that the list is tried for
constexpr int WARP_LIST = 256;   // up to this length, one warp works on a list
constexpr int BINS = 2048;
constexpr u32 HAS_BIAS = 0x80000000u;
constexpr int MAX_VOCAB = 3 * LIST * TILE;  // the pool holds a sum of each tile
static_assert(MAX_VOCAB == MLX_MAX_SAMPLED_VOCAB, "kernel_tables.h");

// Functions with a pass over the row are not inlined: the kernel would be ten times as large.
#define OUTLINE __device__ __noinline__

// ---- shared memory ----

__shared__ u64 pool[3 * LIST];  // a list (candidates, weights, nearness), or bins, or the sums of all tiles
__shared__ u32 adjusts[CHUNK];  // of the current chunk: count in the window, and HAS_BIAS
__shared__ u64 parts[WARPS];    // one number per warp
__shared__ u64 found[2];
__shared__ int list_count;
__shared__ int vocab;  // a parameter of the kernel; here, it takes no register of the functions
__device__ __forceinline__ int chunk_count() { return (vocab + CHUNK - 1) / CHUNK; }

// ---- reductions over the block: all threads get the result ----

template <class F>
__device__ u64 reduce(u64 x, F f) {
  for (int step = 16; step; step >>= 1) x = f(x, __shfl_xor_sync(~0u, x, step));
  __syncthreads();  // |parts| may still be read
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
  __syncthreads();
  x = parts[threadIdx.x % 32];
  for (int step = 16; step; step >>= 1) x = f(x, __shfl_xor_sync(~0u, x, step));
  return x;
}
OUTLINE u64 block_max(u64 x) {
  return reduce(x, [](u64 a, u64 b) { return a > b ? a : b; });
}
OUTLINE u64 block_sum(u64 x) {
  return reduce(x, [](u64 a, u64 b) { return a + b; });
}

__device__ u64 warp_sum(u64 x) {
  for (int step = 16; step; step >>= 1) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

// The sum of |x| over the lanes before this one.
__device__ u64 warp_before(u64 x) {
  u64 sum = x;
  for (int step = 1; step < 32; step <<= 1) {
    const u64 other = __shfl_up_sync(~0u, sum, step);
    if (threadIdx.x % 32 >= step) sum += other;
  }
  return sum - x;
}

// The sum of |x| over the threads before this one; *total is the sum over all.
OUTLINE u64 block_before(u64 x, u64 *total) {
  const u64 before = warp_before(x);
  __syncthreads();  // |parts| may still be read
  if (threadIdx.x % 32 == 31) parts[threadIdx.x / 32] = before + x;
  __syncthreads();
  const u64 part = parts[threadIdx.x % 32], warps_before = warp_before(part);
  *total = __shfl_sync(~0u, warps_before + part, 31);
  return before + __shfl_sync(~0u, warps_before, threadIdx.x / 32);
}

// ---- a row of scores ----

struct Row {
  const float *logits;
  const u32 *mask;               // NULL: all tokens are allowed
  const int *biases, *window;    // [bias_count][2], [window_count]
  int bias_count, window_count;  // both 0: the scores are the logits
  float repeat, frequency, presence;
};

// Fills |adjusts| for a chunk. The arguments are values, so that the row's fields stay in registers.
OUTLINE void count_chunk(const int *window, int window_count, const int *biases, int bias_count, int chunk) {
  __syncthreads();  // |adjusts| may still be read
  for (int i = threadIdx.x; i < CHUNK; i += THREADS) adjusts[i] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < window_count; i += THREADS) {
    const u32 at = (u32)window[i] - (u32)(chunk * CHUNK);
    if (at < CHUNK) atomicAdd(&adjusts[at], 1u);
  }
  for (int i = threadIdx.x; i < bias_count; i += THREADS) {
    const u32 at = (u32)biases[2 * i] - (u32)(chunk * CHUNK);
    if (at < CHUNK) atomicOr(&adjusts[at], HAS_BIAS);
  }
  __syncthreads();
}

OUTLINE float adjust(const int *biases, int bias_count, float repeat, float frequency, float presence,
                     float score, int id, u32 flags) {
  for (int i = 0; flags & HAS_BIAS && i < bias_count; ++i) {
    if (biases[2 * i] == id) score = __fadd_rn(score, __uint_as_float((u32)biases[2 * i + 1]));
  }
  const int count = (int)(flags & ~HAS_BIAS);
  return count ? mlx_sample_penalize(score, count, repeat, frequency, presence) : score;
}

__device__ __forceinline__ int nth_id(int chunk, int nth) {
  return chunk * CHUNK + (int)threadIdx.x / 32 * TILE + nth * 32 + (int)threadIdx.x % 32;
}

// The scores of this thread's tokens of a chunk; -infinity where there is no candidate. Returns true if one
// of the logits is not finite. All threads of the block must call it.
__device__ __forceinline__ bool load_chunk(const Row &row, int end, int chunk, float (&scores)[PER_LANE]) {
  const float excluded = __uint_as_float(0xff800000u);
  const bool adjusted = row.bias_count || row.window_count;
  bool bad = false;
#pragma unroll
  for (int nth = 0; nth < PER_LANE; ++nth) {
    const int id = nth_id(chunk, nth);
    scores[nth] = id < end ? row.logits[id] : excluded;
  }
  if (adjusted) count_chunk(row.window, row.window_count, row.biases, row.bias_count, chunk);
#pragma unroll
  for (int nth = 0; nth < PER_LANE; ++nth) {
    const int id = nth_id(chunk, nth);
    if (id >= end) continue;
    const bool finite = mlx_bits_are_finite(__float_as_uint(scores[nth]));
    bad |= !finite;
    if (!finite || (row.mask && !(row.mask[id / 32] >> id % 32 & 1))) scores[nth] = excluded;
    if (!adjusted) continue;
    const u32 flags = adjusts[id - chunk * CHUNK];
    if (flags) {
      scores[nth] =
          adjust(row.biases, row.bias_count, row.repeat, row.frequency, row.presence, scores[nth], id, flags);
    }
  }
  return bad;
}

// Calls f(quads, first) for AHEAD groups of 4 logits at a time: group i is number first + i * THREADS of the
// row. Its loads are in flight together.
constexpr int AHEAD = 4;
template <class F>
__device__ __forceinline__ void for_each_group(const float *logits, F f) {
  const int end = vocab / 4;
#pragma unroll 1
  for (int first = threadIdx.x; first < end; first += THREADS * AHEAD) {
    float4 groups[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      const int group = first + i * THREADS;
      groups[i] = group < end ? ((const float4 *)logits)[group] : make_float4(0, 0, 0, 0);
    }
    f(groups, first);
  }
}

// The same as for_each for a row that is_plain.
template <class F>
__device__ __forceinline__ bool for_each_logit(const float *logits, F f) {
  const float excluded = __uint_as_float(0xff800000u);
  bool bad = false;
  for_each_group(logits, [&](const float4(&groups)[AHEAD], int first) {
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      const int group = first + i * THREADS;
      const float scores[4] = {groups[i].x, groups[i].y, groups[i].z, groups[i].w};
      if (group * 4 >= vocab) break;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const bool finite = mlx_bits_are_finite(__float_as_uint(scores[e]));
        bad |= !finite;
        f(finite ? scores[e] : excluded, group * 4 + e);
      }
    }
  });
  return bad;
}

// Whether a row is read in groups of 4 logits: without mask, biases and penalties, in units of 16 bytes.
__device__ __forceinline__ bool is_plain(const Row &row) {
  return vocab % 4 == 0 && !row.mask && !row.bias_count && !row.window_count;
}

// for_each for other rows.
template <class F>
__device__ __forceinline__ bool for_each_score(const Row &row, F f) {
  const int end = vocab;
  bool bad = false;
  float scores[PER_LANE];
#pragma unroll 1
  for (int chunk = 0; chunk * CHUNK < end; ++chunk) {
    bad |= load_chunk(row, end, chunk, scores);
#pragma unroll
    for (int nth = 0; nth < PER_LANE; ++nth) f(scores[nth], nth_id(chunk, nth));
  }
  return bad;
}

// Calls f(score, ID) for all tokens of this thread. All threads of the block must call it. Returns true if a
// logit is not finite.
template <class F>
__device__ __forceinline__ bool for_each(const Row &given, F f) {
  const Row row = given;  // in registers
  return is_plain(row) ? for_each_logit(row.logits, f) : for_each_score(row, f);
}

// The same for passes that only some options need: slower, but its code is not repeated.
OUTLINE float4 load_chunk_call(const Row &row, int chunk) {
  float scores[PER_LANE];
  load_chunk(row, vocab, chunk, scores);
  return make_float4(scores[0], scores[1], scores[2], scores[3]);
}
static_assert(PER_LANE == 4, "float4");

template <class F>
__device__ __forceinline__ void for_each_rare(const Row &row, F f) {
#pragma unroll 1
  for (int chunk = 0; chunk < chunk_count(); ++chunk) {
    const float4 scores = load_chunk_call(row, chunk);
    f(scores.x, nth_id(chunk, 0));
    f(scores.y, nth_id(chunk, 1));
    f(scores.z, nth_id(chunk, 2));
    f(scores.w, nth_id(chunk, 3));
  }
}

// The best candidate of this thread in a row that is_plain. Returns true if a logit is not finite. Scores are
// compared as floats: candidates take three times as many instructions. IDs of a thread ascend, so that the
// first of equal scores is the best.
OUTLINE bool find_best_logit(const float *logits, u64 *out_best) {
  float score = __uint_as_float(0xff800000u);
  int id = -1;
  u32 largest = 0;  // of the absolute values, as bits; NaN and infinity are larger than all others
  for_each_group(logits, [&](const float4(&groups)[AHEAD], int first) {
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      const float scores[4] = {groups[i].x, groups[i].y, groups[i].z, groups[i].w};
      if ((first + i * THREADS) * 4 >= vocab) break;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        largest = max(largest, __float_as_uint(scores[e]) & 0x7fffffffu);
        if (scores[e] > score) score = scores[e], id = (first + i * THREADS) * 4 + e;
      }
    }
  });
  u64 best = mlx_sample_pack(score, id);
  const bool bad = largest >= 0x7f800000u;
  if (bad) {  // leave out what is not finite
    best = 0;
    for_each_logit(logits, [&](float score, int id) {
      const u64 candidate = mlx_sample_pack(score, id);
      best = candidate > best ? candidate : best;
    });
  }
  *out_best = best;
  return bad;
}

// The same in a row. All threads of the block must call it.
OUTLINE bool find_best(const Row &row, u64 *out_best) {
  if (is_plain(row)) return find_best_logit(row.logits, out_best);
  u64 best = 0;
  const bool bad = for_each_score(row, [&](float score, int id) {
    const u64 candidate = mlx_sample_pack(score, id);
    best = candidate > best ? candidate : best;
  });
  *out_best = best;
  return bad;
}

// The k-th largest key of the threads' best candidates: at least k scores of the row are not less.
OUTLINE u32 find_bound(u64 thread_best, int k) {
  const u32 key = (u32)(thread_best >> 32);
  u32 bound = 0;
  for (u32 bit = 0x80000000u; bit; bit >>= 1) {
    if (__syncthreads_count(key >= (bound | bit)) >= k) bound |= bit;
  }
  return bound;
}

// Lists the candidates whose key is at least |bound| in |pool|, in no order. Returns their number, which may
// be more than fit: then the list is not complete.
OUTLINE int gather(const Row &row, u32 bound) {
  __syncthreads();  // |pool| and |list_count| may still be read
  if (threadIdx.x == 0) list_count = 0;
  const float least = mlx_sample_unkey(bound);  // NaN for the lowest keys, which no score has
  __syncthreads();
  for_each(row, [&](float score, int id) {
    if (score < least) return;  // most of them, in one instruction
    const u64 candidate = mlx_sample_pack(score, id);
    if (!candidate || (u32)(candidate >> 32) < bound) return;
    const int at = atomicAdd(&list_count, 1);
    if (at < LIST) pool[at] = candidate;
  });
  __syncthreads();
  return list_count;
}

OUTLINE u64 sum_weights(const Row &row, float best) {
  u64 sum = 0;
  for_each(row, [&](float score, int id) {
    if (mlx_sample_pack(score, id)) sum += mlx_sample_weight(__fsub_rn(score, best));
  });
  return block_sum(sum);
}

// ---- selection by passes over the whole row ----

// The place of a kept candidate in the order, and its weight there; 0 if it is filtered out.
OUTLINE u64 place_of(const mlx_sample_filter_t &filter, mlx_sample_order_t order, float score, int id,
                     u64 *out_weight) {
  const u64 candidate = mlx_sample_passes(&filter, score, id);
  *out_weight = 0;
  return candidate ? mlx_sample_place(&filter, order, candidate, out_weight) : 0;
}

OUTLINE u64 surprise_of(float x) { return mlx_sample_surprise(x); }

// The weight at a temperature of a kept candidate; 0 if it is filtered out.
OUTLINE u64 draw_weight(const mlx_sample_filter_t &filter, float score, int id, float best,
                        float temperature) {
  const u64 candidate = mlx_sample_passes(&filter, score, id);
  if (!candidate) return 0;
  return mlx_sample_weight(mlx_sample_tempered(mlx_sample_score(candidate), best, temperature));
}

// What find_in_order adds up: the weights of the draw, or of the candidates that tie at |prefix| of an order.
struct Sum {
  mlx_sample_filter_t filter;
  bool draws;
  float best, temperature;   // of the draw
  mlx_sample_order_t order;  // of the ties
  u64 prefix;

  __device__ __forceinline__ u64 of(float score, int id) const {
    if (draws) return draw_weight(filter, score, id, best, temperature);
    u64 weight;
    return place_of(filter, order, score, id, &weight) >> 32 == prefix ? weight : 0;
  }
};

// Finds the first token, in the order of IDs, at which the sum of |f| exceeds a target: |limit|, or for the
// draw a random number |limit| of the sum over all tokens. Returns the token's candidate, or 0.
OUTLINE u64 find_in_order(const Row &given, const Sum &f, u64 limit) {
  const Row row = given;  // in registers
  float scores[PER_LANE];
  __syncthreads();  // |pool| may still be read
#pragma unroll 1
  for (int chunk = 0; chunk < chunk_count(); ++chunk) {
    load_chunk(row, vocab, chunk, scores);
    u64 sum = 0;
#pragma unroll
    for (int nth = 0; nth < PER_LANE; ++nth) sum += f.of(scores[nth], nth_id(chunk, nth));
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) pool[chunk * WARPS + threadIdx.x / 32] = sum;
  }
  __syncthreads();
  u64 own = 0, total;
  const int tiles = chunk_count() * WARPS, each = (tiles + THREADS - 1) / THREADS;
  for (int i = 0; i < each; ++i) {
    const int tile = threadIdx.x * each + i;
    own += tile < tiles ? pool[tile] : 0;
  }
  u64 before = block_before(own, &total);
  const u64 target = f.draws ? mlx_sample_target(limit, total) : limit;
  if (threadIdx.x == 0) found[0] = ~0ull;
  __syncthreads();
  for (int i = 0; i < each; ++i) {
    const int tile = threadIdx.x * each + i;
    const u64 sum = tile < tiles ? pool[tile] : 0;
    if (before <= target && target - before < sum) {  // in one thread
      found[0] = tile;
      found[1] = before;
    }
    before += sum;
  }
  __syncthreads();
  const u64 tile = found[0];
  before = found[1];
  __syncthreads();  // all threads have read |found|
  if (tile == ~0ull) return 0;
  const int chunk = (int)tile / WARPS;
  load_chunk(row, vocab, chunk, scores);
  if (threadIdx.x / 32 == tile % WARPS) {
    for (int nth = 0; nth < PER_LANE; ++nth) {
      const int id = nth_id(chunk, nth);
      const u64 weight = f.of(scores[nth], id), first = before + warp_before(weight);
      if (first <= target && target - first < weight) found[0] = mlx_sample_pack(scores[nth], id);
      before += warp_sum(weight);
    }
  }
  __syncthreads();
  const u64 result = found[0];
  __syncthreads();
  return result;
}

// Adds up the bins from the last one down to the one where the sum reaches |*need|. Subtracts the bins above
// it from |*need|. Returns its number, or -1.
OUTLINE int find_bin(int bins, u64 *need) {
  u64 total;
  const int high = bins - 1 - 2 * (int)threadIdx.x, low = high - 1;  // bins of this thread
  const u64 first = high >= 0 ? pool[high] : 0, second = low >= 0 ? pool[low] : 0;
  const u64 before = block_before(first + second, &total);
  if (total < *need) return -1;
  if (before < *need && *need - before <= first + second) {  // in one thread
    const bool in_first = *need - before <= first;
    found[0] = (u64)(in_first ? high : low);
    found[1] = *need - before - (in_first ? 0 : first);
  }
  __syncthreads();
  const int bin = (int)found[0];
  *need = found[1];
  __syncthreads();
  return bin;
}

// Finds the shortest prefix of the kept candidates, in descending |order|, with at least |need| weight.
// Returns the place of its last candidate; 0 if all of them weigh less.
OUTLINE u64 select_prefix(const Row &row, const mlx_sample_filter_t &filter, mlx_sample_order_t order,
                          u64 need) {
  u64 prefix = 0;
#pragma unroll 1
  for (int digit = 0; digit < 3; ++digit) {  // of the upper 32 bits: 11, 11 and 10 bits
    const int above = 64 - 11 * digit, shift = digit < 2 ? above - 11 : 32, bins = 1 << (above - shift);
    __syncthreads();  // |pool| may still be read
    for (int i = threadIdx.x; i < BINS; i += THREADS) pool[i] = 0;
    __syncthreads();
    for_each_rare(row, [&](float score, int id) {
      u64 weight;
      const u64 place = place_of(filter, order, score, id, &weight);
      if (!weight || (digit && place >> above != prefix)) return;
      atomicAdd(&pool[place >> shift & (u64)(bins - 1)], weight);
    });
    __syncthreads();
    const int bin = find_bin(bins, &need);
    if (bin < 0) return 0;
    prefix = prefix << (above - shift) | (u64)bin;
  }
  const Sum ties = {filter, false, 0, 0, order, prefix};
  const u64 last = find_in_order(row, ties, need - 1);
  u64 weight;
  return last ? mlx_sample_place(&filter, order, last, &weight) : 0;
}

// Sums over the kept candidates: weights, and their parts of the surprise.
OUTLINE u64 sum_kept(const Row &row, const mlx_sample_filter_t &filter, u64 *out_surprises) {
  u64 sum = 0, surprises = 0;
  for_each_rare(row, [&](float score, int id) {
    u64 weight;
    if (!place_of(filter, MLX_BY_WEIGHT, score, id, &weight)) return;
    sum += weight;
    if (out_surprises) surprises += surprise_of(__fsub_rn(score, filter.best));
  });
  if (out_surprises) *out_surprises = block_sum(surprises);
  return block_sum(sum);
}

OUTLINE u64 best_kept(const Row &row, const mlx_sample_filter_t &filter) {
  u64 best = 0;
  for_each_rare(row, [&](float score, int id) {
    const u64 candidate = mlx_sample_passes(&filter, score, id);
    best = candidate > best ? candidate : best;
  });
  return block_max(best);
}

OUTLINE u64 sample_by_passes(const Row &row, const mlx_sample_options_t &o, int position, u64 best) {
  mlx_sample_filter_t filter = {0, 0, mlx_sample_score(best), 0};
  if (o.top_k) filter.least = select_prefix(row, filter, MLX_BY_COUNT, (u64)o.top_k);
  if (o.typical_p < 1) {
    u64 surprises;
    const u64 total = sum_kept(row, filter, &surprises);
    filter.mean = mlx_sample_mean_surprise(surprises, total);
    filter.least_near =
        select_prefix(row, filter, MLX_BY_NEARNESS, mlx_sample_typical_need(o.typical_p, total));
    best = best_kept(row, filter);
  }
  if (o.top_p < 1) {
    const u64 total = sum_kept(row, filter, nullptr),
              least = select_prefix(row, filter, MLX_BY_WEIGHT, mlx_sample_top_p_need(o.top_p, total));
    filter.least = least > filter.least ? least : filter.least;
  }
  const float top = mlx_sample_score(best);  // all filters but typical sampling keep it
  if (o.min_p > 0) {
    const u64 least = (u64)mlx_sample_key(mlx_sample_min_score(top, o.min_p)) << 32;
    filter.least = least > filter.least ? least : filter.least;
  }
  if (o.temperature == 0) return best;
  const Sum weights = {filter, true, top, o.temperature, MLX_BY_WEIGHT, 0};
  return find_in_order(row, weights, mlx_sample_random(o.seed, (u64)(u32)position, 0));
}

// ---- sampling from a list ----

OUTLINE u64 sample_list(const mlx_sample_options_t &o, int count, int position, u64 total) {
  mlx_sample_list_t list = {pool, pool + LIST, pool + 2 * LIST, count, (int)threadIdx.x, THREADS};
  if (count > WARP_LIST) return mlx_sample_candidates(&list, &o, position, total);
  if (threadIdx.x < 32) {
    list.threads = 32;
    const u64 drawn = mlx_sample_candidates(&list, &o, position, total);
    if (threadIdx.x == 0) found[0] = drawn;
  }
  __syncthreads();
  const u64 drawn = found[0];
  __syncthreads();
  return drawn;
}

// The total weight of the candidates of the list.
__device__ u64 sum_list(int count, float best) {
  u64 sum = 0;
  for (int i = threadIdx.x; i < count; i += THREADS)
    sum += mlx_sample_weight(__fsub_rn(mlx_sample_score(pool[i]), best));
  return block_sum(sum);
}

// |thread_best| is this thread's best candidate. Returns the sampled one, or 0.
__device__ u64 sample(const Row &row, const mlx_sample_options_t &o, int position, u64 thread_best) {
  const u64 best = block_max(thread_best);
  if (!best || mlx_sample_is_greedy(&o)) return best;
  const float top = mlx_sample_score(best);
  int count = 0;
  u64 total = 0;
  if (o.top_k && o.top_k <= LIST_TOP_K) {
    count = gather(row, find_bound(thread_best, o.top_k));
  } else if (!o.top_k && o.typical_p == 1 && (o.min_p > 0 || o.top_p < 1)) {
    count = gather(row, o.min_p > 0 ? mlx_sample_key(mlx_sample_min_score(top, o.min_p))
                                    : find_bound(thread_best, LIST_TOP_K));
    if (count <= LIST && o.top_p < 1) {
      total = sum_weights(row, top);
      // Without min-p, the list must have all that top-p keeps.
      if (o.min_p == 0 && sum_list(count, top) < mlx_sample_top_p_need(o.top_p, total)) count = 0;
    }
  }
  return count > 0 && count <= LIST ? sample_list(o, count, position, total)
                                    : sample_by_passes(row, o, position, best);
}

// ---- log-probabilities ----

// The best candidate that is less than |last|: of the list, or of the row if the list is not complete.
OUTLINE u64 next_best(const Row &row, int count, u64 last) {
  u64 best = 0;
  if (count <= LIST) {
    for (int i = threadIdx.x; i < count; i += THREADS) best = pool[i] < last ? pool[i] : best;
    return block_max(best);
  }
  for_each_rare(row, [&](float score, int id) {
    const u64 candidate = mlx_sample_pack(score, id);
    if (candidate < last && candidate > best) best = candidate;
  });
  return block_max(best);
}

OUTLINE void report_top(const Row &row, int wanted, u64 thread_best, float largest, u64 total, int *result) {
  if (!wanted) return;
  const int count = gather(row, find_bound(thread_best, wanted));
  u64 last = ~0ull;
  for (int nth = 0; nth < wanted; ++nth) {
    last = next_best(row, count, last);
    if (threadIdx.x) continue;
    const float logit = last ? mlx_sample_score(last) : __uint_as_float(0xff800000u);
    result[MLX_RESULT_TOP_IDS + nth] = mlx_sample_id(last);
    result[MLX_RESULT_TOP_LOGPROBS + nth] = (int)__float_as_uint(mlx_sample_logprob(logit, largest, total));
  }
}

// ---- the kernel ----

__device__ int clamp(int x, int end) { return x < 0 || end <= 0 ? 0 : x < end ? x : end - 1; }

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    mlx_sample(const int *__restrict__ batch, const float *__restrict__ logits, int *history, int *results,
               int vocabulary) {
  start_next_kernel();
  if (threadIdx.x == 0) vocab = vocabulary;
  wait_for_previous_kernel();
  batch = after_wait(batch);
  logits = after_wait(logits);
  history = after_wait(history);
  const int nth = blockIdx.x;
  if (nth >= batch[MLX_STEP_WANTED_COUNT]) return;
  const int *sampling = batch + batch[MLX_STEP_AT_SAMPLING] + nth * MLX_SAMPLING_WORDS;
  const mlx_sample_options_t o = mlx_sample_read(sampling);
  const int token = clamp(batch[batch[MLX_STEP_AT_WANTED] + nth], batch[MLX_STEP_TOKEN_COUNT]),
            slot = clamp(batch[batch[MLX_STEP_AT_SLOTS] + token], batch[MLX_STEP_SLOT_COUNT]),
            width = batch[MLX_STEP_HISTORY_WIDTH],
            position = max(batch[batch[MLX_STEP_AT_POSITIONS] + token], 0) + 1;  // of the sampled token
  int *const tokens = history + (u64)slot * (u64)width, *const result = results + nth * MLX_RESULT_WORDS;
  if (threadIdx.x < MLX_RESULT_WORDS) result[threadIdx.x] = 0;
  __syncthreads();  // |vocab| is written

  const Row plain = {logits + (u64)nth * vocabulary, nullptr, nullptr, nullptr, 0, 0, 1, 0, 0};
  Row row = plain;
  const int known = min(position, width), window = min(max(sampling[MLX_SAMPLING_WINDOW], 0), known);
  if (sampling[MLX_SAMPLING_MASK_AT] > 0) row.mask = (const u32 *)batch + sampling[MLX_SAMPLING_MASK_AT];
  if (sampling[MLX_SAMPLING_BIAS_AT] > 0) {
    row.biases = batch + sampling[MLX_SAMPLING_BIAS_AT];
    row.bias_count = max(sampling[MLX_SAMPLING_BIAS_COUNT], 0);
  }
  row.window = tokens + known - window;
  row.window_count = window;
  row.repeat = __uint_as_float((u32)sampling[MLX_SAMPLING_REPEAT]);
  row.frequency = __uint_as_float((u32)sampling[MLX_SAMPLING_FREQUENCY]);
  row.presence = __uint_as_float((u32)sampling[MLX_SAMPLING_PRESENCE]);

  const bool reports = o.flags & (MLX_SAMPLE_LOGPROB | MLX_SAMPLE_SCORE),
             samples = (o.flags & MLX_SAMPLE_TOKEN) && !(o.flags & MLX_SAMPLE_SCORE),
             adjusted = row.mask || row.bias_count || row.window_count;
  u64 thread_best, total = 0, drawn = 0;
  const bool bad = __syncthreads_or(find_best(samples && !reports ? row : plain, &thread_best));
  float largest = 0;
  if (reports) {
    largest = mlx_sample_score(block_max(thread_best));
    total = sum_weights(plain, largest);
  }
  if (o.flags & MLX_SAMPLE_LOGPROB) report_top(plain, o.top_logprobs, thread_best, largest, total, result);
  if (samples && reports && adjusted) find_best(row, &thread_best);
  if (samples) drawn = sample(row, o, position, thread_best);
  if (threadIdx.x) return;
  const int chosen = mlx_sample_id(drawn), scored = o.flags & MLX_SAMPLE_SCORE ? o.target : chosen;
  if (samples && position < width) tokens[position] = max(chosen, 0);
  result[MLX_RESULT_TOKEN] = chosen;
  result[MLX_RESULT_FLAGS] = bad;
  if (!reports) return;
  const float logit =
      scored >= 0 && scored < vocabulary ? plain.logits[scored] : __uint_as_float(0xff800000u);
  result[MLX_RESULT_LOGPROB] = (int)__float_as_uint(mlx_sample_logprob(logit, largest, total));
}
