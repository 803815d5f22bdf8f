// Mixture of experts: routing, grouping, products and sums.
#include "experts.h"
#include "activation_functions.h"

typedef struct routing {
  int32_t *expert_of;  // [pairs]
  float *weight_of;    // [pairs]
  int32_t *order;      // [pairs] sorted by expert, then by token
  int32_t *starts;     // [experts + 1] first pair of each expert in |order|
} routing_t;

INLINE routing_t routing_of(const call_t *c, const mlx_instruction_t *i) {
  const int64_t pairs = (int64_t)c->n->capacity * i->used;
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

static void sigmoid_scores(const float *scores, int count, float *out) {
  for (int i = 0; i < count; i += 16) v_store(out + i, v_sigmoid(load_some(scores + i, count - i)));
}

// Lowers the experts of all groups but the |used| ones whose two best experts have the largest sum, or with
// |by_best| whose best expert is the largest.
static void keep_groups(int experts, int groups, int used, bool by_best, float *choice) {
  float sums[MLX_CPU_MAX_EXPERTS];
  const int size = experts / groups;
  for (int g = 0; g < groups; ++g) {
    const float *of = choice + g * size;
    float first = of[0] > of[1] ? of[0] : of[1], second = of[0] > of[1] ? of[1] : of[0];
    for (int e = 2; e < size; ++e) {
      if (of[e] > first) {
        second = first;
        first = of[e];
      } else if (of[e] > second) {
        second = of[e];
      }
    }
    sums[g] = by_best ? first : first + second;
  }
  for (int dropped = 0; dropped < groups - used; ++dropped) {
    int worst = -1;  // of equal groups the first is kept
    for (int g = 0; g < groups; ++g) {
      if (sums[g] > -__builtin_inff() && (worst < 0 || sums[g] <= sums[worst])) worst = g;
    }
    if (worst < 0) return;  // scores are NaN; the sampler reports it
    sums[worst] = -__builtin_inff();
    for (int e = 0; e < size; ++e) choice[worst * size + e] = -__builtin_inff();
  }
}

// Reports the experts of a row, if the batch asks for them (step.h).
static void store_routes(const call_t *c, const mlx_instruction_t *i, int row, const int32_t *experts) {
  const int64_t at = c->batch[MLX_STEP_AT_ROUTES], words = c->limits.results * MLX_RESULT_WORDS,
                first = at + (int64_t)c->token_of[row] * i->width + i->dims;
  if (at <= 0 || c->is_burst || first > words - i->used) return;
  for (int k = 0; k < i->used; ++k) c->results[first + k] = experts[k];
}

// The weight of the expert with the score |best|, the largest that is |left|, among those near it.
static float weight_among_near(const float *left, const float *scores, int count, float best, float spread) {
  float powers[MLX_CPU_MAX_EXPERTS + 16], sum = 0;
  for (int e = 0; e < count; e += 16)
    v_store(powers + e, v_exp(v_sub(load_some(scores + e, count - e), v_all(best))));
  for (int e = 0; e < count; ++e) {
    const float size = scores[e] < 0 ? -scores[e] : scores[e], most = size > best ? size : best;
    if (left[e] > -__builtin_inff() && (best - left[e]) / most <= spread) sum += powers[e];
  }
  return 1 / sum;
}

void mlx_run_route(const call_t *c, const mlx_instruction_t *i, int row) {
  float shares[MLX_CPU_MAX_EXPERTS + 16], left[MLX_CPU_MAX_EXPERTS], total = 0;
  const float *scores = row_at(c, &i->a, row);
  const routing_t r = routing_of(c, i);
  const float *bias = has_weight(&i->bias) ? vector_at(c, &i->bias) : 0;
  const int64_t first = (int64_t)row * i->used;
  if (i->op & MLX_ROUTE_SIGMOID) {
    sigmoid_scores(scores, i->experts, shares);
  } else {
    softmax_scores(scores, i->experts, shares);
  }
  const float *unbiased = i->heads > 1 ? shares : scores;  // sums of a group are sums of shares
  for (int e = 0; e < i->experts; ++e) left[e] = bias ? shares[e] + bias[e] : unbiased[e];
  if (i->heads > 1)
    keep_groups(i->experts, i->heads, i->kv_heads, (i->op & MLX_ROUTE_GROUPS_BY_BEST) != 0, left);
  for (int k = 0; k < i->used; ++k) {
    int best = 0;
    for (int e = 1; e < i->experts; ++e) best = left[e] > left[best] ? e : best;
    r.expert_of[first + k] = best;
    const float spread = i->numbers[2];
    r.weight_of[first + k] =
        spread > 0 ? weight_among_near(left, scores, i->experts, left[best], spread) : shares[best];
    total += shares[best];
    left[best] = -__builtin_inff();
  }
  for (int k = 0; i->sum_to_one && k < i->used; ++k) r.weight_of[first + k] /= total + i->numbers[0];
  for (int k = 0; k < i->used; ++k) r.weight_of[first + k] *= i->numbers[1];
  const float *factors = has_weight(&i->up) ? vector_at(c, &i->up) : 0;
  for (int k = 0; factors && k < i->used; ++k) r.weight_of[first + k] *= factors[r.expert_of[first + k]];
  store_routes(c, i, row, r.expert_of + first);
}

// Counting sort of the pairs by expert.
void mlx_run_group(const call_t *c, const mlx_instruction_t *i) {
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

int mlx_expert_items(const call_t *c, const mlx_instruction_t *i) {
  const routing_t r = routing_of(c, i);
  int items = 0;
  for (int e = 0; e < i->experts; ++e) {
    if (r.starts[e] == r.starts[e + 1]) continue;
    const product_t p = expert_product(c, i, &r, e);
    items += mlx_product_items(c, &p);
  }
  return items;
}

void mlx_run_expert_product(const call_t *c, const mlx_instruction_t *i, worker_t *worker, uint64_t phase,
                            int from, int to) {
  const routing_t r = routing_of(c, i);
  for (int e = 0, base = 0; e < i->experts && base < to; ++e) {
    if (r.starts[e] == r.starts[e + 1]) continue;
    const product_t p = expert_product(c, i, &r, e);
    const int items = mlx_product_items(c, &p), first = max_int(from - base, 0),
              end = min_int(to - base, items);
    if (first < end) mlx_run_product(c, &p, worker, phase, first, end);
    base += items;
  }
}

void mlx_run_expert_sum(const call_t *c, const mlx_instruction_t *i, int row) {
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
