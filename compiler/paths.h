// Paths: which nodes of a network become kernels of kernels/cuda, and which are lowered by themselves through
// StableHLO (the generic path). Each node is decided by itself.
#ifndef MLXCEL_COMPILER_PATHS_H_
#define MLXCEL_COMPILER_PATHS_H_

#include "compiler/module_options.h"

// Layers whose attention is on the kernel path share one KV pool, in the layout of the attention kernels.
// Every other layer has its own KV state, in the generic layout.
typedef struct mlx_path {
  bool kernel;
  int pool_layer;           // attention on the kernel path: its index in the KV pool
  const char *unsupported;  // generic path: static text, the feature that has no kernel; NULL: a cheap op
} mlx_path_t;

typedef struct mlx_paths {
  mlx_path_t *nodes;     // owned; node id - 1
  bool *fused;           // owned; of the function being lowered: computed together with its only user
  int pool_layers;       // number of layers in the KV pool
  mlx_attention_t pool;  // the attention of the first of them; the others have the same heads
  int generic_layers;    // number of attention nodes on the generic path
} mlx_paths_t;

// Without options->kernels every node is on the generic path. Release with mlx_paths_clear.
mlx_status_t mlx_paths_make(const mlx_model_t *model, const mlx_graph_t *graph,
                            const mlx_module_options_t *options, mlx_paths_t *out_paths) MLX_MUST_USE;
void mlx_paths_clear(mlx_paths_t *paths);

// Finds the nodes that kernels compute together with their only user, in a function with |tokens| tokens and
// |wanted| rows of logits:
//   linear + add                              the product kernel adds
//   linear and linear of the same x + gated   one kernel for both products and silu(gate) * up
//   rope of q and of k + attention            the attention kernel rotates
void mlx_paths_fuse(const mlx_model_t *model, const mlx_graph_t *graph, const mlx_module_options_t *options,
                    int64_t tokens, int64_t wanted, mlx_paths_t *paths);

#endif  // MLXCEL_COMPILER_PATHS_H_
