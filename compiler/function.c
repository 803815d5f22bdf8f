// The state of one lowering: declarations of weights, the arguments of a function, and its prologue.
#include "compiler/function.h"

#include "artifact/archive.h"
#include "base/memory.h"
#include "compiler/weights.h"
#include "kernels/step.h"

mlx_status_t mlx_function_create(const mlx_model_t *model, const mlx_graph_t *graph,
                                 const mlx_module_options_t *options, mlx_function_t *out) {
  *out = (mlx_function_t){.model = model, .graph = graph, .options = options, .scope = ""};
  MLX_TRY(mlx_builder_create(options->form, "mlxcel", &out->b));
  out->attention = mlx_network_attention(graph, options);
  return mlx_alloc(graph->count + 1, sizeof *out->values, &out->values);
}

void mlx_function_release(mlx_function_t *g) {
  mlx_free(g->values);
  mlx_builder_free(g->b);
}

static bool has_cpu_kernel(const mlx_function_t *g) {
  return g->options->kernels && !g->options->kernels->gpu;
}

bool mlx_function_is_ragged(const mlx_function_t *g) { return g->attention.kernel || has_cpu_kernel(g); }

// ----------------------------------------------------------------------------------------------------------
// Declarations

static void declare_weight(mlx_function_t *g, const mlx_weight_t *weight, uint64_t offset) {
  const mlx_stored_t stored = mlx_weight_stored(weight, mlx_module_storage(g->options));
  const uint64_t bytes = mlx_weight_stored_bytes(weight, mlx_module_storage(g->options));
  const mlx_type_t type = stored.tiles.bits
                              ? MLX_TYPE(MLX_I32, (int64_t)(bytes / 4))
                              : mlx_type(stored.dtype, weight->tensor.rank, weight->tensor.dims);
  mlx_builder_weight(g->b, weight->name, type, MLX_WHOLE_ARCHIVE, (int64_t)(offset / 4));
}

mlx_status_t mlx_function_declare(mlx_function_t *g) {
  uint64_t *offsets;
  MLX_TRY(mlx_alloc(g->model->weight_count, sizeof *offsets, &offsets));
  const uint64_t bytes = mlx_weights_layout(g->model, mlx_module_storage(g->options), offsets);
  if (mlx_builder_form(g->b) == MLX_FORM_IREE)
    mlx_builder_parameter(g->b, MLX_WHOLE_ARCHIVE, MLX_TYPE(MLX_I32, (int64_t)(bytes / 4)));
  for (size_t i = 0; i < g->model->weight_count; ++i) declare_weight(g, &g->model->weights[i], offsets[i]);
  mlx_free(offsets);
  return NULL;
}

static mlx_page_kind_t page_kind(const mlx_function_t *g, const mlx_attention_t *a) {
  return a->window && g->options->window_pages ? MLX_WINDOW_PAGES : MLX_PAGES;
}

// The sizes of a page, or of a layer in it: what is kept as numbers and as bytes.
typedef struct page_size {
  int64_t numbers, bytes;
} page_size_t;

// Numbers of the keys of a position in a layer.
static int64_t key_numbers(const mlx_attention_t *a) { return a->kv_heads * a->head_dim; }

static void add_layer(const mlx_function_t *g, const mlx_attention_t *a, page_size_t *size) {
  const int64_t parts = mlx_attention_kv_parts(a) * MLX_KV_PAGE;
  size->numbers += parts * key_numbers(a);
  size->bytes += parts * a->kv_heads * mlx_module_kv_head_bytes(g->options, a->head_dim);
}

mlx_layer_place_t mlx_function_place_layer(const mlx_function_t *g, int64_t layer) {
  int64_t counts[MLX_PAGE_KINDS] = {0};
  page_size_t before[MLX_PAGE_KINDS] = {{0}};
  mlx_layer_place_t place = {0};
  for (int id = 1; id <= (int)g->graph->count; ++id) {
    const mlx_node_t *node = mlx_graph_node(g->graph, id);
    if (!mlx_node_stores_kv(node)) continue;
    const mlx_page_kind_t kind = page_kind(g, &node->attention);
    if (node->attention.layer == layer)
      place = (mlx_layer_place_t){.kind = kind,
                                  .nth = counts[kind],
                                  .first_byte = before[kind].bytes,
                                  .first_row = before[kind].numbers / g->attention.row,
                                  .rows = key_numbers(&node->attention) / g->attention.row};
    ++counts[kind];
    add_layer(g, &node->attention, &before[kind]);
  }
  place.layers = counts[place.kind];
  return place;
}

