// Finds the role of a weight by the nodes that read it.
#include "graph/roles.h"

#include <string.h>

static unsigned role_of_operand(const mlx_graph_t *graph, const mlx_node_t *node, int nth) {
  if (node->kind == MLX_NODE_EMBED) {
    return mlx_graph_operand(graph, node, 1)->kind == MLX_NODE_TOKENS ? MLX_ROLE_EMBEDDING
                                                                      : MLX_ROLE_POSITIONS;
  }
  if (node->kind == MLX_NODE_LINEAR) return MLX_ROLE_PROJECTION;
  if (node->kind == MLX_NODE_HEAD_LINEAR) return MLX_ROLE_HEADS;
  if (node->kind == MLX_NODE_EXPERTS && nth <= 4) return MLX_ROLE_EXPERT;
  return MLX_ROLE_VECTOR;
}

// Logits and router scores stay what they are through these nodes, which keep the shape of operand 0.
static bool is_elementwise(mlx_node_kind_t kind) {
  return kind == MLX_NODE_BIAS || kind == MLX_NODE_SCALE || kind == MLX_NODE_SOFTCAP ||
         kind == MLX_NODE_CLIP || kind == MLX_NODE_SIGMOID || kind == MLX_NODE_ACTIVATE;
}

// The weight of the product that operand |nth| of |node| comes from is a |role|.
static void mark_product(const mlx_graph_t *graph, const mlx_node_t *node, int nth, mlx_role_t role,
                         unsigned *roles) {
  const mlx_node_t *product = mlx_graph_operand(graph, node, nth);
  while (product && is_elementwise(product->kind)) product = mlx_graph_operand(graph, product, 0);
  if (!product || product->kind != MLX_NODE_LINEAR) return;
  unsigned *marked = &roles[mlx_graph_operand(graph, product, 1)->weight_index];
  *marked = (*marked & ~(unsigned)MLX_ROLE_PROJECTION) | role;
}

void mlx_graph_roles(const mlx_graph_t *graph, unsigned *out_roles) {
  memset(out_roles, 0, graph->weight_count * sizeof *out_roles);
  for (int id = 1; id <= (int)graph->count; ++id) {
    const mlx_node_t *node = mlx_graph_node(graph, id), *operand;
    for (int i = 0; i < MLX_NODE_OPERANDS; ++i) {
      operand = mlx_graph_operand(graph, node, i);
      if (operand && operand->kind == MLX_NODE_WEIGHT)
        out_roles[operand->weight_index] |= role_of_operand(graph, node, i);
    }
    if (node->kind == MLX_NODE_EXPERTS) mark_product(graph, node, 1, MLX_ROLE_ROUTER, out_roles);
    if (node->kind == MLX_NODE_LOGITS && !mlx_graph_is_encoder(graph))
      mark_product(graph, node, 0, MLX_ROLE_HEAD, out_roles);
  }
}
