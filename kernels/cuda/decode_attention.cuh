// Decode: attention. A task is one KV head, some of its queries and a range of positions (a split). One block
// merges the splits of a head. decode_attend16.cuh and decode_attend32.cuh have the work of a warp.

#pragma once

#include "decode_attend16.cuh"
#include "decode_attend32.cuh"
#include "decode_sums.cuh"

// The work of a warp.
using Attend = Select<KV_16, Attend16, Attend32<KV_Q8>>::Type;
using Pass = Attend::Pass;
constexpr int VALUE_WARPS = Attention::VALUE_WARPS, PASS = Attend::PASS, BUFFERS = Attend::BUFFERS;
constexpr int ROUND = WARPS / VALUE_WARPS * PASS;
static_assert(PAGE % PASS == 0, "a pass must not cross a page");

// Subtracts whole rotations from the angle first, as the generic path does.
static __device__ __forceinline__ void fill_rope_table(Shared *s, int position) {
  if (threadIdx.x >= ROPES * HEAD_DIM / 2) return;
  float angle = (float)position * constant_at<Tables::rope_frequencies>(threadIdx.x);
  const float segment_runs = rintf(angle * 0.15915494309189535f);
  angle = __fsub_rn(angle, __fmul_rn(segment_runs, 6.28125f));
  angle = __fsub_rn(angle, __fmul_rn(segment_runs, 0.0019350051879882812f));
  angle = __fsub_rn(angle, __fmul_rn(segment_runs, 3.019916050561733e-07f));
  float *sine = &s->sine[0][threadIdx.x], *cosine = &s->cosine[0][threadIdx.x];
  sincosf(angle, sine, cosine);
  if constexpr (config.rope_scaled) {
    const float scale = constant_at<Tables::rope_scales>(threadIdx.x / (HEAD_DIM / 2));
    if (threadIdx.x % (HEAD_DIM / 2) < ROPE_DIMS / 2) *sine *= scale, *cosine *= scale;
  }
}

// Elements of a head that form a pair. Pairs that are not rotated have a frequency of 0.
static __device__ __forceinline__ int pair_low(int pair) {
  return config.rope_adjacent || (ROPE_DIMS < HEAD_DIM && pair >= ROPE_DIMS / 2) ? 2 * pair : pair;
}
static __device__ __forceinline__ int pair_high(int pair) {
  return config.rope_adjacent || (ROPE_DIMS < HEAD_DIM && pair >= ROPE_DIMS / 2) ? 2 * pair + 1
                                                                                 : pair + ROPE_DIMS / 2;
}

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
  [[no_unique_address]] Room<0, Plan, WINDOW ? 1 : 0> windowed;
  __device__ __forceinline__ Plan of(int layer) const {
    if constexpr (WINDOW > 0) {
      if (is_windowed(layer)) return windowed[0];
    }
    return full;
  }
};

template <typename P = Plans>
static __device__ __forceinline__ P plans_of(int position) {
  if constexpr (WINDOW > 0)
    return P{plan_of(position, 0), {plan_of(position, max(0, position + 1 - WINDOW))}};
  else
    return P{plan_of(position, 0)};
}

// A vector of the task: one of its queries, the newest key or the newest value.
struct Vector {
  int nth;  // of the queries
  bool is_query, is_value;
  __device__ __forceinline__ Vector(int i, int count) : nth(i), is_query(i < count), is_value(i > count) {}
  __device__ __forceinline__ const float *words(const Model &m, int query) const {
    return m.scratch->qkv + (is_query ? (query + nth) * QUERY_STRIDE
                                      : Q_ROWS + (is_value ? KV_WIDTH : 0) + query / GROUP * HEAD_DIM);
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
    const int rope = rope_of(layer);
    const float c = s->cosine[rope][pair], n = s->sine[rope][pair], rotated = low * c - high * n;
    high = (high * c + low * n) * gain.y;
    low = rotated * gain.x;
  }
  if (v.is_query) {
    Attend::store_query(a, v.nth, first, low * query_scale(position));
    Attend::store_query(a, v.nth, second, high * query_scale(position));
    return;
  }
  const auto l = Attend::to_row(low), h = Attend::to_row(high);
  auto *row = v.is_value ? a->v : a->k;
  row[first] = l;
  row[second] = h;
  if (KV_Q8 || query % GROUP) return;  // codes need the largest number of the head first: see quantize_newest
  kv_t *cached = kv_address(m, layer, query / GROUP, page_at(m, layer, position), position) +
                 (v.is_value ? KV_BLOCK : 0);
  cached[first] = l;
  cached[second] = h;
}

