// Attention of one head over the positions that exist: up to eight tokens of one row, neighbours, against
// pages of the pool.
#ifndef MLXCEL_KERNELS_CPU_ATTENTION_H_
#define MLXCEL_KERNELS_CPU_ATTENTION_H_

#include "network.h"
#include "vector.h"

#define ATTEND_TOKENS 8
#define ATTEND_PAGES 8  // looked at together
#define ATTEND_MOST_HEAD 256
#if defined(__AVX512F__)
#define ATTEND_TOGETHER \
  2  // pages whose scores with ATTEND_TOKENS tokens are made at a time: as many sums as there are registers
     // for
#else
#define ATTEND_TOGETHER 1
#endif

typedef struct attend {
  const uint8_t *pool;             // this layer's
  const int32_t *pages;            // of the row
  int64_t page_bytes, head_bytes;  // of a page, all heads; of one head's keys or values in it
  int head_dim, head, pool_pages;
  float scale;
  const float *q[ATTEND_TOKENS];
  float *out[ATTEND_TOKENS];
  int position;  // of the first token
} attend_t;

INLINE v16 load_kv(int32_t format, const uint8_t *at, int64_t index) {
  if (format == MLX_PANEL_F32) return v_load((const float *)(const void *)at + index);
  return format == MLX_PANEL_F16 ? v_load_f16(at + 2 * index) : v_load_bf16(at + 2 * index);
}

INLINE const uint8_t *keys_of(const attend_t *a, int nth) {
  const int page = a->pages[nth];
  return a->pool + (page < 0 || page >= a->pool_pages ? 0 : page) * a->page_bytes +
         2 * a->head * a->head_bytes;
}

