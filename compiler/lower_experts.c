// Mixture of experts as plain StableHLO. With few tokens, only the weights of the used experts are gathered
// and read. With many tokens, every expert is computed for every token, and unused experts get weight 0.
#include <math.h>

#include "compiler/lower_stablehlo.h"

#define MAX_USED 64

// The experts of each token, the best first.
typedef struct chosen {
  mlx_value_t index[MAX_USED];   // [M] i32
  mlx_value_t weight[MAX_USED];  // [M]
  int64_t count;
} chosen_t;

// Softmax over the last dimension of [M, n].
static mlx_value_t softmax(mlx_builder_t *b, mlx_value_t x) {
  const int64_t outer[] = {0};
  mlx_value_t peak = mlx_build_reduce_last(b, "max_score", "maximum", x);
  mlx_value_t peaks = mlx_build_broadcast(b, "max_scores", peak, outer, mlx_type_of(x));
  mlx_value_t below = mlx_build_binary(b, "minus_max", "subtract", x, peaks);
  mlx_value_t power = mlx_build_unary(b, "exp", "exponential", below);
  mlx_value_t sum = mlx_build_reduce_last(b, "exp_sum", "add", power);
  mlx_value_t sums = mlx_build_broadcast(b, "exp_sums", sum, outer, mlx_type_of(x));
  return mlx_build_binary(b, "probability", "divide", power, sums);
}

// [M, n] i1: true at column |index| [M] of each row
static mlx_value_t is_index(mlx_builder_t *b, mlx_value_t index, mlx_type_t type) {
  type.dtype = MLX_I32;
  mlx_value_t expert = mlx_build_iota(b, "expert", 1, type);
  mlx_value_t chosen_expert = mlx_build_broadcast(b, "chosen_expert", index, (int64_t[]){0}, type);
  return mlx_build_compare(b, "is_chosen", "EQ", expert, chosen_expert);
}

static void choose(mlx_function_t *g, const mlx_experts_t *e, mlx_value_t scores, chosen_t *out) {
  mlx_builder_t *b = g->b;
  const mlx_type_t type = mlx_type_of(scores);
  mlx_value_t probabilities = softmax(b, scores), remaining = scores, total = {0};
  mlx_value_t zero = mlx_build_float(b, "zero", 0.0, type);
  mlx_value_t lowest = mlx_build_float(b, "lowest", -INFINITY, type);
  for (out->count = 0; out->count < e->used; ++out->count) {
    mlx_value_t index = out->index[out->count] = mlx_build_argmax_last(b, "best", remaining);
    mlx_value_t is_chosen = is_index(b, index, type);
    mlx_value_t selected = mlx_build_select(b, "its_probability", is_chosen, probabilities, zero);
    mlx_value_t weight = out->weight[out->count] = mlx_build_reduce_last(b, "weight", "add", selected);
    remaining = mlx_build_select(b, "remaining_scores", is_chosen, lowest, remaining);
    total = total.id ? mlx_build_binary(b, "weight_sum", "add", total, weight) : weight;
  }
  for (int64_t i = 0; i < out->count && e->sum_to_one; ++i) {
    out->weight[i] = mlx_build_binary(b, "normalized_weight", "divide", out->weight[i], total);
  }
}

// act(gate) * up or, if there is a limit, the clamped variant of gpt-oss. |gate| and |up| have the same
// shape.
static mlx_value_t gated(mlx_function_t *g, const mlx_experts_t *e, mlx_value_t gate, mlx_value_t up) {
  mlx_builder_t *b = g->b;
  if (e->limit == 0.0) {
    gate = mlx_generic_activate(g, "act", e->act, gate);
    return mlx_build_binary(b, "inner", "multiply", gate, up);
  }
  mlx_value_t limit = mlx_build_float(b, "limit", e->limit, mlx_type_of(gate));
  mlx_value_t one = mlx_build_float(b, "one", 1.0, mlx_type_of(up));
  gate = mlx_build_binary(b, "clipped_gate", "minimum", gate, limit);
  up = mlx_generic_clip(g, "clipped_up", up, e->limit);
  mlx_value_t sigmoid = mlx_generic_scale(g, "sloped_gate", gate, e->slope);
  sigmoid = mlx_build_unary(b, "sigmoid", "logistic", sigmoid);
  gate = mlx_build_binary(b, "gated", "multiply", gate, sigmoid);
  up = mlx_build_binary(b, "up_plus_one", "add", up, one);
  return mlx_build_binary(b, "inner", "multiply", up, gate);
}

// ----------------------------------------------------------------------------------------------------------
// Few tokens

// Gathers the entry of |all| [experts, ...] for each token's expert, as f32 [M, ...].
static mlx_value_t gather_expert(mlx_builder_t *b, mlx_value_t all, mlx_value_t index) {
  mlx_value_t column = mlx_build_reshape(b, "expert_column", index, MLX_TYPE(MLX_I32, index.dims[0], 1));
  mlx_value_t gathered = mlx_build_gather(b, "expert_weights", all, column);
  return mlx_build_convert(b, "expert_weights_f32", gathered, MLX_F32);
}

// Product of each token x [M, columns] with the weights of its expert, plus bias -> [M, rows].
static mlx_value_t multiply_gathered(mlx_builder_t *b, const char *name, mlx_value_t x, mlx_value_t weights,
                                     mlx_value_t bias, mlx_value_t index) {
  const mlx_dot_t over_columns = {1, {0}, {0}, 2, 1};
  mlx_value_t product =
      mlx_build_dot(b, bias.id ? "unbiased" : name, gather_expert(b, weights, index), x, over_columns);
  return bias.id ? mlx_build_binary(b, name, "add", product, gather_expert(b, bias, index)) : product;
}

