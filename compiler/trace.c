#include "compiler/trace.h"

#include <string.h>

#include "base/memory.h"
#include "compiler/graph_internal.h"
#include "compiler/kernels.h"
#include "compiler/weights.h"
#include "kernels/cpu/layout.h"

void mlx_trace_add(mlx_graph_t *g, const mlx_note_t *note) {
  mlx_trace_t *trace = g->trace;
  if (!trace) return;
  mlx_status_t status = mlx_reserve(trace->count + 1, sizeof *trace->notes, &trace->capacity, &trace->notes);
  if (status) {
    mlx_builder_fail(g->b, status);
    return;
  }
  trace->notes[trace->count++] = *note;
}

// ----------------------------------------------------------------------------------------------------------
// Reading the notes in order

typedef struct reader {
  const mlx_trace_t *trace;
  size_t at;
  const mlx_model_t *model;
  const mlx_value_t *weights;  // of the function that was written, in the model's order
  const uint64_t *offsets;     // NULL: nobody asks for regular places
  mlx_storage_t storage;       // of what has those places
  size_t *indices;             // [layers][MLX_DECODE_WEIGHTS] of the model's weights; or NULL
  mlx_decode_plan_t *plan;
  int64_t context;
  bool fits;
} reader_t;

static const mlx_note_t nothing;  // of no kind that is asked for, with no result

// The next note, if it is of |kind| and its first operands are these; else nothing fits any more.
static const mlx_note_t *expect(reader_t *r, mlx_note_kind_t kind, int first, int second) {
  const mlx_note_t *note = r->fits && r->at < r->trace->count ? &r->trace->notes[r->at++] : &nothing;
  r->fits = r->fits && note != &nothing && note->kind == kind && note->operands[0] == first &&
            note->operands[1] == second;
  return note;
}

static const mlx_weight_t *weight_of(const reader_t *r, const mlx_note_t *note, size_t *out_index) {
  for (size_t i = 0; i < r->model->weight_count; ++i) {
    if (!note->weight || r->weights[i].id != note->weight) continue;
    *out_index = i;
    return &r->model->weights[i];
  }
  return NULL;
}

// Notes where the weight of |note| lies, in layer |layer|; its shape must be [rows, columns] (columns 0: a
// vector).
static void place(reader_t *r, mlx_decode_weight_t which, int64_t layer, const mlx_note_t *note, int64_t rows,
                  int64_t columns) {
  mlx_decode_place_t *place = &r->plan->places[which];
  size_t index = 0;
  const mlx_weight_t *weight = r->fits ? weight_of(r, note, &index) : NULL;
  r->fits = weight && weight->tensor.rank == (columns ? 2 : 1) && weight->tensor.dims[0] == rows &&
            (!columns || weight->tensor.dims[1] == columns);
  if (!r->fits) return;
  if (r->indices) r->indices[layer * MLX_DECODE_WEIGHTS + which] = index;
  if (!r->offsets) return;
  const uint64_t at = r->offsets[index];
  const mlx_tiles_t tiles = mlx_weight_stored(weight, r->storage).tiles;
  if (layer == 0) place->at = at, r->plan->tiles[which] = tiles;
  if (layer == 1) place->step = at - place->at;
  r->fits = place->at + (uint64_t)layer * place->step == at &&
            mlx_tiles_equal(tiles, r->plan->tiles[which]) &&
            (tiles.bits || !columns || r->storage.layout != MLX_LAYOUT_TILES);
}

static void same_number(reader_t *r, bool first, double *number, double value) {
  if (first) *number = value;
  r->fits = r->fits && *number == value;
}

static int read_norm(reader_t *r, mlx_decode_weight_t which, int64_t layer, int x) {
  const mlx_note_t *norm = expect(r, MLX_NOTE_RMSNORM, x, 0);
  place(r, which, layer, norm, r->plan->hidden, 0);
  same_number(r, which == MLX_DECODE_ATTN_NORM && layer == 0, &r->plan->norm_eps, norm->number);
  return norm->result;
}

static int read_linear(reader_t *r, mlx_decode_weight_t which, int64_t layer, int x, int64_t rows,
                       int64_t columns) {
  const mlx_note_t *linear = expect(r, MLX_NOTE_LINEAR, x, 0);
  place(r, which, layer, linear, rows, columns);
  return linear->result;
}

