// RoPE and attention as plain StableHLO.
#include <math.h>

#include "compiler/lower_cuda_rows.h"
#include "compiler/lower_stablehlo.h"
#include "kernels/step.h"

// ----------------------------------------------------------------------------------------------------------
// RoPE

// Range reduction: |angle| modulo 2 pi. IREE's sine and cosine lose accuracy for large arguments (5e-5 at
// position 2000). 2 pi is split into three parts with few bits, so that their products with the number of
// rotations are exact. The sum of the parts is off by 7e-15.
static mlx_built_t reduce_angle(mlx_builder_t *b, mlx_built_t angle) {
  static const double parts[] = {6.28125, 0.0019350051879882812, 3.019916050561733e-07};
  mlx_built_t per_radian =
      mlx_build_float(b, "rotations_per_radian", 0.15915494309189535, mlx_type_of(angle));
  mlx_built_t rotations = mlx_build_binary(b, "rotations", "multiply", angle, per_radian);
  rotations = mlx_build_unary(b, "whole_rotations", "round_nearest_even", rotations);
  for (size_t i = 0; i < sizeof parts / sizeof *parts; ++i) {
    mlx_built_t part = mlx_build_float(b, "two_pi_part", parts[i], mlx_type_of(angle));
    mlx_built_t product = mlx_build_binary(b, "rotation_part", "multiply", rotations, part);
    angle = mlx_build_binary(b, "reduced_angle", "subtract", angle, product);
  }
  return angle;
}

static mlx_rope_table_t make_rope_table(mlx_function_t *g, const mlx_rope_t *rope) {
  mlx_builder_t *b = g->b;
  const int64_t half = rope->dims / 2, m = g->positions.dims[0];
  const mlx_type_t full = MLX_TYPE(MLX_F32, m, half);
  mlx_built_t frequency = mlx_build_floats(b, "rope_frequency", rope->frequencies, half);
  mlx_built_t position = mlx_build_convert(b, "position_f32", g->positions, MLX_F32);
  mlx_built_t positions = mlx_build_broadcast(b, "rope_position", position, (int64_t[]){0}, full);
  mlx_built_t frequencies = mlx_build_broadcast(b, "rope_frequencies", frequency, (int64_t[]){1}, full);
  mlx_built_t angle = mlx_build_binary(b, "rope_angle", "multiply", positions, frequencies);
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
  const bool on_gpu = g->options->kernels && g->options->kernels->gpu;
  g->ropes[g->rope_count] = on_gpu ? mlx_cuda_rope_table(g, rope) : make_rope_table(g, rope);
  return &g->ropes[g->rope_count++];
}

// Element |nth| (0 or 1) of each pair that RoPE rotates: x [M, heads, dims] -> [M, heads, dims / 2]
static mlx_built_t pair_part(mlx_builder_t *b, const char *name, mlx_built_t x, bool adjacent, int64_t nth) {
  const int64_t half = x.dims[2] / 2;
  if (!adjacent) return mlx_build_slice_last(b, name, x, nth * half, (nth + 1) * half);
  mlx_built_t pairs = mlx_build_reshape(b, "pairs", x, MLX_TYPE(MLX_F32, x.dims[0], x.dims[1], half, 2));
  mlx_built_t part = mlx_build_slice_last(b, "pair_part", pairs, nth, nth + 1);
  return mlx_build_reshape(b, name, part, MLX_TYPE(MLX_F32, x.dims[0], x.dims[1], half));
}

static mlx_built_t join_pairs(mlx_builder_t *b, mlx_built_t low, mlx_built_t high, bool adjacent) {
  if (!adjacent) return mlx_build_concat_last(b, "rotated", low, high);
  const int64_t m = low.dims[0], heads = low.dims[1], half = low.dims[2];
  low = mlx_build_reshape(b, "low_column", low, MLX_TYPE(MLX_F32, m, heads, half, 1));
  high = mlx_build_reshape(b, "high_column", high, MLX_TYPE(MLX_F32, m, heads, half, 1));
  mlx_built_t pairs = mlx_build_concat_last(b, "rotated_pairs", low, high);
  return mlx_build_reshape(b, "rotated", pairs, MLX_TYPE(MLX_F32, m, heads, 2 * half));
}

