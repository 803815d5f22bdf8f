// Attention of up to eight queries against the KV pages of one sequence: consecutive tokens of one query
// head, or query heads of one token that share a KV head. Softmax is computed online, a few pages at a time,
// so memory use does not grow with the context. The result of a query does not depend on the queries that are
// computed with it: groups of pages start at fixed positions, and masked scores add zero.
#include "attention.h"

#include "activation_functions.h"

#define ATTEND_TOKENS 8  // queries that are computed together
#define ATTEND_HEADS 4   // the same, for few heads of one token
#define ATTEND_PAGES 8   // pages per iteration of the online softmax
#if defined(__AVX512F__)
#define ATTEND_SCORE_PAGES 2  // pages scored at a time for ATTEND_TOKENS tokens: as many sums as registers
#else
#define ATTEND_SCORE_PAGES 1
#endif

typedef struct attention {
  const uint8_t *pool;             // KV pool of this layer
  const int32_t *pages;            // page table of the sequence
  int64_t page_bytes, head_bytes;  // size of a page with all heads; size of one head's keys (or values) in it
  int head_dim, padded, head, pool_pages;
  float scale, softcap;   // softcap 0: none
  int window;             // 0: none
  const float *sink;      // of the first query; NULL: none
  const float *relative;  // biases of the first query's head by distance, for distance 0; NULL: none
  int64_t distances;      // from the biases of a head to those of the next
  const float *q[ATTEND_TOKENS];
  float *out[ATTEND_TOKENS];
  int position;  // position of the first query
  int end;       // of the text, if the queries see all of it; 0: a query sees positions up to its own
  int span;      // of these, positions before and after a query that it sees; 0: all
  int step;      // 1: the queries are consecutive tokens of a head; 0: consecutive heads of a token
} attention_t;

INLINE v16 load_kv(int32_t format, const uint8_t *at, int64_t index) {
  if (format == MLX_KV_F32) return v_load((const float *)(const void *)at + index);
  if (format == MLX_KV_Q8) return v_load_i8(at + index);
  return format == MLX_KV_F16 ? v_load_f16(at + 2 * index) : v_load_bf16(at + 2 * index);
}
// Q8: the scales of the 16 positions.
INLINE const float *kv_scales(const attention_t *a, const uint8_t *at) {
  return (const float *)(const void *)(at + a->head_bytes) - MLX_CPU_PAGE;
}

INLINE int position_of_query(const attention_t *a, int nth) { return a->position + nth * a->step; }

// The positions [start, end) that a query at |position| sees.
INLINE int seen_end(const attention_t *a, int position) {
  if (!a->end) return position + 1;
  return a->span && position + a->span < a->end ? position + a->span + 1 : a->end;
}
INLINE int seen_start(const attention_t *a, int position) {
  if (a->span) return position > a->span ? position - a->span : 0;
  return a->window && position >= a->window ? position + 1 - a->window : 0;
}

INLINE const uint8_t *keys_of(const attention_t *a, int nth) {
  const int page = a->pages[nth];
  return a->pool + (page < 0 || page >= a->pool_pages ? 0 : page) * a->page_bytes +
         2 * a->head * a->head_bytes;
}

// Scores of TOKENS queries with the keys of TOGETHER consecutive pages, starting at page |nth|.
INLINE void score(const attention_t *a, int32_t format, int TOKENS, int TOGETHER, int nth, v16 *out) {
  const uint8_t *keys[ATTEND_PAGES];
  v16 sum[ATTEND_SCORE_PAGES * ATTEND_TOKENS];
  for (int p = 0; p < TOGETHER; ++p) keys[p] = keys_of(a, nth + p);
  for (int i = 0; i < TOKENS * TOGETHER; ++i) sum[i] = v_zero();
  for (int d = 0; d < a->head_dim; ++d) {
    v16 key[ATTEND_PAGES];
    for (int p = 0; p < TOGETHER; ++p) key[p] = load_kv(format, keys[p], 16 * d);
    // The values follow the keys.
    for (int p = 0; TOKENS <= ATTEND_HEADS && p < TOGETHER && 64 * d < a->head_bytes; ++p)
      __builtin_prefetch(keys[p] + a->head_bytes + 64 * d, 0, 2);
    for (int t = 0; t < TOKENS; ++t) {
      const v16 each = v_all(a->q[t][d]);
      for (int p = 0; p < TOGETHER; ++p) sum[p * TOKENS + t] = v_fma(key[p], each, sum[p * TOKENS + t]);
    }
  }
  for (int i = 0; i < TOKENS * TOGETHER; ++i) {
    v16 value = v_mul(sum[i], v_all(a->scale));
    if (format == MLX_KV_Q8) value = v_mul(value, v_load(kv_scales(a, keys[i / TOKENS])));
    out[i % TOKENS * ATTEND_PAGES + i / TOKENS] = value;
  }
}