static int read_rope(reader_t *r, bool first, int x) {
  const mlx_note_t *rope = expect(r, MLX_NOTE_ROPE, x, 0);
  if (first) r->plan->rope = rope->rope;
  r->fits = r->fits && rope->head_dim == r->model->config.head_dim &&
            mlx_rope_equal(rope->rope, r->plan->rope) && rope->rope->dims == rope->head_dim &&
            !rope->rope->adjacent && rope->rope->scale == 1.0;
  return rope->result;
}

static bool is_plain(const mlx_attention_t *a, int64_t context) {
  return (!a->window || a->window >= context) && a->softcap == 0.0 && !a->sinks.id;
}

static int read_attention(reader_t *r, int64_t layer, int x) {
  const mlx_config_t *c = &r->model->config;
  const int64_t queries = c->heads * c->head_dim, keys = c->kv_heads * c->head_dim;
  int h = read_norm(r, MLX_DECODE_ATTN_NORM, layer, x);
  int q = read_linear(r, MLX_DECODE_Q, layer, h, queries, c->hidden);
  int k = read_linear(r, MLX_DECODE_K, layer, h, keys, c->hidden);
  int v = read_linear(r, MLX_DECODE_V, layer, h, keys, c->hidden);
  q = read_rope(r, layer == 0, q);
  k = read_rope(r, false, k);
  const mlx_note_t *attention = expect(r, MLX_NOTE_ATTENTION, q, k);
  const mlx_attention_t *a = &attention->attention;
  if (layer == 0) r->plan->attention = *a;
  r->fits = r->fits && attention->operands[2] == v && a->layer == layer && a->heads == c->heads &&
            a->kv_heads == c->kv_heads && a->head_dim == c->head_dim &&
            a->scale == r->plan->attention.scale && is_plain(a, r->context);
  int o = read_linear(r, MLX_DECODE_O, layer, attention->result, c->hidden, queries);
  return expect(r, MLX_NOTE_ADD, x, o)->result;
}

static int read_mlp(reader_t *r, int64_t layer, int x) {
  const mlx_config_t *c = &r->model->config;
  int h = read_norm(r, MLX_DECODE_MLP_NORM, layer, x);
  int gate = read_linear(r, MLX_DECODE_GATE, layer, h, c->ffn, c->hidden);
  int up = read_linear(r, MLX_DECODE_UP, layer, h, c->ffn, c->hidden);
  int act = expect(r, MLX_NOTE_SWIGLU, gate, up)->result;
  int down = read_linear(r, MLX_DECODE_DOWN, layer, act, c->hidden, c->ffn);
  return expect(r, MLX_NOTE_ADD, x, down)->result;
}

static void read_network(reader_t *r) {
  const mlx_config_t *c = &r->model->config;
  const mlx_note_t *embed = expect(r, MLX_NOTE_EMBED, 0, 0);
  place(r, MLX_DECODE_EMBED, 0, embed, c->vocab, c->hidden);
  int x = embed->result;
  for (int64_t layer = 0; layer < c->layers && r->fits; ++layer)
    x = read_mlp(r, layer, read_attention(r, layer, x));
  x = read_norm(r, MLX_DECODE_FINAL_NORM, 0, x);
  read_linear(r, MLX_DECODE_HEAD, 0, x, c->vocab, c->hidden);
  r->fits = r->fits && r->at == r->trace->count;
}

// ----------------------------------------------------------------------------------------------------------
// The launch

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Shared memory for the activations of rows of |width| columns, as decode.cu's Tiling has them.
static int64_t staged_bytes(int64_t width) {
  const int64_t segments = ceil_div(width, 1024);
  return 8 * 768 * (segments <= 8 ? least(segments, 2) : segments);
}

// And for attention: struct Attention.
static int64_t attention_bytes(const mlx_config_t *c, bool packed) {
  const int64_t group = c->heads / c->kv_heads, mixed = 4 * (8 * group * c->head_dim + 16 * group);
  if (packed) return mixed + 4 * (2 + group) * c->head_dim + 2048 + 256;
  return mixed + (group + 3) / 4 * ((c->head_dim + 31) / 32) * 1024 + 4 * c->head_dim + 256;
}

// Of a stage of the ring, with its barriers.
static int64_t stage_bytes(const mlx_decode_plan_t *plan, bool packed) {
  if (!packed) return 8 * (2 * 1024 + 64) + 16;
  int64_t largest = 0;
  for (int i = 0; i < MLX_DECODE_WEIGHTS; ++i) {
    if (plan->tiles[i].bits)
      largest = most(largest, (int64_t)mlx_tiles_bytes(plan->tiles[i], 1, plan->segment));
  }
  return largest + 16;
}

