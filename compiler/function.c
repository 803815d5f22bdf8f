// The state of one lowering: declarations of weights and KV cache, and the prologue of each emitted function.
#include "compiler/function.h"

#include "base/memory.h"

// ----------------------------------------------------------------------------------------------------------
// Declarations

static mlx_status_t name_kv(mlx_function_t *g) {
  const size_t layers = (size_t)g->model->config.layers;
  MLX_TRY(mlx_alloc(layers * 2, sizeof *g->kv_names, &g->kv_names));
  for (size_t i = 0; i < layers * 2; ++i)
    MLX_TRY(mlx_format(&g->kv_names[i], "kv.%zu.%c", i / 2, i % 2 ? 'v' : 'k'));
  return NULL;
}

mlx_status_t mlx_function_create(const mlx_model_t *model, const mlx_graph_t *graph,
                                 const mlx_module_options_t *options, mlx_function_t *out) {
  *out = (mlx_function_t){.model = model, .graph = graph, .options = options, .scope = ""};
  MLX_TRY(mlx_builder_create(options->form, "mlxcel", &out->b));
  MLX_TRY(mlx_paths_make(model, graph, options, &out->paths));
  MLX_TRY(mlx_alloc(graph->count + 1, sizeof *out->values, &out->values));
  return name_kv(out);
}

// The KV pool of the attention kernels.
static void declare_pool(mlx_function_t *g) {
  const mlx_attention_t *a = &g->paths.pool;
  const int64_t elements = g->paths.pool_layers * 2 * mlx_module_pool_pages(g->options) *
                           g->options->page_size * a->kv_heads * a->head_dim;
  if (!g->paths.pool_layers) return;
  // An 8-bit pool has a byte for each number and an f32 scale for each row of a head.
  const mlx_type_t type = g->options->kv == MLX_Q8_0
                              ? MLX_TYPE(MLX_I32, elements / a->head_dim * (a->head_dim + 4) / 4)
                              : MLX_TYPE(g->options->kv, elements);
  mlx_builder_state(g->b, MLX_STATE_KV, type);
}

static void declare_kv(mlx_function_t *g) {
  declare_pool(g);
  for (int id = 1; id <= (int)g->graph->count; ++id) {
    const mlx_node_t *node = mlx_graph_node(g->graph, id);
    const mlx_attention_t *a = &node->attention;
    if (node->kind != MLX_NODE_ATTENTION || g->paths.nodes[id - 1].kernel) continue;
    for (int i = 0; i < 2; ++i) {
      mlx_builder_state(g->b, g->kv_names[2 * a->layer + i],
                        MLX_TYPE(g->options->kv, mlx_module_pool_pages(g->options), g->options->page_size,
                                 a->kv_heads, a->head_dim));
    }
  }
}

void mlx_function_declare(mlx_function_t *g) {
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

void mlx_function_place_tokens(mlx_function_t *g, mlx_value_t positions, mlx_value_t valid) {
  mlx_builder_t *b = g->b;
  const int64_t sequences = g->options->sequences, t = g->tokens, m = sequences * t;
  const mlx_type_t grid = MLX_TYPE(MLX_I32, sequences, t), pair = MLX_TYPE(MLX_I32, sequences, t, 1),
                   column = MLX_TYPE(MLX_I32, m, 1);
  g->positions = mlx_build_reshape(b, "positions", positions, MLX_TYPE(MLX_I32, m));
  if (!g->paths.generic_layers) return;  // the kernels compute slots and mask from start, count and pages
  mlx_builder_comment(b, "KV slot of each token: page and index in the page");
  mlx_value_t size = mlx_build_int(b, "page_size", g->options->page_size, grid);
  mlx_value_t nth = mlx_build_binary(b, "page_number", "divide", positions, size);
  mlx_value_t index_in_page = mlx_build_binary(b, "index_in_page", "remainder", positions, size);
  mlx_value_t sequence = mlx_build_iota(b, "sequence", 0, grid);
  mlx_value_t sequence_part = mlx_build_reshape(b, "sequence_column", sequence, pair);
  mlx_value_t page_part = mlx_build_reshape(b, "page_number_column", nth, pair);
  mlx_value_t index = mlx_build_concat_last(b, "sequence_and_page", sequence_part, page_part);
  mlx_value_t page = mlx_build_gather(b, "page", g->pages, index);  // [sequences, T]
  mlx_value_t no_page = mlx_build_int(b, "scratch_page", 0, grid);
  page = mlx_build_select(b, "page_or_scratch", valid, page, no_page);
  mlx_value_t page_column = mlx_build_reshape(b, "page_column", page, column);
  mlx_value_t index_column = mlx_build_reshape(b, "index_column", index_in_page, column);
  g->slots = mlx_build_concat_last(b, "slots", page_column, index_column);

  mlx_builder_comment(b, "causal mask: positions after each query's own");
  const mlx_type_t mask = MLX_TYPE(MLX_I32, sequences, t, mlx_module_sequence_positions(g->options));
  mlx_value_t key = mlx_build_iota(b, "key_position", 2, mask);
  mlx_value_t query = mlx_build_broadcast(b, "query_position", positions, (int64_t[]){0, 1}, mask);
  g->hidden_from_query = mlx_build_compare(b, "is_later", "GT", key, query);
}

void mlx_function_begin_function(mlx_function_t *g, const char *name, const char *comment, int64_t tokens) {
  mlx_builder_begin(g->b, name, comment);
  g->tokens = tokens;
  g->rope_count = 0;
  g->split_input = (mlx_value_t){0};
}

mlx_value_t mlx_function_pages_argument(mlx_function_t *g) {
  return mlx_builder_argument(
      g->b, "pages", MLX_TYPE(MLX_I32, g->options->sequences, mlx_module_sequence_pages(g->options)));
}

void mlx_function_begin_decode(mlx_function_t *g) {
  mlx_builder_t *b = g->b;
  const int64_t sequences = g->options->sequences;
  const mlx_type_t per_sequence = MLX_TYPE(MLX_I32, sequences);
  mlx_function_begin_function(
      g, "decode_1", "Reads the token of each active sequence at its position and chooses the next one.", 1);
  g->active = mlx_builder_argument(b, "active", per_sequence);
  g->pages = mlx_function_pages_argument(g);
  mlx_builder_load(b, MLX_STATE_TOKEN);
  mlx_value_t position = mlx_builder_load(b, MLX_STATE_POSITION);
  mlx_value_t zero = mlx_build_int(b, "zero", 0, per_sequence);
  g->active = mlx_build_compare(b, "is_active", "NE", g->active, zero);
  g->start = position;
  if (g->paths.pool_layers) g->count = mlx_build_convert(b, "count", g->active, MLX_I32);
  mlx_value_t valid = mlx_build_reshape(b, "valid", g->active, MLX_TYPE(MLX_I1, sequences, 1));
  mlx_value_t positions = mlx_build_reshape(b, "position", position, MLX_TYPE(MLX_I32, sequences, 1));
  mlx_function_place_tokens(g, positions, valid);
}

void mlx_function_release(mlx_function_t *g) {
  for (int64_t i = 0; g->kv_names && i < g->model->config.layers * 2; ++i) mlx_free(g->kv_names[i]);
  mlx_free(g->kv_names);
  mlx_free(g->values);
  mlx_paths_clear(&g->paths);
  mlx_builder_free(g->b);
}
