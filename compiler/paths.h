// Paths: which nodes of a network become kernels of kernels/cuda, and which are lowered by themselves through
// StableHLO (the generic path). Each node is decided by itself, except that all attention has the same path.
#ifndef MLXCEL_COMPILER_PATHS_H_
#define MLXCEL_COMPILER_PATHS_H_

#include "compiler/module_options.h"

#define MLX_GROUP_PRODUCTS 3  // most products of one launch

typedef struct mlx_path {
  bool kernel;
  const char *unsupported;  // generic path: static text, the feature that has no kernel; NULL: a cheap op
} mlx_path_t;

// All layers share one KV pool, so attention is on the kernel path in all layers or in none.
typedef struct mlx_paths {
  mlx_path_t *nodes;  // owned; node id - 1
  bool *fused;        // owned; of the function being lowered: computed together with its only user
  // Owned; of the function being lowered: a norm, gate and up, or attention whose users are all products that
  // read bf16 parts. Its kernel stores the parts; the value has no f32 form.
  bool *parts;
  // Owned; of the function being lowered: for a product that is computed in the launch of an earlier product
  // of the same x, or a bias that its product adds, the node of that product; else 0.
  int *leaders;
  // Owned; of a function with one token: a product of packed_token.cuh, or an RMS norm that all its users
  // compute by themselves (it has no value).
  bool *token;
  mlx_attention_t attention;  // of the first layer; all layers have the same heads
  int layers;                 // number of attention nodes
  bool kernel_attention;      // they are on the kernel path
} mlx_paths_t;

// Without options->kernels every node is on the generic path. Release with mlx_paths_clear.
mlx_status_t mlx_paths_make(const mlx_model_t *model, const mlx_graph_t *graph,
                            const mlx_module_options_t *options, mlx_paths_t *out_paths) MLX_MUST_USE;
void mlx_paths_clear(mlx_paths_t *paths);

// Finds the nodes that kernels compute together with their only user, in a function with |tokens| tokens and
// |wanted| rows of logits:
//   linear + add, experts + add               the product kernel adds
//   RMS norm + add                            the norm kernel adds
//   RMS norm + permute                        the norm kernel stores its columns in another order
//   embedding + scale                         the embedding kernel scales
//   linear and linear of the same x + gated   one kernel for both products and act(gate) * up
//   rope of q and of k + attention            the attention kernel rotates, and normalizes the heads of both
//   bias of q, k or v + the same              the attention kernel adds
//   bias, columns + another elementwise op    one elementwise kernel; also scale + add
//   one token: RMS norm, linear, bias, add    the product kernel computes all of them; RMS norm + experts
// Also finds the norms that are stored as bf16 parts, and products of the same x that share a launch: q, k,
// v.
void mlx_paths_fuse(const mlx_model_t *model, const mlx_graph_t *graph, const mlx_module_options_t *options,
                    int64_t tokens, int64_t wanted, mlx_paths_t *paths);
// After mlx_paths_fuse: the node of the bias that product |product| adds; 0: none.
int mlx_paths_bias(const mlx_paths_t *paths, const mlx_graph_t *graph, int product);

#endif  // MLXCEL_COMPILER_PATHS_H_
