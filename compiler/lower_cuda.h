// The CUDA kernel path: nodes as launches of kernels/cuda. compiler/launches.h says which nodes have a
// kernel.
#ifndef MLXCEL_COMPILER_LOWER_CUDA_H_
#define MLXCEL_COMPILER_LOWER_CUDA_H_

#include "compiler/function.h"
#include "compiler/launches.h"

// An RMS norm that a kernel computes by itself, before the rest. |gain| MLX_NO_VALUE: there is none.
typedef struct mlx_cuda_norm {
  mlx_built_t gain;
  double eps;
} mlx_cuda_norm_t;

// A matrix product. A product of few tokens (mlx_cuda_uses_gemv) has no epilogue.
typedef struct mlx_cuda_product {
  mlx_built_t x, weight;
  // The f32 addend of EPILOGUE_ADD and EPILOGUE_PARTIAL, or the second weight of EPILOGUE_GATED, whose result
  // has the dtype of 16-bit weights.
  mlx_built_t other;
  mlx_epilogue_t epilogue;
  mlx_act_t act;     // EPILOGUE_GATED
  bool into_parts;   // EPILOGUE_GATED: the result is stored as bf16 parts, in the order of 16-bit weights
  bool few;          // the kernel for 9 to 16 tokens, which reads x as f32
  mlx_built_t into;  // the result is written there; MLX_NO_VALUE: to a new value
  int64_t first;     // of heads: the first of the columns of a head of x that are multiplied
} mlx_cuda_product_t;
mlx_built_t mlx_cuda_linear(mlx_function_t *g, const char *name, const mlx_cuda_product_t *p);
// Products of |x| with 2 or 3 matrices of 16-bit weights in one launch.
void mlx_cuda_group(mlx_function_t *g, const char *name, mlx_built_t x, const mlx_built_t *weights, int count,
                    mlx_built_t *out);
// Tiles of the attention kernels, and where the token IDs are in |placed| (kernels/cuda/place.cu).
typedef struct mlx_cuda_tiles {
  int64_t short_queries, share, short_tiles;
  int64_t long_queries, long_share, long_tiles;  // long_tiles 0: all segments are short
  int64_t long_from;                             // tokens of the shortest long segment
  int64_t ids_at;
} mlx_cuda_tiles_t;
mlx_cuda_tiles_t mlx_cuda_attention_tiles(const mlx_function_t *g, const mlx_attention_t *a);
// Sets the first constants of a kernel that uses the KV pool: how a layer's pages are found (Layer of
// attention_pages.cuh).
void mlx_cuda_place_layer(const mlx_function_t *g, const mlx_attention_t *a, mlx_extern_t *kernel);
// Queries and keys of latent attention, as the kernel that stores keys reads them (mlx_latent_t of latent.h).
typedef struct mlx_cuda_latent {
  mlx_built_t absorbed, q, row;
  mlx_cuda_norm_t norm;           // of keys
  const mlx_rope_table_t *table;  // of the last columns of keys, and of the columns of q from |start| on
  int64_t query_dim, start;       // of a head of q
  double grow_beta;
  int64_t grow_period;  // 0: queries do not grow
} mlx_cuda_latent_t;
// Queries, keys and values of attention. The kernel that stores keys and values adds |biases| first, then
// normalizes and then rotates each head of q and k.
typedef struct mlx_cuda_qkv {
  mlx_built_t x[3];                 // k and v MLX_NO_VALUE: they are in the KV pool already
  mlx_built_t biases[3];            // each may be MLX_NO_VALUE
  mlx_cuda_norm_t norms[2];         // of q and k; of all that there are or none, with the same eps
  bool value_norm;                  // v has one too, without a gain
  const mlx_rope_table_t *table;    // NULL: q and k need no rotation
  mlx_built_t sinks;                // may be MLX_NO_VALUE
  bool into_parts;                  // the result is stored as bf16 parts, in the order of 16-bit weights
  const mlx_cuda_latent_t *latent;  // in place of |x| to |table|; NULL: the attention is not latent
} mlx_cuda_qkv_t;
mlx_built_t mlx_cuda_attention(mlx_function_t *g, const mlx_attention_t *a, const mlx_cuda_qkv_t *qkv);

// ---- lower_cuda_quantized.c: products with f32 accuracy ----

