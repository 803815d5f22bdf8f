// The layers of LFM2: some have attention with head norms of q and k, the others a short convolution between
// two gates: C * convolution(B * x), with B, C and x from one projection.
#ifndef MLXCEL_MODELS_SHARED_SHORT_CONV_H_
#define MLXCEL_MODELS_SHARED_SHORT_CONV_H_

#include "models/shared/blocks.h"

#define MLX_RULES_SHORT_CONV                                                                                 \
  MLX_LAYER_NORM("operator_norm", "attn_norm"),                                                              \
      MLX_LAYER_MATRIX("conv.in_proj.weight", "shortconv.in_proj.weight", MLX_DIM(conv_in_width),            \
                       MLX_DIM(hidden), MLX_IN_RECURRENT),                                                   \
      MLX_LAYER_VECTOR("conv.in_proj.bias", "shortconv.in_proj.bias", MLX_DIM(conv_in_width),                \
                       MLX_IN_RECURRENT, .present = mlx_has_conv_bias),                                      \
      MLX_LAYER_MATRIX("conv.conv.weight", "shortconv.conv.weight", MLX_DIM(hidden), MLX_DIM(conv_taps),     \
                       MLX_IN_RECURRENT, .squeezed = true),                                                  \
      MLX_LAYER_VECTOR("conv.conv.bias", "shortconv.conv.bias", MLX_DIM(hidden), MLX_IN_RECURRENT,           \
                       .present = mlx_has_conv_bias),                                                        \
      MLX_LAYER_MATRIX("conv.out_proj.weight", "shortconv.out_proj.weight", MLX_DIM(hidden),                 \
                       MLX_DIM(hidden), MLX_IN_RECURRENT),                                                   \
      MLX_LAYER_VECTOR("conv.out_proj.bias", "shortconv.out_proj.bias", MLX_DIM(hidden), MLX_IN_RECURRENT,   \
                       .present = mlx_has_conv_bias),                                                        \
      MLX_LAYER_MATRIX("self_attn.q_proj.weight", "attn_q.weight", MLX_HEADS(heads), MLX_DIM(hidden),        \
                       MLX_IN_ATTENTION),                                                                    \
      MLX_LAYER_MATRIX("self_attn.k_proj.weight", "attn_k.weight", MLX_HEADS(kv_heads), MLX_DIM(hidden),     \
                       MLX_IN_ATTENTION),                                                                    \
      MLX_LAYER_MATRIX("self_attn.v_proj.weight", "attn_v.weight", MLX_HEADS(kv_heads), MLX_DIM(hidden),     \
                       MLX_IN_ATTENTION),                                                                    \
      MLX_LAYER_MATRIX("self_attn.out_proj.weight", "attn_output.weight", MLX_DIM(hidden), MLX_HEADS(heads), \
                       MLX_IN_ATTENTION),                                                                    \
      MLX_LAYER_VECTOR("self_attn.q_layernorm.weight", "attn_q_norm.weight", MLX_DIM(head_dim),              \
                       MLX_IN_ATTENTION),                                                                    \
      MLX_LAYER_VECTOR("self_attn.k_layernorm.weight", "attn_k_norm.weight", MLX_DIM(head_dim),              \
                       MLX_IN_ATTENTION)
#define MLX_RULE_EMBEDDING_NORM \
  MLX_VECTOR("model.embedding_norm.weight", "token_embd_norm.weight", MLX_DIM(hidden))

// Reads what these layers need: sizes, kinds of layers, the convolution and the rope.
mlx_status_t mlx_read_short_conv(const mlx_source_t *source, mlx_config_t *c) MLX_MUST_USE;

// A layer but for its MLP: x plus what the convolution or attention adds.
mlx_value_t mlx_block_short_conv(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x);
// An MLP whose matrices have the names of LFM2. mlx-lm renames those of models with experts.
#define MLX_RULES_SHORT_CONV_MLP(...)                                                               \
  MLX_SHORT_CONV_MATRIX("w1", "ffn_gate", MLX_DIM(ffn), MLX_DIM(hidden), "gate_proj", __VA_ARGS__), \
      MLX_SHORT_CONV_MATRIX("w3", "ffn_up", MLX_DIM(ffn), MLX_DIM(hidden), "up_proj", __VA_ARGS__), \
      MLX_SHORT_CONV_MATRIX("w2", "ffn_down", MLX_DIM(hidden), MLX_DIM(ffn), "down_proj", __VA_ARGS__)
#define MLX_SHORT_CONV_MATRIX(hf, gguf, rows, columns, mlx, ...)                \
  MLX_LAYER_MATRIX("feed_forward." hf ".weight", gguf ".weight", rows, columns, \
                   .mlx_name = "model.layers.%d.feed_forward." mlx ".weight", __VA_ARGS__)
mlx_value_t mlx_block_short_conv_mlp(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h);

// The network: the embedding, the architecture's |layer| for each layer, and a norm with a name of its own.
mlx_value_t mlx_short_conv_forward(mlx_graph_t *g, const mlx_model_t *model, mlx_value_t tokens);

#endif  // MLXCEL_MODELS_SHARED_SHORT_CONV_H_
