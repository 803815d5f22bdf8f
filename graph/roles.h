// Roles: what a network uses each weight for, found by the nodes that read it and not by its name.
#ifndef MLXCEL_GRAPH_ROLES_H_
#define MLXCEL_GRAPH_ROLES_H_

#include "graph/graph.h"

// A set of roles. A tied embedding is MLX_ROLE_EMBEDDING | MLX_ROLE_HEAD.
typedef enum mlx_role {
  MLX_ROLE_EMBEDDING = 1 << 0,   // table of an embed node over the tokens
  MLX_ROLE_POSITIONS = 1 << 1,   // table of an embed node over the positions
  MLX_ROLE_HEAD = 1 << 2,        // weight of the linear that makes the logits
  MLX_ROLE_ROUTER = 1 << 3,      // weight of the linear that makes the scores of experts
  MLX_ROLE_EXPERT = 1 << 4,      // gate, up or down of experts
  MLX_ROLE_PROJECTION = 1 << 5,  // weight of any other linear
  MLX_ROLE_VECTOR = 1 << 6,      // norm, bias or sinks, whatever its rank
  MLX_ROLE_HEADS = 1 << 7,       // weight of a head_linear: a matrix for each head
} mlx_role_t;

// The roles of each of the graph->weight_count weights. 0: no node reads it.
void mlx_graph_roles(const mlx_graph_t *graph, unsigned *out_roles);

#endif  // MLXCEL_GRAPH_ROLES_H_
