// Decode: sampling from the top-k tokens (sample.h defines it).
//
// All blocks publish their best score. The k-th best of these is a lower bound of the k-th best score of all,
// and few scores reach it. The blocks publish those. Then every block selects the k best and draws the token.
// The code is short rather than unrolled: it runs once per token, and is fetched again each time.

// Whether the token may be another one than that with the largest logit.
static __device__ __forceinline__ bool needs_sampling(const int *sampling) {
  const mlx_sample_options_t o = mlx_sample_read(sampling);
  return !mlx_sample_is_greedy(&o) || sampling[MLX_SAMPLING_MASK_AT] ||
         sampling[MLX_SAMPLING_BIAS_COUNT] > 0 || sampling[MLX_SAMPLING_WINDOW] > 0;
}

#define MAX_GATHERED 256  // candidates of all blocks in shared memory; more are selected in global memory

// Overlaps the staged activations, which are not used any more.
struct Selection {
  u32 histogram[256];
  u32 digit, remaining, equal, count;  // of the selection: see select
  u64 bound;                           // lower bound of the k-th best candidate of all blocks
  u32 ends[BLOCKS];                    // candidates of the blocks up to this one
  u64 gathered[MAX_GATHERED];          // candidates of all blocks
  u64 candidates[MAX_CANDIDATES];      // the selected elements
  u64 weights[MAX_CANDIDATES], near[MAX_CANDIDATES];
  int token;
  bool sorted;  // the candidates are in descending order
};
static_assert(BLOCKS <= MAX_GATHERED && BLOCKS <= THREADS, "find_bound");
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
  for (u32 i = 0; i < 8; ++i) own += g->histogram[255 - lane * 8 - i];
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
  for (; before + g->histogram[bin] < remaining; --bin) before += g->histogram[bin];
  g->digit = bin;
  g->remaining = remaining - before;
  g->equal = g->histogram[bin];
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
    g->histogram[threadIdx.x] = 0;
    sync_consumers();
