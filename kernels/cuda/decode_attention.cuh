// Decode: attention. A task is one KV head, some of its queries and a range of positions (a split). One block
// merges the splits of a head. decode_attend16.cuh and decode_attend32.cuh have the work of a warp.

// Attention with wide heads needs so many registers that variables of the other phases would be spilled if it
// were inlined. With narrow heads, a call costs more than it saves.
#if HEAD_DIM > 128
#define ATTENTION_CALL __noinline__
#else
#define ATTENTION_CALL __forceinline__
#endif

// Subtracts whole rotations from the angle first, as the generic path does.
static __device__ __forceinline__ void fill_rope_table(Shared *s, int position) {
  if (threadIdx.x >= ROPES * HEAD_DIM / 2) return;
  float angle = (float)position * rope_frequencies[threadIdx.x];
  const float segment_runs = rintf(angle * 0.15915494309189535f);
  angle = __fsub_rn(angle, __fmul_rn(segment_runs, 6.28125f));
  angle = __fsub_rn(angle, __fmul_rn(segment_runs, 0.0019350051879882812f));
  angle = __fsub_rn(angle, __fmul_rn(segment_runs, 3.019916050561733e-07f));
  float *sine = &s->sine[0][threadIdx.x], *cosine = &s->cosine[0][threadIdx.x];
  sincosf(angle, sine, cosine);
#ifdef ROPE_SCALES
  const int rope = threadIdx.x / (HEAD_DIM / 2);
  if (threadIdx.x % (HEAD_DIM / 2) < ROPE_DIMS / 2) *sine *= rope_scales[rope], *cosine *= rope_scales[rope];
#endif
}

// Elements of a head that form a pair. Pairs that are not rotated have a frequency of 0.
static __device__ __forceinline__ int pair_low(int pair) {
  return ROPE_ADJACENT || (ROPE_DIMS < HEAD_DIM && pair >= ROPE_DIMS / 2) ? 2 * pair : pair;
}
static __device__ __forceinline__ int pair_high(int pair) {
  return ROPE_ADJACENT || (ROPE_DIMS < HEAD_DIM && pair >= ROPE_DIMS / 2) ? 2 * pair + 1
                                                                          : pair + ROPE_DIMS / 2;
}

// Elements of the keys, or of the values, of a page and head.
#ifdef KV_Q8
#define KV_BLOCK (PAGE * (HEAD_DIM + 4))
#else
#define KV_BLOCK (PAGE * HEAD_DIM)
#endif

// The page that has a position in |layer|.
static __device__ __forceinline__ int page_at(const Model &m, int layer, int position) {
#if WINDOW_LAYERS
  return __ldg((windowed_layers[layer] ? m.window_pages : m.pages) + position / PAGE);
#else
  (void)layer;
  return __ldg(m.pages + position / PAGE);
#endif
}

// Address of a position's key; its value is KV_BLOCK elements later.
static __device__ __forceinline__ kv_t *kv_address(const Model &m, int layer, int head, int page,
                                                   int position) {
#if WINDOW_LAYERS
  const u64 nth = windowed_layers[layer] ? (u64)(u32)page * WINDOW_LAYERS
                                         : m.before + (u64)(u32)page * (LAYERS - WINDOW_LAYERS);
  return m.kv + ((nth + page_layers[layer]) * KV_HEADS + head) * 2 * KV_BLOCK + position % PAGE * HEAD_DIM;
#else
  return m.kv + (((u64)(u32)page * LAYERS + layer) * KV_HEADS + head) * 2 * KV_BLOCK +
         position % PAGE * HEAD_DIM;
#endif
}

struct Visible {  // positions that a query sees
  int start, end;
  __device__ __forceinline__ bool has(int position) const {
    return position < end && (!WINDOW || position >= start);
  }
};

// A score, capped if the network does so; minus infinity if the query does not see the position.
static __device__ __forceinline__ float masked_score(Visible visible, int position, float score) {
#ifdef SOFTCAP
  score = (float)SOFTCAP * tanhf(score / (float)SOFTCAP);
#endif
  return visible.has(position) ? score : MINUS_INFINITY;
}

#if defined(KV_F32) || defined(KV_Q8)
#include "decode_attend32.cuh"
#else
#include "decode_attend16.cuh"
#endif

