// Mixture of experts as plain StableHLO. With few tokens, only the weights of the used experts are gathered
// and read. With many tokens, every expert is computed for every token, and unused experts get weight 0.
#include <math.h>

#include "compiler/lower_stablehlo.h"

#define MAX_USED 64

// The experts of each token, the best first.
typedef struct chosen {
  mlx_built_t index[MAX_USED];   // [M] i32
  mlx_built_t weight[MAX_USED];  // [M]
  int64_t count;
} chosen_t;

// Softmax over the last dimension of [M, n].
static mlx_built_t softmax(mlx_builder_t *b, mlx_built_t x) {
  const int64_t outer[] = {0};
  mlx_built_t peak = mlx_build_reduce_last(b, "max_score", "maximum", x);
  mlx_built_t peaks = mlx_build_broadcast(b, "max_scores", peak, outer, mlx_type_of(x));
  mlx_built_t below = mlx_build_binary(b, "minus_max", "subtract", x, peaks);
  mlx_built_t power = mlx_build_unary(b, "exp", "exponential", below);
  mlx_built_t sum = mlx_build_reduce_last(b, "exp_sum", "add", power);
  mlx_built_t sums = mlx_build_broadcast(b, "exp_sums", sum, outer, mlx_type_of(x));
  return mlx_build_binary(b, "probability", "divide", power, sums);
}

// [M, n] i1: true at column |index| [M] of each row
static mlx_built_t is_index(mlx_builder_t *b, mlx_built_t index, mlx_type_t type) {
  type.dtype = MLX_I32;
  mlx_built_t expert = mlx_build_iota(b, "expert", 1, type);
  mlx_built_t chosen_expert = mlx_build_broadcast(b, "chosen_expert", index, (int64_t[]){0}, type);
  return mlx_build_compare(b, "is_chosen", "EQ", expert, chosen_expert);
}

// Divides the weights by |total|, their sum, and scales them, if |e| asks for it.
static void normalize(mlx_builder_t *b, const mlx_experts_t *e, mlx_built_t total, chosen_t *out) {
  const mlx_type_t type = mlx_type_of(total);
  if (e->sum_to_one && e->sum_eps != 0.0)
    total = mlx_build_binary(b, "weight_sum_eps", "add", total, mlx_build_float(b, "eps", e->sum_eps, type));
  for (int64_t i = 0; i < out->count && e->sum_to_one; ++i)
    out->weight[i] = mlx_build_binary(b, "normalized_weight", "divide", out->weight[i], total);
  if (e->weight_scale == 0.0 || e->weight_scale == 1.0) return;
  mlx_built_t scale = mlx_build_float(b, "weight_scale", e->weight_scale, type);
  for (int64_t i = 0; i < out->count; ++i)
    out->weight[i] = mlx_build_binary(b, "scaled_weight", "multiply", out->weight[i], scale);
}

// |choice| [M, experts], lowered to -infinity except in the groups that a token uses.
static mlx_built_t keep_groups(mlx_builder_t *b, const mlx_experts_t *e, mlx_built_t choice) {
  const int64_t tokens = choice.dims[0], size = choice.dims[1] / e->groups;
  const mlx_type_t by_group = MLX_TYPE(MLX_F32, tokens * e->groups, size),
                   groups = MLX_TYPE(MLX_F32, tokens, e->groups);
  mlx_built_t members = mlx_build_reshape(b, "choice_by_group", choice, by_group);
  mlx_built_t first = mlx_build_reduce_last(b, "first", "maximum", members);
  mlx_built_t is_first = is_index(b, mlx_build_argmax_last(b, "first_of_group", members), by_group);
  mlx_built_t others =
      mlx_build_select(b, "others", is_first, mlx_build_float(b, "lowest", -INFINITY, by_group), members);
  mlx_built_t second = mlx_build_reduce_last(b, "second", "maximum", others);
  mlx_built_t sums = e->groups_by_best ? first : mlx_build_binary(b, "sum", "add", first, second);
  sums = mlx_build_reshape(b, "group_sums", sums, groups);
  mlx_built_t zero = mlx_build_float(b, "zero", 0.0, groups),
              lowest = mlx_build_float(b, "lowest", -INFINITY, groups), offsets = lowest;
  for (int64_t i = 0; i < e->groups_used; ++i) {
    mlx_built_t is_best = is_index(b, mlx_build_argmax_last(b, "best_group", sums), groups);
    offsets = mlx_build_select(b, "group_offsets", is_best, zero, offsets);
    sums = mlx_build_select(b, "remaining_groups", is_best, lowest, sums);
  }
  offsets = mlx_build_reshape(b, "offsets", offsets, MLX_TYPE(MLX_F32, tokens * e->groups));
  offsets = mlx_build_broadcast(b, "member_offsets", offsets, (int64_t[]){0}, by_group);
  members = mlx_build_binary(b, "kept", "add", members, offsets);
  return mlx_build_reshape(b, "choice_of_groups", members, mlx_type_of(choice));
}