int64_t mlx_function_page_layers(const mlx_function_t *g, mlx_page_kind_t kind) {
  const int64_t windowed = g->options->window_pages ? mlx_graph_windows(g->graph).windowed : 0;
  return kind == MLX_WINDOW_PAGES ? windowed : g->attention.layers - windowed;
}

static page_size_t size_of_page(const mlx_function_t *g, mlx_page_kind_t kind) {
  page_size_t size = {0};
  bool any = false;
  for (int id = 1; id <= (int)g->graph->count; ++id) {
    const mlx_node_t *node = mlx_graph_node(g->graph, id);
    if (!mlx_node_stores_kv(node)) continue;
    any = true;
    if (page_kind(g, &node->attention) == kind) add_layer(g, &node->attention, &size);
  }
  if (!any && kind == MLX_PAGES) add_layer(g, &g->attention.form, &size);
  return size;
}

int64_t mlx_function_page_bytes(const mlx_function_t *g, mlx_page_kind_t kind) {
  return size_of_page(g, kind).bytes;
}

int64_t mlx_function_kv_row(const mlx_function_t *g) {
  return g->options->kv == MLX_Q8_0 || has_cpu_kernel(g) ? 0 : g->attention.row;
}

int64_t mlx_function_state_bytes(const mlx_function_t *g) {
  const int64_t numbers = mlx_function_kv_row(g), bytes = mlx_graph_state_numbers(g->graph) * 4,
                row = numbers ? numbers * (int64_t)mlx_dtype_info(g->options->kv)->block_bytes : 4;
  return (bytes + row - 1) / row * row;
}

void mlx_function_state_routes(mlx_function_t *g) {
  const mlx_graph_routes_t routes = mlx_graph_routes(g->graph);
  if (!routes.used || routes.layers > MLX_MAX_ROUTES / routes.used) return;
  g->facts.route_layers = routes.layers;
  g->facts.route_used = routes.used;
}

bool mlx_function_has_fixed_rows(const mlx_function_t *g) {
  return g->options->form == MLX_FORM_IREE && g->attention.kernel;
}

// The size of an argument that the runtime chooses. In the pure form it is |pure|: one sequence of the
// context length. With fixed rows it is |least|.
static int64_t size_of(const mlx_function_t *g, int64_t pure, int64_t least) {
  if (g->options->form == MLX_FORM_PURE) return pure;
  return mlx_function_has_fixed_rows(g) ? least : MLX_DIM_RUNTIME;
}

static mlx_type_t kv_type(const mlx_function_t *g) {
  const int64_t row = mlx_function_kv_row(g);
  if (!row) return MLX_TYPE(MLX_I32, mlx_function_has_fixed_rows(g) ? 1 : MLX_DIM_RUNTIME);
  return MLX_TYPE(
      g->options->kv,
      size_of(g, (mlx_module_pure_pages(g->options) + 1) * (size_of_page(g, MLX_PAGES).numbers / row), 1),
      row);
}

void mlx_function_begin(mlx_function_t *g, const char *name, const char *comment, mlx_step_size_t size) {
  mlx_builder_t *b = g->b;
  const mlx_config_t *c = &g->model->config;
  const int64_t n = size.tokens, w = size.wanted, pages = mlx_module_pure_pages(g->options);
  mlx_builder_begin(b, name, comment);
  g->size = size;
  g->rope_count = 0;
  const int64_t words = MLX_STEP_PAGES_AT(n, w);
  g->batch = mlx_builder_argument(b, MLX_ARG_BATCH, MLX_TYPE(MLX_I32, size_of(g, words + pages, words)));
  mlx_builder_in_place(b, MLX_ARG_HISTORY, MLX_TYPE(MLX_I32, size_of(g, pages * MLX_KV_PAGE, 1)));
  mlx_builder_in_place(b, MLX_ARG_KV, kv_type(g));
  mlx_builder_in_place(b, MLX_ARG_LOGITS, MLX_TYPE(MLX_F32, size_of(g, w, w), c->vocab));
  mlx_builder_in_place(b, MLX_ARG_HIDDEN, MLX_TYPE(MLX_F32, size_of(g, w, w), c->hidden));
  mlx_builder_in_place(b, MLX_ARG_RESULTS, MLX_TYPE(MLX_I32, size_of(g, w, w), MLX_RESULT_WORDS));
  if (!mlx_function_is_ragged(g)) g->chunks = mlx_builder_count_argument(b, MLX_ARG_CHUNKS);
}

// ----------------------------------------------------------------------------------------------------------
// Prologue of a function: the ID and position of each token, and its row in the KV pool