// acc[t] += sum of weights[t][i] * value i, over the first |count| values of a page. Later values are not
// read: they can be uninitialized, NaN included.
INLINE void add_values(const attention_t *a, int32_t format, int TOKENS, const uint8_t *values, int count,
                       const float *weights, int64_t weights_step, float *acc) {
  for (int j = 0; j < a->padded; j += 16) {
    v16 even[ATTEND_TOKENS], odd[ATTEND_TOKENS];
    for (int t = 0; t < TOKENS; ++t) {
      even[t] = v_load(acc + t * a->padded + j);
      odd[t] = v_zero();
    }
    for (int i = 0; i + 1 < count; i += 2) {
      const v16 first = load_kv(format, values, i * a->padded + j),
                second = load_kv(format, values, (i + 1) * a->padded + j);
      for (int t = 0; t < TOKENS; ++t) {
        even[t] = v_fma(first, v_all(weights[t * weights_step + i]), even[t]);
        odd[t] = v_fma(second, v_all(weights[t * weights_step + i + 1]), odd[t]);
      }
    }
    if (count % 2) {
      const v16 last = load_kv(format, values, (count - 1) * a->padded + j);
      for (int t = 0; t < TOKENS; ++t)
        even[t] = v_fma(last, v_all(weights[t * weights_step + count - 1]), even[t]);
    }
    for (int t = 0; t < TOKENS; ++t) v_store(acc + t * a->padded + j, v_add(even[t], odd[t]));
  }
}

INLINE void rescale(float from, float to, int width, float *sum, float *acc) {
  float factor[16];
  v_store(factor, v_exp(v_all(from - to)));
  for (int j = 0; j < width; j += 16) v_store(acc + j, v_mul(v_load(acc + j), v_all(factor[0])));
  *sum *= factor[0];
}

// One online softmax step for one query: replaces the scores of |pages| pages by exp(score - peak). If the
// running maximum |peak| grows, rescales |sum| and |acc| to the new maximum.
INLINE void softmax_update(int pages, int width, v16 *scores, float *peak, float *sum, float *acc) {
  v16 largest = scores[0];
  for (int p = 1; p < pages; ++p) largest = v_max(largest, scores[p]);
  const float highest = v_reduce_max(largest);
  if (highest > *peak) {
    rescale(*peak, highest, width, sum, acc);
    *peak = highest;
  }
  v16 total = v_zero();
  for (int p = 0; p < pages; ++p) {
    const v16 score = scores[p];
    scores[p] = v_exp(v_sub(score, v_all(*peak)));
    total = v_add(total, scores[p]);
  }
  *sum += v_sum(total);
}

// The first |count| lanes become -infinity.
INLINE v16 hide_first(v16 x, int count) {
  float lanes[16];
  if (count <= 0) return x;
  v_store(lanes, x);
  for (int i = 0; i < 16 && i < count; ++i) lanes[i] = -__builtin_inff();
  return v_load(lanes);
}

// Adds the biases of token |t|, caps its scores, and hides those of positions that it does not see.
INLINE void mask_scores(const attention_t *a, int t, int nth, int pages, v16 *scores) {
  const int position = position_of_query(a, t);
  const float *biases = a->relative ? a->relative + t * !a->step * a->distances - position : 0;
  const int visible = seen_end(a, position), start = seen_start(a, position);
  for (int p = 0; biases && p < pages; ++p)
    scores[p] = v_add(scores[p], v_load(biases + (nth + p) * MLX_CPU_PAGE));
  for (int p = 0; a->softcap != 0 && p < pages; ++p) scores[p] = v_softcap(scores[p], a->softcap);
  for (int p = visible / MLX_CPU_PAGE < nth ? 0 : visible / MLX_CPU_PAGE - nth; p < pages; ++p)
    scores[p] = v_keep_first(scores[p], visible - (nth + p) * MLX_CPU_PAGE);
  for (int p = 0; p < pages && (nth + p) * MLX_CPU_PAGE < start; ++p)
    scores[p] = hide_first(scores[p], start - (nth + p) * MLX_CPU_PAGE);
}

// The sink enters the softmax without a value.
INLINE void add_sink(float sink, int width, float *peak, float *sum, float *acc) {
  float power[16];
  if (sink > *peak) {
    rescale(*peak, sink, width, sum, acc);
    *peak = sink;
  }
  v_store(power, v_exp(v_all(sink - *peak)));
  *sum += power[0];
}