// The gate of a head's output, before the sigmoid.
static __device__ __forceinline__ const float *gate_words(const Model &m, int head) {
  return m.scratch->qkv + head * QUERY_STRIDE + HEAD_DIM;
}

static __device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

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

// Waits for a query, key or value; normalizes queries and keys. Called by a whole warp.
template <int = 0>
static __device__ __forceinline__ void receive_normalized(const Model &m, Shared *s, int layer, int query,
                                                          Vector v, int position, float2 whole) {
  constexpr int pairs = ceil_div(HEAD_DIM / 2, 32);
  const float *words = v.words(m, query),
              *gain = (const float *)(v.is_query ? weight_at<config.q_norm>(m, layer)
                                                 : weight_at<config.k_norm>(m, layer));
  const int lane = threadIdx.x & 31;
  float low[pairs], high[pairs], sum = 0;
  float2 gains[pairs];  // loaded before the wait
  if (config.qk_norm_whole || config.qk_layer_norm)
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
  if constexpr (config.qk_layer_norm) {
#pragma unroll
    for (int i = 0; i < pairs; ++i) sum += low[i] + high[i];
    const float mean = v.is_value ? 0 : warp_sum(sum) / HEAD_DIM;  // a warp has one vector
    sum = 0;
#pragma unroll
    for (int i = 0; i < pairs; ++i) {
      if (i * 32 + lane < HEAD_DIM / 2) low[i] -= mean, high[i] -= mean;
    }
  }
#pragma unroll
  for (int i = 0; i < pairs; ++i) sum += low[i] * low[i] + high[i] * high[i];
  const float own = config.qk_norm_whole ? 0 : rsqrtf(warp_sum(sum) / HEAD_DIM + NORM_EPS);
  const float scale = !config.qk_norm_whole ? own : v.is_query ? whole.x : whole.y;
#pragma unroll
  for (int i = 0; i < pairs; ++i) {
    const int pair = i * 32 + lane;
    if (pair >= HEAD_DIM / 2) break;
    float2 after = {1, 1};
    if (!v.is_value) {
      const float2 g = gains[i];
      low[i] *= config.qk_norm_after_rope ? scale : scale * g.x;
      high[i] *= config.qk_norm_after_rope ? scale : scale * g.y;
      if (config.qk_norm_after_rope) after = g;
    }
    store_pair(m, s, layer, query, v, position, pair, low[i], high[i], after);
  }
}

// Quantizes the newest key and value to the values that the pool holds: warp 0 the key, warp 1 the value. The
// head's first task stores their codes.
template <typename A = Attend>
static __device__ __forceinline__ void quantize_newest(const Model &m, Shared *s, int layer, int query,
                                                       int position, bool newest) {
  sync_consumers();
  Attention *a = &s->work.attention;
  const int warp = threadIdx.x >> 5, head = query / GROUP;
  if (newest && warp < 2)
    A::quantize_row(warp ? a->v : a->k,
                    query % GROUP
                        ? nullptr
                        : kv_address(m, layer, head, page_at(m, layer, position), position) + warp * KV_BLOCK,
                    position % PAGE);
}