// A word of the header, as often as |type| needs it.
static mlx_built_t header_word(mlx_function_t *g, const char *name, int64_t at, mlx_type_t type) {
  const mlx_built_t word = mlx_build_words(g->b, name, g->batch, at, 1);
  return type.dims[0] == 1 ? word : mlx_build_broadcast(g->b, name, word, (int64_t[]){0}, type);
}

static mlx_built_t as_column(mlx_builder_t *b, const char *name, mlx_built_t x) {
  return mlx_build_reshape(b, name, x, MLX_TYPE(MLX_I32, x.dims[0], 1));
}

void mlx_function_read_positions(mlx_function_t *g) {
  mlx_builder_t *b = g->b;
  const int64_t n = g->size.tokens;
  const mlx_built_t position = mlx_build_words(b, "position", g->batch, MLX_STEP_POSITIONS_AT(n), n);
  const mlx_built_t zero = mlx_build_int(b, "zero", 0, MLX_TYPE(MLX_I32, n));
  g->positions = mlx_build_binary(b, "positions", "maximum", position, zero);
  const mlx_built_t wanted =
      mlx_build_words(b, "wanted_tokens", g->batch, MLX_STEP_WANTED_AT(n), g->size.wanted);
  g->wanted = as_column(b, "wanted_index", wanted);
}

// The words of one of the arrays of N words, where padding has the word of token 0.
static mlx_built_t token_words(mlx_function_t *g, const char *name, int64_t at, mlx_built_t is_padding) {
  mlx_builder_t *b = g->b;
  const int64_t n = g->size.tokens;
  mlx_built_t words = mlx_build_words(b, name, g->batch, at, n);
  if (n == 1) return words;
  mlx_built_t first = header_word(g, "of_token_0", at, MLX_TYPE(MLX_I32, n));
  return mlx_build_select(b, "not_padding", is_padding, first, words);
}

// Reads sampled tokens from |history| and stores all tokens there. Padding stores token 0 a second time.
static mlx_built_t resolve_tokens(mlx_function_t *g, mlx_built_t is_padding) {
  mlx_builder_t *b = g->b;
  const int64_t n = g->size.tokens;
  const mlx_type_t each = MLX_TYPE(MLX_I32, n);
  mlx_builder_comment(b, "token IDs: given, or sampled by an earlier step");
  mlx_built_t tokens = token_words(g, "given_tokens", MLX_STEP_TOKENS_AT, is_padding);
  mlx_built_t slot = token_words(g, "history_slots", MLX_STEP_SLOTS_AT(n), is_padding);
  mlx_built_t position = token_words(g, "history_positions", MLX_STEP_POSITIONS_AT(n), is_padding);
  mlx_built_t width = header_word(g, "history_width", MLX_STEP_HISTORY_WIDTH, each);
  mlx_built_t start = mlx_build_binary(b, "history_start", "multiply", slot, width);
  mlx_built_t at = mlx_build_binary(b, "history_at", "add", start, position);
  mlx_built_t index = as_column(b, "history_index", at);
  mlx_built_t history = mlx_builder_load(b, MLX_ARG_HISTORY);
  mlx_built_t stored = mlx_build_gather(b, "stored_tokens", history, index);
  mlx_built_t none = mlx_build_int(b, "sampled", MLX_TOKEN_SAMPLED, each);
  mlx_built_t is_sampled = mlx_build_compare(b, "is_sampled", "EQ", tokens, none);
  mlx_built_t ids = mlx_build_select(b, "token_ids", is_sampled, stored, tokens);
  history = mlx_build_scatter(b, "new_history", history, index, ids);
  mlx_builder_store(b, MLX_ARG_HISTORY, history);
  return ids;
}

// Where the page tables of |slots| start in |batch|.
static mlx_built_t page_table_of(mlx_function_t *g, mlx_page_kind_t kind, mlx_built_t slots) {
  mlx_builder_t *b = g->b;
  const mlx_type_t each = mlx_type_of(slots);
  mlx_built_t slot_pages = header_word(g, "slot_pages", MLX_STEP_SLOT_PAGES, each);
  mlx_built_t first = mlx_build_binary(b, "slot_start", "multiply", slots, slot_pages);
  const int64_t at = MLX_STEP_PAGES_AT(g->size.tokens, g->size.wanted);
  mlx_built_t table = kind == MLX_WINDOW_PAGES
                          ? header_word(g, "window_page_table", MLX_STEP_AT_WINDOW_PAGES, each)
                          : mlx_build_int(b, "page_table", at, each);
  return mlx_build_binary(b, "slot_page_table", "add", first, table);
}

