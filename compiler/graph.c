#include "compiler/graph.h"

#include <stdio.h>

#include "artifact/archive.h"
#include "base/memory.h"
#include "compiler/graph_internal.h"
#include "compiler/weights.h"

// ----------------------------------------------------------------------------------------------------------
// Options

static void choose_buckets(const int64_t *sizes, size_t count, mlx_graph_options_t *options) {
  options->bucket_count = 0;
  for (size_t i = 0; i < count; ++i) {
    if (i == 0 || sizes[i] <= options->context) options->buckets[options->bucket_count++] = sizes[i];
  }
}

void mlx_graph_options_initialize(int64_t context, mlx_graph_options_t *out_options) {
  *out_options = (mlx_graph_options_t){
      .context = context, .sequences = 1, .page_size = 16, .steps = {1}, .step_count = 1};
  choose_buckets((int64_t[]){16, 128}, 2, out_options);
}

// The attention kernels share the KV pool with the decode kernel, and nothing else can read it: without them
// there are none.
static bool attention_fits(const mlx_config_t *c) { return c->head_dim % 16 == 0 && c->head_dim <= 256; }

// Prefill and decode are one kernel there, so any number of steps costs as little to compile; few enough that
// words come steadily.
static mlx_status_t use_cpu_kernel(const mlx_model_t *model, mlx_kernels_t *kernels,
                                   mlx_graph_options_t *options) {
  mlx_network_plan_t plan;
  MLX_TRY(mlx_trace_network(model, options, &plan));
  const bool fits = plan.fits;
  mlx_network_plan_clear(&plan);
  if (!fits) return NULL;
  options->kernels = kernels;
  if (options->layout == MLX_LAYOUT_ROWS) options->layout = MLX_LAYOUT_PANELS;
  choose_buckets((int64_t[]){16, 128, 512}, 3, options);
  for (int64_t steps = 4; steps <= 16; steps *= 4) options->steps[options->step_count++] = steps;
  return NULL;
}

// Tiles of each weight: what holds its integers; where the decode kernel takes all layers' matrices of a role
// together, what holds all of them.
static mlx_status_t plan_tiles(const mlx_model_t *model, const mlx_graph_options_t *options,
                               mlx_tiles_t *tiles) {
  static const int groups[][4] = {{MLX_DECODE_Q, MLX_DECODE_K, MLX_DECODE_V, -1},
                                  {MLX_DECODE_O, -1},
                                  {MLX_DECODE_GATE, MLX_DECODE_UP, -1},
                                  {MLX_DECODE_DOWN, -1}};
  for (size_t i = 0; i < model->weight_count; ++i)
    tiles[i] = mlx_weight_stored(&model->weights[i], mlx_graph_storage(options)).tiles;
  mlx_network_plan_t plan;
  MLX_TRY(mlx_trace_network(model, options, &plan));
  for (size_t g = 0; plan.fits && g < sizeof groups / sizeof *groups; ++g) {
    mlx_tiles_t all = tiles[plan.weights[groups[g][0]]];
    for (int pass = 0; pass < 2; ++pass) {  // first what holds all, then that for all
      for (int64_t layer = 0; layer < model->config.layers; ++layer) {
        for (const int *role = groups[g]; *role >= 0; ++role) {
          mlx_tiles_t *its = &tiles[plan.weights[layer * MLX_DECODE_WEIGHTS + *role]];
          if (!its->bits || !all.bits)
            all = (mlx_tiles_t){0};
          else if (pass)
            *its = all;
          else
            all = mlx_tiles_for_both(all, *its);
        }
      }
    }
  }
  mlx_network_plan_clear(&plan);
  return NULL;
}

static mlx_status_t use_tiles(const mlx_model_t *model, mlx_kernels_t *kernels,
                              const mlx_graph_options_t *options) {
  mlx_tiles_t *tiles;
  MLX_TRY(mlx_alloc(model->weight_count, sizeof *tiles, &tiles));
  mlx_status_t status = plan_tiles(model, options, tiles);
  if (status) {
    mlx_free(tiles);
    return status;
  }
  kernels->weights = model->weights;
  kernels->tiles = tiles;
  return NULL;
}

