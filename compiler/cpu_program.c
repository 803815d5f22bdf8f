// Writes the CPU program: phases, places of values in the scratch tensor, and the weights.
#include "compiler/cpu_program.h"

#include <limits.h>
#include <string.h>

#include "base/memory.h"
#include "compiler/cpu_writer.h"
#include "compiler/weights.h"

// ----------------------------------------------------------------------------------------------------------
// Phases

static bool is_row_kind(int32_t kind) { return kind >= MLX_RUN_EMBED && kind <= MLX_RUN_EXPERT_SUM; }

static bool same_rows(int32_t a, int32_t b) { return (a == MLX_ROWS_TOKENS) == (b == MLX_ROWS_TOKENS); }

// Products of one phase read the same input, and none of them reads the result of another.
static bool can_share(const mlx_cpu_program_t *p, const mlx_phase_t *phase, const mlx_instruction_t *i) {
  const mlx_instruction_t *first = &p->instructions[phase->first];
  if (!same_rows(first->rows, i->rows)) return false;
  if (is_row_kind(first->kind)) return is_row_kind(i->kind);
  if (first->kind != MLX_RUN_PRODUCT || i->kind != MLX_RUN_PRODUCT) return false;
  if (first->a.at != i->a.at || first->logits || i->logits) return false;
  for (int32_t k = 0; k < phase->count; ++k) {
    if (i->adds && first[k].out.at == i->b.at) return false;
  }
  return true;
}

mlx_status_t mlx_cpu_begin(mlx_cpu_writer_t *w, const mlx_instruction_t *instruction) {
  mlx_cpu_program_t *p = w->program;
  if (p->header.phases && can_share(p, &p->phases[p->header.phases - 1], instruction)) return NULL;
  mlx_scratch_collect(&w->scratch);
  MLX_TRY(mlx_reserve((size_t)p->header.phases + 1, sizeof *p->phases, &w->phase_capacity, &p->phases));
  p->phases[p->header.phases++] = (mlx_phase_t){.first = p->header.instructions};
  return NULL;
}

