// Translates launches into instructions of the CPU kernel, one function per kind.
#include "compiler/cpu_nodes.h"

#include <limits.h>
#include <string.h>

#include "base/memory.h"
#include "base/numbers.h"

// A zero offset is a valid place in the archive, so weights that are missing are marked.
static mlx_instruction_t instruction_of(mlx_instruction_kind_t kind, mlx_rows_t rows) {
  const mlx_program_weight_t none = {.at = MLX_NO_WEIGHT};
  return (mlx_instruction_t){.kind = kind,
                             .rows = rows,
                             .weight = none,
                             .up = none,
                             .bias = none,
                             .up_bias = none,
                             .act = MLX_RUN_NO_ACT};
}

// Completes and appends an instruction that reads node |x| only and gives the result of node |id|.
static mlx_status_t write_one_input(mlx_cpu_writer_t *w, int id, int x, mlx_instruction_t *i) {
  MLX_TRY(mlx_cpu_begin(w, i));
  MLX_TRY(mlx_cpu_take(w, id, &i->out));
  MLX_TRY(mlx_cpu_read(w, x, &i->a));
  return mlx_cpu_append(w, i);
}

// ----------------------------------------------------------------------------------------------------------
// Products

static mlx_program_weight_t upper_half(const mlx_cpu_writer_t *w, const mlx_product_t *p, int64_t columns) {
  mlx_program_weight_t up = mlx_cpu_weight(w, p->up);
  if (p->up) up.at += (uint64_t)(p->up_row / MLX_PANEL_ROWS * mlx_panel_bytes(up.format, columns));
  return up;
}

// Copies the input of the output head, node |x|.
static mlx_status_t write_hidden(mlx_cpu_writer_t *w, int x) {
  mlx_instruction_t i = instruction_of(MLX_RUN_HIDDEN, MLX_ROWS_WANTED);
  w->program->header.hidden = i.width = (int32_t)mlx_cpu_width(mlx_graph_node(w->graph, x));
  MLX_TRY(mlx_cpu_begin(w, &i));
  i.a = mlx_cpu_value(w, x)->buffer;
  return mlx_cpu_append(w, &i);
}

static mlx_status_t write_product(mlx_cpu_writer_t *w, const mlx_launch_t *launch) {
  const mlx_product_t *p = launch->product;
  const int id = launch->node;
  const mlx_node_t *x = mlx_graph_node(w->graph, p->x);
  mlx_instruction_t i = instruction_of(MLX_RUN_PRODUCT, mlx_cpu_rows(x));
  i.width = (int32_t)mlx_cpu_width(x);
  i.out_rows = (int32_t)p->rows;
  i.weight = mlx_cpu_weight(w, p->weight);
  i.bias = mlx_cpu_weight(w, p->bias);
  i.up = upper_half(w, p, i.width);
  i.up_bias = mlx_cpu_weight(w, p->up_bias);
  if (p->act >= 0) i.act = p->act;
  if (p->act_numbers) memcpy(i.numbers, p->act_numbers, sizeof i.numbers);
  i.clip = (float)p->clip;
  i.factor = (float)p->factor;
  i.cap = (float)p->cap;
  i.adds = p->added != 0;
  i.logits = mlx_launch_computes(launch, (int)w->graph->count);
  if (i.width > MLX_CPU_MAX_COLUMNS) return mlx_cpu_unsupported(w, "matrices this wide");
  if (i.logits && i.adds) return mlx_cpu_unsupported(w, "logits that are added to");
  if (i.logits && x->kind != MLX_NODE_PERMUTE) MLX_TRY(write_hidden(w, p->x));
  i.a = mlx_cpu_value(w, p->x)->buffer;
  if (i.adds) i.b = mlx_cpu_value(w, p->added)->buffer;
  MLX_TRY(mlx_cpu_begin(w, &i));
  MLX_TRY(mlx_cpu_read(w, p->x, &i.a));
  if (p->up && !p->up_row) MLX_TRY(mlx_cpu_read(w, p->x, &i.a));
  if (i.adds && mlx_cpu_is_last_use(w, p->added)) {
    MLX_TRY(mlx_cpu_take_over(w, id, p->added, &i.out));
  } else {
    if (!i.logits) MLX_TRY(mlx_cpu_take(w, id, &i.out));
    if (i.adds) MLX_TRY(mlx_cpu_read(w, p->added, &i.b));
  }
  return mlx_cpu_append(w, &i);
}

// ----------------------------------------------------------------------------------------------------------
// Rows

