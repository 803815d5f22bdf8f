// Act order: GPTQ quantizes the columns of a matrix by importance (desc_act), so the columns of a group are
// not adjacent. Kernels need 32 neighbouring columns with one scale. So the columns are sorted by group,
//
//   y = W x = W[:, order] x[order]
//
// and a product reads its input through MLX_NODE_PERMUTE. Matrices with the same input usually have the same
// order and share that node. The order of a down projection needs no node: the rows of gate and up are sorted
// by it instead.
//
// Experts that are quantized one by one have an order each and are not sorted.
#include <string.h>

#include "base/memory.h"
#include "graph/roles.h"
#include "models/model.h"

// Whether the network uses the weight only as the matrix of products that are not routers: a router is small,
// and its kernel reads floats.
static bool is_product_matrix(const mlx_weight_t *weight) {
  return weight->tensor.rank == 2 && !weight->parts && !weight->fused_part &&
         weight->packing.kind == MLX_PACKED_GPTQ && weight->roles &&
         !(weight->roles & ~(unsigned)(MLX_ROLE_PROJECTION | MLX_ROLE_HEAD));
}

// Gives |weight| the order |order| or an equal one that the model has. Takes ownership of |order|.
static mlx_status_t keep_order(mlx_model_t *model, int64_t columns, int32_t *order, mlx_weight_t *weight) {
  for (size_t i = 0; i < model->weight_count && &model->weights[i] < weight; ++i) {
    const mlx_packing_t *other = &model->weights[i].packing;
    if (!other->order || other->columns != columns ||
        memcmp(other->order, order, (size_t)columns * sizeof *order))
      continue;
    mlx_free(order);
    weight->packing.order = other->order;
    return NULL;
  }
  mlx_status_t status = mlx_resize(model->order_count + 1, sizeof *model->orders, &model->orders);
  if (status) {
    mlx_free(order);
    return status;
  }
  weight->packing.order = model->orders[model->order_count++] = order;
  return NULL;
}

static mlx_status_t sort_weight(mlx_model_t *model, mlx_weight_t *weight) {
  const mlx_packing_t *p = &weight->packing;
  int64_t *starts;
  int32_t *order = NULL;
  if (!is_product_matrix(weight) || !p->parts[MLX_PART_GROUPS]) return NULL;
  MLX_TRY(mlx_alloc((size_t)(p->columns / p->group), sizeof *starts, &starts));
  mlx_status_t status = mlx_alloc((size_t)p->columns, sizeof *order, &order);
  const bool sorts = !status && mlx_packing_sort_columns(p, starts, order);
  mlx_free(starts);
  if (sorts) return keep_order(model, p->columns, order, weight);
  mlx_free(order);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Orders of rows instead of columns

// The matrix of a product that only |user| reads, if its rows can be sorted; else NULL.
static mlx_weight_t *sortable_rows(const mlx_model_t *model, const mlx_graph_t *graph, const mlx_node_t *user,
                                   int nth) {
  const mlx_node_t *product = mlx_graph_operand(graph, user, nth);
  if (!product || product->kind != MLX_NODE_LINEAR || product->uses != 1) return NULL;
  const mlx_node_t *matrix = mlx_graph_operand(graph, product, 1);
  if (matrix->kind != MLX_NODE_WEIGHT || matrix->uses != 1) return NULL;
  mlx_weight_t *weight = &model->weights[matrix->weight_index];
  const bool plain = weight->order == MLX_ROWS_AS_STORED && !weight->parts && !weight->fused_part;
  return plain && !weight->row_order ? weight : NULL;
}

// If the input of |product| is act(gate) * up or act(up), sorts the rows of gate and up by the order of its
// columns. Returns whether that was possible.
static bool sort_rows(const mlx_model_t *model, const mlx_graph_t *graph, const mlx_node_t *product) {
  const mlx_node_t *x = mlx_graph_operand(graph, product, 0), *matrix = mlx_graph_operand(graph, product, 1);
  const bool gated = x->kind == MLX_NODE_GATED;
  if ((!gated && x->kind != MLX_NODE_ACTIVATE) || x->uses != 1 || matrix->uses != 1) return false;
  mlx_weight_t *first = sortable_rows(model, graph, x, 0),
               *second = gated ? sortable_rows(model, graph, x, 1) : first;
  if (!first || !second) return false;
  first->row_order = second->row_order = model->weights[matrix->weight_index].packing.order;
  return true;
}

// ----------------------------------------------------------------------------------------------------------
// Orders of columns

// The weight with the order of |weight|; added if the model has none yet. The array has room for it.
static mlx_status_t add_order(mlx_model_t *model, mlx_weight_t *weight) {
  for (size_t i = 0; i < model->weight_count; ++i) {
    if (!model->weights[i].is_order || model->weights[i].tensor.data != (const void *)weight->packing.order)
      continue;
    weight->column_order = i + 1;
    return NULL;
  }
  mlx_weight_t *added = &model->weights[model->weight_count];
  *added = (mlx_weight_t){.is_order = true, .roles = MLX_ROLE_VECTOR};
  MLX_TRY(mlx_format(&added->name, "%s.column_order", weight->name));
  added->tensor = (mlx_tensor_t){.name = added->name,
                                 .dtype = MLX_I32,
                                 .rank = 1,
                                 .dims = {weight->packing.columns},
                                 .data = (const uint8_t *)weight->packing.order,
                                 .size = (size_t)weight->packing.columns * sizeof *weight->packing.order};
  weight->column_order = ++model->weight_count;
  return NULL;
}

// Each product whose matrix is sorted gets its order by the rows before it, or as a weight.
static mlx_status_t apply_orders(mlx_model_t *model, const mlx_graph_t *graph) {
  for (int id = 1; id <= (int)graph->count; ++id) {
    const mlx_node_t *node = mlx_graph_node(graph, id);
    if (node->kind != MLX_NODE_LINEAR) continue;
    mlx_weight_t *weight = &model->weights[mlx_graph_operand(graph, node, 1)->weight_index];
    if (weight->packing.order && !weight->column_order && !sort_rows(model, graph, node))
      MLX_TRY(add_order(model, weight));
  }
  return NULL;
}

mlx_status_t mlx_model_sort_columns(mlx_model_t *model) {
  mlx_graph_t *graph;
  for (size_t i = 0; i < model->weight_count; ++i) MLX_TRY(sort_weight(model, &model->weights[i]));
  if (!model->order_count) return NULL;
  MLX_TRY(mlx_resize(model->weight_count + model->order_count, sizeof *model->weights, &model->weights));
  mlx_status_t status = mlx_model_build_graph(model, model->config.context, &graph);
  if (!status) status = apply_orders(model, graph);
  mlx_graph_free(graph);
  return status;
}

void mlx_model_unsort_columns(mlx_model_t *model) {
  while (model->weight_count && model->weights[model->weight_count - 1].is_order)
    mlx_free(model->weights[--model->weight_count].name);
  for (size_t i = 0; i < model->weight_count; ++i) {
    model->weights[i].packing.order = model->weights[i].row_order = NULL;
    model->weights[i].column_order = 0;
  }
  for (size_t i = 0; i < model->order_count; ++i) mlx_free(model->orders[i]);
  mlx_free(model->orders);
  model->orders = NULL;
  model->order_count = 0;
}