static mlx_value_t compute_chosen(mlx_function_t *g, const char *name, const mlx_experts_t *e,
                                  const chosen_t *chosen, mlx_value_t x, mlx_value_t gate, mlx_value_t up,
                                  mlx_value_t down) {
  mlx_builder_t *b = g->b;
  mlx_value_t sum = {0};
  for (int64_t i = 0; i < chosen->count; ++i) {
    mlx_value_t gate_out = multiply_gathered(b, "gate", x, gate, e->gate_bias, chosen->index[i]);  // [M, ffn]
    mlx_value_t up_out = multiply_gathered(b, "up", x, up, e->up_bias, chosen->index[i]);
    mlx_value_t inner = gated(g, e, gate_out, up_out);
    mlx_value_t output =
        multiply_gathered(b, "down", inner, down, e->down_bias, chosen->index[i]);  // [M, hidden]
    mlx_value_t weights =
        mlx_build_broadcast(b, "weights", chosen->weight[i], (int64_t[]){0}, mlx_type_of(output));
    output = mlx_build_binary(b, "weighted", "multiply", output, weights);
    sum = sum.id ? mlx_build_binary(b, i + 1 == chosen->count ? name : "sum", "add", sum, output) : output;
  }
  return sum;
}

// ----------------------------------------------------------------------------------------------------------
// Many tokens

// [M, experts]: the weight of each expert, 0 for unused ones
static mlx_value_t all_weights(mlx_builder_t *b, const chosen_t *chosen, mlx_type_t type) {
  mlx_value_t all = mlx_build_float(b, "no_weight", 0.0, type);
  for (int64_t i = 0; i < chosen->count; ++i) {
    mlx_value_t is_chosen = is_index(b, chosen->index[i], type);
    mlx_value_t weight = mlx_build_broadcast(b, "its_weight", chosen->weight[i], (int64_t[]){0}, type);
    all = mlx_build_select(b, "weights", is_chosen, weight, all);
  }
  return all;
}

// Product of all experts: weights [experts, rows, columns] times x [M, columns], plus bias [experts, rows] ->
// [experts, rows, M].
static mlx_value_t multiply_all(mlx_builder_t *b, const char *name, mlx_value_t x, mlx_value_t weights,
                                mlx_value_t bias) {
  const mlx_dot_t over_columns = {.left_contract = 2, .right_contract = 1};
  weights = mlx_build_convert(b, "all_f32", weights, MLX_F32);
  mlx_value_t product = mlx_build_dot(b, bias.id ? "unbiased" : name, weights, x, over_columns);
  if (!bias.id) return product;
  bias = mlx_build_convert(b, "bias_f32", bias, MLX_F32);
  mlx_value_t biases = mlx_build_broadcast(b, "bias", bias, (int64_t[]){0, 1}, mlx_type_of(product));
  return mlx_build_binary(b, name, "add", product, biases);
}

static mlx_value_t compute_all(mlx_function_t *g, const char *name, const mlx_experts_t *e,
                               const chosen_t *chosen, mlx_value_t x, mlx_type_t scores, mlx_value_t gate,
                               mlx_value_t up, mlx_value_t down) {
  mlx_builder_t *b = g->b;
  const mlx_dot_t over_ffn = {1, {0}, {0}, 2, 1}, over_experts = {.left_contract = 1, .right_contract = 0};
  mlx_value_t gate_out = multiply_all(b, "gate", x, gate, e->gate_bias);  // [experts, ffn, M]
  mlx_value_t up_out = multiply_all(b, "up", x, up, e->up_bias);
  mlx_value_t inner = gated(g, e, gate_out, up_out);
  mlx_value_t weights = all_weights(b, chosen, scores);  // [M, experts]
  mlx_value_t weight_of_inner =
      mlx_build_broadcast(b, "weights_wide", weights, (int64_t[]){2, 0}, mlx_type_of(inner));
  inner = mlx_build_binary(b, "weighted", "multiply", inner, weight_of_inner);
  down = mlx_build_convert(b, "down_f32", down, MLX_F32);
  mlx_value_t output = mlx_build_dot(b, "down", down, inner, over_ffn);              // [experts, hidden, M]
  output = mlx_build_transpose(b, "output_by_token", output, (int64_t[]){2, 1, 0});  // [M, hidden, experts]
  mlx_value_t sum = mlx_build_reduce_last(b, e->down_bias.id ? "unbiased_sum" : name, "add", output);
  if (!e->down_bias.id) return sum;
  mlx_value_t bias = mlx_build_convert(b, "down_bias", e->down_bias, MLX_F32);  // [experts, hidden]
  bias = mlx_build_dot(b, "bias_by_token", weights, bias, over_experts);        // [M, hidden]
  return mlx_build_binary(b, name, "add", sum, bias);
}

mlx_value_t mlx_generic_experts(mlx_function_t *g, const char *name, const mlx_experts_t *e, mlx_value_t x,
                                mlx_value_t scores, mlx_value_t gate, mlx_value_t up, mlx_value_t down) {
  chosen_t chosen;
  if (e->used < 1 || e->used > MAX_USED || e->used > scores.dims[1]) {
    mlx_builder_fail(g->b, mlx_error(MLX_UNSUPPORTED,
                                     "the model uses %lld of %lld experts per token; 1 to %d are supported",
                                     (long long)e->used, (long long)scores.dims[1], MAX_USED));
    return (mlx_value_t){0};
  }
  choose(g, e, scores, &chosen);
  if (x.dims[0] * e->used <= scores.dims[1]) return compute_chosen(g, name, e, &chosen, x, gate, up, down);
  return compute_all(g, name, e, &chosen, x, mlx_type_of(scores), gate, up, down);
}