// Every block must have a row of every matrix, or eight of tiles.
static void plan_launch(const mlx_model_t *model, const mlx_gpu_kind_t *gpu, bool packed,
                        mlx_decode_plan_t *plan) {
  const mlx_config_t *c = &model->config;
  const int64_t queries = c->heads * c->head_dim, keys = c->kv_heads * c->head_dim,
                together = packed ? MLX_TILE_ROWS : 1;
  const int64_t rows = least(least(c->hidden, c->ffn), least(c->vocab, queries + 2 * keys));
  plan->blocks = least(gpu->blocks, ceil_div(rows, together));
  plan->shared_bytes = gpu->shared_bytes;
  plan->segment = !packed || gpu->shared_bytes < 160 << 10 ? 1024 : 2048;
  const int64_t splits = most(1, plan->blocks / c->kv_heads);
  plan->scratch_words =
      64 + 8 * plan->blocks + 3 * c->hidden + 2 * queries + 2 * keys + 2 * c->ffn;  // struct Scratch
  plan->scratch_words += c->heads * splits * (c->head_dim + 2);
}

// The ring needs a stage more than are asked for at a time.
static bool launch_fits(const mlx_model_t *model, bool packed, const mlx_decode_plan_t *plan) {
  const mlx_config_t *c = &model->config;
  const int64_t staged =
      most(staged_bytes(c->hidden), most(staged_bytes(c->ffn), staged_bytes(c->heads * c->head_dim)));
  const int64_t work = most(attention_bytes(c, packed), staged), unit = packed ? MLX_CODES : 8;
  return c->hidden % unit == 0 && c->ffn % unit == 0 && c->head_dim % 16 == 0 && c->head_dim <= 256 &&
         (packed ? 6 : 4) * stage_bytes(plan, packed) + work + (8 << 10) <= plan->shared_bytes;
}

// ----------------------------------------------------------------------------------------------------------
// Taking the notes

#define MOST_BYTES 600000000000u  // a launch may read: an eighth of a second on an H200

// Writes the network once, plainly and for nobody, to have it noted.
static mlx_status_t take_notes(mlx_graph_t *g, mlx_value_t *weights) {
  const mlx_model_t *model = g->model;
  mlx_graph_declare(g);
  mlx_graph_begin_decode(g);
  for (size_t i = 0; i < model->weight_count; ++i)
    weights[i] = mlx_builder_load(g->b, model->weights[i].name);
  mlx_value_t hidden = model->arch->forward(g, model, mlx_builder_load(g->b, MLX_STATE_TOKEN));
  model->arch->head(g, model, hidden);
  char *text;
  MLX_TRY(mlx_builder_finish(g->b, &text, NULL));
  mlx_free(text);
  return NULL;
}

static mlx_status_t trace_with(mlx_graph_t *g, reader_t *r, uint64_t *offsets, mlx_value_t *weights) {
  mlx_status_t status = mlx_graph_make_names(g);
  if (!status) status = take_notes(g, weights);
  if (status) return status;
  const uint64_t bytes = mlx_weights_layout(g->model, r->storage, offsets);  // that every step reads
  r->plan->most_steps = (int64_t)(MOST_BYTES / bytes);
  read_network(r);
  return NULL;
}

static mlx_status_t note_attention(mlx_graph_t *g, mlx_value_t *weights, bool *out_fits) {
  const mlx_config_t *c = &g->model->config;
  mlx_status_t status = mlx_graph_make_names(g);
  if (!status) status = take_notes(g, weights);
  *out_fits = !status;
  for (size_t i = 0; i < g->trace->count; ++i) {
    const mlx_attention_t *a = &g->trace->notes[i].attention;
    if (g->trace->notes[i].kind != MLX_NOTE_ATTENTION) continue;
    *out_fits = *out_fits && is_plain(a, g->options->context) && a->heads == c->heads &&
                a->kv_heads == c->kv_heads && a->head_dim == c->head_dim;
  }
  return status;
}

mlx_status_t mlx_trace_attention_fits(const mlx_model_t *model, const mlx_graph_options_t *options,
                                      bool *out_fits) {
  mlx_graph_options_t plain = *options;
  plain.kernels = NULL;
  plain.layout = MLX_LAYOUT_ROWS;
  mlx_trace_t trace = {0};
  mlx_graph_t graph = {.model = model, .options = &plain, .trace = &trace};
  mlx_value_t *weights = NULL;
  *out_fits = false;
  mlx_status_t status = mlx_builder_create(options->form, "trace", &graph.b);
  if (!status) status = mlx_alloc(model->weight_count, sizeof *weights, &weights);
  if (!status) status = note_attention(&graph, weights, out_fits);
  mlx_graph_free(&graph);
  mlx_free(trace.notes);
  mlx_free(weights);
  return status;
}

