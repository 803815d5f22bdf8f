// Parts of Gemma 3n and Gemma 4: per-layer embeddings, and last layers that attend to the keys and values of
// earlier ones.
#ifndef MLXCEL_MODELS_SHARED_GEMMA_H_
#define MLXCEL_MODELS_SHARED_GEMMA_H_

#include "models/shared/blocks.h"

// The table and the projection of all layers; further arguments are fields of the rules.
#define MLX_RULES_LAYER_EMBEDDINGS(...)                                                                  \
  MLX_MATRIX("model.embed_tokens_per_layer.weight", "per_layer_token_embd.weight", MLX_DIM(layer_vocab), \
             MLX_DIM(layer_embeddings), __VA_ARGS__),                                                    \
      MLX_MATRIX("model.per_layer_model_projection.weight", "per_layer_model_proj.weight",               \
                 MLX_DIM(layer_embeddings), MLX_DIM(hidden), __VA_ARGS__),                               \
      MLX_VECTOR("model.per_layer_projection_norm.weight", "per_layer_proj_norm.weight",                 \
                 MLX_DIM(layer_embedding), __VA_ARGS__)
#define MLX_RULES_LAYER_EMBEDDING_OF_LAYER(...)                                                \
  MLX_LAYER_MATRIX("per_layer_input_gate.weight", "inp_gate.weight", MLX_DIM(layer_embedding), \
                   MLX_DIM(hidden), __VA_ARGS__),                                              \
      MLX_LAYER_MATRIX("per_layer_projection.weight", "proj.weight", MLX_DIM(hidden),          \
                       MLX_DIM(layer_embedding), __VA_ARGS__),                                 \
      MLX_LAYER_NORM("post_per_layer_input_norm", "post_norm", __VA_ARGS__)

// Whether |layer| attends to the keys and values of an earlier layer: of the last one of the same kind that
// stores them.
bool mlx_shares_kv(const mlx_config_t *c, int layer);
// For the skips field of mlx_arch_t: published files have keys and values of layers that share them.
bool mlx_skips_shared_kv(const mlx_config_t *c, const char *name);

// Reads c->shared_kv_layers; |fallback| applies if the file has no field. Call after mlx_read_windows.
mlx_status_t mlx_read_shared_kv(const mlx_source_t *source, int64_t fallback, mlx_config_t *c) MLX_MUST_USE;
// Reads c->layer_embedding, c->layer_vocab and c->layer_embeddings.
mlx_status_t mlx_read_layer_embedding(const mlx_source_t *source, mlx_config_t *c) MLX_MUST_USE;

// Attention with norms of queries, keys and values, of h [M, hidden].
mlx_value_t mlx_block_gemma_attention(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h);
// What the token and its embedding |x| give to each layer: [M, layer_embeddings]; MLX_NONE without
// c->layer_embedding.
mlx_value_t mlx_block_layer_embeddings(mlx_graph_t *g, const mlx_config_t *c, mlx_value_t tokens,
                                       mlx_value_t x);
// What |layer| adds: a gate of x [M, hidden] times its part of |embeddings|, projected and normalised.
mlx_value_t mlx_block_layer_embedding(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x,
                                      mlx_value_t embeddings);

#endif  // MLXCEL_MODELS_SHARED_GEMMA_H_
