// The state of one lowering: declarations of weights and KV cache, and the prologue of each emitted function.
#include "compiler/function.h"

#include "base/memory.h"

// ----------------------------------------------------------------------------------------------------------
// Declarations

mlx_status_t mlx_graph_name_kv(mlx_graph_t *g) {
  MLX_TRY(mlx_alloc((size_t)g->model->config.layers * 2, sizeof *g->kv_names, &g->kv_names));
  for (int64_t i = 0; i < g->model->config.layers * 2; ++i) {
    MLX_TRY(mlx_format(&g->kv_names[i], "kv.%lld.%c", (long long)(i / 2), i % 2 ? 'v' : 'k'));
  }
  return NULL;
}

static int64_t kv_elements(const mlx_config_t *c, const mlx_module_options_t *options) {
  return c->layers * 2 * mlx_module_pool_pages(options) * options->page_size * c->kv_heads * c->head_dim;
}

static void declare_kv(mlx_graph_t *g) {
  const mlx_config_t *c = &g->model->config;
  if (g->options->kernels) {
    mlx_builder_state(g->b, MLX_STATE_KV, MLX_TYPE(g->options->kv, kv_elements(c, g->options)));
    return;
  }
  for (int64_t i = 0; i < c->layers * 2; ++i) {
    mlx_builder_state(g->b, g->kv_names[i],
                      MLX_TYPE(g->options->kv, mlx_module_pool_pages(g->options), g->options->page_size,
                               c->kv_heads, c->head_dim));
  }
}

void mlx_graph_declare(mlx_graph_t *g) {
  const mlx_config_t *c = &g->model->config;
  for (size_t i = 0; i < g->model->weight_count; ++i) {
    const mlx_weight_t *weight = &g->model->weights[i];
    const mlx_stored_t stored = mlx_weight_stored(weight, mlx_module_storage(g->options));
    const int64_t *dims = weight->tensor.dims;
    const mlx_type_t type =
        stored.tiles.bits ? MLX_TYPE(MLX_I32, (int64_t)(mlx_tiles_bytes(stored.tiles, dims[0], dims[1]) / 4))
                          : mlx_type(stored.dtype, weight->tensor.rank, dims);
    mlx_builder_parameter(g->b, weight->name, type);
  }
  declare_kv(g);
  mlx_builder_state(g->b, MLX_STATE_TOKEN, MLX_TYPE(MLX_I32, g->options->sequences));
  mlx_builder_state(g->b, MLX_STATE_POSITION, MLX_TYPE(MLX_I32, g->options->sequences));
  mlx_builder_state(g->b, MLX_STATE_LOGITS, MLX_TYPE(MLX_F32, g->options->sequences, c->vocab));
}

// ----------------------------------------------------------------------------------------------------------
// Prologue of a function: the position of each token, its KV slot, and the causal mask

void mlx_graph_place_tokens(mlx_graph_t *g, mlx_value_t positions, mlx_value_t valid) {
  mlx_builder_t *b = g->b;
  const int64_t sequences = g->options->sequences, t = g->tokens, m = sequences * t;
  const mlx_type_t grid = MLX_TYPE(MLX_I32, sequences, t), pair = MLX_TYPE(MLX_I32, sequences, t, 1),
                   column = MLX_TYPE(MLX_I32, m, 1);
  g->positions = mlx_build_reshape(b, "positions", positions, MLX_TYPE(MLX_I32, m));
  if (g->options->kernels) return;  // the kernels compute slots and mask from start, count and pages
  mlx_builder_comment(b, "where each token's keys and values go: page and place in it");
  mlx_value_t size = mlx_build_int(b, "page_size", g->options->page_size, grid);
  mlx_value_t nth = mlx_build_binary(b, "nth_page", "divide", positions, size);
  mlx_value_t index_in_page = mlx_build_binary(b, "place", "remainder", positions, size);
  mlx_value_t sequence = mlx_build_iota(b, "row", 0, grid);
  mlx_value_t sequence_part = mlx_build_reshape(b, "row_part", sequence, pair);
  mlx_value_t page_part = mlx_build_reshape(b, "page_part", nth, pair);
  mlx_value_t index = mlx_build_concat_last(b, "row_and_page", sequence_part, page_part);
  mlx_value_t page = mlx_build_gather(b, "page", g->pages, index);  // [sequences, T]
  mlx_value_t no_page = mlx_build_int(b, "no_page", 0, grid);
  page = mlx_build_select(b, "page_or_none", valid, page, no_page);
  mlx_value_t page_column = mlx_build_reshape(b, "page_column", page, column);
  mlx_value_t index_column = mlx_build_reshape(b, "place_column", index_in_page, column);
  g->slots = mlx_build_concat_last(b, "slots", page_column, index_column);

  mlx_builder_comment(b, "what each query may not see: every later position");
  const mlx_type_t mask = MLX_TYPE(MLX_I32, sequences, t, mlx_module_sequence_positions(g->options));
  mlx_value_t key = mlx_build_iota(b, "key_position", 2, mask);
  mlx_value_t query = mlx_build_broadcast(b, "query_position", positions, (int64_t[]){0, 1}, mask);
  g->hidden_from_query = mlx_build_compare(b, "hidden_from_query", "GT", key, query);
}

void mlx_graph_begin_function(mlx_graph_t *g, const char *name, const char *comment, int64_t tokens) {
  mlx_builder_begin(g->b, name, comment);
  g->tokens = tokens;
  g->rope_count = 0;
  g->deferred_count = 0;
  g->split_input = (mlx_value_t){0};
}

mlx_value_t mlx_graph_pages_argument(mlx_graph_t *g) {
  return mlx_builder_argument(
      g->b, "pages", MLX_TYPE(MLX_I32, g->options->sequences, mlx_module_sequence_pages(g->options)));
}

void mlx_graph_begin_decode(mlx_graph_t *g) {
  mlx_builder_t *b = g->b;
  const int64_t sequences = g->options->sequences;
  const mlx_type_t per_sequence = MLX_TYPE(MLX_I32, sequences);
  mlx_graph_begin_function(
      g, "decode_1", "Reads the token of each active row at its position and chooses the one after it.", 1);
  g->active = mlx_builder_argument(b, "active", per_sequence);
  g->pages = mlx_graph_pages_argument(g);
  mlx_builder_load(b, MLX_STATE_TOKEN);
  mlx_value_t position = mlx_builder_load(b, MLX_STATE_POSITION);
  mlx_value_t zero = mlx_build_int(b, "zero", 0, per_sequence);
  g->active = mlx_build_compare(b, "took_part", "NE", g->active, zero);
  g->start = position;
  if (g->options->kernels) g->count = mlx_build_convert(b, "count", g->active, MLX_I32);
  mlx_value_t valid = mlx_build_reshape(b, "valid", g->active, MLX_TYPE(MLX_I1, sequences, 1));
  mlx_value_t positions = mlx_build_reshape(b, "position", position, MLX_TYPE(MLX_I32, sequences, 1));
  mlx_graph_place_tokens(g, positions, valid);
}

void mlx_graph_release(mlx_graph_t *g) {
  for (int64_t i = 0; g->kv_names && i < g->model->config.layers * 2; ++i) mlx_free(g->kv_names[i]);
  mlx_free(g->kv_names);
  mlx_free(g->deferred);
  mlx_builder_free(g->b);
}
