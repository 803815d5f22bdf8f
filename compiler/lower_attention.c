// RoPE and attention as plain StableHLO.
#include <math.h>

#include "compiler/lower_stablehlo.h"

// ----------------------------------------------------------------------------------------------------------
// RoPE

// Range reduction: |angle| modulo 2 pi. IREE's sine and cosine lose accuracy for large arguments (5e-5 at
// position 2000). 2 pi is split into three parts with few bits, so that their products with the number of
// rotations are exact. The sum of the parts is off by 7e-15.
static mlx_value_t reduce_angle(mlx_builder_t *b, mlx_value_t angle) {
  static const double parts[] = {6.28125, 0.0019350051879882812, 3.019916050561733e-07};
  mlx_value_t per_radian =
      mlx_build_float(b, "rotations_per_radian", 0.15915494309189535, mlx_type_of(angle));
  mlx_value_t rotations = mlx_build_binary(b, "rotations", "multiply", angle, per_radian);
  rotations = mlx_build_unary(b, "whole_rotations", "round_nearest_even", rotations);
  for (size_t i = 0; i < sizeof parts / sizeof *parts; ++i) {
    mlx_value_t part = mlx_build_float(b, "two_pi_part", parts[i], mlx_type_of(angle));
    mlx_value_t product = mlx_build_binary(b, "rotation_part", "multiply", rotations, part);
    angle = mlx_build_binary(b, "reduced_angle", "subtract", angle, product);
  }
  return angle;
}

static mlx_rope_table_t make_rope_table(mlx_function_t *g, const mlx_rope_t *rope) {
  mlx_builder_t *b = g->b;
  const int64_t half = rope->dims / 2, m = g->positions.dims[0];
  const mlx_type_t full = MLX_TYPE(MLX_F32, m, half);
  mlx_value_t frequency = mlx_build_floats(b, "rope_frequency", rope->frequencies, half);
  mlx_value_t position = mlx_build_convert(b, "position_f32", g->positions, MLX_F32);
  mlx_value_t positions = mlx_build_broadcast(b, "rope_position", position, (int64_t[]){0}, full);
  mlx_value_t frequencies = mlx_build_broadcast(b, "rope_frequencies", frequency, (int64_t[]){1}, full);
  mlx_value_t angle = mlx_build_binary(b, "rope_angle", "multiply", positions, frequencies);
  angle = reduce_angle(b, angle);
  mlx_rope_table_t table = {.rope = rope};
  table.cos = mlx_build_unary(b, "rope_cos", "cosine", angle);
  table.sin = mlx_build_unary(b, "rope_sin", "sine", angle);
  if (rope->scale != 1.0) {
    table.cos = mlx_generic_scale(g, "rope_cos_scaled", table.cos, rope->scale);
    table.sin = mlx_generic_scale(g, "rope_sin_scaled", table.sin, rope->scale);
  }
  return table;
}

const mlx_rope_table_t *mlx_rope_table(mlx_function_t *g, const mlx_rope_t *rope) {
  for (size_t i = 0; i < g->rope_count; ++i) {
    if (mlx_rope_equal(g->ropes[i].rope, rope)) return &g->ropes[i];
  }
  if (g->rope_count == MLX_MAX_ROPES) {
    mlx_builder_fail(g->b,
                     mlx_error(MLX_INTERNAL, "the model uses more than %d kinds of RoPE", MLX_MAX_ROPES));
    return &g->ropes[0];
  }
  g->ropes[g->rope_count] = make_rope_table(g, rope);
  return &g->ropes[g->rope_count++];
}

// Element |nth| (0 or 1) of each pair that RoPE rotates: x [M, heads, dims] -> [M, heads, dims / 2]
static mlx_value_t pair_part(mlx_builder_t *b, const char *name, mlx_value_t x, bool adjacent, int64_t nth) {
  const int64_t half = x.dims[2] / 2;
  if (!adjacent) return mlx_build_slice_last(b, name, x, nth * half, (nth + 1) * half);
  mlx_value_t pairs = mlx_build_reshape(b, "pairs", x, MLX_TYPE(MLX_F32, x.dims[0], x.dims[1], half, 2));
  mlx_value_t part = mlx_build_slice_last(b, "pair_part", pairs, nth, nth + 1);
  return mlx_build_reshape(b, name, part, MLX_TYPE(MLX_F32, x.dims[0], x.dims[1], half));
}

static mlx_value_t join_pairs(mlx_builder_t *b, mlx_value_t low, mlx_value_t high, bool adjacent) {
  if (!adjacent) return mlx_build_concat_last(b, "rotated", low, high);
  const int64_t m = low.dims[0], heads = low.dims[1], half = low.dims[2];
  low = mlx_build_reshape(b, "low_column", low, MLX_TYPE(MLX_F32, m, heads, half, 1));
  high = mlx_build_reshape(b, "high_column", high, MLX_TYPE(MLX_F32, m, heads, half, 1));
  mlx_value_t pairs = mlx_build_concat_last(b, "rotated_pairs", low, high);
  return mlx_build_reshape(b, "rotated", pairs, MLX_TYPE(MLX_F32, m, heads, 2 * half));
}

