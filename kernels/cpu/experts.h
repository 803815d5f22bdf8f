// Mixture of experts. A token and one of its experts are a pair: pair token * used + i is the token's expert
// with the i-th largest score. The pairs are sorted by expert, and each expert multiplies the rows of its
// pairs like a product of its own (product.h).
#ifndef MLXCEL_KERNELS_CPU_EXPERTS_H_
#define MLXCEL_KERNELS_CPU_EXPERTS_H_

#include "product.h"

typedef struct routing {
  int32_t *expert_of;  // [pairs]
  float *weight_of;    // [pairs]
  int32_t *order;      // [pairs] sorted by expert, then by token
  int32_t *starts;     // [experts + 1] first pair of each expert in |order|
} routing_t;

INLINE routing_t routing_of(const call_t *c, const mlx_instruction_t *i) {
  const int64_t pairs = (int64_t)MLX_CPU_MAX_TOKENS * i->used;
  int32_t *words = (int32_t *)(void *)(c->scratch + i->routing);
  return (routing_t){words, (float *)(void *)(words + pairs), words + 2 * pairs, words + 3 * pairs};
}

// Softmax of the scores; the rest of the last vector becomes 0.
static void softmax_scores(const float *scores, int count, float *out) {
  float peak = scores[0], sum = 0;
  for (int i = 1; i < count; ++i) peak = scores[i] > peak ? scores[i] : peak;
  for (int i = 0; i < count; i += 16)
    v_store(out + i, v_exp(v_sub(load_some(scores + i, count - i), v_all(peak))));
  for (int i = 0; i < count; ++i) sum += out[i];
  for (int i = 0; i < count; ++i) out[i] /= sum;
}

static void route_row(const call_t *c, const mlx_instruction_t *i, int row) {
  float shares[MLX_CPU_MAX_EXPERTS + 16], left[MLX_CPU_MAX_EXPERTS], total = 0;
  const float *scores = row_at(c, &i->a, row);
  const routing_t r = routing_of(c, i);
  const int64_t first = (int64_t)row * i->used;
  softmax_scores(scores, i->experts, shares);
  for (int e = 0; e < i->experts; ++e) left[e] = scores[e];
  for (int k = 0; k < i->used; ++k) {
    int best = 0;
    for (int e = 1; e < i->experts; ++e) best = left[e] > left[best] ? e : best;
    r.expert_of[first + k] = best;
    r.weight_of[first + k] = shares[best];
    total += shares[best];
    left[best] = -__builtin_inff();
  }
  for (int k = 0; i->sum_to_one && k < i->used; ++k) r.weight_of[first + k] /= total;
}

// Counting sort of the pairs by expert.
static void group_pairs(const call_t *c, const mlx_instruction_t *i) {
  const routing_t r = routing_of(c, i);
  const int pairs = (int)c->control->tokens * i->used;
  for (int e = 0; e <= i->experts; ++e) r.starts[e] = 0;
  for (int pair = 0; pair < pairs; ++pair) ++r.starts[r.expert_of[pair]];
  for (int e = 0, at = 0; e <= i->experts; ++e) {
    const int count = r.starts[e];
    r.starts[e] = at;
    at += count;
  }
  for (int pair = 0; pair < pairs; ++pair) r.order[r.starts[r.expert_of[pair]]++] = pair;
  for (int e = i->experts; e > 0; --e) r.starts[e] = r.starts[e - 1];
  r.starts[0] = 0;
}

INLINE product_t expert_product(const call_t *c, const mlx_instruction_t *i, const routing_t *r, int expert) {
  product_t p = product_of(c, i);
  const int64_t panels = panel_count(&p);
  p.weight += expert * panels * mlx_panel_bytes(p.format, p.columns);
  if (p.up) p.up += expert * panels * mlx_panel_bytes(p.up_format, p.columns);
  p.pairs = r->order + r->starts[expert];
  p.tokens = r->starts[expert + 1] - r->starts[expert];
  p.divide = i->op ? 1 : i->used;
  p.expert = expert;
  p.parts = 0;
  return p;
}

static int expert_items(const call_t *c, const mlx_instruction_t *i) {
  const routing_t r = routing_of(c, i);
  int items = 0;
  for (int e = 0; e < i->experts; ++e) {
    if (r.starts[e] == r.starts[e + 1]) continue;
    const product_t p = expert_product(c, i, &r, e);
    items += product_items(c, &p);
  }
  return items;
}

static void multiply_experts(const call_t *c, const mlx_instruction_t *i, worker_t *worker, uint64_t phase,
                             int from, int to) {
  const routing_t r = routing_of(c, i);
  for (int e = 0, base = 0; e < i->experts && base < to; ++e) {
    if (r.starts[e] == r.starts[e + 1]) continue;
    const product_t p = expert_product(c, i, &r, e);
    const int items = product_items(c, &p), first = max_int(from - base, 0), end = min_int(to - base, items);
    if (first < end) multiply_items(c, &p, worker, phase, first, end);
    base += items;
  }
}

static void sum_experts(const call_t *c, const mlx_instruction_t *i, int row) {
  const routing_t r = routing_of(c, i);
  float *out = row_at(c, &i->out, row);
  const int64_t first = (int64_t)row * i->used;
  for (int k = 0; k < i->width; k += 16) {
    const int count = min_int(16, i->width - k);
    v16 sum = v_zero();
    for (int e = 0; e < i->used; ++e)
      sum =
          v_add(sum, v_mul(load_some(row_at(c, &i->a, first + e) + k, count), v_all(r.weight_of[first + e])));
    store_some(out + k, sum, count);
  }
  store_row_parts(c, i, row, i->width);
}

#endif  // MLXCEL_KERNELS_CPU_EXPERTS_H_