// Quantized or 16-bit weights, used as they are; more tokens than a matrix-vector kernel takes.
mlx_built_t mlx_cuda_exact_gemm(mlx_function_t *g, const char *name, const mlx_cuda_product_t *p);
// mlx_cuda_group with f32 accuracy.
void mlx_cuda_exact_group(mlx_function_t *g, const char *name, mlx_built_t x, const mlx_built_t *weights,
                          int count, mlx_built_t *out);
mlx_built_t mlx_cuda_quantized_linear(mlx_function_t *g, const char *name, const mlx_cuda_product_t *p);
// x[m, k] as parts (packed_split.cuh), which products with f32 accuracy read: the type of the buffer, and its
// value, which has is_parts set.
mlx_type_t mlx_cuda_parts_type(int64_t m, int64_t k);
mlx_built_t mlx_cuda_as_parts(mlx_built_t words, int64_t m, int64_t k);
// |x| as parts, or its norm if it has a gain. |rows16|: for 16-bit weights.
mlx_built_t mlx_cuda_split(mlx_function_t *g, mlx_built_t x, bool rows16);
// RMS norm for products with f32 accuracy, stored as parts: the result has is_parts set. |rows16|: in
// the column order of 16-bit weights. If |x| has partial sums, they are added first: *out_x is the complete
// x.
mlx_built_t mlx_cuda_norm_parts(mlx_function_t *g, const char *name, mlx_built_t x, mlx_built_t gain,
                                double eps, bool rows16, mlx_built_t *out_x);
// The same for a layer norm. |gain| and |bias| may be MLX_NO_VALUE.
mlx_built_t mlx_cuda_layernorm_parts(mlx_function_t *g, const char *name, mlx_built_t x, mlx_built_t gain,
                                     mlx_built_t bias, double eps, bool rows16);
// The product of MLX_EPILOGUE_PARTIAL: p->other with partial sums, which mlx_cuda_norm_parts adds.
mlx_built_t mlx_cuda_partial_linear(mlx_function_t *g, const char *name, const mlx_cuda_product_t *p);
// A loaded weight as the ops use it: a quantized one gets its logical type and its index in the model.
mlx_built_t mlx_cuda_weight(const mlx_function_t *g, size_t index, mlx_built_t loaded);
mlx_built_t mlx_cuda_quantized_embed(mlx_function_t *g, const char *name, mlx_built_t table,
                                     mlx_built_t tokens, double factor);
// The weight as the module stores it: the 32-bit words of its tiles, or the weight itself if it has none.
mlx_built_t mlx_cuda_words(const mlx_function_t *g, mlx_built_t weight);
// Defines the macros of packed.cu for |weight|: its rows, columns and format. Of experts, those of one
// matrix.
void mlx_cuda_define_weight(const mlx_function_t *g, mlx_text_t *d, mlx_built_t weight);
// The same without rows and columns, for kernels that have them as parameters.
void mlx_cuda_define_format(const mlx_function_t *g, mlx_text_t *d, mlx_built_t weight);

// ---- lower_cuda_token.c: products of one token ----

// Products of |x| [1, K] f32 with |count| matrices of one format, 1 to MLX_GROUP_PRODUCTS.
typedef struct mlx_token_products {
  mlx_built_t x;
  mlx_cuda_norm_t norm;
  mlx_built_t weights[MLX_GROUP_PRODUCTS];
  mlx_built_t biases[MLX_GROUP_PRODUCTS];  // of all matrices, or MLX_NO_VALUE
  int count;
  mlx_built_t residual;  // added to the result of the only matrix; may be MLX_NO_VALUE
} mlx_token_products_t;
// Writes the |count| results to |out|, which stay empty after an error.
void mlx_cuda_token_products(mlx_function_t *g, const char *name, const mlx_token_products_t *p,
                             mlx_built_t *out);

// ---- lower_cuda_experts.c: mixtures of experts ----

// Quantized or 16-bit weights, used as they are. x, scores and |residual|, which is added to the result, are
// f32; |residual| may be MLX_NO_VALUE. |norm|: of x; only for one token. |node|: the experts.
mlx_built_t mlx_cuda_experts(mlx_function_t *g, const mlx_node_t *node, const char *name,
                             const mlx_expert_weights_t *weights, mlx_built_t x, mlx_cuda_norm_t norm,
                             mlx_built_t scores, mlx_built_t residual);
// Product with a small matrix of floats (mlx_cuda_has_scores), or of each head with its own: weight [heads,
// out, in].
mlx_built_t mlx_cuda_scores(mlx_function_t *g, const char *name, const mlx_cuda_product_t *p);

#endif  // MLXCEL_COMPILER_LOWER_CUDA_H_