mlx_value_t mlx_generic_rope(mlx_function_t *g, const char *name, mlx_value_t x, int64_t head_dim,
                             const mlx_rope_t *rope) {
  mlx_builder_t *b = g->b;
  const int64_t m = x.dims[0], heads = x.dims[1] / head_dim, dims = rope->dims;
  const mlx_type_t part = MLX_TYPE(MLX_F32, m, heads, dims / 2);
  const mlx_rope_table_t *table = mlx_rope_table(g, rope);
  mlx_value_t whole = mlx_build_reshape(b, "by_head", x, MLX_TYPE(MLX_F32, m, heads, head_dim));
  mlx_value_t split = dims < head_dim ? mlx_build_slice_last(b, "to_rotate", whole, 0, dims) : whole;
  mlx_value_t low = pair_part(b, "low", split, rope->adjacent, 0);
  mlx_value_t high = pair_part(b, "high", split, rope->adjacent, 1);
  mlx_value_t cos = mlx_build_broadcast(b, "cos", table->cos, (int64_t[]){0, 2}, part);
  mlx_value_t sin = mlx_build_broadcast(b, "sin", table->sin, (int64_t[]){0, 2}, part);
  mlx_value_t low_cos = mlx_build_binary(b, "low_cos", "multiply", low, cos);
  mlx_value_t high_sin = mlx_build_binary(b, "high_sin", "multiply", high, sin);
  mlx_value_t new_low = mlx_build_binary(b, "new_low", "subtract", low_cos, high_sin);
  mlx_value_t high_cos = mlx_build_binary(b, "high_cos", "multiply", high, cos);
  mlx_value_t low_sin = mlx_build_binary(b, "low_sin", "multiply", low, sin);
  mlx_value_t new_high = mlx_build_binary(b, "new_high", "add", high_cos, low_sin);
  mlx_value_t rotated = join_pairs(b, new_low, new_high, rope->adjacent);
  if (dims < head_dim) {
    mlx_value_t rest = mlx_build_slice_last(b, "not_rotated", whole, dims, head_dim);
    rotated = mlx_build_concat_last(b, "rotated_and_rest", rotated, rest);
  }
  return mlx_build_reshape(b, name, rotated, MLX_TYPE(MLX_F32, m, heads * head_dim));
}

// ----------------------------------------------------------------------------------------------------------
// Attention

// Writes |x| [M, kv_heads * head_dim] to this layer's KV pool and returns all positions of each sequence:
// [sequences, context, kv_heads, head_dim].
static mlx_value_t update_cache(mlx_function_t *g, const mlx_attention_t *a, const char *cache,
                                const char *name, mlx_value_t x) {
  mlx_builder_t *b = g->b;
  const int64_t sequences = g->options->sequences, pages = mlx_module_sequence_pages(g->options);
  mlx_value_t by_head =
      mlx_build_reshape(b, "by_head", x, MLX_TYPE(MLX_F32, x.dims[0], a->kv_heads, a->head_dim));
  mlx_value_t stored = mlx_build_convert(b, "as_stored", by_head, g->options->kv);
  mlx_value_t old_pool = mlx_builder_load(b, cache);
  mlx_value_t pool = mlx_build_scatter(b, "pool", old_pool, g->slots, stored);
  mlx_builder_store(b, cache, pool);
  mlx_value_t index = mlx_build_reshape(b, "page_index", g->pages, MLX_TYPE(MLX_I32, sequences, pages, 1));
  mlx_value_t paged = mlx_build_gather(b, "paged", pool, index);  // [sequences, P, page, kv_heads, head_dim]
  paged = mlx_build_convert(b, "paged_f32", paged, MLX_F32);
  return mlx_build_reshape(
      b, name, paged,
      MLX_TYPE(MLX_F32, sequences, mlx_module_sequence_positions(g->options), a->kv_heads, a->head_dim));
}

// The mask: positions after the query and, with a sliding window, positions before the window.
static mlx_value_t hidden_positions(mlx_function_t *g, const mlx_attention_t *a) {
  mlx_builder_t *b = g->b;
  if (!a->window || a->window >= g->options->context) return g->hidden_from_query;
  const mlx_type_t mask =
      MLX_TYPE(MLX_I32, g->options->sequences, g->tokens, mlx_module_sequence_positions(g->options));
  mlx_value_t key = mlx_build_iota(b, "key_position", 2, mask);
  mlx_value_t position = mlx_build_reshape(b, "position_by_sequence", g->positions,
                                           MLX_TYPE(MLX_I32, g->options->sequences, g->tokens));
  mlx_value_t query = mlx_build_broadcast(b, "query_position", position, (int64_t[]){0, 1}, mask);
  mlx_value_t width = mlx_build_int(b, "window", a->window, mask);
  mlx_value_t last_before_window = mlx_build_binary(b, "last_before_window", "subtract", query, width);
  mlx_value_t before_window = mlx_build_compare(b, "before_window", "LE", key, last_before_window);
  return mlx_build_binary(b, "is_masked", "or", g->hidden_from_query, before_window);
}