// How the work for |position| is divided into tasks. It depends only on the position and the grid size, so
// that the result does not depend on the number of blocks that take part.
struct Plan {
  int splits, positions;  // number of splits, and positions in each but the last
  int queries;            // queries of a task: 1 if there are enough blocks, else all that share a KV head
  int start;              // first position in the window; 0 without a window
  __device__ __forceinline__ int begin(int split) const {  // a pass of the first split includes |start|
    return (start & -PASS) + split * positions;
  }
  __device__ __forceinline__ int tasks() const { return HEADS / queries * splits; }
  __device__ __forceinline__ int query(int task) const { return task % (HEADS / queries) * queries; }
  __device__ __forceinline__ int split(int task) const { return task / (HEADS / queries); }
};

static __device__ __forceinline__ Plan plan_of(int position, int start) {
  const int last = position - (start & -PASS), splits = min(MAX_SPLITS, last / SPLIT + 1);
  return {splits, splits == 1 ? last + 1 : (last / splits / PAGE + 1) * PAGE,
          HEADS * splits <= BLOCKS ? 1 : GROUP, start};
}

struct Plans {
  Plan full;
#if WINDOW
  Plan windowed;
#endif
  __device__ __forceinline__ Plan of(int layer) const {
#if WINDOW
    if (windowed_layers[layer]) return windowed;
#endif
    (void)layer;
    return full;
  }
};

static __device__ __forceinline__ Plans plans_of(int position) {
#if WINDOW
  return {plan_of(position, 0), plan_of(position, max(0, position + 1 - WINDOW))};
#else
  return {plan_of(position, 0)};
#endif
}

// A vector of the task: one of its queries, the newest key or the newest value.
struct Vector {
  int nth;  // of the queries
  bool is_query, is_value;
  __device__ __forceinline__ Vector(int i, int count) : nth(i), is_query(i < count), is_value(i > count) {}
  __device__ __forceinline__ const float *words(const Model &m, int query) const {
    return m.scratch->qkv + (is_query ? (query + nth) * HEAD_DIM
                                      : Q_WIDTH + (is_value ? KV_WIDTH : 0) + query / GROUP * HEAD_DIM);
  }
};

// Clips a pair, applies RoPE to it, multiplies it by |gain| and stores it. The head's first task also stores
// keys and values in the KV pool.
static __device__ __forceinline__ void store_pair(const Model &m, Shared *s, int layer, int query, Vector v,
                                                  int position, int pair, float low, float high,
                                                  float2 gain = {1, 1}) {
  Attention *a = &s->work.attention;
  const int first = pair_low(pair), second = pair_high(pair);
  low = clip_normed(low);
  high = clip_normed(high);
  if (!v.is_value) {
    const int rope = ROPE_OF(layer);
    const float c = s->cosine[rope][pair], n = s->sine[rope][pair], rotated = low * c - high * n;
    high = (high * c + low * n) * gain.y;
    low = rotated * gain.x;
  }
  if (v.is_query) {
    store_query(a, v.nth, first, low * query_scale(position));
    store_query(a, v.nth, second, high * query_scale(position));
    return;
  }
  row_t *row = v.is_value ? a->v : a->k, l = to_row(low), h = to_row(high);
  row[first] = l;
  row[second] = h;
#ifndef KV_Q8
  if (query % GROUP) return;
  kv_t *cached = kv_address(m, layer, query / GROUP, page_at(m, layer, position), position) +
                 (v.is_value ? KV_BLOCK : 0);
  cached[first] = l;
  cached[second] = h;
#endif
}

#if QK_NORM_WHOLE
// Waits for all queries and keys. Returns the scales of their norms.
static __device__ __forceinline__ float2 whole_norms(const Model &m, Shared *s) {
  float q = 0, k = 0;
#pragma unroll 1
  for (int i = threadIdx.x; i < Q_WIDTH + KV_WIDTH; i += THREADS) {
    const float x = receive(m.scratch->qkv + i);
    if (i < Q_WIDTH)
      q += x * x;
    else
      k += x * x;
  }
  q = warp_sum(q);
  k = warp_sum(k);
  if ((threadIdx.x & 31) == 0)
    s->whole_square[0][threadIdx.x >> 5] = q, s->whole_square[1][threadIdx.x >> 5] = k;
  sync_consumers();
  q = k = 0;
#pragma unroll
  for (int i = 0; i < WARPS; ++i) q += s->whole_square[0][i], k += s->whole_square[1][i];
  return {rsqrtf(q / Q_WIDTH + NORM_EPS), rsqrtf(k / KV_WIDTH + NORM_EPS)};
}
#endif

