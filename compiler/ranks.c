// Divides the graph and the weights of a model. See ranks.h.
//
// A value is "divided" if a rank has only its columns of it: those of its heads, or of its part of the MLP. A
// product whose result only per-column ops read, up to attention or another product, is divided by rows; a
// product of a divided value is divided by columns.
#include "compiler/ranks.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"

typedef enum part { UNUSED, WHOLE, ROWS, COLUMNS } part_t;

typedef struct divider {
  mlx_model_t *model;
  const mlx_graph_t *old;
  mlx_rank_t rank;
  mlx_graph_t *graph;
  bool *divided;       // [old nodes]
  part_t *parts;       // [old weights]
  mlx_value_t *value;  // [old nodes] in the new graph
} divider_t;

mlx_status_t mlx_rank_check(const mlx_rank_t *r) {
  const bool powers = r->count > 0 && !(r->count & (r->count - 1)) && !(r->slices & (r->slices - 1));
  if (powers && r->count <= MLX_MOST_RANKS && r->slices >= r->count && r->slices <= MLX_MOST_RANKS &&
      r->number >= 0 && r->number < r->count)
    return NULL;
  return mlx_error(MLX_USAGE, "rank %lld of %lld with %lld slices is not possible: use 2, 4 or 8",
                   (long long)r->number, (long long)r->count, (long long)r->slices);
}

static mlx_status_t unsupported(const mlx_node_t *node, const char *why) {
  return mlx_error(MLX_UNSUPPORTED, "the model cannot be divided over ranks: op '%s%s%s' (%s) %s",
                   node->scope, node->scope[0] ? "." : "", node->name, mlx_node_kind_name(node->kind), why);
}

// ----------------------------------------------------------------------------------------------------------
// What is divided

// Ops that compute each column, or each head, from the same columns or head of their operands.
static bool is_by_column(mlx_node_kind_t kind) {
  switch (kind) {
    case MLX_NODE_BIAS:
    case MLX_NODE_HEAD_RMSNORM:
    case MLX_NODE_HEAD_LAYERNORM:
    case MLX_NODE_ROPE:
    case MLX_NODE_ACTIVATE:
    case MLX_NODE_SCALE:
    case MLX_NODE_SOFTCAP:
    case MLX_NODE_CLIP:
    case MLX_NODE_GROW:
    case MLX_NODE_SIGMOID:
    case MLX_NODE_GATED:
    case MLX_NODE_MULTIPLY: return true;
    default: return false;
  }
}

// Whether attention or a product reads node |id|, through ops by column only, and nothing else does.
static bool is_for_a_part(const mlx_graph_t *graph, int id) {
  bool any = false;
  for (int user = id + 1; user <= (int)graph->count; ++user) {
    const mlx_node_t *node = mlx_graph_node(graph, user);
    for (int i = 0; i < MLX_NODE_OPERANDS; ++i) {
      if (node->operands[i] != id) continue;
      any = true;
      const bool ends = node->kind == MLX_NODE_ATTENTION || node->kind == MLX_NODE_LINEAR;
      if (!ends && !(is_by_column(node->kind) && is_for_a_part(graph, user))) return false;
    }
  }
  return any;
}

static mlx_status_t use_weight(divider_t *d, const mlx_node_t *node, int nth, part_t part) {
  const mlx_node_t *weight = mlx_graph_operand(d->old, node, nth);
  if (!weight) return NULL;
  part_t *known = &d->parts[weight->weight_index];
  if (*known != UNUSED && *known != part) return unsupported(node, "shares its weight with another op");
  *known = part;
  return NULL;
}

static mlx_status_t check_attention(const divider_t *d, const mlx_node_t *node) {
  const mlx_attention_t *a = &node->attention;
  for (int i = 0; i < 3; ++i) {
    if (!node->operands[i] || !d->divided[node->operands[i] - 1])
      return unsupported(node, "reads a value that is not made of heads");
  }
  if (node->operands[3] || node->operands[4] || a->value_dim || a->whole)
    return unsupported(node, "has sinks, biases of distances, latent keys or whole texts");
  if (a->heads % d->rank.count || a->kv_heads % d->rank.count)
    return unsupported(node, "has a number of heads that the ranks do not divide");
  return NULL;
}