INLINE void store_head(const attention_t *a, const float *acc, float sum, float *out) {
  float last[16];
  for (int j = 0; j < a->padded; j += 16) {
    const v16 value = v_mul(v_load(acc + j), v_all(1 / sum));
    if (j + 16 <= a->head_dim) {
      v_store(out + j, value);
      continue;
    }
    v_store(last, value);
    for (int i = 0; j + i < a->head_dim; ++i) out[j + i] = last[i];
  }
}

INLINE void attention_tokens(const attention_t *a, int32_t format, int TOKENS, int count) {
  float acc[ATTEND_TOKENS * MLX_CPU_MAX_HEAD_DIM], peak[ATTEND_TOKENS], sum[ATTEND_TOKENS];
  v16 scores[ATTEND_TOKENS][ATTEND_PAGES];
  for (int t = 0; t < TOKENS; ++t) {
    peak[t] = -3e38f;
    sum[t] = 0;
    for (int j = 0; j < a->padded; j += 16) v_store(acc + t * a->padded + j, v_zero());
  }
  const int end = seen_end(a, position_of_query(a, count - 1)), last = (end - 1) / MLX_CPU_PAGE;
  const int start = seen_start(a, a->position) / MLX_CPU_PAGE;
  for (int nth = start / ATTEND_PAGES * ATTEND_PAGES; nth <= last; nth += ATTEND_PAGES) {
    const int pages = last - nth + 1 < ATTEND_PAGES ? last - nth + 1 : ATTEND_PAGES;
    const int together = TOKENS == 1 ? 4 : ATTEND_SCORE_PAGES * ATTEND_TOKENS / TOKENS;
    int p = 0;
    for (; p + together <= pages; p += together) score(a, format, TOKENS, together, nth + p, &scores[0][p]);
    for (; p < pages; ++p) score(a, format, TOKENS, 1, nth + p, &scores[0][p]);
    for (int t = 0; t < TOKENS; ++t) {
      mask_scores(a, t < count ? t : count - 1, nth, pages, scores[t]);
      softmax_update(pages, a->padded, scores[t], &peak[t], &sum[t], acc + t * a->padded);
    }
    for (p = 0; p < pages; ++p) {
      const int valid = end - (nth + p) * MLX_CPU_PAGE;
      const uint8_t *values = keys_of(a, nth + p) + a->head_bytes;
      for (int t = 0; format == MLX_KV_Q8 && t < TOKENS; ++t)
        scores[t][p] = v_mul(scores[t][p], v_load(kv_scales(a, values)));
      add_values(a, format, TOKENS, values, valid < MLX_CPU_PAGE ? valid : MLX_CPU_PAGE,
                 (const float *)&scores[0][p], ATTEND_PAGES * 16, acc);
    }
  }
  for (int t = 0; t < count; ++t) {
    if (a->sink) add_sink(a->sink[t * !a->step], a->padded, &peak[t], &sum[t], acc + t * a->padded);
    store_head(a, acc + t * a->padded, sum[t], a->out[t]);
  }
}

// A function of its own for each format and number of queries, as in panels_by_vectors_integer.c.
#define DEFINE(format)                                                             \
  static NOT_INLINE void attend_one_##format(const attention_t *a) {               \
    attention_tokens(a, MLX_KV_##format, 1, 1);                                    \
  }                                                                                \
  static NOT_INLINE void attend_heads_##format(const attention_t *a, int count) {  \
    attention_tokens(a, MLX_KV_##format, ATTEND_HEADS, count);                     \
  }                                                                                \
  static NOT_INLINE void attend_tokens_##format(const attention_t *a, int count) { \
    attention_tokens(a, MLX_KV_##format, ATTEND_TOKENS, count);                    \
  }
DEFINE(F32)
DEFINE(F16)
DEFINE(BF16)
DEFINE(Q8)
#undef DEFINE

// Attention for |count| queries. If count < ATTEND_TOKENS, the unused entries of q repeat a valid pointer.
#define CASE(format)                            \
  case MLX_KV_##format:                         \
    if (count == 1)                             \
      attend_one_##format(a);                   \
    else if (!a->step && count <= ATTEND_HEADS) \
      attend_heads_##format(a, count);          \
    else                                        \
      attend_tokens_##format(a, count);         \
    break
static void attention_run(const attention_t *a, int32_t format, int count) {
  switch (format) {
    CASE(F32);
    CASE(F16);
    CASE(BF16);
    CASE(Q8);
    default: break;
  }
}
#undef CASE

// ----------------------------------------------------------------------------------------------------------
// Items

#define MIN_GROUPED_HEADS 3  // query heads of a KV head that are computed together at least