// Multiplies the weights by the factors [experts] of their experts. |type|: [M, experts].
static void multiply_factors(mlx_builder_t *b, mlx_built_t factors, mlx_type_t type, chosen_t *out) {
  factors = mlx_build_convert(b, "factors_f32", factors, MLX_F32);
  factors = mlx_build_broadcast(b, "expert_factors", factors, (int64_t[]){1}, type);
  mlx_built_t zero = mlx_build_float(b, "zero", 0.0, type);
  for (int64_t i = 0; i < out->count; ++i) {
    mlx_built_t own = mlx_build_select(b, "its_factor", is_index(b, out->index[i], type), factors, zero);
    mlx_built_t factor = mlx_build_reduce_last(b, "factor", "add", own);
    out->weight[i] = mlx_build_binary(b, "weight_of_expert", "multiply", out->weight[i], factor);
  }
}

// The weight of the best expert of |remaining| among those near it; see mlx_experts_t.
static mlx_built_t weight_among_near(mlx_builder_t *b, mlx_built_t remaining, mlx_built_t scores,
                                     double spread) {
  const mlx_type_t type = mlx_type_of(scores);
  const mlx_built_t peak = mlx_build_reduce_last(b, "best_score", "maximum", remaining);
  const mlx_built_t peaks = mlx_build_broadcast(b, "best_scores", peak, (int64_t[]){0}, type);
  const mlx_built_t below = mlx_build_binary(b, "minus_best", "subtract", remaining, peaks);
  mlx_built_t most = mlx_build_unary(b, "sizes", "abs", scores);
  most = mlx_build_binary(b, "sizes_or_best", "maximum", most, peaks);
  const mlx_built_t distance = mlx_build_binary(b, "distance", "divide", below, most);
  const mlx_built_t limit = mlx_build_float(b, "spread", -spread, type);
  const mlx_built_t near = mlx_build_compare(b, "is_near", "GE", distance, limit);
  mlx_built_t power = mlx_build_unary(b, "exp", "exponential", below);
  const mlx_built_t zero = mlx_build_float(b, "zero", 0.0, type);
  power = mlx_build_select(b, "near_exp", near, power, zero);
  const mlx_built_t sum = mlx_build_reduce_last(b, "near_sum", "add", power);
  const mlx_built_t one = mlx_build_float(b, "one", 1.0, mlx_type_of(sum));
  return mlx_build_binary(b, "weight", "divide", one, sum);
}

static void choose(mlx_function_t *g, const mlx_experts_t *e, const mlx_expert_weights_t *w,
                   mlx_built_t scores, chosen_t *out) {
  mlx_builder_t *b = g->b;
  const mlx_type_t type = mlx_type_of(scores);
  mlx_built_t probabilities =
      e->sigmoid ? mlx_build_unary(b, "probability", "logistic", scores) : softmax(b, scores);
  mlx_built_t remaining = e->groups > 1 ? probabilities : scores, total = {0};
  if (w->choice_bias.id) {
    mlx_built_t bias = mlx_build_convert(b, "choice_bias_f32", w->choice_bias, MLX_F32);
    bias = mlx_build_broadcast(b, "choice_biases", bias, (int64_t[]){1}, type);
    remaining = mlx_build_binary(b, "choice", "add", probabilities, bias);
  }
  if (e->groups > 1) remaining = keep_groups(b, e, remaining);
  mlx_built_t zero = mlx_build_float(b, "zero", 0.0, type);
  mlx_built_t lowest = mlx_build_float(b, "lowest", -INFINITY, type);
  for (out->count = 0; out->count < e->used; ++out->count) {
    mlx_built_t index = out->index[out->count] = mlx_build_argmax_last(b, "best", remaining);
    mlx_built_t is_chosen = is_index(b, index, type);
    mlx_built_t selected = mlx_build_select(b, "its_probability", is_chosen, probabilities, zero);
    mlx_built_t weight = out->weight[out->count] = e->spread != 0.0
                                                       ? weight_among_near(b, remaining, scores, e->spread)
                                                       : mlx_build_reduce_last(b, "weight", "add", selected);
    remaining = mlx_build_select(b, "remaining_scores", is_chosen, lowest, remaining);
    total = total.id ? mlx_build_binary(b, "weight_sum", "add", total, weight) : weight;
  }
  normalize(b, e, total, out);
  if (w->factors.id) multiply_factors(b, w->factors, type, out);
}