static mlx_status_t write_embed(mlx_cpu_writer_t *w, int id) {
  const mlx_node_t *node = mlx_graph_node(w->graph, id), *table = mlx_graph_operand(w->graph, node, 0),
                   *index = mlx_graph_operand(w->graph, node, 1);
  mlx_instruction_t i = instruction_of(MLX_RUN_EMBED, MLX_ROWS_TOKENS);
  i.op = index->kind == MLX_NODE_POSITIONS ? MLX_INDEX_POSITIONS
         : index->kind == MLX_NODE_TYPES   ? MLX_INDEX_TYPES
                                           : MLX_INDEX_TOKENS;
  i.weight = mlx_cpu_weight(w, node->operands[0]);
  i.out_rows = (int32_t)table->dims[0];
  i.width = (int32_t)table->dims[1];
  MLX_TRY(mlx_cpu_begin(w, &i));
  MLX_TRY(mlx_cpu_take(w, id, &i.out));
  return mlx_cpu_append(w, &i);
}

// The norm |norm|, with the result of node |id|: itself, or the wanted rows of it.
static mlx_status_t write_norm(mlx_cpu_writer_t *w, int norm, int id) {
  const mlx_node_t *node = mlx_graph_node(w->graph, norm), *weight = mlx_graph_operand(w->graph, node, 1);
  const bool by_head = node->kind == MLX_NODE_HEAD_RMSNORM || node->kind == MLX_NODE_HEAD_LAYERNORM;
  const bool rms = node->kind == MLX_NODE_RMSNORM || node->kind == MLX_NODE_HEAD_RMSNORM;
  mlx_instruction_t i = instruction_of(MLX_RUN_NORM, norm == id ? mlx_cpu_rows(node) : MLX_ROWS_SELECT);
  const int64_t width = mlx_cpu_width(node);
  i.op = rms ? MLX_NORM_RMS : MLX_NORM_LAYER;
  i.width = (int32_t)(by_head ? node->head_dim : width);
  i.heads = (int32_t)(width / i.width);
  i.dims = by_head && weight && (weight->rank == 2 || weight->dims[0] > i.width) ? i.width : 0;
  i.numbers[0] = (float)node->eps;
  i.weight = mlx_cpu_weight(w, node->operands[1]);
  if (node->kind == MLX_NODE_LAYERNORM) i.bias = mlx_cpu_weight(w, node->operands[2]);
  return write_one_input(w, id, node->operands[0], &i);
}

// Ops with sums over a row.
static mlx_status_t write_row_op(mlx_cpu_writer_t *w, int id) {
  const mlx_node_t *node = mlx_graph_node(w->graph, id);
  mlx_instruction_t i = instruction_of(MLX_RUN_NORM, mlx_cpu_rows(node));
  i.op = node->kind == MLX_NODE_MATCH ? MLX_NORM_MATCH : MLX_NORM_SPARSIFY;
  i.width = (int32_t)mlx_cpu_width(node);
  i.heads = 1;
  i.numbers[0] = (float)node->number;
  MLX_TRY(mlx_cpu_begin(w, &i));
  MLX_TRY(mlx_cpu_take(w, id, &i.out));
  MLX_TRY(mlx_cpu_read(w, node->operands[0], &i.a));
  if (node->operands[1]) MLX_TRY(mlx_cpu_read(w, node->operands[1], &i.b));
  return mlx_cpu_append(w, &i);
}

// The op of an element-wise node, and its numbers.
static int map_of(const mlx_node_t *node, float *out_numbers) {
  out_numbers[0] = (float)node->number;
  if (node->kind == MLX_NODE_ACTIVATE) memcpy(out_numbers, node->act_numbers, sizeof node->act_numbers);
  switch (node->kind) {
    case MLX_NODE_BIAS: return MLX_MAP_BIAS;
    case MLX_NODE_GAIN: return MLX_MAP_GAIN;
    case MLX_NODE_ADD: return MLX_MAP_ADD;
    case MLX_NODE_MULTIPLY: return MLX_MAP_MULTIPLY;
    case MLX_NODE_SCALE: return MLX_MAP_SCALE;
    case MLX_NODE_SOFTCAP: return MLX_MAP_SOFTCAP;
    case MLX_NODE_CLIP: return MLX_MAP_CLIP;
    case MLX_NODE_GROW: return MLX_MAP_GROW;
    case MLX_NODE_ACTIVATE: return MLX_MAP_ACTIVATE + (int)node->act;
    case MLX_NODE_GATED: return MLX_MAP_GATED + (int)node->act;
    case MLX_NODE_SIGMOID: return MLX_MAP_SIGMOID;
    case MLX_NODE_SCALE_ROWS: return MLX_MAP_SCALE_ROWS;
    default: return MLX_MAP_COPY;
  }
}

