// Shared by graph.c and ops.c only: what the words of models/ops.h need to know about the function being built.
#ifndef MLXCEL_COMPILER_GRAPH_INTERNAL_H_
#define MLXCEL_COMPILER_GRAPH_INTERNAL_H_

#include "compiler/graph.h"

#define MLX_MAX_ROPES 4

// Cosines and sines of the function's positions, for one kind of rope.
typedef struct mlx_rope_table {
  int64_t head_dim;
  double theta;
  mlx_value_t cos, sin;  // [M, head_dim / 2]
} mlx_rope_table_t;

struct mlx_graph {
  mlx_builder_t *b;
  const mlx_model_t *model;
  const mlx_graph_options_t *options;
  char **kv_names;  // owned: "kv.LAYER.k", "kv.LAYER.v" for each layer
  // the function being built
  int64_t tokens;         // T: tokens a row
  mlx_value_t positions;  // [M] of each token
  mlx_value_t pages;      // [rows, P]
  mlx_value_t slots;      // [M, 2]: page and place in it where each token's keys and values go
  mlx_value_t hidden_from_query;  // [rows, T, context] i1: positions a query may not see
  mlx_rope_table_t ropes[MLX_MAX_ROPES];
  size_t rope_count;
};

#endif  // MLXCEL_COMPILER_GRAPH_INTERNAL_H_