mlx_built_t mlx_generic_rope(mlx_function_t *g, const char *name, mlx_built_t x, int64_t head_dim,
                             const mlx_rope_t *rope) {
  mlx_builder_t *b = g->b;
  const int64_t m = x.dims[0], heads = x.dims[1] / head_dim, dims = rope->dims;
  const mlx_type_t part = MLX_TYPE(MLX_F32, m, heads, dims / 2);
  const mlx_rope_table_t *table = mlx_rope_table(g, rope);
  mlx_built_t whole = mlx_build_reshape(b, "by_head", x, MLX_TYPE(MLX_F32, m, heads, head_dim));
  mlx_built_t split = dims < head_dim ? mlx_build_slice_last(b, "to_rotate", whole, 0, dims) : whole;
  mlx_built_t low = pair_part(b, "low", split, rope->adjacent, 0);
  mlx_built_t high = pair_part(b, "high", split, rope->adjacent, 1);
  mlx_built_t cos = mlx_build_broadcast(b, "cos", table->cos, (int64_t[]){0, 2}, part);
  mlx_built_t sin = mlx_build_broadcast(b, "sin", table->sin, (int64_t[]){0, 2}, part);
  mlx_built_t low_cos = mlx_build_binary(b, "low_cos", "multiply", low, cos);
  mlx_built_t high_sin = mlx_build_binary(b, "high_sin", "multiply", high, sin);
  mlx_built_t new_low = mlx_build_binary(b, "new_low", "subtract", low_cos, high_sin);
  mlx_built_t high_cos = mlx_build_binary(b, "high_cos", "multiply", high, cos);
  mlx_built_t low_sin = mlx_build_binary(b, "low_sin", "multiply", low, sin);
  mlx_built_t new_high = mlx_build_binary(b, "new_high", "add", high_cos, low_sin);
  mlx_built_t rotated = join_pairs(b, new_low, new_high, rope->adjacent);
  if (dims < head_dim) {
    mlx_built_t rest = mlx_build_slice_last(b, "not_rotated", whole, dims, head_dim);
    rotated = mlx_build_concat_last(b, "rotated_and_rest", rotated, rest);
  }
  return mlx_build_reshape(b, name, rotated, MLX_TYPE(MLX_F32, m, heads * head_dim));
}

// ----------------------------------------------------------------------------------------------------------
// Attention over chunks of the context, with an online softmax

// Where the layer is whose keys and values |a| reads.
static mlx_layer_place_t place_of(const mlx_function_t *g, const mlx_attention_t *a) {
  return mlx_function_place_layer(g, a->shared ? a->kv_layer : a->layer);
}

// Positions in the KV pool, as in mlx_function_t: [positions] each.
typedef struct pool_rows {
  mlx_built_t rows, in_page;
} pool_rows_t;

// The rows of each position, if a position has |count| rows: [positions * count]
static mlx_built_t rows_of_positions(mlx_builder_t *b, pool_rows_t at, int64_t count) {
  if (count == 1) return at.rows;
  const mlx_type_t each = mlx_type_of(at.rows), all = MLX_TYPE(MLX_I32, each.dims[0], count);
  mlx_built_t more = mlx_build_int(b, "more_rows", count - 1, each);
  more = mlx_build_binary(b, "rows_before", "multiply", at.in_page, more);
  mlx_built_t first = mlx_build_binary(b, "first_rows", "add", at.rows, more);
  first = mlx_build_broadcast(b, "first_row", first, (int64_t[]){0}, all);
  mlx_built_t nth = mlx_build_iota(b, "nth_row", 1, all);
  mlx_built_t rows = mlx_build_binary(b, "each_row", "add", first, nth);
  return mlx_build_reshape(b, "all_rows", rows, MLX_TYPE(MLX_I32, each.dims[0] * count));
}

