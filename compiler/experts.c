// The plain lowering of a mixture of experts. With few tokens the experts they use are gathered, so that nothing else is read; with
// many, every expert is computed for every token and weighted with zero where it is not used.
#include <math.h>

#include "compiler/graph_internal.h"

#define MAX_USED 64

// What each token uses, the best first.
typedef struct chosen {
  mlx_value_t index[MAX_USED];   // [M] i32
  mlx_value_t weight[MAX_USED];  // [M]
  int64_t count;
} chosen_t;

// exp(x - max) / sum over the last dimension of [M, n]
static mlx_value_t softmax(mlx_builder_t *b, mlx_value_t x) {
  const int64_t outer[] = {0};
  mlx_value_t peak = mlx_build_reduce_last(b, "peak", "maximum", x);
  mlx_value_t peaks = mlx_build_broadcast(b, "peaks", peak, outer, mlx_type_of(x));
  mlx_value_t below = mlx_build_binary(b, "below_peak", "subtract", x, peaks);
  mlx_value_t power = mlx_build_unary(b, "power", "exponential", below);
  mlx_value_t sum = mlx_build_reduce_last(b, "power_sum", "add", power);
  mlx_value_t sums = mlx_build_broadcast(b, "power_sums", sum, outer, mlx_type_of(x));
  return mlx_build_binary(b, "share", "divide", power, sums);
}

// [M, n] i1: where the index is |index| [M]
static mlx_value_t is_index(mlx_builder_t *b, mlx_value_t index, mlx_type_t type) {
  type.dtype = MLX_I32;
  mlx_value_t place = mlx_build_iota(b, "expert", 1, type);
  mlx_value_t wide = mlx_build_broadcast(b, "chosen_expert", index, (int64_t[]){0}, type);
  return mlx_build_compare(b, "is_chosen", "EQ", place, wide);
}