// Waits for the gates of |count| queries. The last warps begin: the first ones receive queries.
template <int = 0>
static __device__ __forceinline__ void receive_gates(const Model &m, Shared *s, int query, int count) {
  constexpr int mine = ceil_div(HEAD_DIM, 32);
  const int lane = threadIdx.x & 31;
#pragma unroll 1
  for (int nth = WARPS - 1 - (int)threadIdx.x / 32; nth < count; nth += WARPS) {
    const float *words = gate_words(m, query + nth);
    float value[mine];
#pragma unroll
    for (int i = 0; i < mine; ++i) value[i] = i * 32 + lane < HEAD_DIM ? __uint_as_float(EMPTY) : 0.0f;
    for (bool again = true; again;) {
      again = false;
#pragma unroll
      for (int i = 0; i < mine; ++i)
        if (is_empty(value[i])) value[i] = load_relaxed(words + i * 32 + lane);
#pragma unroll
      for (int i = 0; i < mine; ++i) again |= is_empty(value[i]);
    }
#pragma unroll
    for (int i = 0; i < mine; ++i)
      if (i * 32 + lane < HEAD_DIM) s->work.attention.gate[nth][i * 32 + lane] = sigmoid(value[i]);
  }
}

// Waits for |count| queries and applies RoPE. If |newest|, does the same with the newest key and value of the
// head.
static __device__ __forceinline__ void receive_qkv(const Model &m, Shared *s, int layer, int query, int count,
                                                   int position, bool newest) {
  const int vectors = count + (newest ? 2 : 0);
  if constexpr (config.q_norm.present()) {
    float2 whole = {};
    if constexpr (config.qk_norm_whole) whole = whole_norms(m, s);
#pragma unroll 1
    for (int i = threadIdx.x / 32; i < vectors; i += WARPS)
      receive_normalized(m, s, layer, query, {i, count}, position, whole);
  } else {
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
  }
  if constexpr (KV_Q8) quantize_newest(m, s, layer, query, position, newest);
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
    for (int d = 0; d < HEAD_DIM; d += 128 / (int)sizeof(kv_t)) prefetch_l2(row + d);
  }
}

// Softmax weight of the attention sink of a head, relative to |peak|.
static __device__ __forceinline__ float sink_weight(const Model &m, int layer, int head, float peak) {
  if constexpr (config.sinks.present()) return exp_of(vector_at<config.sinks>(m, layer, head) - peak);
  return 0;
}

// Words of the outputs of attention.
static __device__ __forceinline__ float *attended_words(const Model &m, const Shared *s) {
  if constexpr (PARALLEL) return m.scratch->attended[s->parity[0]];
  return m.scratch->attended[0];
}

// A number of a query's output, times its gate if there is one.
static __device__ __forceinline__ float open_gate(const Attention *a, int nth, int d, float x) {
  if constexpr (GATED_HEADS) return x * a->gate[nth][d];
  return x;
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
      publish(&attended_words(m, s)[(query + nth) * HEAD_DIM + d], open_gate(a, nth, d, value / sum));
      continue;
    }
    float *words = m.scratch->split[query + nth][split];
    publish(words + d, value);
    if (d == 0) publish(words + HEAD_DIM, top), publish(words + HEAD_DIM + 1, sum);
  }
}