// Rows of the KV pool of keys (what 0) or values (what 1) of a layer.
static mlx_built_t layer_rows(mlx_builder_t *b, pool_rows_t at, mlx_layer_place_t place, int64_t what) {
  const int64_t offset = place.first_row + what * MLX_KV_PAGE * place.rows;
  mlx_built_t rows = rows_of_positions(b, at, place.rows);
  if (offset) {
    mlx_built_t offsets = mlx_build_int(b, "layer_offset", offset, mlx_type_of(rows));
    rows = mlx_build_binary(b, "layer_rows", "add", rows, offsets);
  }
  return mlx_build_reshape(b, "row_index", rows, MLX_TYPE(MLX_I32, rows.dims[0], 1));
}

// Writes |x| [N, kv_heads * head_dim] to the KV pool.
static void store_rows(mlx_function_t *g, const mlx_attention_t *a, int64_t what, mlx_built_t x) {
  mlx_builder_t *b = g->b;
  const mlx_layer_place_t place = place_of(g, a);
  mlx_built_t index = layer_rows(b, (pool_rows_t){g->rows[place.kind], g->in_page}, place, what);
  mlx_built_t stored = mlx_build_convert(b, "as_stored", x, g->options->kv);
  if (place.rows > 1)
    stored = mlx_build_reshape(b, "rows_stored", stored,
                               MLX_TYPE(g->options->kv, x.dims[0] * place.rows, g->attention.row));
  mlx_built_t pool = mlx_builder_load(b, MLX_ARG_KV);
  pool = mlx_build_scatter(b, "pool", pool, index, stored);
  mlx_builder_store(b, MLX_ARG_KV, pool);
}

// The positions of a chunk: [C]
static mlx_built_t chunk_positions(mlx_builder_t *b, mlx_built_t chunk) {
  const mlx_type_t each = MLX_TYPE(MLX_I32, MLX_CHUNK_POSITIONS);
  mlx_built_t chunks = mlx_build_broadcast(b, "chunk", chunk, (int64_t[]){0}, each);
  mlx_built_t size = mlx_build_int(b, "chunk_size", MLX_CHUNK_POSITIONS, each);
  mlx_built_t start = mlx_build_binary(b, "chunk_start", "multiply", chunks, size);
  mlx_built_t nth = mlx_build_iota(b, "nth_position", 0, each);
  return mlx_build_binary(b, "key_positions", "add", start, nth);
}

// Their rows in the KV pool. Positions after the last one read its row: every row that is read was written,
// so that masked values are finite. So are those of page 0, which positions before all windows may have.
static pool_rows_t chunk_rows(mlx_function_t *g, mlx_page_kind_t kind, mlx_built_t positions) {
  mlx_builder_t *b = g->b;
  const mlx_type_t each = mlx_type_of(positions);
  mlx_built_t last = mlx_build_broadcast(b, "last", g->last, (int64_t[]){0}, each);
  mlx_built_t position = mlx_build_binary(b, "written_position", "minimum", positions, last);
  mlx_built_t page_size = mlx_build_int(b, "page_size", MLX_KV_PAGE, each);
  mlx_built_t nth = mlx_build_binary(b, "page_number", "divide", position, page_size);
  mlx_built_t table = mlx_build_broadcast(b, "first_page", g->first_page[kind], (int64_t[]){0}, each);
  mlx_built_t at = mlx_build_binary(b, "page_at", "add", table, nth);
  mlx_built_t index = mlx_build_reshape(b, "page_index", at, MLX_TYPE(MLX_I32, each.dims[0], 1));
  mlx_built_t page = mlx_build_gather(b, "page", g->batch, index);
  mlx_built_t first = mlx_function_page_rows(g, kind, page);
  mlx_built_t in_page = mlx_build_binary(b, "index_in_page", "remainder", position, page_size);
  return (pool_rows_t){mlx_build_binary(b, "chunk_rows", "add", first, in_page), in_page};
}

