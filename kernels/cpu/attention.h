// Attention of up to eight queries against the KV pages of one sequence: consecutive tokens of one query
// head, or query heads of one token that share a KV head. Softmax is computed online, a few pages at a time,
// so memory use does not grow with the context. The result of a query does not depend on the queries that are
// computed with it: groups of pages start at fixed positions, and masked scores add zero.
#ifndef MLXCEL_KERNELS_CPU_ATTENTION_H_
#define MLXCEL_KERNELS_CPU_ATTENTION_H_

#include "functions.h"
#include "layout.h"
#include "vector.h"

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
  float scale, softcap;  // softcap 0: none
  int window;            // 0: none
  const float *sink;     // of the first query; NULL: none
  const float *q[ATTEND_TOKENS];
  float *out[ATTEND_TOKENS];
  int position;  // position of the first query
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

INLINE const uint8_t *keys_of(const attention_t *a, int nth) {
  const int page = a->pages[nth];
  return a->pool + (page < 0 || page >= a->pool_pages ? 0 : page) * a->page_bytes +
         2 * a->head * a->head_bytes;
}

// Scores of TOKENS queries with the keys of PAGES consecutive pages, starting at page |nth|.
INLINE void score(const attention_t *a, int32_t format, int TOKENS, int PAGES, int nth, v16 *out) {
  const uint8_t *keys[ATTEND_PAGES];
  v16 sum[ATTEND_SCORE_PAGES * ATTEND_TOKENS];
  for (int p = 0; p < PAGES; ++p) keys[p] = keys_of(a, nth + p);
  for (int i = 0; i < TOKENS * PAGES; ++i) sum[i] = v_zero();
  for (int d = 0; d < a->head_dim; ++d) {
    v16 key[ATTEND_PAGES];
    for (int p = 0; p < PAGES; ++p) key[p] = load_kv(format, keys[p], 16 * d);
    // The values follow the keys.
    for (int p = 0; TOKENS <= ATTEND_HEADS && p < PAGES && 64 * d < a->head_bytes; ++p)
      __builtin_prefetch(keys[p] + a->head_bytes + 64 * d, 0, 2);
    for (int t = 0; t < TOKENS; ++t) {
      const v16 each = v_all(a->q[t][d]);
      for (int p = 0; p < PAGES; ++p) sum[p * TOKENS + t] = v_fma(key[p], each, sum[p * TOKENS + t]);
    }
  }
  for (int i = 0; i < TOKENS * PAGES; ++i) {
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
      even[t] = v_load(acc + t * MLX_CPU_MAX_HEAD_DIM + j);
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
    for (int t = 0; t < TOKENS; ++t) v_store(acc + t * MLX_CPU_MAX_HEAD_DIM + j, v_add(even[t], odd[t]));
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

// Caps the scores of token |t|, and hides those of positions that it does not see.
INLINE void mask_scores(const attention_t *a, int position, int nth, int pages, v16 *scores) {
  const int visible = position + 1, start = a->window && visible > a->window ? visible - a->window : 0;
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
  float acc[ATTEND_TOKENS][MLX_CPU_MAX_HEAD_DIM], peak[ATTEND_TOKENS], sum[ATTEND_TOKENS];
  v16 scores[ATTEND_TOKENS][ATTEND_PAGES];
  for (int t = 0; t < TOKENS; ++t) {
    peak[t] = -3e38f;
    sum[t] = 0;
    for (int j = 0; j < a->padded; j += 16) v_store(acc[t] + j, v_zero());
  }
  const int end = position_of_query(a, count - 1) + 1, first_seen = a->position + 1 - a->window;
  const int last = (end - 1) / MLX_CPU_PAGE;
  const int start = a->window && first_seen > 0 ? first_seen / MLX_CPU_PAGE : 0;
  for (int nth = start / ATTEND_PAGES * ATTEND_PAGES; nth <= last; nth += ATTEND_PAGES) {
    const int pages = last - nth + 1 < ATTEND_PAGES ? last - nth + 1 : ATTEND_PAGES;
    const int together = TOKENS == 1 ? 4 : ATTEND_SCORE_PAGES * ATTEND_TOKENS / TOKENS;
    int p = 0;
    for (; p + together <= pages; p += together) score(a, format, TOKENS, together, nth + p, &scores[0][p]);
    for (; p < pages; ++p) score(a, format, TOKENS, 1, nth + p, &scores[0][p]);
    for (int t = 0; t < TOKENS; ++t) {
      mask_scores(a, position_of_query(a, t < count ? t : count - 1), nth, pages, scores[t]);
      softmax_update(pages, a->padded, scores[t], &peak[t], &sum[t], acc[t]);
    }
    for (p = 0; p < pages; ++p) {
      const int valid = end - (nth + p) * MLX_CPU_PAGE;
      const uint8_t *values = keys_of(a, nth + p) + a->head_bytes;
      for (int t = 0; format == MLX_KV_Q8 && t < TOKENS; ++t)
        scores[t][p] = v_mul(scores[t][p], v_load(kv_scales(a, values)));
      add_values(a, format, TOKENS, values, valid < MLX_CPU_PAGE ? valid : MLX_CPU_PAGE,
                 (const float *)&scores[0][p], ATTEND_PAGES * 16, acc[0]);
    }
  }
  for (int t = 0; t < count; ++t) {
    if (a->sink) add_sink(a->sink[t * !a->step], a->padded, &peak[t], &sum[t], acc[t]);
    store_head(a, acc[t], sum[t], a->out[t]);
  }
}

// Attention for |count| queries. If count < ATTEND_TOKENS, the unused entries of q repeat a valid pointer.
#define ATTEND_CASE(format)                              \
  case format:                                           \
    if (count == 1)                                      \
      attention_tokens(a, format, 1, 1);                 \
    else if (!a->step && count <= ATTEND_HEADS)          \
      attention_tokens(a, format, ATTEND_HEADS, count);  \
    else                                                 \
      attention_tokens(a, format, ATTEND_TOKENS, count); \
    break
static void attention_run(const attention_t *a, int32_t format, int count) {
  switch (format) {
    ATTEND_CASE(MLX_KV_F32);
    ATTEND_CASE(MLX_KV_F16);
    ATTEND_CASE(MLX_KV_BF16);
    ATTEND_CASE(MLX_KV_Q8);
    default: break;
  }
}
#undef ATTEND_CASE

#endif  // MLXCEL_KERNELS_CPU_ATTENTION_H_