mlx_status_t mlx_graph_use_kernels(const mlx_model_t *model, mlx_kernels_t *kernels,
                                   mlx_graph_options_t *options) {
  if (!kernels->gpu) return use_cpu_kernel(model, kernels, options);
  if (!attention_fits(&model->config)) return NULL;
  mlx_decode_plan_t plan;
  bool fits;
  MLX_TRY(mlx_trace_attention_fits(model, options, &fits));
  if (!fits) return NULL;
  if (options->layout == MLX_LAYOUT_TILES) MLX_TRY(use_tiles(model, kernels, options));
  options->kernels = kernels;
  choose_buckets((int64_t[]){16, 128, 512}, 3, options);
  MLX_TRY(mlx_trace_decode_plan(model, options, &plan, &fits));
  const int64_t steps[] = {1, 8, 32, 128};
  for (size_t i = 1; fits && i < sizeof steps / sizeof *steps && steps[i] <= plan.most_steps; ++i) {
    options->steps[options->step_count++] = steps[i];
  }
  return NULL;
}

mlx_storage_t mlx_graph_storage(const mlx_graph_options_t *options) {
  return (mlx_storage_t){.dtype = options->dtype,
                         .layout = options->layout,
                         .quantize = options->quantize,
                         .weights = options->kernels ? options->kernels->weights : NULL,
                         .tiles = options->kernels ? options->kernels->tiles : NULL};
}

int64_t mlx_graph_sequence_pages(const mlx_graph_options_t *options) {
  return (options->context + options->page_size - 1) / options->page_size;
}

int64_t mlx_graph_sequence_positions(const mlx_graph_options_t *options) {
  return mlx_graph_sequence_pages(options) * options->page_size;
}

int64_t mlx_graph_pool_pages(const mlx_graph_options_t *options) {
  return 1 + options->sequences * mlx_graph_sequence_pages(options);  // page 0 belongs to nobody
}

// ----------------------------------------------------------------------------------------------------------
// Declarations

mlx_status_t mlx_graph_make_names(mlx_graph_t *g) {
  MLX_TRY(mlx_alloc((size_t)g->model->config.layers * 2, sizeof *g->kv_names, &g->kv_names));
  for (int64_t i = 0; i < g->model->config.layers * 2; ++i) {
    MLX_TRY(mlx_format(&g->kv_names[i], "kv.%lld.%c", (long long)(i / 2), i % 2 ? 'v' : 'k'));
  }
  return NULL;
}

static int64_t kv_elements(const mlx_config_t *c, const mlx_graph_options_t *options) {
  return c->layers * 2 * mlx_graph_pool_pages(options) * options->page_size * c->kv_heads * c->head_dim;
}

static void declare_kv(mlx_graph_t *g) {
  const mlx_config_t *c = &g->model->config;
  if (g->options->kernels) {
    mlx_builder_state(g->b, MLX_STATE_KV, MLX_TYPE(g->options->dtype, kv_elements(c, g->options)));
    return;
  }
  for (int64_t i = 0; i < c->layers * 2; ++i) {
    mlx_builder_state(g->b, g->kv_names[i],
                      MLX_TYPE(g->options->dtype, mlx_graph_pool_pages(g->options), g->options->page_size,
                               c->kv_heads, c->head_dim));
  }
}