#pragma unroll 1
    for (int i = threadIdx.x; i < n; i += THREADS) {
      const u32 own = key(i);
      if (own && (shift == 24 || own >> (shift + 8) == prefix))
        atomicAdd(&g->histogram[own >> shift & 255], 1);
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
// The draw

// The k-th largest of the published best scores as a candidate, or 0 if there are fewer than k blocks. Also
// collects |not_finite|.
static __device__ __forceinline__ void find_bound(Shared *s, Selection *g, float (*best)[2], int k) {
  const int i = threadIdx.x;
  u64 *all = g->gathered;
  if (i == 0) g->bound = 0, g->count = 0;
  if (i < s->blocks) {
    const float2 word = receive2(best[i]);
    if (__float_as_int(word.y) >> 30) s->not_finite = 1;
    all[i] = mlx_sample_pack(word.x, __float_as_int(word.y) & 0x3fffffff);
  }
  sync_consumers();
  int better = 0;
#pragma unroll 4
  for (int j = 0; i < s->blocks && j < s->blocks; ++j) better += all[j] > all[i];
  if (i < s->blocks && better == k - 1) g->bound = all[i];
  sync_consumers();
}

// Lists the scores of this block that reach the bound, or the k best if there are more.
static __device__ __forceinline__ void list_candidates(const Model &m, Shared *s, Selection *g, int k) {
  const int begin = s->vocab.begin, rows = s->vocab.end - begin;
  const float *scores = m.scratch->scores + begin;
  const u32 bound = (u32)(g->bound >> 32);
#pragma unroll 1
  for (int first = threadIdx.x; first < rows; first += 4 * THREADS) {
    float score[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      score[i] = first + i * THREADS < rows ? scores[first + i * THREADS] : MINUS_INFINITY;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const u64 candidate = mlx_sample_pack(score[i], begin + first + i * THREADS);
      if (!candidate || (u32)(candidate >> 32) < bound) continue;
      const u32 at = atomicAdd(&g->count, 1);
      if (at < MAX_CANDIDATES) g->candidates[at] = candidate;
    }
  }
  sync_consumers();
  if (g->count <= (u32)k) return;
  select(
      g, rows, (u32)k, [=](int i) { return scores[i] > MINUS_INFINITY ? mlx_sample_key(scores[i]) : 0u; },
      [=](int i) { return begin + i; });
}

// Replaces each of |count| numbers by the sum up to it. Called by one warp.
static __device__ __forceinline__ void add_up(u32 *numbers, int count) {
  constexpr int each = ceil_div(BLOCKS, 32);
  const int lane = threadIdx.x & 31, begin = lane * each, end = min(begin + each, count);
  u32 sum = 0, before;
#pragma unroll 1
  for (int i = begin; i < end; ++i) numbers[i] = sum += numbers[i];
  before = sum;
#pragma unroll
  for (int i = 1; i < 32; i <<= 1) {
    const u32 other = __shfl_up_sync(~0u, before, i);
    if (lane >= i) before += other;
  }
#pragma unroll 1
  for (int i = begin; i < end; ++i) numbers[i] += before - sum;
}

// Waits for the candidates of all blocks and selects the k best.
static __device__ __forceinline__ void merge_candidates(const Model &m, Shared *s, Selection *g, int epoch,
                                                        int k) {
  float(*lists)[2 + 2 * MAX_CANDIDATES] = m.scratch->candidates[epoch & 3];
  const int blocks = s->blocks;
#pragma unroll 1
  for (int i = threadIdx.x; i < blocks; i += THREADS) g->ends[i] = __float_as_uint(receive(&lists[i][0]));
  sync_consumers();
  if (threadIdx.x < 32) add_up(g->ends, blocks);
  sync_consumers();
  const u32 total = g->ends[blocks - 1];
  if (threadIdx.x == 0) g->sorted = total <= MAX_GATHERED;
  if (total > MAX_GATHERED) {
    const auto has = [=](int i) {
      const int block = i % blocks;
      return (u32)(i / blocks) < g->ends[block] - (block ? g->ends[block - 1] : 0);
    };
    const auto word = [=](int i) { return &lists[i % blocks][2 + i / blocks * 2]; };
    select(
        g, blocks * MAX_CANDIDATES, (u32)k,
        [=](int i) { return has(i) ? mlx_sample_key(receive(word(i))) : 0u; },
        [=](int i) { return __float_as_int(receive(word(i) + 1)); });
    return;
  }
  u64 own = 0;
  if (threadIdx.x < total) {
    int low = 0, high = blocks - 1;  // the block of candidate |threadIdx.x|
    while (low < high) {
      const int middle = (low + high) / 2;
      if (threadIdx.x < g->ends[middle])
        high = middle;
      else
        low = middle + 1;
    }
    const float *word = &lists[low][2 + (threadIdx.x - (low ? g->ends[low - 1] : 0)) * 2];
    const float2 pair = receive2(word);
    own = mlx_sample_pack(pair.x, __float_as_int(pair.y));
    g->gathered[threadIdx.x] = own;
  }
  if (threadIdx.x == 0) g->count = min(total, (u32)k);
  sync_consumers();
  u32 better = 0;
#pragma unroll 4
  for (u32 i = 0; own && i < total; ++i) better += g->gathered[i] > own;
  if (own && better < (u32)k) g->candidates[better] = own;
  sync_consumers();
}

// Called by all consumers of all blocks, when |best| is the best adjusted score of the block. Returns the
// token, or -1 if every token is excluded.
static __device__ __noinline__ int draw_token(const Model &m, Shared *s, int epoch, int position,
                                              bool *not_finite) {
  Selection *g = (Selection *)&s->work;
  const mlx_sample_options_t o = mlx_sample_read(m.sampling);
  const int k = mlx_sample_is_greedy(&o)                   ? 1
                : o.top_k >= 1 && o.top_k < MAX_CANDIDATES ? o.top_k
                                                           : MAX_CANDIDATES;
  find_bound(s, g, m.scratch->best[epoch & 3], k);
  list_candidates(m, s, g, k);
  float *list = m.scratch->candidates[epoch & 3][s->block];
  const u32 count = min(g->count, (u32)k);
  if (threadIdx.x < count) {
    const u64 candidate = g->candidates[threadIdx.x];
    publish(list + 2 + threadIdx.x * 2, mlx_sample_score(candidate));
    publish(list + 3 + threadIdx.x * 2, __int_as_float(mlx_sample_id(candidate)));
  }
  if (threadIdx.x == 0) publish(list, __uint_as_float(count));
  sync_consumers();
  merge_candidates(m, s, g, epoch, k);
  if (threadIdx.x < 32) {
    const mlx_sample_list_t all = {g->candidates, g->weights, g->near, (int)g->count, (int)threadIdx.x, 32};
    g->token = mlx_sample_id(mlx_sample_candidates(&all, &o, position + 1, 0));
  }
  sync_consumers();
  *not_finite = s->not_finite;
  return g->token;
}