static void choose(mlx_graph_t *g, const mlx_experts_t *e, mlx_value_t scores, chosen_t *out) {
  mlx_builder_t *b = g->b;
  const mlx_type_t type = mlx_type_of(scores);
  mlx_value_t share = softmax(b, scores), left = scores, total = {0};
  mlx_value_t none = mlx_build_float(b, "none", 0.0, type);
  mlx_value_t lowest = mlx_build_float(b, "lowest", -INFINITY, type);
  for (out->count = 0; out->count < e->used; ++out->count) {
    mlx_value_t index = out->index[out->count] = mlx_build_argmax_last(b, "best", left);
    mlx_value_t is_it = is_index(b, index, type);
    mlx_value_t only = mlx_build_select(b, "its_share", is_it, share, none);
    mlx_value_t weight = out->weight[out->count] = mlx_build_reduce_last(b, "weight", "add", only);
    left = mlx_build_select(b, "scores_left", is_it, lowest, left);
    total = total.id ? mlx_build_binary(b, "weight_sum", "add", total, weight) : weight;
  }
  for (int64_t i = 0; i < out->count && e->sum_to_one; ++i) {
    out->weight[i] = mlx_build_binary(b, "weight_of_sum", "divide", out->weight[i], total);
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Few tokens

// The weights of one expert a token, [M, rows, columns], times x [M, columns] -> [M, rows]
static mlx_value_t through_one(mlx_builder_t *b, const char *name, mlx_value_t x, mlx_value_t weights, mlx_value_t index) {
  const mlx_dot_t over_columns = {1, {0}, {0}, 2, 1};
  mlx_value_t which = mlx_build_reshape(b, "which", index, MLX_TYPE(MLX_I32, index.dims[0], 1));
  mlx_value_t own = mlx_build_gather(b, "own_weights", weights, which);
  own = mlx_build_convert(b, "own_f32", own, MLX_F32);
  return mlx_build_dot(b, name, own, x, over_columns);
}

static mlx_value_t use_chosen(mlx_graph_t *g, const char *name, const mlx_experts_t *e, const chosen_t *chosen, mlx_value_t x, mlx_value_t gate,
                              mlx_value_t up, mlx_value_t down) {
  mlx_builder_t *b = g->b;
  mlx_value_t sum = {0};
  for (int64_t i = 0; i < chosen->count; ++i) {
    mlx_value_t opened = through_one(b, "gate", x, gate, chosen->index[i]);  // [M, ffn]
    opened = mlx_plain_activate(g, "act", e->act, opened);
    mlx_value_t inner = through_one(b, "up", x, up, chosen->index[i]);
    inner = mlx_build_binary(b, "inner", "multiply", opened, inner);
    mlx_value_t given = through_one(b, "down", inner, down, chosen->index[i]);  // [M, hidden]
    mlx_value_t weights = mlx_build_broadcast(b, "weights", chosen->weight[i], (int64_t[]){0}, mlx_type_of(given));
    given = mlx_build_binary(b, "weighted", "multiply", given, weights);
    sum = sum.id ? mlx_build_binary(b, i + 1 == chosen->count ? name : "sum", "add", sum, given) : given;
  }
  return sum;
}

// ---------------------------------------------------------------------------------------------------------------------
// Many tokens

// [M, experts]: the weight of each expert, 0 for those not used
static mlx_value_t all_weights(mlx_builder_t *b, const chosen_t *chosen, mlx_type_t type) {
  mlx_value_t all = mlx_build_float(b, "no_weight", 0.0, type);
  for (int64_t i = 0; i < chosen->count; ++i) {
    mlx_value_t is_it = is_index(b, chosen->index[i], type);
    mlx_value_t weight = mlx_build_broadcast(b, "its_weight", chosen->weight[i], (int64_t[]){0}, type);
    all = mlx_build_select(b, "weights", is_it, weight, all);
  }
  return all;
}

static mlx_value_t use_all(mlx_graph_t *g, const char *name, const mlx_experts_t *e, const chosen_t *chosen, mlx_value_t x, mlx_type_t scores,
                           mlx_value_t gate, mlx_value_t up, mlx_value_t down) {
  mlx_builder_t *b = g->b;
  const mlx_dot_t over_hidden = {.left_contract = 2, .right_contract = 1}, over_ffn = {1, {0}, {0}, 2, 1};
  gate = mlx_build_convert(b, "gate_f32", gate, MLX_F32);
  up = mlx_build_convert(b, "up_f32", up, MLX_F32);
  down = mlx_build_convert(b, "down_f32", down, MLX_F32);
  mlx_value_t opened = mlx_build_dot(b, "gate", gate, x, over_hidden);  // [experts, ffn, M]
  opened = mlx_plain_activate(g, "act", e->act, opened);
  mlx_value_t inner = mlx_build_dot(b, "up", up, x, over_hidden);
  inner = mlx_build_binary(b, "inner", "multiply", opened, inner);
  mlx_value_t weights = all_weights(b, chosen, scores);                            // [M, experts]
  weights = mlx_build_broadcast(b, "weights_wide", weights, (int64_t[]){2, 0}, mlx_type_of(inner));
  inner = mlx_build_binary(b, "weighted", "multiply", inner, weights);
  mlx_value_t given = mlx_build_dot(b, "down", down, inner, over_ffn);             // [experts, hidden, M]
  given = mlx_build_transpose(b, "given_by_token", given, (int64_t[]){2, 1, 0});   // [M, hidden, experts]
  return mlx_build_reduce_last(b, name, "add", given);
}

mlx_value_t mlx_plain_experts(mlx_graph_t *g, const char *name, const mlx_experts_t *e, mlx_value_t x, mlx_value_t scores, mlx_value_t gate,
                              mlx_value_t up, mlx_value_t down) {
  chosen_t chosen;
  if (e->used < 1 || e->used > MAX_USED || e->used > scores.dims[1]) {
    mlx_builder_fail(g->b, mlx_error(MLX_UNSUPPORTED, "a token uses %lld of %lld experts; 1 to %d are possible", (long long)e->used,
                                     (long long)scores.dims[1], MAX_USED));
    return (mlx_value_t){0};
  }
  choose(g, e, scores, &chosen);
  if (x.dims[0] * e->used <= scores.dims[1]) return use_chosen(g, name, e, &chosen, x, gate, up, down);
  return use_all(g, name, e, &chosen, x, mlx_type_of(scores), gate, up, down);
}