// Keys or values of a chunk: [C, kv_heads, head_dim]
static mlx_built_t load_rows(mlx_function_t *g, const mlx_attention_t *a, const char *name, pool_rows_t rows,
                             int64_t what) {
  mlx_builder_t *b = g->b;
  mlx_built_t index = layer_rows(b, rows, place_of(g, a), what);
  mlx_built_t found = mlx_build_gather(b, "pool_rows", mlx_builder_load(b, MLX_ARG_KV), index);
  found = mlx_build_convert(b, "rows_f32", found, MLX_F32);
  return mlx_build_reshape(b, name, found, MLX_TYPE(MLX_F32, rows.rows.dims[0], a->kv_heads, a->head_dim));
}

// The mask [N, C]: positions after the query and, with a sliding window, positions before the window.
static mlx_built_t hidden_positions(mlx_function_t *g, const mlx_attention_t *a, mlx_built_t positions) {
  mlx_builder_t *b = g->b;
  const mlx_type_t mask = MLX_TYPE(MLX_I32, g->size.tokens, positions.dims[0]);
  mlx_built_t key = mlx_build_broadcast(b, "key_position", positions, (int64_t[]){1}, mask);
  mlx_built_t query = mlx_build_broadcast(b, "query_position", g->positions, (int64_t[]){0}, mask);
  mlx_built_t is_later = mlx_build_compare(b, "is_later", "GT", key, query);
  if (!a->window) return is_later;
  mlx_built_t width = mlx_build_int(b, "window", a->window, mask);
  mlx_built_t last_before_window = mlx_build_binary(b, "last_before_window", "subtract", query, width);
  mlx_built_t before_window = mlx_build_compare(b, "before_window", "LE", key, last_before_window);
  return mlx_build_binary(b, "is_masked", "or", is_later, before_window);
}

// Scores of a chunk, masked: [kv_heads, N, group, C]
static mlx_built_t chunk_scores(mlx_function_t *g, const mlx_attention_t *a, mlx_built_t query,
                                mlx_built_t keys, mlx_built_t positions) {
  mlx_builder_t *b = g->b;
  const mlx_dot_t over_head = {1, {1}, {1}, 3, 2};
  mlx_built_t scores = mlx_build_dot(b, "scores", query, keys, over_head);
  if (a->softcap != 0.0) scores = mlx_generic_softcap(g, "capped_scores", scores, a->softcap);
  mlx_built_t mask = hidden_positions(g, a, positions);
  mlx_built_t masked =
      mlx_build_broadcast(b, "mask", mask, (int64_t[]){1, 3}, mlx_type(MLX_I1, scores.rank, scores.dims));
  mlx_built_t minus_infinity = mlx_build_float(b, "minus_infinity", -INFINITY, mlx_type_of(scores));
  return mlx_build_select(b, "masked_scores", masked, minus_infinity, scores);
}

// State of the online softmax: largest score so far, sum of the weights, sum of weight * value.
typedef struct online {
  mlx_built_t parts[3];  // [kv_heads, N, group], the same, [kv_heads, N, group, value_dim]
} online_t;

// A sink is a score without a value.
static online_t start_softmax(mlx_function_t *g, const mlx_attention_t *a, mlx_built_t sinks) {
  mlx_builder_t *b = g->b;
  const int64_t group = a->heads / a->kv_heads, n = g->size.tokens;
  const mlx_type_t each = MLX_TYPE(MLX_F32, a->kv_heads, n, group);
  online_t soft;
  if (sinks.id) {
    mlx_built_t grouped =
        mlx_build_reshape(b, "sinks_by_group", sinks, MLX_TYPE(MLX_F32, a->kv_heads, group));
    soft.parts[0] = mlx_build_broadcast(b, "sink", grouped, (int64_t[]){0, 2}, each);
  } else {
    soft.parts[0] = mlx_build_float(b, "no_score", -1e30, each);  // finite: infinity minus itself is NaN
  }
  soft.parts[1] = mlx_build_float(b, "weight_start", sinks.id ? 1.0 : 0.0, each);
  soft.parts[2] = mlx_build_float(b, "sum_start", 0.0,
                                  MLX_TYPE(MLX_F32, a->kv_heads, n, group, mlx_attention_value_dim(a)));
  return soft;
}