// Rows from |row| on, up to |end|, that continue each other.
INLINE int consecutive_rows(const call_t *c, int row, int end) {
  int next = row + 1;
  while (next < end && c->slot_of[next] == c->slot_of[row] &&
         c->position_of[next] == c->position_of[next - 1] + 1)
    ++next;
  return next - row;
}

// Items of one head of up to ATTEND_TOKENS rows.
INLINE int head_items(const call_t *c, const mlx_instruction_t *i) {
  return i->heads * divide_up(row_count(c, i), ATTEND_TOKENS);
}

// Whether all query heads of a KV head are computed together, so that keys and values are read once for them.
// That needs rows of different sequences, and must not leave fewer items for the threads.
INLINE bool groups_heads(const call_t *c, const mlx_instruction_t *i) {
  return c->control->separate && i->heads >= MIN_GROUPED_HEADS * i->kv_heads &&
         row_count(c, i) * i->kv_heads >= head_items(c, i);
}

int mlx_attend_items(const call_t *c, const mlx_instruction_t *i) {
  return groups_heads(c, i) ? row_count(c, i) * i->kv_heads : head_items(c, i);
}

void mlx_run_spread(const call_t *c, const mlx_instruction_t *i) {
  const float *table = vector_at(c, &i->weight);
  const int64_t distances = mlx_distances(c->n->capacity);
  for (int head = 0; head < i->heads; ++head) {
    float *out = c->scratch + i->out.at + head * distances;
    for (int64_t k = 0; k < distances; ++k) out[k] = table[(int)c->floats[i->floats + k] * i->heads + head];
  }
}

INLINE const float *relative_of(const call_t *c, const mlx_instruction_t *i, int head) {
  const int64_t capacity = c->n->capacity;
  return c->scratch + i->b.at + head * mlx_distances(capacity) + capacity - 1;
}

// |count| queries: consecutive rows from |row| on of one head, or with |step| 0 consecutive heads of one row.
static void attend_queries(const call_t *c, const mlx_instruction_t *i, int row, int head, int step,
                           int count) {
  const mlx_program_t *n = c->n;
  const int hd = i->head_dim;
  const pages_t *pages = &c->pages[i->pages];
  attention_t a = {.pool = pages->first + i->kv_at,
                   .pages = pages->table + (int64_t)c->slot_of[row] * c->slot_pages,
                   .page_bytes = pages->bytes,
                   .head_bytes = mlx_kv_head_bytes(n->kv_format, hd),
                   .head_dim = hd,
                   .padded = (int)mlx_round_up(hd, 16),
                   .head = head / (i->heads / i->kv_heads),
                   .pool_pages = pages->count,
                   .scale = i->numbers[0],
                   .softcap = i->numbers[1],
                   .window = i->window,
                   .sink = has_weight(&i->weight) ? vector_at(c, &i->weight) + head : 0,
                   .relative = i->whole && i->b.stride ? relative_of(c, i, head) : 0,
                   .distances = mlx_distances(c->n->capacity),
                   .position = c->position_of[row],
                   .end = i->whole ? c->end_of[row] : 0,
                   .span = i->span,
                   .step = step};
  for (int k = 0; k < ATTEND_TOKENS; ++k) {
    const int nth = min_int(k, count - 1), at = (head + (step ? 0 : nth)) * hd;
    a.q[k] = row_at(c, &i->a, row + nth * step) + at;
    a.out[k] = row_at(c, &i->out, row + nth * step) + at;
  }
  attention_run(&a, n->kv_format, count);
  for (int k = 0; k < count && stores_parts(c, i, row + k * step); ++k) {
    for (int d = 0; d < hd; d += 16)
      store_parts(parts_of_buffer(c, &i->out), v_load(a.out[k] + d), row + k * step, i->heads * hd,
                  (head + (step ? 0 : k)) * hd + d);
  }
}

// All query heads of one KV head for one row, or one head of up to ATTEND_TOKENS rows. Of these, consecutive
// tokens of a sequence are computed together.
void mlx_run_attend(const call_t *c, const mlx_instruction_t *i, int item) {
  const int rows = row_count(c, i), tiles = divide_up(rows, ATTEND_TOKENS), group = i->heads / i->kv_heads;
  if (groups_heads(c, i)) {
    for (int k = 0; k < group; k += ATTEND_TOKENS)
      attend_queries(c, i, item / i->kv_heads, item % i->kv_heads * group + k, 0,
                     min_int(ATTEND_TOKENS, group - k));
    return;
  }
  const int end = min_int(rows, (item % tiles + 1) * ATTEND_TOKENS);
  for (int row = item % tiles * ATTEND_TOKENS, count; row < end; row += count) {
    count = consecutive_rows(c, row, end);
    attend_queries(c, i, row, item / tiles, 1, count);
  }
}
