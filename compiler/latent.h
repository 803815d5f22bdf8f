// Latent attention: the nodes that one launch computes together with it.
#ifndef MLXCEL_COMPILER_LATENT_H_
#define MLXCEL_COMPILER_LATENT_H_

#include "graph/graph.h"

#define MLX_LATENT_NODES 9

// Queries are |absorbed| [M, heads * value_dim] beside rotated columns of |q|, of each head; |grow|
// multiplies them. A key is the norm of the first value_dim numbers of |row| beside the others, rotated.
typedef struct mlx_latent {
  int absorbed, q, row;           // node ids
  const mlx_node_t *columns;      // those of |q| that rotate: head_dim and start
  const mlx_node_t *norm, *grow;  // |grow| NULL: none
  const mlx_rope_t *rope;
  int nodes[MLX_LATENT_NODES];  // ids of all nodes between these values and the attention
  int count;
} mlx_latent_t;

// False if attention node |attention| is not of this form, or another node uses one of the nodes.
bool mlx_latent_find(const mlx_graph_t *graph, const mlx_node_t *attention, mlx_latent_t *out);

#endif  // MLXCEL_COMPILER_LATENT_H_