mlx_status_t mlx_trace_decode_plan(const mlx_model_t *model, const mlx_graph_options_t *options,
                                   mlx_decode_plan_t *out_plan, bool *out_fits) {
  *out_plan = (mlx_decode_plan_t){.hidden = model->config.hidden, .ffn = model->config.ffn};
  *out_fits = false;
  if (!options->kernels || options->sequences != 1) return NULL;
  const bool packed = options->layout == MLX_LAYOUT_TILES;
  plan_launch(model, options->kernels->gpu, packed, out_plan);
  mlx_graph_options_t plain = *options;
  plain.kernels = NULL;
  plain.layout = MLX_LAYOUT_ROWS;
  mlx_trace_t trace = {0};
  mlx_graph_t graph = {.model = model, .options = &plain, .trace = &trace};
  uint64_t *offsets = NULL;
  mlx_value_t *weights = NULL;
  reader_t reader = {
      .trace = &trace, .model = model, .plan = out_plan, .context = options->context, .fits = true};
  reader.storage = mlx_graph_storage(options);
  mlx_status_t status = mlx_builder_create(options->form, "trace", &graph.b);
  if (!status) status = mlx_alloc(model->weight_count, sizeof *offsets, &offsets);
  if (!status) status = mlx_alloc(model->weight_count, sizeof *weights, &weights);
  reader.offsets = offsets;
  reader.weights = weights;
  if (!status) status = trace_with(&graph, &reader, offsets, weights);
  *out_fits = !status && reader.fits && launch_fits(model, packed, out_plan);
  mlx_graph_free(&graph);
  mlx_free(trace.notes);
  mlx_free(offsets);
  mlx_free(weights);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// For the CPU

static bool cpu_shape_fits(const mlx_config_t *c) {
  const int64_t most = MLX_CPU_MAX_COLUMNS;
  return c->head_dim % 16 == 0 && c->head_dim <= 256 && c->hidden <= most && c->ffn <= most &&
         c->heads * c->head_dim <= most;
}

static mlx_status_t trace_network(mlx_graph_t *g, reader_t *r, mlx_value_t *weights) {
  MLX_TRY(mlx_graph_make_names(g));
  MLX_TRY(take_notes(g, weights));
  read_network(r);
  return NULL;
}

mlx_status_t mlx_trace_network(const mlx_model_t *model, const mlx_graph_options_t *options,
                               mlx_network_plan_t *out_plan) {
  *out_plan = (mlx_network_plan_t){0};
  if (!cpu_shape_fits(&model->config)) return NULL;
  mlx_graph_options_t plain = *options;
  plain.kernels = NULL;
  plain.layout = MLX_LAYOUT_ROWS;
  mlx_decode_plan_t plan = {.hidden = model->config.hidden, .ffn = model->config.ffn};
  mlx_trace_t trace = {0};
  mlx_graph_t graph = {.model = model, .options = &plain, .trace = &trace};
  mlx_value_t *weights = NULL;
  reader_t reader = {
      .trace = &trace, .model = model, .plan = &plan, .context = options->context, .fits = true};
  mlx_status_t status = mlx_builder_create(options->form, "trace", &graph.b);
  if (!status) status = mlx_alloc(model->weight_count, sizeof *weights, &weights);
  if (!status)
    status = mlx_alloc((size_t)model->config.layers * MLX_DECODE_WEIGHTS, sizeof *out_plan->weights,
                       &out_plan->weights);
  reader.weights = weights;
  reader.indices = out_plan->weights;
  if (!status) status = trace_network(&graph, &reader, weights);
  out_plan->fits = !status && reader.fits;
  out_plan->norm_eps = plan.norm_eps;
  out_plan->scale = plan.attention.scale;
  out_plan->rope = plan.rope;
  mlx_graph_free(&graph);
  mlx_free(trace.notes);
  mlx_free(weights);
  if (status) mlx_network_plan_clear(out_plan);
  return status;
}

void mlx_network_plan_clear(mlx_network_plan_t *plan) {
  mlx_free(plan->weights);
  *plan = (mlx_network_plan_t){0};
}