static void add_chunk(mlx_builder_t *b, online_t *soft, mlx_built_t scores, mlx_built_t values) {
  const int64_t outer[] = {0, 1, 2};
  const mlx_dot_t over_chunk = {1, {0}, {1}, 3, 0};
  mlx_built_t chunk_peak = mlx_build_reduce_last(b, "chunk_max", "maximum", scores);
  mlx_built_t peak = mlx_build_binary(b, "max_score", "maximum", soft->parts[0], chunk_peak);
  mlx_built_t drop = mlx_build_binary(b, "max_change", "subtract", soft->parts[0], peak);
  mlx_built_t rescale = mlx_build_unary(b, "rescale", "exponential", drop);
  mlx_built_t peaks = mlx_build_broadcast(b, "max_scores", peak, outer, mlx_type_of(scores));
  mlx_built_t below_peak = mlx_build_binary(b, "minus_max", "subtract", scores, peaks);
  mlx_built_t weights = mlx_build_unary(b, "weights", "exponential", below_peak);
  mlx_built_t chunk_weight = mlx_build_reduce_last(b, "chunk_weight", "add", weights);
  mlx_built_t old_weight = mlx_build_binary(b, "old_weight", "multiply", soft->parts[1], rescale);
  mlx_built_t weight = mlx_build_binary(b, "weight", "add", old_weight, chunk_weight);
  mlx_built_t chunk_sum = mlx_build_dot(b, "weighted_values", weights, values, over_chunk);
  mlx_built_t rescales = mlx_build_broadcast(b, "rescales", rescale, outer, mlx_type_of(soft->parts[2]));
  mlx_built_t old_sum = mlx_build_binary(b, "old_sum", "multiply", soft->parts[2], rescales);
  soft->parts[2] = mlx_build_binary(b, "sum", "add", old_sum, chunk_sum);
  soft->parts[0] = peak;
  soft->parts[1] = weight;
}

mlx_built_t mlx_generic_attention(mlx_function_t *g, const mlx_attention_t *a, mlx_built_t q, mlx_built_t k,
                                  mlx_built_t v, mlx_built_t sinks) {
  mlx_builder_t *b = g->b;
  const int64_t n = g->size.tokens, group = a->heads / a->kv_heads;
  if (!a->shared) {
    store_rows(g, a, 0, k);
    if (!a->value_dim) store_rows(g, a, 1, v);
  }
  mlx_built_t query = mlx_build_reshape(b, "query", q, MLX_TYPE(MLX_F32, n, a->kv_heads, group, a->head_dim));
  mlx_built_t scale = mlx_build_float(b, "scale", a->scale, mlx_type_of(query));
  query = mlx_build_binary(b, "scaled_query", "multiply", query, scale);

  online_t soft = start_softmax(g, a, sinks);
  mlx_built_t chunk;
  const mlx_loop_t loop = mlx_build_loop(b, "each_chunk", g->chunks, soft.parts, 3, &chunk);
  mlx_built_t positions = chunk_positions(b, chunk);
  const pool_rows_t rows = chunk_rows(g, place_of(g, a).kind, positions);
  mlx_built_t keys = load_rows(g, a, "keys", rows, 0);
  mlx_built_t values = a->value_dim ? mlx_build_slice_last(b, "values", keys, 0, a->value_dim)
                                    : load_rows(g, a, "values", rows, 1);
  mlx_built_t scores = chunk_scores(g, a, query, keys, positions);
  add_chunk(b, &soft, scores, values);
  mlx_build_loop_end(b, &loop, soft.parts);

  mlx_built_t weights =
      mlx_build_broadcast(b, "total_weight", soft.parts[1], (int64_t[]){0, 1, 2}, mlx_type_of(soft.parts[2]));
  mlx_built_t attended = mlx_build_binary(b, "by_kv_head", "divide", soft.parts[2], weights);
  attended = mlx_build_transpose(b, "by_token", attended, (int64_t[]){1, 0, 2, 3});
  return mlx_build_reshape(b, "attended", attended,
                           MLX_TYPE(MLX_F32, n, a->heads * mlx_attention_value_dim(a)));
}
