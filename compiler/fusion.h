// Fusion: decides which kernel computes each node of a network, and which nodes a kernel computes together.
// Only compiler/launches.c reads the decisions; it turns them into a list.
#ifndef MLXCEL_COMPILER_FUSION_H_
#define MLXCEL_COMPILER_FUSION_H_

#include "compiler/module_options.h"

#define MLX_GROUP_PRODUCTS 3  // most products of one launch

#define MLX_HEAD_KINDS 4  // most kinds of heads with kernels: numbers of heads and KV heads, size of a head

// All layers share one KV pool, so attention is on the kernel path in all layers or in none.
typedef struct mlx_network_attention {
  mlx_attention_t form;            // of the first layer
  int kinds;                       // of heads
  int kind_nodes[MLX_HEAD_KINDS];  // an attention node of each kind; 0: the network has no attention
  int layers;                      // that store keys and values
  int64_t row;  // numbers of a row of the KV pool of generic attention: keys of a position are whole rows in
                // every layer
  bool kernel;  // it is on the kernel path
  const char *unsupported;  // the feature that the kernels lack; static text
} mlx_network_attention_t;
mlx_network_attention_t mlx_network_attention(const mlx_graph_t *graph, const mlx_module_options_t *options);

// The kind of heads that |a| has, an index into |kind_nodes|.
int mlx_attention_kind(const mlx_graph_t *graph, const mlx_network_attention_t *attention,
                       const mlx_attention_t *a);

typedef struct mlx_fused_node {
  bool kernel;              // a kernel of kernels/cuda computes it; else it is lowered through StableHLO
  const char *unsupported;  // no kernel: static text, the feature that has none; NULL: a cheap op
  bool scores;              // a product of experts.cu (SCORES)
  bool fused;               // computed together with its only user
  // A norm, gate and up, or attention whose users are all products that read parts. Its kernel stores
  // the parts; the value has no f32 form.
  bool parts;
  // One token: a product of packed_token.cuh, or an RMS norm that all its users compute by themselves (it has
  // no value).
  bool token;
  // For a product that is computed in the launch of an earlier product of the same x, a bias that its product
  // adds, or the logits that their product writes: the node of that product; else 0.
  int leader;
} mlx_fused_node_t;

// Of a function with |tokens| tokens and |wanted| rows of logits:
//   linear + add, experts + add               the product kernel adds
//   RMS norm + add                            the norm kernel adds
//   RMS norm + permute                        the norm kernel stores its columns in another order
//   embedding + scale                         the embedding kernel scales
//   linear and linear of the same x + gated   one kernel for both products and act(gate) * up
//   rope of q and of k + attention            the attention kernel rotates, and normalizes the heads of both
//   bias of q, k or v + the same              the attention kernel adds
//   columns of each head + product of heads   the product kernel reads the columns
//   norm, RoPE and joins of latent attention  the attention kernel computes them
//   bias, columns + another elementwise op    one elementwise kernel; also scale + add
//   one token: RMS norm, linear, bias, add    the product kernel computes all of them; RMS norm + experts
//   products of the same x: q, k, v           one launch
typedef struct mlx_fusion {
  const mlx_model_t *model;
  const mlx_graph_t *graph;
  const mlx_module_options_t *options;
  int64_t tokens, wanted;
  mlx_fused_node_t *nodes;  // owned; node id - 1
} mlx_fusion_t;

// Without GPU kernels every node is on the generic path. Release with mlx_fusion_clear.
mlx_status_t mlx_fusion_make(const mlx_model_t *model, const mlx_graph_t *graph,
                             const mlx_module_options_t *options, mlx_step_size_t size,
                             mlx_fusion_t *out_fusion) MLX_MUST_USE;
void mlx_fusion_clear(mlx_fusion_t *fusion);

// The node of the bias that product |product| adds; 0: none.
int mlx_fusion_bias(const mlx_fusion_t *fusion, int product);

#endif  // MLXCEL_COMPILER_FUSION_H_