// act(gate) * up or, if there is a limit, the clamped variant of gpt-oss. |gate| and |up| have the same
// shape; without |up| act(gate).
static mlx_built_t gated(mlx_function_t *g, const mlx_experts_t *e, mlx_built_t gate, mlx_built_t up) {
  mlx_builder_t *b = g->b;
  if (e->limit == 0.0) {
    gate = mlx_generic_activate(g, "act", e->act, NULL, gate);
    return up.id ? mlx_build_binary(b, "inner", "multiply", gate, up) : gate;
  }
  mlx_built_t limit = mlx_build_float(b, "limit", e->limit, mlx_type_of(gate));
  mlx_built_t one = mlx_build_float(b, "one", 1.0, mlx_type_of(up));
  gate = mlx_build_binary(b, "clipped_gate", "minimum", gate, limit);
  up = mlx_generic_clip(g, "clipped_up", up, e->limit);
  mlx_built_t sigmoid = mlx_generic_scale(g, "sloped_gate", gate, e->slope);
  sigmoid = mlx_build_unary(b, "sigmoid", "logistic", sigmoid);
  gate = mlx_build_binary(b, "gated", "multiply", gate, sigmoid);
  up = mlx_build_binary(b, "up_plus_one", "add", up, one);
  return mlx_build_binary(b, "inner", "multiply", up, gate);
}

// ----------------------------------------------------------------------------------------------------------
// Few tokens

// Gathers the entry of |all| [experts, ...] for each token's expert, as f32 [M, ...].
static mlx_built_t gather_expert(mlx_builder_t *b, mlx_built_t all, mlx_built_t index) {
  mlx_built_t column = mlx_build_reshape(b, "expert_column", index, MLX_TYPE(MLX_I32, index.dims[0], 1));
  mlx_built_t gathered = mlx_build_gather(b, "expert_weights", all, column);
  return mlx_build_convert(b, "expert_weights_f32", gathered, MLX_F32);
}

// Product of each token x [M, columns] with the weights of its expert, plus bias -> [M, rows].
static mlx_built_t multiply_gathered(mlx_builder_t *b, const char *name, mlx_built_t x, mlx_built_t weights,
                                     mlx_built_t bias, mlx_built_t index) {
  const mlx_dot_t over_columns = {1, {0}, {0}, 2, 1};
  mlx_built_t product =
      mlx_build_dot(b, bias.id ? "unbiased" : name, gather_expert(b, weights, index), x, over_columns);
  return bias.id ? mlx_build_binary(b, name, "add", product, gather_expert(b, bias, index)) : product;
}

static mlx_built_t compute_chosen(mlx_function_t *g, const char *name, const mlx_experts_t *e,
                                  const mlx_expert_weights_t *w, const chosen_t *chosen, mlx_built_t x) {
  mlx_builder_t *b = g->b;
  mlx_built_t sum = {0};
  for (int64_t i = 0; i < chosen->count; ++i) {
    mlx_built_t gate_out =
        multiply_gathered(b, "gate", x, w->gate, w->gate_bias, chosen->index[i]);  // [M, ffn]
    mlx_built_t up_out = MLX_NO_VALUE;
    if (w->up.id) up_out = multiply_gathered(b, "up", x, w->up, w->up_bias, chosen->index[i]);
    mlx_built_t inner = gated(g, e, gate_out, up_out);
    mlx_built_t output =
        multiply_gathered(b, "down", inner, w->down, w->down_bias, chosen->index[i]);  // [M, hidden]
    mlx_built_t weights =
        mlx_build_broadcast(b, "weights", chosen->weight[i], (int64_t[]){0}, mlx_type_of(output));
    output = mlx_build_binary(b, "weighted", "multiply", output, weights);
    sum = sum.id ? mlx_build_binary(b, i + 1 == chosen->count ? name : "sum", "add", sum, output) : output;
  }
  return sum;
}

