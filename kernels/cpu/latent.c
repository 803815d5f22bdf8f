// Latent attention of a few query heads of one token against the KV pages of its sequence. A page has the
// keys row by row, so that one load of a key serves the scores of all heads, and again their weighted sums.
// Softmax is computed online, a few pages at a time. The result of a head does not depend on the other rows
// and heads: groups of pages start at fixed positions, and each head has sums of its own.
#include "latent.h"

#define LATENT_HEADS 8      // heads that are computed together in steps of many rows
#define LATENT_FEW_HEADS 4  // the same in steps of few rows, which have few items
#define LATENT_FEW_ROWS 8
#define LATENT_PAGES 4  // pages per iteration of the online softmax
#define LATENT_POSITIONS (LATENT_PAGES * MLX_CPU_PAGE)

typedef struct latent {
  const uint8_t *pool;   // KV pool of this layer
  const int32_t *pages;  // page table of the sequence
  int64_t page_bytes;
  int pool_pages, padded, value_dim;
  int end;  // positions that the token sees
  float scale;
  float q[LATENT_HEADS][MLX_CPU_MAX_LATENT];  // padded with zeros
  float *out[LATENT_HEADS];
} latent_t;

// Of one iteration: scores, then weights.
typedef float scores_t[LATENT_HEADS][LATENT_POSITIONS];

INLINE v16 load_key(int32_t format, const uint8_t *at, int64_t index) {
  if (format == MLX_KV_F32) return v_load((const float *)(const void *)at + index);
  if (format == MLX_KV_Q8) return v_load_i8(at + index);
  return format == MLX_KV_F16 ? v_load_f16(at + 2 * index) : v_load_bf16(at + 2 * index);
}

INLINE const uint8_t *page_at(const latent_t *a, int nth) {
  const int page = a->pages[nth];
  return a->pool + (page < 0 || page >= a->pool_pages ? 0 : page) * a->page_bytes;
}

// Q8: the scale of a position of a page; else 1.
INLINE float scale_at(const latent_t *a, int32_t format, const uint8_t *page, int place) {
  return format == MLX_KV_Q8 ? ((const float *)(const void *)(page + MLX_CPU_PAGE * a->padded))[place] : 1;
}

// Scores |at| and up: of |count| positions of a page. Positions after them are not read: they can be
// uninitialized.
INLINE void score_page(const latent_t *a, int32_t format, int HEADS, const uint8_t *page, int at, int count,
                       scores_t scores) {
  for (int place = 0; place < count; ++place) {
    const float scale = a->scale * scale_at(a, format, page, place);
    v16 sum[LATENT_HEADS];
    for (int h = 0; h < HEADS; ++h) sum[h] = v_zero();
    for (int d = 0; d < a->padded; d += 16) {
      const v16 key = load_key(format, page, place * a->padded + d);
      for (int h = 0; h < HEADS; ++h) sum[h] = v_fma(key, v_load(a->q[h] + d), sum[h]);
    }
    for (int h = 0; h < HEADS; ++h) scores[h][at + place] = v_sum(sum[h]) * scale;
  }
}

// acc[h] += sum of weights[h][at + i] * value i, over |count| positions of a page.
INLINE void add_page(const latent_t *a, int32_t format, int HEADS, const uint8_t *page, int at, int count,
                     scores_t weights, float (*acc)[MLX_CPU_MAX_LATENT]) {
  float scaled[LATENT_HEADS][MLX_CPU_PAGE];
  for (int h = 0; h < HEADS; ++h)
    for (int i = 0; i < count; ++i) scaled[h][i] = weights[h][at + i] * scale_at(a, format, page, i);
  for (int d = 0; d < a->value_dim; d += 16) {
    v16 sum[LATENT_HEADS];
    for (int h = 0; h < HEADS; ++h) sum[h] = v_load(acc[h] + d);
    for (int i = 0; i < count; ++i) {
      const v16 value = load_key(format, page, i * a->padded + d);
      for (int h = 0; h < HEADS; ++h) sum[h] = v_fma(value, v_all(scaled[h][i]), sum[h]);
    }
    for (int h = 0; h < HEADS; ++h) v_store(acc[h] + d, sum[h]);
  }
}