// The attention sink as one more score per query: [sequences, kv_heads, T, group]
static mlx_value_t sink_scores(mlx_function_t *g, const mlx_attention_t *a, mlx_value_t like) {
  mlx_value_t by_group = mlx_build_reshape(g->b, "sinks_by_group", a->sinks,
                                           MLX_TYPE(MLX_F32, a->kv_heads, a->heads / a->kv_heads));
  return mlx_build_broadcast(g->b, "sink", by_group, (int64_t[]){1, 3}, mlx_type_of(like));
}

// Softmax over the last dimension of [sequences, kv_heads, T, group, context]. A sink adds to the sum, but
// has no value.
static mlx_value_t softmax(mlx_function_t *g, const mlx_attention_t *a, mlx_value_t scores) {
  mlx_builder_t *b = g->b;
  const int64_t outer[] = {0, 1, 2, 3};
  mlx_value_t peak = mlx_build_reduce_last(b, "max_score", "maximum", scores), sink = {0};
  if (a->sinks.id) {
    sink = sink_scores(g, a, peak);
    peak = mlx_build_binary(b, "max_with_sink", "maximum", peak, sink);
  }
  mlx_value_t peaks = mlx_build_broadcast(b, "max_scores", peak, outer, mlx_type_of(scores));
  mlx_value_t below_peak = mlx_build_binary(b, "minus_max", "subtract", scores, peaks);
  mlx_value_t power = mlx_build_unary(b, "exp", "exponential", below_peak);
  mlx_value_t sum = mlx_build_reduce_last(b, "exp_sum", "add", power);
  if (a->sinks.id) {
    mlx_value_t sink_below = mlx_build_binary(b, "sink_minus_max", "subtract", sink, peak);
    mlx_value_t sink_power = mlx_build_unary(b, "sink_exp", "exponential", sink_below);
    sum = mlx_build_binary(b, "sum_with_sink", "add", sum, sink_power);
  }
  mlx_value_t sums = mlx_build_broadcast(b, "exp_sums", sum, outer, mlx_type_of(scores));
  return mlx_build_binary(b, "weights", "divide", power, sums);
}

mlx_value_t mlx_generic_attention(mlx_function_t *g, const mlx_attention_t *a, mlx_value_t q, mlx_value_t k,
                                  mlx_value_t v) {
  mlx_builder_t *b = g->b;
  const int64_t sequences = g->options->sequences, t = g->tokens,
                context = mlx_module_sequence_positions(g->options), group = a->heads / a->kv_heads;
  mlx_value_t keys = update_cache(g, a, g->kv_names[2 * a->layer], "keys", k);
  mlx_value_t values = update_cache(g, a, g->kv_names[2 * a->layer + 1], "values", v);

  mlx_value_t query =
      mlx_build_reshape(b, "query", q, MLX_TYPE(MLX_F32, sequences, t, a->kv_heads, group, a->head_dim));
  mlx_value_t scale = mlx_build_float(b, "scale", a->scale, mlx_type_of(query));
  query = mlx_build_binary(b, "scaled_query", "multiply", query, scale);
  const mlx_dot_t over_head = {2, {0, 2}, {0, 2}, 4, 3};
  mlx_value_t scores =
      mlx_build_dot(b, "scores", query, keys, over_head);  // [sequences, kv_heads, T, group, context]
  if (a->softcap != 0.0) scores = mlx_generic_softcap(g, "capped_scores", scores, a->softcap);
  mlx_value_t mask = hidden_positions(g, a);
  mlx_value_t masked = mlx_build_broadcast(b, "mask", mask, (int64_t[]){0, 2, 4},
                                           MLX_TYPE(MLX_I1, sequences, a->kv_heads, t, group, context));
  mlx_value_t minus_infinity = mlx_build_float(b, "minus_infinity", -INFINITY, mlx_type_of(scores));
  mlx_value_t masked_scores = mlx_build_select(b, "masked_scores", masked, minus_infinity, scores);
  mlx_value_t weights = softmax(g, a, masked_scores);

  const mlx_dot_t over_context = {2, {0, 1}, {0, 2}, 4, 1};
  mlx_value_t attended = mlx_build_dot(b, "weighted_values", weights, values,
                                       over_context);  // [sequences, kv_heads, T, group, head_dim]
  attended = mlx_build_transpose(b, "values_by_token", attended, (int64_t[]){0, 2, 1, 3, 4});
  return mlx_build_reshape(b, "attended", attended, MLX_TYPE(MLX_F32, sequences * t, a->heads * a->head_dim));
}
