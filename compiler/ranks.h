// Ranks: one model divided over several engines (docs/internals/tensor-parallel.md). A rank has the rows of
// its heads of q, k and v, the rows of its columns of the MLP, and the columns of o and of down that read
// them. The results of o and down are parts of a sum; MLX_NODE_SUM_RANKS adds those of all ranks. Embedding,
// norms and the LM head are whole in every rank.
#ifndef MLXCEL_COMPILER_RANKS_H_
#define MLXCEL_COMPILER_RANKS_H_

#include "models/model.h"

#define MLX_MOST_RANKS 8

typedef struct mlx_rank {
  int64_t number, count;  // from 0; a power of two
  // Parts of each sum, a power of two that |count| divides. Each part is the product of so many columns; they
  // are added in the order of a binary tree. The bits of a model depend on it, and not on |count|.
  int64_t slices;
} mlx_rank_t;

// Fails with MLX_USAGE unless |rank| is possible.
mlx_status_t mlx_rank_check(const mlx_rank_t *rank) MLX_MUST_USE;
// Makes the network of |rank| from |graph|, that of |model|, and replaces the weights of |model| by the parts
// that it has. |graph| must not be used any more. Fails with MLX_UNSUPPORTED, and may leave |model| with some
// of the parts, if the network or a weight cannot be divided. Release *|out_graph| with mlx_graph_free.
mlx_status_t mlx_ranks_divide(mlx_model_t *model, const mlx_graph_t *graph, const mlx_rank_t *rank,
                              mlx_graph_t **out_graph) MLX_MUST_USE;

#endif  // MLXCEL_COMPILER_RANKS_H_