// ----------------------------------------------------------------------------------------------------------
// Many tokens

// [M, experts]: the weight of each expert, 0 for unused ones
static mlx_built_t all_weights(mlx_builder_t *b, const chosen_t *chosen, mlx_type_t type) {
  mlx_built_t all = mlx_build_float(b, "no_weight", 0.0, type);
  for (int64_t i = 0; i < chosen->count; ++i) {
    mlx_built_t is_chosen = is_index(b, chosen->index[i], type);
    mlx_built_t weight = mlx_build_broadcast(b, "its_weight", chosen->weight[i], (int64_t[]){0}, type);
    all = mlx_build_select(b, "weights", is_chosen, weight, all);
  }
  return all;
}

// Product of all experts: weights [experts, rows, columns] times x [M, columns], plus bias [experts, rows] ->
// [experts, rows, M].
static mlx_built_t multiply_all(mlx_builder_t *b, const char *name, mlx_built_t x, mlx_built_t weights,
                                mlx_built_t bias) {
  const mlx_dot_t over_columns = {.left_contract = 2, .right_contract = 1};
  weights = mlx_build_convert(b, "all_f32", weights, MLX_F32);
  mlx_built_t product = mlx_build_dot(b, bias.id ? "unbiased" : name, weights, x, over_columns);
  if (!bias.id) return product;
  bias = mlx_build_convert(b, "bias_f32", bias, MLX_F32);
  mlx_built_t biases = mlx_build_broadcast(b, "bias", bias, (int64_t[]){0, 1}, mlx_type_of(product));
  return mlx_build_binary(b, name, "add", product, biases);
}

static mlx_built_t compute_all(mlx_function_t *g, const char *name, const mlx_experts_t *e,
                               const mlx_expert_weights_t *w, const chosen_t *chosen, mlx_built_t x,
                               mlx_type_t scores) {
  mlx_builder_t *b = g->b;
  const mlx_dot_t over_ffn = {1, {0}, {0}, 2, 1}, over_experts = {.left_contract = 1, .right_contract = 0};
  mlx_built_t gate_out = multiply_all(b, "gate", x, w->gate, w->gate_bias);  // [experts, ffn, M]
  const mlx_built_t up_out = w->up.id ? multiply_all(b, "up", x, w->up, w->up_bias) : MLX_NO_VALUE;
  mlx_built_t inner = gated(g, e, gate_out, up_out);
  mlx_built_t weights = all_weights(b, chosen, scores);  // [M, experts]
  mlx_built_t weight_of_inner =
      mlx_build_broadcast(b, "weights_wide", weights, (int64_t[]){2, 0}, mlx_type_of(inner));
  inner = mlx_build_binary(b, "weighted", "multiply", inner, weight_of_inner);
  const mlx_built_t down = mlx_build_convert(b, "down_f32", w->down, MLX_F32);
  mlx_built_t output = mlx_build_dot(b, "down", down, inner, over_ffn);              // [experts, hidden, M]
  output = mlx_build_transpose(b, "output_by_token", output, (int64_t[]){2, 1, 0});  // [M, hidden, experts]
  mlx_built_t sum = mlx_build_reduce_last(b, w->down_bias.id ? "unbiased_sum" : name, "add", output);
  if (!w->down_bias.id) return sum;
  mlx_built_t bias = mlx_build_convert(b, "down_bias", w->down_bias, MLX_F32);  // [experts, hidden]
  bias = mlx_build_dot(b, "bias_by_token", weights, bias, over_experts);        // [M, hidden]
  return mlx_build_binary(b, name, "add", sum, bias);
}

mlx_built_t mlx_generic_experts(mlx_function_t *g, const char *name, const mlx_experts_t *e,
                                const mlx_expert_weights_t *weights, mlx_built_t x, mlx_built_t scores) {
  chosen_t chosen;
  if (e->used < 1 || e->used > MAX_USED || e->used > scores.dims[1]) {
    mlx_builder_fail(g->b, mlx_error(MLX_UNSUPPORTED,
                                     "the model uses %lld of %lld experts per token; 1 to %d are supported",
                                     (long long)e->used, (long long)scores.dims[1], MAX_USED));
    return (mlx_built_t){0};
  }
  choose(g, e, weights, scores, &chosen);
  if (x.dims[0] * e->used <= scores.dims[1]) return compute_chosen(g, name, e, weights, &chosen, x);
  return compute_all(g, name, e, weights, &chosen, x, mlx_type_of(scores));
}