static mlx_status_t write_map(mlx_cpu_writer_t *w, int id) {
  const mlx_node_t *node = mlx_graph_node(w->graph, id), *second = mlx_graph_operand(w->graph, node, 1);
  const bool wanted = node->kind == MLX_NODE_WANTED;
  mlx_instruction_t i = instruction_of(MLX_RUN_MAP, wanted ? MLX_ROWS_SELECT : mlx_cpu_rows(node));
  i.op = map_of(node, i.numbers);
  i.width = (int32_t)mlx_cpu_width(node);
  i.dims = (int32_t)node->period;
  const bool by_vector = node->kind == MLX_NODE_BIAS || node->kind == MLX_NODE_GAIN;
  if (by_vector) i.weight = mlx_cpu_weight(w, node->operands[1]);
  const bool reads_second = second && !by_vector && node->kind != MLX_NODE_GROW;
  const int first = node->operands[0];
  MLX_TRY(mlx_cpu_begin(w, &i));
  if (!wanted && mlx_cpu_is_last_use(w, first)) {
    i.a = mlx_cpu_value(w, first)->buffer;
    MLX_TRY(mlx_cpu_take_over(w, id, first, &i.out));
  } else {
    MLX_TRY(mlx_cpu_take(w, id, &i.out));
    MLX_TRY(mlx_cpu_read(w, first, &i.a));
  }
  if (reads_second) MLX_TRY(mlx_cpu_read(w, node->operands[1], &i.b));
  return mlx_cpu_append(w, &i);
}

// The columns of x in another order. Only the output head reads wanted rows in another order; its input is
// copied before.
static mlx_status_t write_permute(mlx_cpu_writer_t *w, int id) {
  const mlx_node_t *node = mlx_graph_node(w->graph, id);
  mlx_instruction_t i = instruction_of(MLX_RUN_PERMUTE, mlx_cpu_rows(node));
  if (i.rows == MLX_ROWS_WANTED) MLX_TRY(write_hidden(w, node->operands[0]));
  i.width = (int32_t)mlx_cpu_width(node);
  i.weight = mlx_cpu_weight(w, node->operands[1]);
  return write_one_input(w, id, node->operands[0], &i);
}

static mlx_status_t write_head_columns(mlx_cpu_writer_t *w, int id) {
  const mlx_node_t *node = mlx_graph_node(w->graph, id), *x = mlx_graph_operand(w->graph, node, 0);
  mlx_instruction_t i = instruction_of(MLX_RUN_PICK, mlx_cpu_rows(node));
  i.heads = (int32_t)(mlx_cpu_width(x) / node->head_dim);
  i.head_dim = (int32_t)node->head_dim;
  i.dims = (int32_t)node->start;
  i.width = i.out_rows = (int32_t)mlx_cpu_width(node) / i.heads;
  return write_one_input(w, id, node->operands[0], &i);
}

// Two copies of columns, side by side; of columns of heads if the instruction has heads.
static mlx_status_t append_halves(mlx_cpu_writer_t *w, const mlx_node_t *node, mlx_program_buffer_t out,
                                  mlx_instruction_t *i) {
  for (int part = 0; part < 2; ++part) {
    i->width = (int32_t)mlx_cpu_width(mlx_graph_operand(w->graph, node, part)) / (i->heads ? i->heads : 1);
    if (i->heads) i->head_dim = i->width;
    i->out = out;
    MLX_TRY(mlx_cpu_begin(w, i));
    MLX_TRY(mlx_cpu_read(w, node->operands[part], &i->a));
    MLX_TRY(mlx_cpu_append(w, i));
    out.at += i->width;
  }
  return NULL;
}

static mlx_status_t write_head_join(mlx_cpu_writer_t *w, int id) {
  const mlx_node_t *node = mlx_graph_node(w->graph, id);
  mlx_instruction_t i = instruction_of(MLX_RUN_PICK, mlx_cpu_rows(node));
  mlx_program_buffer_t out;
  i.heads = (int32_t)(mlx_cpu_width(mlx_graph_operand(w->graph, node, 0)) / node->head_dim);
  i.out_rows = (int32_t)mlx_cpu_width(node) / i.heads;
  MLX_TRY(mlx_cpu_begin(w, &i));
  MLX_TRY(mlx_cpu_take(w, id, &out));
  return append_halves(w, node, out, &i);
}