mlx_built_t mlx_function_page_rows(mlx_function_t *g, mlx_page_kind_t kind, mlx_built_t pages) {
  mlx_builder_t *b = g->b;
  const mlx_type_t each = mlx_type_of(pages);
  const int64_t count = size_of_page(g, kind).numbers / g->attention.row;
  mlx_built_t page_rows = mlx_build_int(b, "page_rows", count, each);
  mlx_built_t rows = mlx_build_binary(b, "page_start", "multiply", pages, page_rows);
  if (kind == MLX_WINDOW_PAGES || !g->first_row.id) return rows;
  mlx_built_t first = mlx_build_broadcast(b, "first_row", g->first_row, (int64_t[]){0}, each);
  return mlx_build_binary(b, "page_row", "add", rows, first);
}

// The page of each token and its row there.
static void place_keys(mlx_function_t *g, mlx_page_kind_t kind, mlx_built_t is_padding) {
  mlx_builder_t *b = g->b;
  const int64_t n = g->size.tokens;
  const mlx_type_t each = MLX_TYPE(MLX_I32, n);
  mlx_builder_comment(b, "row of each token in the KV pool");
  mlx_built_t slots = mlx_build_words(b, "slots", g->batch, MLX_STEP_SLOTS_AT(n), n);
  mlx_built_t table = page_table_of(g, kind, slots);
  mlx_built_t page_size = mlx_build_int(b, "page_size", MLX_KV_PAGE, each);
  mlx_built_t nth = mlx_build_binary(b, "page_number", "divide", g->positions, page_size);
  mlx_built_t at = mlx_build_binary(b, "page_at", "add", table, nth);
  mlx_built_t index = as_column(b, "page_index", at);
  mlx_built_t found = mlx_build_gather(b, "page", g->batch, index);
  mlx_built_t scratch = mlx_build_int(b, "scratch_page", 0, each);
  mlx_built_t page = mlx_build_select(b, "page_or_scratch", is_padding, scratch, found);
  mlx_built_t first = mlx_function_page_rows(g, kind, page);
  g->in_page = mlx_build_binary(b, "index_in_page", "remainder", g->positions, page_size);
  g->rows[kind] = mlx_build_binary(b, "kv_rows", "add", first, g->in_page);
}

// The only segment: where its page table is, and its last position.
static void read_segment(mlx_function_t *g) {
  mlx_builder_t *b = g->b;
  const int64_t at = MLX_STEP_SEGMENTS_AT(g->size.tokens);
  mlx_builder_comment(b, "the segment");
  mlx_built_t slot = mlx_build_words(b, "segment_slot", g->batch, at, 1);
  g->first_page[MLX_PAGES] = page_table_of(g, MLX_PAGES, slot);
  if (g->options->window_pages) g->first_page[MLX_WINDOW_PAGES] = page_table_of(g, MLX_WINDOW_PAGES, slot);
  mlx_built_t count = mlx_build_words(b, "segment_tokens", g->batch, at + 2, 1);
  mlx_built_t start = mlx_build_words(b, "segment_position", g->batch, at + 3, 1);
  mlx_built_t end = mlx_build_binary(b, "segment_end", "add", start, count);
  mlx_built_t one = mlx_build_int(b, "one", 1, MLX_TYPE(MLX_I32, 1));
  mlx_built_t last = mlx_build_binary(b, "segment_last", "subtract", end, one);
  mlx_built_t zero = mlx_build_int(b, "zero", 0, MLX_TYPE(MLX_I32, 1));
  g->last = mlx_build_binary(b, "last_position", "maximum", last, zero);
}

void mlx_function_place_tokens(mlx_function_t *g) {
  mlx_builder_t *b = g->b;
  const int64_t n = g->size.tokens;
  mlx_built_t position = mlx_build_words(b, "given_position", g->batch, MLX_STEP_POSITIONS_AT(n), n);
  mlx_built_t zero = mlx_build_int(b, "zero", 0, MLX_TYPE(MLX_I32, n));
  mlx_built_t is_padding = mlx_build_compare(b, "is_padding", "LT", position, zero);
  mlx_function_read_positions(g);
  g->ids = resolve_tokens(g, is_padding);
  g->first_row = (mlx_built_t){0};
  if (g->options->window_pages) {
    place_keys(g, MLX_WINDOW_PAGES, is_padding);
    const mlx_type_t one = MLX_TYPE(MLX_I32, 1);
    g->first_row = mlx_function_page_rows(g, MLX_WINDOW_PAGES,
                                          header_word(g, "window_pages", MLX_STEP_WINDOW_POOL_PAGES, one));
  }
  place_keys(g, MLX_PAGES, is_padding);
  read_segment(g);
}
