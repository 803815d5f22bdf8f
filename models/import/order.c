// Act order: GPTQ quantizes the columns of a matrix by importance (desc_act), so the columns of a group are
// not adjacent. Kernels need 32 neighbouring columns with one scale. So the columns are sorted by group,
//
//   y = W x = W[:, order] x[order]
//
// and a product reads its input through MLX_NODE_PERMUTE. Matrices with the same input usually have the same
// order and share that node. The order of a down projection needs no node: the rows of gate and up, and
// their biases, are sorted by it instead.
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

// Weights whose rows are sorted together: matrices of products, and their biases.
typedef struct sortable {
  mlx_weight_t *weights[4];
  int count;
} sortable_t;

static bool add_weight(const mlx_model_t *model, const mlx_node_t *weight, sortable_t *out) {
  mlx_weight_t *added = &model->weights[weight->weight_index];
  out->weights[out->count++] = added;
  return weight->kind == MLX_NODE_WEIGHT && weight->uses == 1 && added->order == MLX_ROWS_AS_STORED &&
         !added->parts && !added->fused_part && !added->picked_row && !added->row_order;
}

// Adds the weights of |node|, a product that may have a bias and that |uses| operands read. False if it is
// none, or if their rows cannot be sorted.
static bool add_product(const mlx_model_t *model, const mlx_graph_t *graph, const mlx_node_t *node, int uses,
                        sortable_t *out) {
  if (node->uses != uses) return false;
  if (node->kind == MLX_NODE_BIAS) {
    if (!add_weight(model, mlx_graph_operand(graph, node, 1), out)) return false;
    node = mlx_graph_operand(graph, node, 0);
    if (node->uses != 1) return false;
  }
  return node->kind == MLX_NODE_LINEAR && add_weight(model, mlx_graph_operand(graph, node, 1), out);
}

// Whether |gate| and |up| are the halves of one product.
static bool are_halves(const mlx_graph_t *graph, const mlx_node_t *gate, const mlx_node_t *up) {
  return gate->kind == MLX_NODE_COLUMNS && up->kind == MLX_NODE_COLUMNS && gate->uses == 1 && up->uses == 1 &&
         gate->operands[0] == up->operands[0] && gate->start + up->start == gate->dims[1] &&
         mlx_graph_operand(graph, gate, 0)->dims[1] == 2 * gate->dims[1];
}

// If the input of |product| is act(gate) * up or act(up), sorts the rows of gate and up by the order of its
// columns. Returns whether that was possible.
static bool sort_rows(const mlx_model_t *model, const mlx_graph_t *graph, const mlx_node_t *product) {
  const mlx_node_t *x = mlx_graph_operand(graph, product, 0), *matrix = mlx_graph_operand(graph, product, 1);
  const bool gated = x->kind == MLX_NODE_GATED;
  if ((!gated && x->kind != MLX_NODE_ACTIVATE) || x->uses != 1 || matrix->uses != 1) return false;
  const mlx_node_t *gate = mlx_graph_operand(graph, x, 0),
                   *up = gated ? mlx_graph_operand(graph, x, 1) : NULL;
  sortable_t sortable = {.count = 0};
  if (up && are_halves(graph, gate, up)) {
    if (!add_product(model, graph, mlx_graph_operand(graph, gate, 0), 2, &sortable)) return false;
  } else {
    if (!add_product(model, graph, gate, 1, &sortable)) return false;
    if (up && !add_product(model, graph, up, 1, &sortable)) return false;
  }
  for (int i = 0; i < sortable.count; ++i) {
    sortable.weights[i]->row_order = model->weights[matrix->weight_index].packing.order;
    sortable.weights[i]->order_rows = matrix->dims[1];
  }
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