static mlx_status_t write_head_linear(mlx_cpu_writer_t *w, int id) {
  const mlx_node_t *node = mlx_graph_node(w->graph, id), *weight = mlx_graph_operand(w->graph, node, 1);
  mlx_instruction_t i = instruction_of(MLX_RUN_HEAD_PRODUCT, mlx_cpu_rows(node));
  i.heads = (int32_t)weight->dims[0];
  i.out_rows = (int32_t)weight->dims[1];
  i.width = (int32_t)weight->dims[2];
  i.weight = mlx_cpu_weight(w, node->operands[1]);
  return write_one_input(w, id, node->operands[0], &i);
}

static mlx_status_t write_join(mlx_cpu_writer_t *w, int id) {
  const mlx_node_t *node = mlx_graph_node(w->graph, id);
  mlx_instruction_t i = instruction_of(MLX_RUN_MAP, mlx_cpu_rows(node));
  mlx_program_buffer_t out;
  i.op = MLX_MAP_COPY;
  MLX_TRY(mlx_cpu_begin(w, &i));
  MLX_TRY(mlx_cpu_take(w, id, &out));
  if (out.parts) return mlx_cpu_unsupported(w, "products of joined columns");
  return append_halves(w, node, out, &i);
}

static mlx_status_t write_rope(mlx_cpu_writer_t *w, int id) {
  const mlx_node_t *node = mlx_graph_node(w->graph, id);
  mlx_instruction_t i = instruction_of(MLX_RUN_ROPE, MLX_ROWS_TOKENS);
  i.op = node->rope->adjacent;
  i.dims = (int32_t)node->rope->dims;
  i.head_dim = (int32_t)node->head_dim;
  i.heads = (int32_t)(mlx_cpu_width(node) / node->head_dim);
  for (size_t k = 0; k < w->rope_count; ++k) {
    if (mlx_rope_equal(w->ropes[k], node->rope)) i.b = w->rope_tables[k];
  }
  MLX_TRY(mlx_cpu_begin(w, &i));
  if (mlx_cpu_is_last_use(w, node->operands[0])) {
    i.a = mlx_cpu_value(w, node->operands[0])->buffer;
    MLX_TRY(mlx_cpu_take_over(w, id, node->operands[0], &i.out));
  } else {
    MLX_TRY(mlx_cpu_take(w, id, &i.out));
    MLX_TRY(mlx_cpu_read(w, node->operands[0], &i.a));
  }
  return mlx_cpu_append(w, &i);
}

