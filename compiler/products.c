// Finds the nodes that the CPU kernel computes in the epilogue of a matrix product.
#include "compiler/products.h"

#include "base/memory.h"
#include "kernels/cpu/panel_format.h"

// Stages of a product, in the order of its epilogue. A node joins a product of an earlier stage.
enum { NO_PRODUCT, LINEAR, BIAS, CLIP, ACTIVATION, FACTOR, SOFTCAP, ADDITION };

typedef struct finder {
  const mlx_graph_t *graph;
  mlx_products_t *products;
} finder_t;

static mlx_product_t *product_at(const finder_t *f, int id) { return &f->products->of[id - 1]; }

// The product that ends with node |id|, if |id| has no other user and the product can go on with |stage|.
static const mlx_product_t *open_product(const finder_t *f, int id, int stage) {
  if (!id || mlx_graph_node(f->graph, id)->uses != 1) return NULL;
  const mlx_product_t *product = product_at(f, id);
  return product->stage != NO_PRODUCT && product->stage < stage ? product : NULL;
}

static int stage_of(mlx_node_kind_t kind) {
  switch (kind) {
    case MLX_NODE_BIAS: return BIAS;
    case MLX_NODE_CLIP: return CLIP;
    case MLX_NODE_ACTIVATE: return ACTIVATION;
    case MLX_NODE_SCALE: return FACTOR;
    case MLX_NODE_SOFTCAP: return SOFTCAP;
    case MLX_NODE_ADD: return ADDITION;
    default: return NO_PRODUCT;
  }
}

// Extends the product of operand |nth| by |node|.
static bool extend(const finder_t *f, int id, int nth) {
  const mlx_node_t *node = mlx_graph_node(f->graph, id);
  const int stage = stage_of(node->kind);
  const mlx_product_t *before = stage ? open_product(f, node->operands[nth], stage) : NULL;
  if (!before) return false;
  mlx_product_t *product = product_at(f, id);
  *product = *before;
  product->stage = stage;
  switch (node->kind) {
    case MLX_NODE_BIAS: product->bias = node->operands[1]; break;
    case MLX_NODE_CLIP: product->clip = node->limit; break;
    case MLX_NODE_ACTIVATE:
      product->act = (int)node->act;
      product->act_numbers = node->act_numbers;
      break;
    case MLX_NODE_SCALE: product->factor = node->factor; break;
    case MLX_NODE_SOFTCAP: product->cap = node->cap; break;
    default: product->added = node->operands[1 - nth]; break;
  }
  f->products->absorbed[node->operands[nth] - 1] = true;
  return true;
}

// act(gate) * up of two products of the same input.
static bool join_two(const finder_t *f, int id) {
  const mlx_node_t *node = mlx_graph_node(f->graph, id);
  const mlx_product_t *gate = open_product(f, node->operands[0], CLIP),
                      *up = open_product(f, node->operands[1], CLIP);
  if (!gate || !up || gate->x != up->x || gate->rows != up->rows) return false;
  mlx_product_t *product = product_at(f, id);
  *product = *gate;
  product->stage = ACTIVATION;
  product->up = up->weight;
  product->up_bias = up->bias;
  product->act = (int)node->act;
  f->products->absorbed[node->operands[0] - 1] = f->products->absorbed[node->operands[1] - 1] = true;
  return true;
}

// act(gate) * up, where gate and up are the halves of one product without bias.
static bool join_halves(const finder_t *f, int id) {
  const mlx_node_t *node = mlx_graph_node(f->graph, id);
  const mlx_node_t *gate = mlx_graph_operand(f->graph, node, 0), *up = mlx_graph_operand(f->graph, node, 1);
  if (gate->kind != MLX_NODE_COLUMNS || up->kind != MLX_NODE_COLUMNS || gate->uses != 1 || up->uses != 1)
    return false;
  const int whole = gate->operands[0];
  const mlx_product_t *both = product_at(f, whole);
  const int64_t rows = gate->dims[gate->rank - 1];
  if (up->operands[0] != whole || mlx_graph_node(f->graph, whole)->uses != 2 || both->stage != LINEAR ||
      gate->start || up->start != rows || 2 * rows != both->rows || rows % MLX_PANEL_ROWS)
    return false;
  mlx_product_t *product = product_at(f, id);
  *product = *both;
  product->stage = ACTIVATION;
  product->up = both->weight;
  product->up_row = product->rows = rows;
  product->act = (int)node->act;
  f->products->absorbed[whole - 1] = true;
  f->products->absorbed[node->operands[0] - 1] = f->products->absorbed[node->operands[1] - 1] = true;
  return true;
}

static void find_at(const finder_t *f, int id) {
  const mlx_node_t *node = mlx_graph_node(f->graph, id);
  if (node->kind == MLX_NODE_LINEAR) {
    *product_at(f, id) = (mlx_product_t){.stage = LINEAR,
                                         .x = node->operands[0],
                                         .weight = node->operands[1],
                                         .rows = node->dims[node->rank - 1],
                                         .act = -1};
  } else if (node->kind == MLX_NODE_GATED) {
    if (!join_two(f, id)) join_halves(f, id);
  } else if (!(node->kind == MLX_NODE_ADD && extend(f, id, 1))) {
    extend(f, id, 0);
  }
}

static void clear(mlx_products_t *products) {
  mlx_free(products->of);
  mlx_free(products->absorbed);
  *products = (mlx_products_t){0};
}

mlx_status_t mlx_products_find(const mlx_graph_t *graph, mlx_products_t *out_products) {
  *out_products = (mlx_products_t){0};
  finder_t finder = {.graph = graph, .products = out_products};
  MLX_TRY(mlx_alloc(graph->count, sizeof *out_products->of, &out_products->of));
  mlx_status_t status = mlx_alloc(graph->count, sizeof *out_products->absorbed, &out_products->absorbed);
  for (int id = 1; !status && id <= (int)graph->count; ++id) find_at(&finder, id);
  if (status) clear(out_products);
  return status;
}
