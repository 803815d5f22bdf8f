// Phases of a CPU program, and the places of values in the scratch tensor.
#include "compiler/cpu_writer.h"

#include "base/memory.h"
#include "compiler/panels.h"

// ----------------------------------------------------------------------------------------------------------
// Phases

static bool is_row_kind(int32_t kind) { return kind >= MLX_RUN_EMBED && kind <= MLX_RUN_HIDDEN; }

static bool same_rows(int32_t a, int32_t b) { return (a == MLX_ROWS_TOKENS) == (b == MLX_ROWS_TOKENS); }

// Any instruction may be the first of a phase. Products of one phase read the same input, and none of them
// reads the result of another.
static bool can_share(const mlx_cpu_program_t *p, const mlx_phase_t *phase, const mlx_instruction_t *i) {
  if (!phase->count) return true;
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

static const mlx_panel_info_t *panel_of(const mlx_cpu_writer_t *w, int weight) {
  return mlx_panel_info((mlx_panel_format_t)mlx_cpu_weight(w, weight).format);
}
static bool is_quantized(const mlx_cpu_writer_t *w, int weight) {
  return weight && panel_of(w, weight)->code_bits;
}
static bool has_two_scales(const mlx_cpu_writer_t *w, int weight) {
  return weight && panel_of(w, weight)->scales == 2;
}

static int64_t row_capacity(const mlx_cpu_writer_t *w, mlx_rows_t rows) {
  return rows == MLX_ROWS_TOKENS ? w->program->header.capacity : MLX_CPU_MAX_WANTED;
}

// What is stored of node |id|: see mlx_program_buffer_t. Of quantized matrices, only those with two scales
// per block read parts, for the rows of long segments (has_long_way() in kernels/cpu/products.c).
static int find_stores(const mlx_cpu_writer_t *w, int id) {
  const mlx_graph_t *graph = w->graph;
  const bool tokens = mlx_cpu_rows(mlx_graph_node(graph, id)) == MLX_ROWS_TOKENS;
  int readers = 0, stores = 0;
  for (size_t i = 0; i < w->launches.count; ++i) {
    const mlx_product_t *p = w->launches.list[i].product;
    if (!p || p->x != id) continue;
    const bool codes = is_quantized(w, p->weight) || is_quantized(w, p->up),
               long_way = has_two_scales(w, p->weight) || has_two_scales(w, p->up);
    readers += p->up && !p->up_row ? 2 : 1;
    if (!codes)
      stores |= MLX_STORE_PARTS;
    else
      stores |= tokens && long_way && !w->program->header.row_by_row
                    ? MLX_STORE_LONG_PARTS | MLX_STORE_SHORT_PLAIN
                    : MLX_STORE_PLAIN;
    if (mlx_launch_computes(&w->launches.list[i], (int)graph->count)) stores |= MLX_STORE_PLAIN;  // hidden
  }
  return readers < mlx_graph_node(graph, id)->uses ? stores | MLX_STORE_PLAIN : stores;
}

static mlx_status_t take_parts(mlx_cpu_writer_t *w, int id, mlx_program_buffer_t *out) {
  const mlx_node_t *node = mlx_graph_node(w->graph, id);
  const int64_t width = mlx_cpu_width(node);
  const bool of_heads = node->kind == MLX_NODE_HEAD_LINEAR || node->kind == MLX_NODE_HEAD_JOIN ||
                        (node->kind == MLX_NODE_ATTENTION && node->attention.value_dim);
  const bool stores = node->kind != MLX_NODE_ROPE && !mlx_node_is_recurrent(node->kind) && !of_heads &&
                      (node->kind != MLX_NODE_ATTENTION || node->attention.head_dim % 16 == 0);
  out->parts = 0;
  out->stores = MLX_STORE_PLAIN;
  if (!w->program->header.tiles || !stores || width % MLX_PANEL_BLOCK) return NULL;
  const int found = find_stores(w, id);
  if (!(found & MLX_STORE_PARTS)) return NULL;
  out->stores = found;
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