// The columns stay where they are.
static mlx_status_t write_columns(mlx_cpu_writer_t *w, int id) {
  const mlx_node_t *node = mlx_graph_node(w->graph, id);
  mlx_cpu_value_t *value = mlx_cpu_value(w, id);
  value->view_of = node->operands[0];
  value->buffer = mlx_cpu_value(w, node->operands[0])->buffer;
  value->buffer.at += node->start;
  value->buffer.parts = 0;
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Attention

// The biases of the scores by distance. Layers that share the weight share them; they live until the end.
static mlx_status_t write_spread(mlx_cpu_writer_t *w, const mlx_node_t *node, mlx_program_buffer_t *out) {
  const int64_t buckets = mlx_graph_operand(w->graph, node, 4)->dims[0];
  mlx_cpu_program_t *p = w->program;
  const int64_t distances = mlx_distances(p->header.capacity);
  mlx_instruction_t i = instruction_of(MLX_RUN_SPREAD, MLX_ROWS_TOKENS);
  const size_t first = (size_t)p->header.floats;
  if (w->spread_weight == node->operands[4]) {
    *out = w->spread;
    return NULL;
  }
  i.heads = (int32_t)node->attention.heads;
  i.weight = mlx_cpu_weight(w, node->operands[4]);
  i.floats = (int64_t)first;
  i.out.stride = 1;
  MLX_TRY(mlx_cpu_begin(w, &i));
  MLX_TRY(mlx_scratch_take(&w->scratch, i.heads * distances, &i.out.at));
  MLX_TRY(mlx_reserve(first + (size_t)distances, sizeof *p->floats, &w->float_capacity, &p->floats));
  for (int64_t k = 0; k < distances; ++k)
    p->floats[first + (size_t)k] = (float)mlx_relative_bucket(k, p->header.capacity - 1, buckets);
  p->header.floats += (int32_t)distances;
  w->spread_weight = node->operands[4];
  w->spread = *out = i.out;
  return mlx_cpu_append(w, &i);
}

// Attention to keys that begin with their values.
static mlx_status_t write_latent(mlx_cpu_writer_t *w, int id) {
  const mlx_node_t *node = mlx_graph_node(w->graph, id);
  const mlx_attention_t *a = &node->attention;
  mlx_program_t *header = &w->program->header;
  if (a->head_dim > MLX_CPU_MAX_LATENT) return mlx_cpu_unsupported(w, "latent keys of this size");
  mlx_instruction_t append = instruction_of(MLX_RUN_APPEND, MLX_ROWS_TOKENS), attend;
  append.op = 1;
  append.heads = (int32_t)a->heads;
  append.head_dim = (int32_t)a->head_dim;
  append.kv_at = header->page_bytes;
  header->page_bytes += mlx_kv_head_bytes(header->kv_format, a->head_dim);
  attend = append;
  attend.kind = MLX_RUN_ATTEND_LATENT;
  attend.op = 0;
  attend.width = (int32_t)a->value_dim;
  attend.numbers[0] = (float)a->scale;
  MLX_TRY(mlx_cpu_begin(w, &append));
  MLX_TRY(mlx_cpu_read(w, node->operands[1], &append.a));
  MLX_TRY(mlx_cpu_append(w, &append));
  return write_one_input(w, id, node->operands[0], &attend);
}

// Takes the place of a layer's keys and values in a page, and stores them there.
static mlx_status_t write_append(mlx_cpu_writer_t *w, const mlx_node_t *node, mlx_instruction_t *append) {
  mlx_cpu_program_t *p = w->program;
  const mlx_attention_t *a = &node->attention;
  int64_t *page_bytes = append->pages ? &p->header.window_page_bytes : &p->header.page_bytes;
  const int64_t bytes = mlx_kv_page_bytes(p->header.kv_format, a->kv_heads, a->head_dim);
  // The layers of an encoder share a place: keys and values are read in the step that stores them.
  const bool shares = mlx_graph_is_encoder(w->graph);
  append->kv_at = shares ? 0 : *page_bytes;
  *page_bytes = shares ? mlx_max(*page_bytes, bytes) : *page_bytes + bytes;
  mlx_instruction_t i = *append;
  MLX_TRY(mlx_cpu_begin(w, &i));
  MLX_TRY(mlx_cpu_read(w, node->operands[1], &i.a));
  MLX_TRY(mlx_cpu_read(w, node->operands[2], &i.b));
  return mlx_cpu_append(w, &i);
}

static mlx_status_t write_attention(mlx_cpu_writer_t *w, int id) {
  const mlx_node_t *node = mlx_graph_node(w->graph, id),
                   *owner = mlx_graph_kv_owner(w->graph, &node->attention);
  const mlx_attention_t *a = &node->attention;
  if (a->head_dim > MLX_CPU_MAX_HEAD_DIM || a->heads % a->kv_heads)
    return mlx_cpu_unsupported(w, "attention heads of this size");
  mlx_instruction_t attend = instruction_of(MLX_RUN_APPEND, MLX_ROWS_TOKENS);
  attend.heads = (int32_t)a->heads;
  attend.kv_heads = (int32_t)a->kv_heads;
  attend.head_dim = (int32_t)a->head_dim;
  attend.pages = a->window && w->options->window_pages;
  if (owner == node) {
    MLX_TRY(write_append(w, node, &attend));
    mlx_cpu_value(w, id)->kv_at = attend.kv_at;
  } else if (mlx_graph_is_encoder(w->graph)) {
    return mlx_cpu_unsupported(w, "keys and values of another layer in an encoder");
  } else {
    attend.kv_at = mlx_cpu_value(w, (int)(owner - w->graph->nodes) + 1)->kv_at;
  }
  attend.kind = MLX_RUN_ATTEND;
  attend.numbers[0] = (float)a->scale;
  attend.numbers[1] = (float)a->softcap;
  attend.window = a->window < INT_MAX ? (int32_t)a->window : 0;
  attend.whole = a->whole;
  attend.span = a->span < w->program->header.capacity ? (int32_t)a->span : 0;
  attend.weight = mlx_cpu_weight(w, node->operands[3]);
  if (node->operands[4]) MLX_TRY(write_spread(w, node, &attend.b));
  MLX_TRY(mlx_cpu_begin(w, &attend));
  MLX_TRY(mlx_cpu_take(w, id, &attend.out));
  MLX_TRY(mlx_cpu_read(w, node->operands[0], &attend.a));
  return mlx_cpu_append(w, &attend);
}

// ----------------------------------------------------------------------------------------------------------
// Recurrent ops

// Places the state of node |id| in the states.
static int64_t place_state(mlx_cpu_writer_t *w, int id) {
  int64_t at;
  mlx_graph_state(w->graph, id, &at);
  w->program->header.state_bytes = mlx_graph_state_numbers(w->graph) * 4;
  return at * 4;
}

static mlx_status_t write_convolve(mlx_cpu_writer_t *w, int id) {
  const mlx_node_t *node = mlx_graph_node(w->graph, id);
  mlx_instruction_t i = instruction_of(MLX_RUN_CONVOLVE, MLX_ROWS_TOKENS);
  i.op = node->silu;
  i.width = (int32_t)mlx_cpu_width(node);
  i.dims = (int32_t)mlx_graph_operand(w->graph, node, 1)->dims[1];
  i.weight = mlx_cpu_weight(w, node->operands[1]);
  i.bias = mlx_cpu_weight(w, node->operands[2]);
  i.kv_at = place_state(w, id);
  if (i.dims > MLX_CPU_MAX_TAPS) return mlx_cpu_unsupported(w, "convolutions of so many taps");
  return write_one_input(w, id, node->operands[0], &i);
}

static mlx_status_t write_delta(mlx_cpu_writer_t *w, int id) {
  const mlx_node_t *node = mlx_graph_node(w->graph, id);
  const mlx_delta_t *d = &node->delta;
  mlx_instruction_t i = instruction_of(MLX_RUN_DELTA, MLX_ROWS_TOKENS);
  i.op = (d->log_rate ? 1 : 0) | (d->tiled ? 2 : 0);
  i.heads = (int32_t)d->value_heads;
  i.kv_heads = (int32_t)d->key_heads;
  i.head_dim = (int32_t)d->key_dim;
  i.width = (int32_t)d->value_dim;
  i.numbers[0] = (float)d->scale;
  i.numbers[1] = (float)d->eps;
  i.numbers[2] = d->beta_scale == 0.0 ? 1 : (float)d->beta_scale;
  i.weight = mlx_cpu_weight(w, node->operands[3]);
  i.bias = mlx_cpu_weight(w, node->operands[4]);
  i.kv_at = place_state(w, id);
  if (d->key_dim > MLX_CPU_MAX_HEAD_DIM) return mlx_cpu_unsupported(w, "keys of this size");
  MLX_TRY(mlx_cpu_begin(w, &i));
  MLX_TRY(mlx_cpu_take(w, id, &i.out));
  MLX_TRY(mlx_cpu_read(w, node->operands[0], &i.a));
  MLX_TRY(mlx_cpu_read(w, node->operands[1], &i.b));
  MLX_TRY(mlx_cpu_read(w, node->operands[2], &i.c));
  return mlx_cpu_append(w, &i);
}

static mlx_status_t write_scan(mlx_cpu_writer_t *w, int id) {
  const mlx_node_t *node = mlx_graph_node(w->graph, id);
  const mlx_scan_t *s = &node->scan;
  mlx_instruction_t i = instruction_of(MLX_RUN_SCAN, MLX_ROWS_TOKENS);
  i.op = (s->log_rate ? MLX_SCAN_LOG_RATE : 0) | (s->state_rates ? MLX_SCAN_STATE_RATES : 0);
  i.heads = (int32_t)s->heads;
  i.kv_heads = (int32_t)s->groups;
  i.head_dim = (int32_t)s->state_size;
  i.width = (int32_t)s->head_dim;
  i.numbers[0] = (float)s->min_step;
  i.numbers[1] = (float)s->max_step;
  i.weight = mlx_cpu_weight(w, node->operands[2]);
  i.bias = mlx_cpu_weight(w, node->operands[3]);
  i.up = mlx_cpu_weight(w, node->operands[4]);
  i.kv_at = place_state(w, id);
  if (s->state_size > MLX_CPU_MAX_HEAD_DIM) return mlx_cpu_unsupported(w, "states of this size");
  MLX_TRY(mlx_cpu_begin(w, &i));
  MLX_TRY(mlx_cpu_take(w, id, &i.out));
  MLX_TRY(mlx_cpu_read(w, node->operands[0], &i.a));
  MLX_TRY(mlx_cpu_read(w, node->operands[1], &i.b));
  return mlx_cpu_append(w, &i);
}

// ----------------------------------------------------------------------------------------------------------
// Mixture of experts

typedef struct experts {
  const mlx_node_t *node;
  int64_t experts, ffn, hidden, pairs;
  mlx_instruction_t common;  // the fields that all its instructions share
} experts_t;

static mlx_status_t write_routing(mlx_cpu_writer_t *w, experts_t *e) {
  const mlx_experts_t *params = &e->node->experts;
  const mlx_graph_routes_t routes = mlx_graph_routes(w->graph);
  mlx_instruction_t route = e->common, group = e->common;
  route.kind = MLX_RUN_ROUTE;
  route.op =
      (params->sigmoid ? MLX_ROUTE_SIGMOID : 0) | (params->groups_by_best ? MLX_ROUTE_GROUPS_BY_BEST : 0);
  route.bias = mlx_cpu_weight(w, e->node->operands[8]);
  route.up = mlx_cpu_weight(w, e->node->operands[9]);
  route.heads = (int32_t)params->groups;
  route.kv_heads = (int32_t)params->groups_used;
  route.width = (int32_t)(routes.layers * routes.used);
  route.dims = routes.used ? (int32_t)(mlx_node_layer(e->node) * routes.used) : 0;
  route.numbers[0] = (float)params->sum_eps;
  route.numbers[1] = params->weight_scale == 0.0 ? 1 : (float)params->weight_scale;
  route.numbers[2] = (float)params->spread;
  group.kind = MLX_RUN_GROUP;
  MLX_TRY(mlx_cpu_begin(w, &route));
  MLX_TRY(mlx_cpu_read(w, e->node->operands[1], &route.a));
  MLX_TRY(mlx_cpu_append(w, &route));
  MLX_TRY(mlx_cpu_begin(w, &group));
  return mlx_cpu_append(w, &group);
}

// Takes a place of |width| columns for each pair of token and expert.
static mlx_status_t take_pairs(mlx_cpu_writer_t *w, const experts_t *e, int64_t width,
                               mlx_program_buffer_t *out) {
  *out = (mlx_program_buffer_t){.stride = (int32_t)width, .stores = MLX_STORE_PLAIN};
  return mlx_scratch_take(&w->scratch, e->pairs * width, &out->at);
}

static mlx_status_t write_expert_products(mlx_cpu_writer_t *w, const experts_t *e,
                                          mlx_program_buffer_t *out) {
  const int *operands = e->node->operands;
  const mlx_experts_t *params = &e->node->experts;
  mlx_instruction_t gate = e->common, down;
  gate.kind = MLX_RUN_EXPERT_PRODUCT;
  down = gate;
  gate.width = down.out_rows = (int32_t)e->hidden;
  gate.out_rows = down.width = (int32_t)e->ffn;
  gate.weight = mlx_cpu_weight(w, operands[2]);
  gate.up = mlx_cpu_weight(w, operands[3]);
  gate.bias = mlx_cpu_weight(w, operands[5]);
  gate.up_bias = mlx_cpu_weight(w, operands[6]);
  gate.act = (int32_t)params->act;
  gate.clip = (float)params->limit;
  gate.slope = params->limit == 0.0 ? 0 : (float)params->slope;
  MLX_TRY(mlx_cpu_begin(w, &gate));
  MLX_TRY(take_pairs(w, e, e->ffn, &gate.out));
  MLX_TRY(mlx_cpu_read(w, operands[0], &gate.a));
  MLX_TRY(mlx_cpu_append(w, &gate));
  down.op = 1;
  down.weight = mlx_cpu_weight(w, operands[4]);
  down.bias = mlx_cpu_weight(w, operands[7]);
  down.a = gate.out;
  MLX_TRY(mlx_cpu_begin(w, &down));
  MLX_TRY(take_pairs(w, e, e->hidden, &down.out));
  *out = down.out;
  MLX_TRY(mlx_scratch_release(&w->scratch, gate.out.at));
  return mlx_cpu_append(w, &down);
}

static mlx_status_t write_experts(mlx_cpu_writer_t *w, int id) {
  const mlx_node_t *node = mlx_graph_node(w->graph, id), *gate = mlx_graph_operand(w->graph, node, 2);
  experts_t e = {.node = node,
                 .experts = gate->dims[0],
                 .ffn = gate->dims[1],
                 .hidden = gate->dims[2],
                 .pairs = w->program->header.capacity * node->experts.used,
                 .common = instruction_of(MLX_RUN_ROUTE, MLX_ROWS_TOKENS)};
  if (e.experts > MLX_CPU_MAX_EXPERTS || node->experts.used > MLX_CPU_MAX_USED || e.ffn > MLX_CPU_MAX_COLUMNS)
    return mlx_cpu_unsupported(w, "so many experts");
  e.common.experts = (int32_t)e.experts;
  e.common.used = (int32_t)node->experts.used;
  e.common.sum_to_one = node->experts.sum_to_one;
  mlx_instruction_t sum = e.common;
  // The first phase of the experts takes the place of the routing arrays.
  MLX_TRY(mlx_cpu_begin(w, &(mlx_instruction_t){.kind = MLX_RUN_ROUTE}));
  MLX_TRY(mlx_scratch_take(&w->scratch,
                           mlx_routing_words(w->program->header.capacity, node->experts.used, e.experts),
                           &e.common.routing));
  MLX_TRY(write_routing(w, &e));
  MLX_TRY(write_expert_products(w, &e, &sum.a));
  sum.kind = MLX_RUN_EXPERT_SUM;
  sum.routing = e.common.routing;
  sum.width = (int32_t)e.hidden;
  MLX_TRY(mlx_cpu_begin(w, &sum));
  MLX_TRY(mlx_cpu_take(w, id, &sum.out));
  MLX_TRY(mlx_scratch_release(&w->scratch, sum.a.at));
  MLX_TRY(mlx_scratch_release(&w->scratch, sum.routing));
  return mlx_cpu_append(w, &sum);
}

static mlx_status_t write_pool(mlx_cpu_writer_t *w, int id) {
  static const int32_t ops[MLX_POOLINGS] = {[MLX_POOL_MEAN] = MLX_POOL_OF_MEAN,
                                            [MLX_POOL_CLS] = MLX_POOL_OF_FIRST,
                                            [MLX_POOL_LAST] = MLX_POOL_OF_LAST,
                                            [MLX_POOL_MAX] = MLX_POOL_OF_MAX};
  const mlx_node_t *node = mlx_graph_node(w->graph, id);
  mlx_instruction_t i = instruction_of(MLX_RUN_POOL, MLX_ROWS_WANTED);
  i.op = ops[node->pooling];
  i.width = (int32_t)mlx_cpu_width(node);
  return write_one_input(w, id, node->operands[0], &i);
}

static mlx_status_t write_sum_ranks(mlx_cpu_writer_t *w, int id) {
  const mlx_node_t *node = mlx_graph_node(w->graph, id);
  mlx_instruction_t i = instruction_of(MLX_RUN_SUM_RANKS, mlx_cpu_rows(node));
  i.width = (int32_t)mlx_cpu_width(node);
  i.heads = (int32_t)node->ranks;
  i.kv_heads = (int32_t)node->own_rank;
  return write_one_input(w, id, node->operands[0], &i);
}

// What an encoder computes of each text is the argument |hidden|.
mlx_status_t mlx_cpu_write_result(mlx_cpu_writer_t *w) {
  return write_hidden(w, mlx_graph_node(w->graph, (int)w->graph->count)->operands[0]);
}

static mlx_status_t write_wanted(mlx_cpu_writer_t *w, const mlx_launch_t *l) {
  const int x = mlx_graph_node(w->graph, l->node)->operands[0];
  return mlx_launch_computes(l, x) ? write_norm(w, x, l->node) : write_map(w, l->node);
}

mlx_status_t mlx_cpu_write_launch(mlx_cpu_writer_t *w, const mlx_launch_t *launch) {
  const int id = launch->node;
  switch (launch->kind) {
    case MLX_LAUNCH_PRODUCT: return write_product(w, launch);
    case MLX_LAUNCH_EMBED: return write_embed(w, id);
    case MLX_LAUNCH_NORM: return write_norm(w, id, id);
    case MLX_LAUNCH_ROPE: return write_rope(w, id);
    case MLX_LAUNCH_VIEW: return write_columns(w, id);
    case MLX_LAUNCH_PERMUTE: return write_permute(w, id);
    case MLX_LAUNCH_ATTENTION:
      return mlx_graph_node(w->graph, id)->attention.value_dim ? write_latent(w, id) : write_attention(w, id);
    case MLX_LAUNCH_HEAD_COLUMNS: return write_head_columns(w, id);
    case MLX_LAUNCH_CONVOLVE: return write_convolve(w, id);
    case MLX_LAUNCH_DELTA: return write_delta(w, id);
    case MLX_LAUNCH_SCAN: return write_scan(w, id);
    case MLX_LAUNCH_EXPERTS: return write_experts(w, id);
    case MLX_LAUNCH_WANTED: return write_wanted(w, launch);
    case MLX_LAUNCH_POOL: return write_pool(w, id);
    case MLX_LAUNCH_HEAD_PRODUCT: return write_head_linear(w, id);
    default: break;
  }
  switch (mlx_graph_node(w->graph, id)->kind) {
    case MLX_NODE_JOIN: return write_join(w, id);
    case MLX_NODE_HEAD_JOIN: return write_head_join(w, id);
    case MLX_NODE_MATCH:
    case MLX_NODE_SPARSIFY: return write_row_op(w, id);
    case MLX_NODE_SUM_RANKS: return write_sum_ranks(w, id);
    default: return write_map(w, id);
  }
}