void mlx_graph_declare(mlx_graph_t *g) {
  const mlx_config_t *c = &g->model->config;
  for (size_t i = 0; i < g->model->weight_count; ++i) {
    const mlx_weight_t *weight = &g->model->weights[i];
    const mlx_stored_t stored = mlx_weight_stored(weight, mlx_graph_storage(g->options));
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

// What the decode kernel has besides.
static mlx_status_t declare_for_decode(mlx_graph_t *g, const mlx_decode_plan_t *plan) {
  uint64_t *offsets;
  MLX_TRY(mlx_alloc(g->model->weight_count, sizeof *offsets, &offsets));
  const uint64_t bytes = mlx_weights_layout(g->model, mlx_graph_storage(g->options), offsets);
  mlx_free(offsets);
  mlx_builder_parameter(g->b, MLX_WHOLE_ARCHIVE, MLX_TYPE(MLX_I32, (int64_t)(bytes / 4)));
  mlx_builder_state_of_ones(g->b, MLX_STATE_SCRATCH, MLX_TYPE(MLX_I32, plan->scratch_words));
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// What every function starts with: where each token stands, where its KV goes, what it may see

// [rows] of the row's own number, for gathers from a [rows, ...] tensor.
static mlx_value_t row_numbers(mlx_graph_t *g, mlx_type_t type) {
  return mlx_build_iota(g->b, "row", 0, type);
}

// positions and valid are [rows, T]; a token that is not valid writes to page 0.
static void place_tokens(mlx_graph_t *g, mlx_value_t positions, mlx_value_t valid) {
  mlx_builder_t *b = g->b;
  const int64_t rows = g->options->sequences, t = g->tokens, m = rows * t;
  const mlx_type_t grid = MLX_TYPE(MLX_I32, rows, t), pair = MLX_TYPE(MLX_I32, rows, t, 1),
                   column = MLX_TYPE(MLX_I32, m, 1);
  g->positions = mlx_build_reshape(b, "positions", positions, MLX_TYPE(MLX_I32, m));
  if (g->options->kernels) return;  // those find their way by start, count and pages
  mlx_builder_comment(b, "where each token's keys and values go: page and place in it");
  mlx_value_t size = mlx_build_int(b, "page_size", g->options->page_size, grid);
  mlx_value_t nth = mlx_build_binary(b, "nth_page", "divide", positions, size);
  mlx_value_t place = mlx_build_binary(b, "place", "remainder", positions, size);
  mlx_value_t row = row_numbers(g, grid);
  mlx_value_t row_part = mlx_build_reshape(b, "row_part", row, pair);
  mlx_value_t page_part = mlx_build_reshape(b, "page_part", nth, pair);
  mlx_value_t index = mlx_build_concat_last(b, "row_and_page", row_part, page_part);
  mlx_value_t page = mlx_build_gather(b, "page", g->pages, index);  // [rows, T]
  mlx_value_t no_page = mlx_build_int(b, "no_page", 0, grid);
  page = mlx_build_select(b, "page_or_none", valid, page, no_page);
  mlx_value_t page_column = mlx_build_reshape(b, "page_column", page, column);
  mlx_value_t place_column = mlx_build_reshape(b, "place_column", place, column);
  g->slots = mlx_build_concat_last(b, "slots", page_column, place_column);

  mlx_builder_comment(b, "what each query may not see: every later position");
  const mlx_type_t mask = MLX_TYPE(MLX_I32, rows, t, mlx_graph_sequence_positions(g->options));
  mlx_value_t key = mlx_build_iota(b, "key_position", 2, mask);
  mlx_value_t query = mlx_build_broadcast(b, "query_position", positions, (int64_t[]){0, 1}, mask);
  g->hidden_from_query = mlx_build_compare(b, "hidden_from_query", "GT", key, query);
}

static void begin_function(mlx_graph_t *g, const char *name, const char *comment, int64_t tokens) {
  mlx_builder_begin(g->b, name, comment);
  g->tokens = tokens;
  g->rope_count = 0;
  g->later_count = 0;
  g->cut = (mlx_value_t){0};
}

static mlx_value_t pages_argument(mlx_graph_t *g) {
  return mlx_builder_argument(g->b, "pages",
                              MLX_TYPE(MLX_I32, g->options->sequences, mlx_graph_sequence_pages(g->options)));
}

// ----------------------------------------------------------------------------------------------------------
// Functions

// The next token of each row, from the logits; rows that took part get new state, the others keep theirs.
static mlx_value_t choose_token(mlx_graph_t *g, mlx_value_t logits, mlx_value_t took_part,
                                mlx_value_t new_position) {
  mlx_builder_t *b = g->b;
  mlx_builder_comment(b, "the next token, and the state of the rows that took part");
  mlx_value_t next = mlx_build_argmax_last(b, "next", logits);
  mlx_value_t old_token = mlx_builder_load(b, MLX_STATE_TOKEN);
  mlx_value_t token = mlx_build_select(b, "new_token", took_part, next, old_token);
  mlx_value_t old_position = mlx_builder_load(b, MLX_STATE_POSITION);
  mlx_value_t position = mlx_build_select(b, "new_position", took_part, new_position, old_position);
  mlx_value_t old_logits = mlx_builder_load(b, MLX_STATE_LOGITS);
  mlx_value_t took_part_wide = mlx_build_broadcast(b, "took_part_wide", took_part, (int64_t[]){0},
                                                   mlx_type(MLX_I1, old_logits.rank, old_logits.dims));
  mlx_value_t kept = mlx_build_select(b, "new_logits", took_part_wide, logits, old_logits);
  mlx_builder_store(b, MLX_STATE_TOKEN, token);
  mlx_builder_store(b, MLX_STATE_POSITION, position);
  mlx_builder_store(b, MLX_STATE_LOGITS, kept);
  return token;
}

static void emit_prefill(mlx_graph_t *g, int64_t tokens) {
  mlx_builder_t *b = g->b;
  const int64_t rows = g->options->sequences;
  const mlx_type_t per_row = MLX_TYPE(MLX_I32, rows), grid = MLX_TYPE(MLX_I32, rows, tokens);
  char name[32];
  snprintf(name, sizeof name, "prefill_%lld", (long long)tokens);
  begin_function(
      g, name, "Reads count[row] tokens that stand at start[row]; a row with count 0 is left alone.", tokens);
  mlx_value_t input = mlx_builder_argument(b, "tokens", grid);
  mlx_value_t start = g->start = mlx_builder_argument(b, "start", per_row);
  mlx_value_t count = g->count = mlx_builder_argument(b, "count", per_row);
  g->pages = pages_argument(g);

  mlx_value_t nth = mlx_build_iota(b, "nth_token", 1, grid);
  mlx_value_t starts = mlx_build_broadcast(b, "starts", start, (int64_t[]){0}, grid);
  mlx_value_t counts = mlx_build_broadcast(b, "counts", count, (int64_t[]){0}, grid);
  mlx_value_t valid = mlx_build_compare(b, "valid", "LT", nth, counts);
  mlx_value_t positions = mlx_build_binary(b, "position", "add", starts, nth);
  place_tokens(g, positions, valid);
  mlx_value_t flat = mlx_build_reshape(b, "flat_tokens", input, MLX_TYPE(MLX_I32, rows * tokens));
  mlx_value_t hidden = g->model->arch->forward(g, g->model, flat);  // [M, hidden]

  mlx_builder_comment(b, "logits of each row's last token");
  mlx_value_t one = mlx_build_int(b, "one", 1, per_row);
  mlx_value_t last = mlx_build_binary(b, "last", "subtract", count, one);
  mlx_value_t width = mlx_build_int(b, "tokens_a_row", tokens, per_row);
  mlx_value_t row = row_numbers(g, per_row);
  mlx_value_t offset = mlx_build_binary(b, "row_start", "multiply", row, width);
  mlx_value_t last_row = mlx_build_binary(b, "last_row", "add", offset, last);
  mlx_value_t index = mlx_build_reshape(b, "last_index", last_row, MLX_TYPE(MLX_I32, rows, 1));
  mlx_value_t last_hidden = mlx_build_gather(b, "last_hidden", hidden, index);
  mlx_value_t logits = g->model->arch->head(g, g->model, last_hidden);

  mlx_value_t zero = mlx_build_int(b, "zero", 0, per_row);
  mlx_value_t took_part = mlx_build_compare(b, "took_part", "GT", count, zero);
  mlx_value_t end = mlx_build_binary(b, "end", "add", start, count);
  mlx_value_t token = choose_token(g, logits, took_part, end);
  mlx_builder_end(b, &token, 1);
}

void mlx_graph_begin_decode(mlx_graph_t *g) {
  mlx_builder_t *b = g->b;
  const int64_t rows = g->options->sequences;
  const mlx_type_t per_row = MLX_TYPE(MLX_I32, rows);
  begin_function(g, "decode_1",
                 "Reads the token of each active row at its position and chooses the one after it.", 1);
  g->active = mlx_builder_argument(b, "active", per_row);
  g->pages = pages_argument(g);
  mlx_builder_load(b, MLX_STATE_TOKEN);
  mlx_value_t position = mlx_builder_load(b, MLX_STATE_POSITION);
  mlx_value_t zero = mlx_build_int(b, "zero", 0, per_row);
  g->active = mlx_build_compare(b, "took_part", "NE", g->active, zero);
  g->start = position;
  if (g->options->kernels) g->count = mlx_build_convert(b, "count", g->active, MLX_I32);
  mlx_value_t valid = mlx_build_reshape(b, "valid", g->active, MLX_TYPE(MLX_I1, rows, 1));
  mlx_value_t positions = mlx_build_reshape(b, "position", position, MLX_TYPE(MLX_I32, rows, 1));
  place_tokens(g, positions, valid);
}

static void emit_decode(mlx_graph_t *g) {
  mlx_builder_t *b = g->b;
  const int64_t rows = g->options->sequences;
  mlx_graph_begin_decode(g);
  mlx_value_t hidden = g->model->arch->forward(g, g->model, mlx_builder_load(b, MLX_STATE_TOKEN));
  mlx_value_t logits = g->model->arch->head(g, g->model, hidden);

  mlx_value_t one = mlx_build_int(b, "one", 1, MLX_TYPE(MLX_I32, rows));
  mlx_value_t after = mlx_build_binary(b, "after", "add", g->start, one);
  mlx_value_t next = choose_token(g, logits, g->active, after);
  mlx_value_t result = mlx_build_reshape(b, "next_column", next, MLX_TYPE(MLX_I32, rows, 1));
  mlx_builder_end(b, &result, 1);
}

// The pure form has the logits among its results already.
static void emit_logits(mlx_graph_t *g) {
  if (mlx_builder_form(g->b) == MLX_FORM_PURE) return;
  begin_function(g, "logits", "The logits that chose each row's current token.", 0);
  mlx_value_t logits = mlx_builder_load(g->b, MLX_STATE_LOGITS);
  mlx_builder_end(g->b, &logits, 1);
}

static mlx_status_t emit_for_cpu(mlx_graph_t *g, char **out_text, size_t *out_length) {
  MLX_TRY(mlx_cpu_network_emit(g));
  emit_logits(g);
  return mlx_builder_finish(g->b, out_text, out_length);
}

static mlx_status_t emit_all(mlx_graph_t *g, char **out_text, size_t *out_length) {
  if (g->options->kernels && !g->options->kernels->gpu) return emit_for_cpu(g, out_text, out_length);
  mlx_decode_plan_t plan;
  bool in_one;
  MLX_TRY(mlx_trace_decode_plan(g->model, g->options, &plan, &in_one));
  MLX_TRY(mlx_graph_make_names(g));
  mlx_graph_declare(g);
  if (in_one) MLX_TRY(declare_for_decode(g, &plan));
  for (size_t i = 0; i < g->options->bucket_count; ++i) emit_prefill(g, g->options->buckets[i]);
  for (size_t i = 0; in_one && i < g->options->step_count; ++i)
    mlx_kernel_decode(g, &plan, g->options->steps[i]);
  if (!in_one) emit_decode(g);
  emit_logits(g);
  return mlx_builder_finish(g->b, out_text, out_length);
}

void mlx_graph_free(mlx_graph_t *g) {
  for (int64_t i = 0; g->kv_names && i < g->model->config.layers * 2; ++i) mlx_free(g->kv_names[i]);
  mlx_free(g->kv_names);
  mlx_free(g->later);
  mlx_builder_free(g->b);
}

mlx_status_t mlx_graph_emit(const mlx_model_t *model, const mlx_graph_options_t *options, char **out_text,
                            size_t *out_length) {
  mlx_graph_t graph = {.model = model, .options = options};
  MLX_TRY(mlx_builder_create(options->form, "mlxcel", &graph.b));
  mlx_status_t status = emit_all(&graph, out_text, out_length);
  mlx_graph_free(&graph);
  return status;
}