// Whether |node|, an op by column, has divided operands: all of them or none.
static mlx_status_t divide_columns(divider_t *d, const mlx_node_t *node, bool *out_divided) {
  const mlx_node_t *second = mlx_graph_operand(d->old, node, 1);
  const bool both = second && !mlx_node_is_input(second->kind);
  *out_divided = d->divided[node->operands[0] - 1];
  if (both && d->divided[node->operands[1] - 1] != *out_divided)
    return unsupported(node, "has operands of which one is divided");
  if (!second || second->kind != MLX_NODE_WEIGHT) return NULL;
  const bool per_head = node->kind != MLX_NODE_BIAS && second->rank == 1 && second->dims[0] == node->head_dim;
  return use_weight(d, node, 1, *out_divided && !per_head ? ROWS : WHOLE);
}

static mlx_status_t divide_product(divider_t *d, const mlx_node_t *node, int id, bool *out_divided) {
  const bool reads_part = d->divided[node->operands[0] - 1];
  *out_divided = !reads_part && is_for_a_part(d->old, id);
  return use_weight(d, node, 1, reads_part ? COLUMNS : *out_divided ? ROWS : WHOLE);
}

static mlx_status_t find_divided(divider_t *d) {
  for (int id = 1; id <= (int)d->old->count; ++id) {
    const mlx_node_t *node = mlx_graph_node(d->old, id);
    bool *divided = &d->divided[id - 1];
    if (mlx_node_is_input(node->kind)) continue;
    if (node->kind == MLX_NODE_LINEAR) {
      MLX_TRY(divide_product(d, node, id, divided));
    } else if (node->kind == MLX_NODE_ATTENTION) {
      MLX_TRY(check_attention(d, node));
      *divided = true;
    } else if (is_by_column(node->kind)) {
      MLX_TRY(divide_columns(d, node, divided));
    } else {
      for (int i = 0; i < MLX_NODE_OPERANDS; ++i) {
        if (!node->operands[i]) continue;
        if (d->divided[node->operands[i] - 1]) return unsupported(node, "reads a divided value");
        if (mlx_graph_operand(d->old, node, i)->kind == MLX_NODE_WEIGHT)
          MLX_TRY(use_weight(d, node, i, WHOLE));
      }
    }
  }
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Weights

static int64_t slices_of_rank(const divider_t *d) { return d->rank.slices / d->rank.count; }

static mlx_status_t check_weight(const mlx_weight_t *w, part_t part) {
  const bool known_rows = w->order == MLX_ROWS_AS_STORED || w->order == MLX_ROWS_INTERLEAVED_HALVES;
  if (known_rows && !w->fused_part && !w->picked_row && !w->parts && !w->packing.kind && !w->part_packings &&
      !w->row_factors && !w->row_order && !w->column_order && w->value_offset == 0.0 &&
      (part == ROWS ? w->tensor.rank <= 2 : w->tensor.rank == 2))
    return NULL;
  return mlx_error(MLX_UNSUPPORTED, "the weight '%s' cannot be divided over ranks as its file stores it",
                   w->name);
}

static mlx_status_t refuse_size(const mlx_weight_t *w, int64_t size, int64_t parts) {
  return mlx_error(MLX_UNSUPPORTED, "the weight '%s' cannot be divided: %lld is no multiple of %lld", w->name,
                   (long long)size, (long long)parts);
}

static mlx_status_t take_rows(const divider_t *d, mlx_weight_t *w) {
  const int64_t rows = w->tensor.dims[0] / d->rank.count;
  if (w->tensor.dims[0] % d->rank.count) return refuse_size(w, w->tensor.dims[0], d->rank.count);
  if (w->tensor.rank == 1) {
    w->stored_columns = w->tensor.dims[0];
    w->first_column = d->rank.number * rows;
  } else {
    w->first_row = d->rank.number * rows;
  }
  w->tensor.dims[0] = rows;
  w->tensor.size /= (size_t)d->rank.count;
  return NULL;
}

// Slice |nth| of those of the rank.
static mlx_status_t take_columns(const divider_t *d, mlx_weight_t *w, int64_t nth) {
  const int64_t all = w->tensor.dims[1], columns = all / d->rank.slices;
  const int64_t block = (int64_t)mlx_dtype_info(w->tensor.dtype)->block_elements;
  if (all % (d->rank.slices * block)) return refuse_size(w, all, d->rank.slices * block);
  w->stored_columns = all;
  w->first_column = (d->rank.number * slices_of_rank(d) + nth) * columns;
  w->tensor.dims[1] = columns;
  w->tensor.size /= (size_t)d->rank.slices;
  return NULL;
}

static mlx_status_t slice_name(const char *name, int64_t nth, char **out) {
  return mlx_format(out, "%s#%lld", name, (long long)nth);
}

// Appends the parts of weight |w| that the rank has to |out|. Takes what |w| owns.
static mlx_status_t append_parts(const divider_t *d, const mlx_weight_t *w, part_t part, mlx_weight_t *out,
                                 size_t *count) {
  const int64_t parts = part == COLUMNS ? slices_of_rank(d) : 1;
  const size_t first = *count;
  out[(*count)++] = *w;
  if (part == ROWS || part == COLUMNS) MLX_TRY(check_weight(w, part));
  if (part == ROWS) return take_rows(d, &out[first]);
  for (int64_t nth = 0; part == COLUMNS && nth < parts; ++nth) {
    mlx_weight_t *slice = &out[first + (size_t)nth];
    if (nth) {
      *slice = *w;
      slice->name = NULL;
      ++*count;
      MLX_TRY(slice_name(w->name, nth, &slice->name));
    }
    MLX_TRY(take_columns(d, slice, nth));
  }
  return NULL;
}

static mlx_status_t divide_weights(divider_t *d) {
  mlx_model_t *m = d->model;
  mlx_weight_t *all;
  size_t count = 0;
  if (m->order_count) return mlx_error(MLX_UNSUPPORTED, "a model in act order cannot be divided over ranks");
  MLX_TRY(mlx_alloc(m->weight_count * (size_t)slices_of_rank(d), sizeof *all, &all));
  mlx_status_t status = NULL;
  for (size_t i = 0; i < m->weight_count; ++i) {  // after a failure the rest stays as it is
    if (!status)
      status = append_parts(d, &m->weights[i], d->parts[i], all, &count);
    else
      all[count++] = m->weights[i];
  }
  mlx_free(m->weights);
  m->weights = all;
  m->weight_count = count;
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// The graph

static mlx_status_t create_graph(divider_t *d) {
  const mlx_model_t *m = d->model;
  mlx_graph_weight_t *weights;
  MLX_TRY(mlx_alloc(m->weight_count, sizeof *weights, &weights));
  for (size_t i = 0; i < m->weight_count; ++i) {
    const mlx_tensor_t *tensor = &m->weights[i].tensor;
    weights[i] = (mlx_graph_weight_t){.name = m->weights[i].name, .dtype = MLX_F32, .rank = tensor->rank};
    for (int k = 0; k < tensor->rank; ++k) weights[i].dims[k] = tensor->dims[k];
  }
  mlx_status_t status = mlx_graph_create(weights, m->weight_count, d->old->context, &d->graph);
  mlx_free(weights);
  return status;
}

// The sum of |parts| in the order of a binary tree.
static mlx_value_t add_slices(mlx_graph_t *graph, mlx_value_t *parts, int64_t count) {
  char name[64];
  for (int64_t step = 1; step < count; step *= 2) {
    for (int64_t i = 0; i < count; i += 2 * step) {
      snprintf(name, sizeof name, "sum%lld_%lld", (long long)step, (long long)i);
      parts[i] = mlx_op_add(graph, name, parts[i], parts[i + step]);
    }
  }
  return parts[0];
}

// The product of a divided value: one product for each slice, their sum, and that of all ranks.
static mlx_value_t append_sum(const divider_t *d, const mlx_node_t *node) {
  const mlx_value_t x = d->value[node->operands[0] - 1];
  const int64_t count = slices_of_rank(d), columns = x.dims[1] / count;
  const char *weight = mlx_graph_operand(d->old, node, 1)->weight_name;
  mlx_value_t parts[MLX_MOST_RANKS];
  char name[64];
  for (int64_t i = 0; i < count; ++i) {
    snprintf(name, sizeof name, "%.24s_in%lld", node->name, (long long)i);
    const mlx_value_t part =
        count == 1 ? x : mlx_op_head_columns(d->graph, name, x, x.dims[1], i * columns, columns);
    snprintf(name, sizeof name, "%.24s_part%lld", node->name, (long long)i);
    const mlx_value_t matrix =
        i ? mlx_op_weight(d->graph, "%s#%lld", weight, (long long)i) : mlx_op_weight(d->graph, "%s", weight);
    parts[i] = mlx_op_linear(d->graph, name, part, matrix);
  }
  const mlx_value_t own = add_slices(d->graph, parts, count);
  return d->rank.count == 1 ? own
                            : mlx_op_sum_ranks(d->graph, node->name, own, d->rank.number, d->rank.count);
}

static mlx_value_t append_copy(const divider_t *d, const mlx_node_t *from, bool divided) {
  mlx_node_t node = *from;
  for (int i = 0; i < MLX_NODE_OPERANDS; ++i)
    if (node.operands[i]) node.operands[i] = d->value[node.operands[i] - 1].id;
  node.uses = 0;
  if (divided) node.dims[1] /= d->rank.count;
  if (node.kind == MLX_NODE_ATTENTION) {
    node.attention.heads /= d->rank.count;
    node.attention.kv_heads /= d->rank.count;
  }
  return mlx_graph_append(d->graph, &node);
}

static mlx_value_t append_node(const divider_t *d, const mlx_node_t *node, int id) {
  mlx_op_scope(d->graph, "%s", node->scope);
  switch (node->kind) {
    case MLX_NODE_WEIGHT:
      return d->parts[node->weight_index] == UNUSED ? MLX_NONE
                                                    : mlx_op_weight(d->graph, "%s", node->weight_name);
    case MLX_NODE_TOKENS: return mlx_graph_tokens(d->graph);
    case MLX_NODE_POSITIONS: return mlx_op_positions(d->graph);
    case MLX_NODE_TYPES: return mlx_op_types(d->graph);
    default: break;
  }
  if (node->kind == MLX_NODE_LINEAR && d->divided[node->operands[0] - 1]) return append_sum(d, node);
  return append_copy(d, node, d->divided[id - 1]);
}

static mlx_status_t build_graph(divider_t *d) {
  const int count = (int)d->old->count;
  MLX_TRY(create_graph(d));
  for (int id = 1; id < count; ++id) d->value[id - 1] = append_node(d, mlx_graph_node(d->old, id), id);
  mlx_op_scope(d->graph, "%s", "");
  return mlx_graph_finish(d->graph, d->value[mlx_graph_node(d->old, count)->operands[0] - 1]);
}

static mlx_status_t divide(divider_t *d) {
  MLX_TRY(mlx_alloc(d->old->count, sizeof *d->divided, &d->divided));
  MLX_TRY(mlx_alloc(d->old->count, sizeof *d->value, &d->value));
  MLX_TRY(mlx_alloc(d->model->weight_count, sizeof *d->parts, &d->parts));
  MLX_TRY(find_divided(d));
  MLX_TRY(divide_weights(d));
  return build_graph(d);
}

mlx_status_t mlx_ranks_divide(mlx_model_t *model, const mlx_graph_t *graph, const mlx_rank_t *rank,
                              mlx_graph_t **out_graph) {
  divider_t d = {.model = model, .old = graph, .rank = *rank};
  *out_graph = NULL;
  MLX_TRY(mlx_rank_check(rank));
  mlx_status_t status = divide(&d);
  mlx_free(d.divided);
  mlx_free(d.value);
  mlx_free(d.parts);
  if (status) {
    mlx_graph_free(d.graph);
    return status;
  }
  *out_graph = d.graph;
  model->kv_numbers = mlx_graph_kv_numbers(d.graph);
  model->window_kv_numbers = mlx_graph_mixes_windows(d.graph) ? mlx_graph_windows(d.graph).kv_numbers : 0;
  return NULL;
}