static __device__ __forceinline__ void attend_task(const Model &m, Shared *s, int layer, int task, Plan plan,
                                                   int position) {
  Attention *a = &s->work.attention;
  const int query = plan.query(task), split = plan.split(task), begin = plan.begin(split);
  const int end = min(begin + plan.positions, position + 1), cached = min(end, position);
  const int head = query / GROUP, mine = begin + (int)threadIdx.x / 32 / VALUE_WARPS * PASS;
  Pass pass[BUFFERS];
#pragma unroll
  for (int i = 0; i < BUFFERS; ++i) Attend::load_pass(m, pass[i], layer, head, mine + i * ROUND, cached);
  receive_qkv(m, s, layer, query, plan.queries, position, end == position + 1);
  if constexpr (GATED_HEADS) {
    if (plan.splits == 1) receive_gates(m, s, query, plan.queries);
  }
  sync_consumers();
#pragma unroll 1
  for (int first_query = 0; first_query < plan.queries; first_query += QUERY_BATCH) {
    Attend::OnlineSoftmax softmax = {MINUS_INFINITY, 0, {}};
#pragma unroll 1
    for (int first = mine; first < end; first += BUFFERS * ROUND) {
#pragma unroll
      for (int i = 0; i < BUFFERS; ++i) {
        if (pass[i].first >= end) break;
        Attend::insert_newest(a, pass[i], position);
        Attend::accumulate_pass(softmax, pass[i], a, first_query, plan.queries, {plan.start, end});
        Attend::load_pass(m, pass[i], layer, head, first + (i + BUFFERS) * ROUND, cached);
      }
    }
    if (first_query + QUERY_BATCH < plan.queries) {
#pragma unroll
      for (int i = 0; i < BUFFERS; ++i) Attend::load_pass(m, pass[i], layer, head, mine + i * ROUND, cached);
    }
    Attend::store_warp_result(a, softmax, first_query, min(QUERY_BATCH, plan.queries - first_query));
  }
  sync_consumers();
  publish_split(m, s, layer, query, plan.queries, split, plan.splits);
  sync_consumers();
}

// Attention with wide heads needs so many registers that variables of the other phases would be spilled if it
// were inlined. With narrow heads, a call costs more than it saves.
constexpr bool ATTENTION_APART = HEAD_DIM > 128;

template <int = 0>
static __device__ __noinline__ void attend_task_apart(const Model &m, Shared *s, int layer, int task,
                                                      Plan plan, int position) {
  attend_task(m, s, layer, task, plan, position);
}

static __device__ __forceinline__ void attend(const Model &m, Shared *s, int layer, Plan plan, int position) {
#pragma unroll 1
  for (int task = s->block; task < plan.tasks(); task += s->blocks) {
    if constexpr (ATTENTION_APART)
      attend_task_apart(m, s, layer, task, plan, position);
    else
      attend_task(m, s, layer, task, plan, position);
  }
}

// The gate of this thread's number of a head, loaded while the block waits for the splits.
template <bool GATED>
struct HeadGate {
  const float *word;
  float value;
  __device__ __forceinline__ HeadGate(const Model &m, int head)
      : word(gate_words(m, head) + min((int)threadIdx.x, HEAD_DIM - 1)), value(load_relaxed(word)) {}
  __device__ __forceinline__ float apply(float x) const {
    return x * sigmoid(is_empty(value) ? receive(word) : value);
  }
};
template <>
struct HeadGate<false> {
  __device__ __forceinline__ HeadGate(const Model &, int) {}
  __device__ __forceinline__ float apply(float x) const { return x; }
};

// Merges the splits of a head: each warp merges every WARPS-th split in order, then the warps are combined.
static __device__ __forceinline__ void merge_head(const Model &m, Shared *s, int layer, int head,
                                                  int splits) {
  Merge *g = &s->work.merge;
  // Lanes hold the values, then the peak and the sum.
  constexpr int words = ceil_div(HEAD_DIM + 2, 32), mine = ceil_div(MAX_SPLITS, WARPS);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  float value[mine][words];
  bool again;
  const HeadGate<GATED_HEADS> gate(m, head);
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
    publish(&attended_words(m, s)[head * HEAD_DIM + threadIdx.x], gate.apply(value / weights));
  }
  sync_consumers();
}

template <int = 0>
static __device__ __noinline__ void merge_head_apart(const Model &m, Shared *s, int layer, int head,
                                                     int splits) {
  merge_head(m, s, layer, head, splits);
}

// The last blocks merge the heads: with few positions they have no attention tasks.
static __device__ __forceinline__ void merge_heads(const Model &m, Shared *s, int layer, int splits) {
  if (splits == 1) return;
#pragma unroll 1
  for (int head = s->blocks - 1 - s->block; head < HEADS; head += s->blocks) {
    if constexpr (ATTENTION_APART)
      merge_head_apart(m, s, layer, head, splits);
    else
      merge_head(m, s, layer, head, splits);
  }
}