// One online softmax step of one head: replaces |scores|, of which the first |count| are set, by exp(score -
// peak). If the running maximum |peak| grows, rescales |sum| and |acc| to the new maximum.
INLINE void update_head(int count, int width, float *scores, float *peak, float *sum, float *acc) {
  v16 largest = v_all(-3e38f), total = v_zero();
  for (int i = count; i < LATENT_POSITIONS; ++i) scores[i] = -__builtin_inff();
  for (int i = 0; i < LATENT_POSITIONS; i += 16) largest = v_max(largest, v_load(scores + i));
  const float highest = v_reduce_max(largest);
  if (highest > *peak) {
    float factor[16];
    v_store(factor, v_exp(v_all(*peak - highest)));
    for (int d = 0; d < width; d += 16) v_store(acc + d, v_mul(v_load(acc + d), v_all(factor[0])));
    *sum *= factor[0];
    *peak = highest;
  }
  for (int i = 0; i < LATENT_POSITIONS; i += 16) {
    const v16 weight = v_exp(v_sub(v_load(scores + i), v_all(*peak)));
    v_store(scores + i, weight);
    total = v_add(total, weight);
  }
  *sum += v_sum(total);
}

INLINE void attend_heads(const latent_t *a, int32_t format, int HEADS) {
  float acc[LATENT_HEADS][MLX_CPU_MAX_LATENT], peak[LATENT_HEADS], sum[LATENT_HEADS];
  scores_t scores;
  for (int h = 0; h < HEADS; ++h) {
    peak[h] = -3e38f;
    sum[h] = 0;
    for (int d = 0; d < a->value_dim; d += 16) v_store(acc[h] + d, v_zero());
  }
  for (int first = 0; first < a->end; first += LATENT_POSITIONS) {
    const int count = min_int(a->end - first, LATENT_POSITIONS);
    for (int i = 0; i < count; i += MLX_CPU_PAGE) {
      score_page(a, format, HEADS, page_at(a, (first + i) / MLX_CPU_PAGE), i,
                 min_int(count - i, MLX_CPU_PAGE), scores);
    }
    for (int h = 0; h < HEADS; ++h) update_head(count, a->value_dim, scores[h], &peak[h], &sum[h], acc[h]);
    for (int i = 0; i < count; i += MLX_CPU_PAGE) {
      add_page(a, format, HEADS, page_at(a, (first + i) / MLX_CPU_PAGE), i, min_int(count - i, MLX_CPU_PAGE),
               scores, acc);
    }
  }
  for (int h = 0; h < HEADS; ++h)
    for (int d = 0; d < a->value_dim; d += 16)
      store_some(a->out[h] + d, v_mul(v_load(acc[h] + d), v_all(1 / sum[h])), a->value_dim - d);
}

// A function of its own for each format and number of heads: both are constants in its loops.
#define DEFINE(format)                                            \
  static NOT_INLINE void attend_few_##format(const latent_t *a) { \
    attend_heads(a, MLX_KV_##format, LATENT_FEW_HEADS);           \
  }                                                               \
  static NOT_INLINE void attend_all_##format(const latent_t *a) { \
    attend_heads(a, MLX_KV_##format, LATENT_HEADS);               \
  }
DEFINE(F32)
DEFINE(F16)
DEFINE(BF16)
DEFINE(Q8)
#undef DEFINE

#define CASE(format) \
  case MLX_KV_##format: (heads == LATENT_HEADS ? attend_all_##format : attend_few_##format)(a); break
static void attend(const latent_t *a, int32_t format, int heads) {
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

INLINE int heads_together(const call_t *c, const mlx_instruction_t *i) {
  return row_count(c, i) > LATENT_FEW_ROWS ? LATENT_HEADS : LATENT_FEW_HEADS;
}

int mlx_latent_items(const call_t *c, const mlx_instruction_t *i) {
  return row_count(c, i) * divide_up(i->heads, heads_together(c, i));
}

// If fewer heads are left, the last one is computed several times, and stored once.
void mlx_run_latent(const call_t *c, const mlx_instruction_t *i, int item) {
  float unused[MLX_CPU_MAX_LATENT];
  const int together = heads_together(c, i), groups = divide_up(i->heads, together), row = item / groups,
            head = item % groups * together, count = min_int(together, i->heads - head);
  const pages_t *pages = &c->pages[i->pages];
  latent_t a;  // no initializer: it would clear the queries by memset, which the kernel does not have
  a.pool = pages->first + i->kv_at;
  a.pages = pages->table + (int64_t)c->slot_of[row] * c->slot_pages;
  a.page_bytes = pages->bytes;
  a.pool_pages = pages->count;
  a.padded = (int)mlx_round_up(i->head_dim, 16);
  a.value_dim = i->width;
  a.end = c->position_of[row] + 1;
  a.scale = i->numbers[0];
  for (int h = 0; h < together; ++h) {
    const float *q = row_at(c, &i->a, row) + (int64_t)(head + min_int(h, count - 1)) * i->head_dim;
    for (int d = 0; d < a.padded; d += 16) v_store(a.q[h] + d, load_some(q + d, i->head_dim - d));
    a.out[h] = h < count ? row_at(c, &i->out, row) + (int64_t)(head + h) * i->width : unused;
  }
  attend(&a, c->n->kv_format, together);
}