#ifdef Q_NORM_AT
// Waits for a query, key or value; normalizes queries and keys. Called by a whole warp.
static __device__ __forceinline__ void receive_normalized(const Model &m, Shared *s, int layer, int query,
                                                          Vector v, int position, float2 whole) {
  constexpr int pairs = ceil_div(HEAD_DIM / 2, 32);
  const float *words = v.words(m, query),
              *gain = (const float *)(v.is_query ? AT(Q_NORM, layer) : AT(K_NORM, layer));
  const int lane = threadIdx.x & 31;
  float low[pairs], high[pairs], sum = 0;
  float2 gains[pairs];  // loaded before the wait
  if (QK_NORM_WHOLE || QK_LAYER_NORM)
    gain += v.is_query ? (query + v.nth) * HEAD_DIM : query / GROUP * HEAD_DIM;
#pragma unroll
  for (int i = 0; i < pairs; ++i) {
    const int pair = min(i * 32 + lane, HEAD_DIM / 2 - 1);
    gains[i] = {__ldg(gain + pair_low(pair)), __ldg(gain + pair_high(pair))};
    low[i] = high[i] = __uint_as_float(EMPTY);
  }
  for (bool again = true; again;) {
    again = false;
#pragma unroll
    for (int i = 0; i < pairs; ++i) {
      const int pair = i * 32 + lane;
      if (pair >= HEAD_DIM / 2) low[i] = high[i] = 0;
      if (is_empty(low[i])) low[i] = load_relaxed(words + pair_low(pair));
      if (is_empty(high[i])) high[i] = load_relaxed(words + pair_high(pair));
    }
#pragma unroll
    for (int i = 0; i < pairs; ++i) again |= is_empty(low[i]) || is_empty(high[i]);
  }
#if QK_LAYER_NORM
#pragma unroll
  for (int i = 0; i < pairs; ++i) sum += low[i] + high[i];
  const float mean = v.is_value ? 0 : warp_sum(sum) / HEAD_DIM;  // a warp has one vector
  sum = 0;
#pragma unroll
  for (int i = 0; i < pairs; ++i) {
    if (i * 32 + lane < HEAD_DIM / 2) low[i] -= mean, high[i] -= mean;
  }
#endif
#pragma unroll
  for (int i = 0; i < pairs; ++i) sum += low[i] * low[i] + high[i] * high[i];
  const float own = QK_NORM_WHOLE ? 0 : rsqrtf(warp_sum(sum) / HEAD_DIM + NORM_EPS);
  const float scale = !QK_NORM_WHOLE ? own : v.is_query ? whole.x : whole.y;
#pragma unroll
  for (int i = 0; i < pairs; ++i) {
    const int pair = i * 32 + lane;
    if (pair >= HEAD_DIM / 2) break;
    float2 after = {1, 1};
    if (!v.is_value) {
      const float2 g = gains[i];
      low[i] *= QK_NORM_AFTER_ROPE ? scale : scale * g.x;
      high[i] *= QK_NORM_AFTER_ROPE ? scale : scale * g.y;
      if (QK_NORM_AFTER_ROPE) after = g;
    }
    store_pair(m, s, layer, query, v, position, pair, low[i], high[i], after);
  }
}
#endif

// Waits for |count| queries and applies RoPE. If |newest|, does the same with the newest key and value of the
// head.
static __device__ __forceinline__ void receive_qkv(const Model &m, Shared *s, int layer, int query, int count,
                                                   int position, bool newest) {
  const int vectors = count + (newest ? 2 : 0);
#ifdef Q_NORM_AT
  float2 whole = {};
#if QK_NORM_WHOLE
  whole = whole_norms(m, s);
#endif
#pragma unroll 1
  for (int i = threadIdx.x / 32; i < vectors; i += WARPS)
    receive_normalized(m, s, layer, query, {i, count}, position, whole);
#else
#pragma unroll 1
  for (int i = threadIdx.x; i < vectors * (HEAD_DIM / 2); i += THREADS) {
    const Vector v(i / (HEAD_DIM / 2), count);
    const int pair = i % (HEAD_DIM / 2);
    const float *words = v.words(m, query);
    float low, high;
    do {
      low = load_relaxed(words + pair_low(pair));
      high = load_relaxed(words + pair_high(pair));
    } while (is_empty(low) || is_empty(high));
    store_pair(m, s, layer, query, v, position, pair, low, high);
  }
#endif
#ifdef KV_Q8
  sync_consumers();
  Attention *a = &s->work.attention;
  const int warp = threadIdx.x >> 5, head = query / GROUP;  // warp 0 quantizes the key, warp 1 the value
  if (newest && warp < 2)
    quantize_row(warp ? a->v : a->k,
                 query % GROUP
                     ? nullptr
                     : kv_address(m, layer, head, page_at(m, layer, position), position) + warp * KV_BLOCK,
                 position % PAGE);
#endif
}

