// Attention of one query head for up to eight consecutive tokens of one sequence, against the KV pages of
// that sequence. Softmax is computed online, a few pages at a time, so memory use does not grow with the
// context.
#ifndef MLXCEL_KERNELS_CPU_ATTENTION_H_
#define MLXCEL_KERNELS_CPU_ATTENTION_H_

#include "layout.h"
#include "vector.h"

#define ATTEND_TOKENS 8
#define ATTEND_PAGES 8  // pages per iteration of the online softmax
#define ATTEND_MAX_HEAD_DIM 256
#if defined(__AVX512F__)
#define ATTEND_SCORE_PAGES 2  // pages scored at a time for ATTEND_TOKENS tokens: as many sums as registers
#else
#define ATTEND_SCORE_PAGES 1
#endif

typedef struct attention {
  const uint8_t *pool;             // KV pool of this layer
  const int32_t *pages;            // page table of the sequence
  int64_t page_bytes, head_bytes;  // size of a page with all heads; size of one head's keys (or values) in it
  int head_dim, head, pool_pages;
  float scale;
  const float *q[ATTEND_TOKENS];
  float *out[ATTEND_TOKENS];
  int position;  // position of the first token
} attention_t;

INLINE v16 load_kv(int32_t format, const uint8_t *at, int64_t index) {
  if (format == MLX_PANEL_F32) return v_load((const float *)(const void *)at + index);
  return format == MLX_PANEL_F16 ? v_load_f16(at + 2 * index) : v_load_bf16(at + 2 * index);
}

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
    for (int t = 0; t < TOKENS; ++t) {
      const v16 each = v_all(a->q[t][d]);
      for (int p = 0; p < PAGES; ++p) sum[p * TOKENS + t] = v_fma(key[p], each, sum[p * TOKENS + t]);
    }
  }
  for (int i = 0; i < TOKENS * PAGES; ++i)
    out[i % TOKENS * ATTEND_PAGES + i / TOKENS] = v_mul(sum[i], v_all(a->scale));
}

// acc[t] += sum of weights[t][i] * value i, over the first |count| values of a page. Later values are not
// read: they can be uninitialized, NaN included.
INLINE void add_values(const attention_t *a, int32_t format, int TOKENS, const uint8_t *values, int count,
                       const float *weights, int64_t weights_step, float *acc) {
  for (int j = 0; j < a->head_dim; j += 16) {
    v16 even[ATTEND_TOKENS], odd[ATTEND_TOKENS];
    for (int t = 0; t < TOKENS; ++t) {
      even[t] = v_load(acc + t * ATTEND_MAX_HEAD_DIM + j);
      odd[t] = v_zero();
    }
    if (count % 2) {
      const v16 last = load_kv(format, values, (count - 1) * a->head_dim + j);
      for (int t = 0; t < TOKENS; ++t) odd[t] = v_mul(last, v_all(weights[t * weights_step + count - 1]));
    }
    for (int i = 0; i + 1 < count; i += 2) {
      const v16 first = load_kv(format, values, i * a->head_dim + j),
                second = load_kv(format, values, (i + 1) * a->head_dim + j);
      for (int t = 0; t < TOKENS; ++t) {
        even[t] = v_fma(first, v_all(weights[t * weights_step + i]), even[t]);
        odd[t] = v_fma(second, v_all(weights[t * weights_step + i + 1]), odd[t]);
      }
    }
    for (int t = 0; t < TOKENS; ++t) v_store(acc + t * ATTEND_MAX_HEAD_DIM + j, v_add(even[t], odd[t]));
  }
}

// One online softmax step for one query: replaces the scores of |pages| pages by exp(score - peak). If the
// running maximum |peak| grows, rescales |sum| and |acc| to the new maximum.
INLINE void softmax_update(int pages, int head_dim, v16 *scores, float *peak, float *sum, float *acc) {
  v16 largest = scores[0];
  for (int p = 1; p < pages; ++p) largest = v_max(largest, scores[p]);
  const float highest = v_reduce_max(largest);
  if (highest > *peak) {
    float rescale[16];
    v_store(rescale, v_exp(v_all(*peak - highest)));
    for (int j = 0; j < head_dim; j += 16) v_store(acc + j, v_mul(v_load(acc + j), v_all(rescale[0])));
    *sum *= rescale[0];
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

INLINE void attention_tokens(const attention_t *a, int32_t format, int TOKENS, int count) {
  float acc[ATTEND_TOKENS][ATTEND_MAX_HEAD_DIM], peak[ATTEND_TOKENS], sum[ATTEND_TOKENS];
  v16 scores[ATTEND_TOKENS][ATTEND_PAGES];
  for (int t = 0; t < TOKENS; ++t) {
    peak[t] = -3e38f;
    sum[t] = 0;
    for (int j = 0; j < a->head_dim; j += 16) v_store(acc[t] + j, v_zero());
  }
  const int last = (a->position + count - 1) / MLX_CPU_PAGE;
  for (int nth = 0; nth <= last; nth += ATTEND_PAGES) {
    const int pages = last - nth + 1 < ATTEND_PAGES ? last - nth + 1 : ATTEND_PAGES;
    const int together = TOKENS == 1 ? 4 : ATTEND_SCORE_PAGES;
    int p = 0;
    for (; p + together <= pages; p += together) score(a, format, TOKENS, together, nth + p, &scores[0][p]);
    for (; p < pages; ++p) score(a, format, TOKENS, 1, nth + p, &scores[0][p]);
    for (int t = 0; t < TOKENS; ++t) {
      const int visible = a->position + (t < count ? t : count - 1) + 1;
      for (p = visible / MLX_CPU_PAGE < nth ? 0 : visible / MLX_CPU_PAGE - nth; p < pages; ++p) {
        scores[t][p] = v_keep_first(scores[t][p], visible - (nth + p) * MLX_CPU_PAGE);
      }
      softmax_update(pages, a->head_dim, scores[t], &peak[t], &sum[t], acc[t]);
    }
    for (p = 0; p < pages; ++p) {
      const int valid = a->position + count - (nth + p) * MLX_CPU_PAGE;
      const uint8_t *values = keys_of(a, nth + p) + a->head_bytes;
      add_values(a, format, TOKENS, values, valid < MLX_CPU_PAGE ? valid : MLX_CPU_PAGE,
                 (const float *)&scores[0][p], ATTEND_PAGES * 16, acc[0]);
    }
  }
  for (int t = 0; t < count; ++t) {
    for (int j = 0; j < a->head_dim; j += 16)
      v_store(a->out[t] + j, v_mul(v_load(acc[t] + j), v_all(1 / sum[t])));
  }
}

// Attention for |count| tokens. If count < ATTEND_TOKENS, the unused entries of q repeat a valid pointer.
static void attention_run(const attention_t *a, int32_t format, int count) {
  switch (format) {
    case MLX_PANEL_F32:
      count == 1 ? attention_tokens(a, MLX_PANEL_F32, 1, 1)
                 : attention_tokens(a, MLX_PANEL_F32, ATTEND_TOKENS, count);
      break;
    case MLX_PANEL_F16:
      count == 1 ? attention_tokens(a, MLX_PANEL_F16, 1, 1)
                 : attention_tokens(a, MLX_PANEL_F16, ATTEND_TOKENS, count);
      break;
    default:
      count == 1 ? attention_tokens(a, MLX_PANEL_BF16, 1, 1)
                 : attention_tokens(a, MLX_PANEL_BF16, ATTEND_TOKENS, count);
      break;
  }
}

#endif  // MLXCEL_KERNELS_CPU_ATTENTION_H_