// Scores of TOKENS queries with the keys of PAGES pages, one after the other from |nth| on.
INLINE void score(const attend_t *a, int32_t format, int TOKENS, int PAGES, int nth, v16 *out) {
  const uint8_t *keys[ATTEND_PAGES];
  v16 sum[ATTEND_TOGETHER * ATTEND_TOKENS];
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

// mixed[t] += power[t] times the first |count| values of one page; the others may be anything, also no
// numbers
INLINE void mix(const attend_t *a, int32_t format, int TOKENS, const uint8_t *values, int count,
                const float *power, int64_t power_step, float *mixed) {
  for (int j = 0; j < a->head_dim; j += 16) {
    v16 even[ATTEND_TOKENS], odd[ATTEND_TOKENS];
    for (int t = 0; t < TOKENS; ++t) {
      even[t] = v_load(mixed + t * ATTEND_MOST_HEAD + j);
      odd[t] = v_zero();
    }
    if (count % 2) {
      const v16 last = load_kv(format, values, (count - 1) * a->head_dim + j);
      for (int t = 0; t < TOKENS; ++t) odd[t] = v_mul(last, v_all(power[t * power_step + count - 1]));
    }
    for (int i = 0; i + 1 < count; i += 2) {
      const v16 first = load_kv(format, values, i * a->head_dim + j),
                second = load_kv(format, values, (i + 1) * a->head_dim + j);
      for (int t = 0; t < TOKENS; ++t) {
        even[t] = v_fma(first, v_all(power[t * power_step + i]), even[t]);
        odd[t] = v_fma(second, v_all(power[t * power_step + i + 1]), odd[t]);
      }
    }
    for (int t = 0; t < TOKENS; ++t) v_store(mixed + t * ATTEND_MOST_HEAD + j, v_add(even[t], odd[t]));
  }
}

// Powers of one query's scores in |pages| pages, against the largest seen so far; what was mixed before is
// scaled down to it.
INLINE void soften(int pages, int head_dim, v16 *scores, float *peak, float *sum, float *mixed) {
  v16 largest = scores[0];
  for (int p = 1; p < pages; ++p) largest = v_max(largest, scores[p]);
  const float highest = v_largest(largest);
  if (highest > *peak) {
    float less[16];
    v_store(less, v_exp(v_all(*peak - highest)));
    for (int j = 0; j < head_dim; j += 16) v_store(mixed + j, v_mul(v_load(mixed + j), v_all(less[0])));
    *sum *= less[0];
    *peak = highest;
  }
  v16 total = v_zero();
  for (int p = 0; p < pages; ++p) {
    const v16 hidden = scores[p];
    scores[p] = v_exp(v_sub(hidden, v_all(*peak)));
    total = v_add(total, scores[p]);
  }
  *sum += v_sum(total);
}

INLINE void attend_tokens(const attend_t *a, int32_t format, int TOKENS, int count) {
  float mixed[ATTEND_TOKENS][ATTEND_MOST_HEAD], peak[ATTEND_TOKENS], sum[ATTEND_TOKENS];
  v16 scores[ATTEND_TOKENS][ATTEND_PAGES];
  for (int t = 0; t < TOKENS; ++t) {
    peak[t] = -3e38f;
    sum[t] = 0;
    for (int j = 0; j < a->head_dim; j += 16) v_store(mixed[t] + j, v_zero());
  }
  const int last = (a->position + count - 1) / MLX_CPU_PAGE;
  for (int nth = 0; nth <= last; nth += ATTEND_PAGES) {
    const int pages = last - nth + 1 < ATTEND_PAGES ? last - nth + 1 : ATTEND_PAGES;
    const int together = TOKENS == 1 ? 4 : ATTEND_TOGETHER;
    int p = 0;
    for (; p + together <= pages; p += together) score(a, format, TOKENS, together, nth + p, &scores[0][p]);
    for (; p < pages; ++p) score(a, format, TOKENS, 1, nth + p, &scores[0][p]);
    for (int t = 0; t < TOKENS; ++t) {
      const int seen = a->position + (t < count ? t : count - 1) + 1;
      for (p = seen / MLX_CPU_PAGE < nth ? 0 : seen / MLX_CPU_PAGE - nth; p < pages; ++p) {
        scores[t][p] = v_first(scores[t][p], seen - (nth + p) * MLX_CPU_PAGE);
      }
      soften(pages, a->head_dim, scores[t], &peak[t], &sum[t], mixed[t]);
    }
    for (p = 0; p < pages; ++p) {
      const int there = a->position + count - (nth + p) * MLX_CPU_PAGE;
      const uint8_t *values = keys_of(a, nth + p) + a->head_bytes;
      mix(a, format, TOKENS, values, there < MLX_CPU_PAGE ? there : MLX_CPU_PAGE,
          (const float *)&scores[0][p], ATTEND_PAGES * 16, mixed[0]);
    }
  }
  for (int t = 0; t < count; ++t) {
    for (int j = 0; j < a->head_dim; j += 16)
      v_store(a->out[t] + j, v_mul(v_load(mixed[t] + j), v_all(1 / sum[t])));
  }
}

// |count| tokens; where it is less than ATTEND_TOKENS, q of those that are not there is that of some other.
static void attend_some(const attend_t *a, int32_t format, int count) {
  switch (format) {
    case MLX_PANEL_F32:
      count == 1 ? attend_tokens(a, MLX_PANEL_F32, 1, 1)
                 : attend_tokens(a, MLX_PANEL_F32, ATTEND_TOKENS, count);
      break;
    case MLX_PANEL_F16:
      count == 1 ? attend_tokens(a, MLX_PANEL_F16, 1, 1)
                 : attend_tokens(a, MLX_PANEL_F16, ATTEND_TOKENS, count);
      break;
    default:
      count == 1 ? attend_tokens(a, MLX_PANEL_BF16, 1, 1)
                 : attend_tokens(a, MLX_PANEL_BF16, ATTEND_TOKENS, count);
      break;
  }
}

#endif  // MLXCEL_KERNELS_CPU_ATTENTION_H_