// Prefetches the keys and values of this block's first task into the L2 cache.
static __device__ __forceinline__ void prefetch_kv(const Model &m, const Shared *s, int layer, Plan plan,
                                                   int position) {
  if (s->block >= plan.tasks()) return;
  const int head = plan.query(s->block) / GROUP, begin = plan.begin(plan.split(s->block)),
            end = min(begin + plan.positions, position);
#pragma unroll 1
  for (int i = threadIdx.x; i < 2 * (end - begin); i += THREADS) {
    const int at = begin + i / 2;
    const kv_t *row = kv_address(m, layer, head, page_at(m, layer, at), at) + i % 2 * KV_BLOCK;
#pragma unroll 1
    for (int d = 0; d < HEAD_DIM; d += 128 / (int)sizeof(kv_t))
      asm volatile("prefetch.global.L2 [%0];" ::"l"(row + d));
  }
}

// Softmax weight of the attention sink of a head, relative to |peak|.
static __device__ __forceinline__ float sink_weight(const Model &m, int layer, int head, float peak) {
#ifdef SINKS_AT
  return exp_of(VECTOR_AT(SINKS, layer, head) - peak);
#else
  (void)m, (void)layer, (void)head, (void)peak;
  return 0;
#endif
}

// Words of the outputs of attention.
static __device__ __forceinline__ float *attended_words(const Model &m, const Shared *s) {
#if PARALLEL
  return m.scratch->attended[s->parity];
#else
  (void)s;
  return m.scratch->attended[0];
#endif
}

// Combines the results of the warps. Publishes a split of the head, or the final result if there is one
// split.
static __device__ __forceinline__ void publish_split(const Model &m, const Shared *s, int layer, int query,
                                                     int count, int split, int splits) {
  const Attention *a = &s->work.attention;
#pragma unroll 1
  for (int i = threadIdx.x; i < count * HEAD_DIM; i += THREADS) {
    const int nth = i / HEAD_DIM, d = i % HEAD_DIM;
    float top = MINUS_INFINITY, sum = 0, value = 0;
#pragma unroll
    for (int w = 0; w < WARPS / VALUE_WARPS; ++w) top = fmaxf(top, a->peak[w][nth]);
#pragma unroll
    for (int w = 0; w < WARPS / VALUE_WARPS; ++w) {
      const float factor = exp_of(a->peak[w][nth] - top);
      sum += a->sum[w][nth] * factor;
      value += a->acc[w][nth][d] * factor;
    }
    if (splits == 1) {
      sum += sink_weight(m, layer, query + nth, top);
      publish(&attended_words(m, s)[(query + nth) * HEAD_DIM + d], value / sum);
      continue;
    }
    float *words = m.scratch->split[query + nth][split];
    publish(words + d, value);
    if (d == 0) publish(words + HEAD_DIM, top), publish(words + HEAD_DIM + 1, sum);
  }
}

static __device__ ATTENTION_CALL void attend_task(const Model &m, Shared *s, int layer, int task, Plan plan,
                                                  int position) {
  Attention *a = &s->work.attention;
  const int query = plan.query(task), split = plan.split(task), begin = plan.begin(split);
  const int end = min(begin + plan.positions, position + 1), cached = min(end, position);
  const int head = query / GROUP, mine = begin + (int)threadIdx.x / 32 / VALUE_WARPS * PASS;
  Pass pass[BUFFERS];
#pragma unroll
  for (int i = 0; i < BUFFERS; ++i) load_pass(m, pass[i], layer, head, mine + i * ROUND, cached);
  receive_qkv(m, s, layer, query, plan.queries, position, end == position + 1);
  sync_consumers();
#pragma unroll 1
  for (int first_query = 0; first_query < plan.queries; first_query += QUERY_BATCH) {
    OnlineSoftmax softmax = {MINUS_INFINITY, 0, {}};
#pragma unroll 1
    for (int first = mine; first < end; first += BUFFERS * ROUND) {
#pragma unroll
      for (int i = 0; i < BUFFERS; ++i) {
        if (pass[i].first >= end) break;
        insert_newest(a, pass[i], position);
        accumulate_pass(softmax, pass[i], a, first_query, plan.queries, {plan.start, end});
        load_pass(m, pass[i], layer, head, first + (i + BUFFERS) * ROUND, cached);
      }
    }
    if (first_query + QUERY_BATCH < plan.queries) {
#pragma unroll
      for (int i = 0; i < BUFFERS; ++i) load_pass(m, pass[i], layer, head, mine + i * ROUND, cached);
    }
    store_warp_result(a, softmax, first_query, min(QUERY_BATCH, plan.queries - first_query));
  }
  sync_consumers();
  publish_split(m, s, layer, query, plan.queries, split, plan.splits);
  sync_consumers();
}