mlx_status_t mlx_cpu_append(mlx_cpu_writer_t *w, const mlx_instruction_t *instruction) {
  mlx_cpu_program_t *p = w->program;
  MLX_TRY(mlx_reserve((size_t)p->header.instructions + 1, sizeof *p->instructions, &w->instruction_capacity,
                      &p->instructions));
  p->instructions[p->header.instructions++] = *instruction;
  ++p->phases[p->header.phases - 1].count;
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Values

mlx_cpu_value_t *mlx_cpu_value(mlx_cpu_writer_t *w, int id) { return &w->values[id - 1]; }

mlx_rows_t mlx_cpu_rows(const mlx_node_t *node) {
  return node->dims[0] == MLX_DIM_WANTED ? MLX_ROWS_WANTED : MLX_ROWS_TOKENS;
}

int64_t mlx_cpu_width(const mlx_node_t *node) { return node->dims[node->rank - 1]; }

mlx_program_weight_t mlx_cpu_weight(const mlx_cpu_writer_t *w, int id) {
  if (!id) return (mlx_program_weight_t){.at = MLX_NO_WEIGHT};
  const size_t index = mlx_graph_node(w->graph, id)->weight_index;
  return (mlx_program_weight_t){
      .at = w->offsets[index],
      .format = (int32_t)mlx_weight_stored(&w->model->weights[index], w->storage).format};
}

static bool is_quantized(const mlx_cpu_writer_t *w, int weight) {
  return weight && mlx_panel_info((mlx_panel_format_t)mlx_cpu_weight(w, weight).format)->code_bits;
}

static int64_t row_capacity(const mlx_cpu_writer_t *w, mlx_rows_t rows) {
  return rows == MLX_ROWS_TOKENS ? w->program->header.max_tokens : w->program->header.sequences;
}

// How the products that read node |id| want it: see mlx_program_buffer_t. False if none reads it on tiles.
static bool find_readers(const mlx_cpu_writer_t *w, int id, mlx_program_buffer_t *out) {
  const mlx_graph_t *graph = w->graph;
  int readers = 0;
  out->parts_from = INT_MAX;
  out->plain_below = 1;
  for (int user = id + 1; user <= (int)graph->count; ++user) {
    const mlx_product_t *p = &w->products.of[user - 1];
    if (!p->stage || w->products.absorbed[user - 1] || p->x != id) continue;
    const bool codes = is_quantized(w, p->weight) || is_quantized(w, p->up);
    const int from = codes ? MLX_CPU_MIN_TILED_ROWS : 1;
    const bool logits = mlx_graph_node(graph, (int)graph->count)->operands[0] == user;
    readers += p->up && !p->up_row ? 2 : 1;
    if (codes && (logits || w->program->header.row_by_row)) {
      out->plain_below = INT_MAX;
      continue;
    }
    out->parts_from = from < out->parts_from ? from : out->parts_from;
    out->plain_below = from > out->plain_below ? from : out->plain_below;
  }
  if (readers < mlx_graph_node(graph, id)->uses) out->plain_below = INT_MAX;
  return out->parts_from != INT_MAX;
}

static mlx_status_t take_parts(mlx_cpu_writer_t *w, int id, mlx_program_buffer_t *out) {
  const mlx_node_t *node = mlx_graph_node(w->graph, id);
  const int64_t width = mlx_cpu_width(node);
  const bool stores =
      node->kind != MLX_NODE_ROPE && (node->kind != MLX_NODE_ATTENTION || node->attention.head_dim % 16 == 0);
  out->parts = 0;
  if (!w->program->header.tiles || !stores || width % MLX_PANEL_BLOCK || !find_readers(w, id, out)) {
    out->parts_from = out->plain_below = INT_MAX;
    return NULL;
  }
  return mlx_scratch_take(&w->scratch, mlx_parts_words(row_capacity(w, mlx_cpu_rows(node)), width),
                          &out->parts);
}

mlx_status_t mlx_cpu_take(mlx_cpu_writer_t *w, int id, mlx_program_buffer_t *out_buffer) {
  const mlx_node_t *node = mlx_graph_node(w->graph, id);
  mlx_program_buffer_t *buffer = &mlx_cpu_value(w, id)->buffer;
  *buffer = (mlx_program_buffer_t){.stride = (int32_t)mlx_cpu_width(node)};
  MLX_TRY(mlx_scratch_take(&w->scratch, row_capacity(w, mlx_cpu_rows(node)) * buffer->stride, &buffer->at));
  MLX_TRY(take_parts(w, id, buffer));
  *out_buffer = *buffer;
  return NULL;
}

static int place_of(mlx_cpu_writer_t *w, int id) {
  while (mlx_cpu_value(w, id)->view_of) id = mlx_cpu_value(w, id)->view_of;
  return id;
}

mlx_status_t mlx_cpu_read(mlx_cpu_writer_t *w, int id, mlx_program_buffer_t *out_buffer) {
  *out_buffer = mlx_cpu_value(w, id)->buffer;
  for (int at = id, up; at; at = up) {
    mlx_cpu_value_t *value = mlx_cpu_value(w, at);
    up = value->view_of;
    value->read_phase = w->program->header.phases - 1;
    if (--value->remaining) break;
    if (up) continue;
    MLX_TRY(mlx_scratch_release(&w->scratch, value->buffer.at));
    if (value->buffer.parts) MLX_TRY(mlx_scratch_release(&w->scratch, value->buffer.parts));
  }
  return NULL;
}

// A product reads the place while other threads write it, so no other instruction of its phase may read it.
bool mlx_cpu_is_last_use(mlx_cpu_writer_t *w, int id) {
  const mlx_cpu_value_t *value = mlx_cpu_value(w, id);
  return place_of(w, id) == id && value->remaining == 1 && value->read_phase != w->program->header.phases - 1;
}

mlx_status_t mlx_cpu_take_over(mlx_cpu_writer_t *w, int id, int from, mlx_program_buffer_t *out_buffer) {
  mlx_cpu_value_t *old = mlx_cpu_value(w, from);
  mlx_program_buffer_t *buffer = &mlx_cpu_value(w, id)->buffer;
  *buffer = old->buffer;
  old->remaining = 0;
  if (old->buffer.parts) MLX_TRY(mlx_scratch_release(&w->scratch, old->buffer.parts));
  MLX_TRY(take_parts(w, id, buffer));
  *out_buffer = *buffer;
  return NULL;
}

mlx_status_t mlx_cpu_unsupported(mlx_cpu_writer_t *w, const char *feature) {
  if (!w->program->unsupported) w->program->unsupported = feature;
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// The whole program

static int32_t kv_format(mlx_dtype_t dtype) {
  switch (dtype) {
    case MLX_F16: return MLX_KV_F16;
    case MLX_BF16: return MLX_KV_BF16;
    case MLX_Q8_0: return MLX_KV_Q8;
    default: return MLX_KV_F32;
  }
}

static mlx_status_t start(mlx_cpu_writer_t *w, const char *cpu_level) {
  const mlx_module_options_t *o = w->options;
  mlx_program_t *n = &w->program->header;
  *n = (mlx_program_t){.vocab = (int32_t)w->model->config.vocab,
                       .sequences = (int32_t)o->sequences,
                       .sequence_pages = (int32_t)mlx_module_sequence_pages(o),
                       .pool_pages = (int32_t)mlx_module_pool_pages(o),
                       .max_tokens = (int32_t)(o->sequences * o->buckets[o->bucket_count - 1]),
                       .kv_format = kv_format(o->kv),
                       .row_by_row = o->kv != MLX_F32,
                       .tiles = !strcmp(cpu_level, "sapphirerapids")};
  MLX_TRY(mlx_scratch_start(&w->scratch, MLX_CPU_CONTROL_WORDS));
  MLX_TRY(mlx_scratch_take(&w->scratch, 5 * n->max_tokens, &n->slots));
  const int64_t panels = (n->vocab + MLX_PANEL_ROWS - 1) / MLX_PANEL_ROWS;
  MLX_TRY(mlx_scratch_take(&w->scratch, 2 * n->sequences * panels, &n->best));
  const mlx_instruction_t list = {.kind = MLX_RUN_LIST};
  MLX_TRY(mlx_cpu_begin(w, &list));
  return mlx_cpu_append(w, &list);
}

// One table of cosines and sines for each kind of RoPE. Tables live until the end.
static mlx_status_t write_rope_table(mlx_cpu_writer_t *w, const mlx_rope_t *rope) {
  mlx_cpu_program_t *p = w->program;
  const size_t count = (size_t)(rope->dims / 2), first = (size_t)p->header.floats;
  for (size_t i = 0; i < w->rope_count; ++i) {
    if (mlx_rope_equal(w->ropes[i], rope)) return NULL;
  }
  if (w->rope_count == MLX_CPU_MAX_ROPES) return mlx_cpu_unsupported(w, "so many kinds of RoPE");
  mlx_instruction_t table = {.kind = MLX_RUN_ROPE_TABLE,
                             .dims = (int32_t)rope->dims,
                             .numbers = {(float)rope->scale},
                             .floats = (int64_t)first,
                             .out = {.stride = (int32_t)rope->dims}};
  MLX_TRY(mlx_cpu_begin(w, &table));
  MLX_TRY(mlx_scratch_take(&w->scratch, (int64_t)p->header.max_tokens * rope->dims, &table.out.at));
  MLX_TRY(mlx_reserve(first + count, sizeof *p->floats, &w->float_capacity, &p->floats));
  memcpy(p->floats + first, rope->frequencies, count * sizeof *p->floats);
  p->header.floats += (int32_t)count;
  w->ropes[w->rope_count] = rope;
  w->rope_tables[w->rope_count++] = table.out;
  return mlx_cpu_append(w, &table);
}

static mlx_status_t write_all(mlx_cpu_writer_t *w, const char *cpu_level) {
  const mlx_graph_t *graph = w->graph;
  MLX_TRY(mlx_products_find(graph, &w->products));
  MLX_TRY(mlx_alloc(graph->count, sizeof *w->values, &w->values));
  MLX_TRY(mlx_alloc(w->model->weight_count, sizeof *w->offsets, &w->offsets));
  w->program->archive_bytes = mlx_weights_layout(w->model, w->storage, w->offsets);
  for (int id = 1; id <= (int)graph->count; ++id)
    *mlx_cpu_value(w, id) = (mlx_cpu_value_t){.remaining = mlx_graph_node(graph, id)->uses, .read_phase = -1};
  MLX_TRY(start(w, cpu_level));
  for (int id = 1; id <= (int)graph->count; ++id) {
    const mlx_node_t *node = mlx_graph_node(graph, id);
    if (node->kind == MLX_NODE_ROPE) MLX_TRY(write_rope_table(w, node->rope));
  }
  for (int id = 1; id <= (int)graph->count && !w->program->unsupported; ++id)
    MLX_TRY(mlx_cpu_write_node(w, id));
  const mlx_instruction_t sample = {.kind = MLX_RUN_SAMPLE};
  MLX_TRY(mlx_cpu_begin(w, &sample));
  MLX_TRY(mlx_cpu_append(w, &sample));
  w->program->header.words = w->scratch.words;
  return NULL;
}

mlx_status_t mlx_cpu_program_make(const mlx_model_t *model, const mlx_graph_t *graph,
                                  const mlx_module_options_t *options, const char *cpu_level,
                                  mlx_cpu_program_t *out_program) {
  *out_program = (mlx_cpu_program_t){0};
  mlx_cpu_writer_t writer = {.model = model,
                             .graph = graph,
                             .options = options,
                             .storage = mlx_module_storage(options),
                             .program = out_program};
  mlx_status_t status = write_all(&writer, cpu_level);
  mlx_products_clear(&writer.products);
  mlx_scratch_clear(&writer.scratch);
  mlx_free(writer.values);
  mlx_free(writer.offsets);
  if (status) mlx_cpu_program_clear(out_program);
  return status;
}

void mlx_cpu_program_clear(mlx_cpu_program_t *program) {
  mlx_free(program->phases);
  mlx_free(program->instructions);
  mlx_free(program->floats);
  *program = (mlx_cpu_program_t){0};
}

static uint8_t *put(uint8_t *at, const void *from, size_t bytes) {
  if (bytes) memcpy(at, from, bytes);
  return at + bytes;
}

mlx_status_t mlx_cpu_program_write(const mlx_cpu_program_t *program, int32_t **out_words,
                                   int64_t *out_count) {
  const mlx_program_t *n = &program->header;
  const size_t phases = (size_t)n->phases * sizeof *program->phases,
               instructions = (size_t)n->instructions * sizeof *program->instructions,
               floats = (size_t)n->floats * sizeof *program->floats,
               bytes = sizeof *n + phases + instructions + floats;
  MLX_TRY(mlx_alloc(bytes / 4, 4, out_words));
  uint8_t *at = put((uint8_t *)*out_words, n, sizeof *n);
  at = put(at, program->phases, phases);
  at = put(at, program->instructions, instructions);
  put(at, program->floats, floats);
  *out_count = (int64_t)(bytes / 4);
  return NULL;
}