static __device__ __forceinline__ void attend(const Model &m, Shared *s, int layer, Plan plan, int position) {
#pragma unroll 1
  for (int task = s->block; task < plan.tasks(); task += s->blocks)
    attend_task(m, s, layer, task, plan, position);
}

// Merges the splits of a head: each warp merges every WARPS-th split in order, then the warps are combined.
static __device__ ATTENTION_CALL void merge_head(const Model &m, Shared *s, int layer, int head, int splits) {
  Merge *g = &s->work.merge;
  // Lanes hold the values, then the peak and the sum.
  constexpr int words = ceil_div(HEAD_DIM + 2, 32), mine = ceil_div(MAX_SPLITS, WARPS);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  float value[mine][words];
  bool again;
#pragma unroll
  for (int i = 0; i < mine * words; ++i) value[i / words][i % words] = __uint_as_float(EMPTY);
  do {
#pragma unroll
    for (int i = 0; i < mine * words; ++i) {
      const int split = warp + i / words * WARPS, word = i % words * 32 + lane;
      float &v = value[i / words][i % words];
      if (split >= splits || word >= HEAD_DIM + 2) v = 0;
      if (is_empty(v)) v = load_relaxed(m.scratch->split[head][split] + word);
    }
    again = false;
#pragma unroll
    for (int i = 0; i < mine * words; ++i) again |= is_empty(value[i / words][i % words]);
  } while (again);
  float peak = MINUS_INFINITY, sum = 0, acc[ceil_div(HEAD_DIM, 32)] = {};
#pragma unroll
  for (int i = 0; i < mine; ++i) {
    const float split_peak = __shfl_sync(~0u, value[i][HEAD_DIM / 32], HEAD_DIM % 32);
    const float split_sum = __shfl_sync(~0u, value[i][(HEAD_DIM + 1) / 32], (HEAD_DIM + 1) % 32);
    if (warp + i * WARPS >= splits) break;
    const float top = fmaxf(peak, split_peak), old = exp_of(peak - top), its = exp_of(split_peak - top);
    sum = sum * old + split_sum * its;
    peak = top;
#pragma unroll
    for (int d = 0; d < ceil_div(HEAD_DIM, 32); ++d) acc[d] = acc[d] * old + value[i][d] * its;
  }
#pragma unroll
  for (int i = 0; i < ceil_div(HEAD_DIM, 32); ++i) {
    if (i * 32 + lane < HEAD_DIM) g->acc[warp][i * 32 + lane] = acc[i];
  }
  if (lane == 0) g->peak[warp] = peak, g->sum[warp] = sum;
  sync_consumers();
  if (threadIdx.x < HEAD_DIM) {
    float top = MINUS_INFINITY, weights = 0, value = 0;
#pragma unroll
    for (int i = 0; i < WARPS; ++i) top = fmaxf(top, g->peak[i]);
#pragma unroll
    for (int i = 0; i < WARPS; ++i) {
      const float factor = exp_of(g->peak[i] - top);
      weights += g->sum[i] * factor;
      value += g->acc[i][threadIdx.x] * factor;
    }
    weights += sink_weight(m, layer, head, top);
    publish(&attended_words(m, s)[head * HEAD_DIM + threadIdx.x], value / weights);
  }
  sync_consumers();
}

// The last blocks merge the heads: with few positions they have no attention tasks.
static __device__ __forceinline__ void merge_heads(const Model &m, Shared *s, int layer, int splits) {
  if (splits == 1) return;
#pragma unroll 1
  for (int head = s->blocks - 1 - s->block; head < HEADS; head += s->blocks)
    merge_head(m, s, layer, head, splits);
}
