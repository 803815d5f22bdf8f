// The layers of Qwen3-Next and Qwen3.5: the gated delta rule (linear attention) in most of them, and
// attention in the others. Attention has head norms of q and k, a rope of a part of each head, and a gate for
// each number of its result, which q_proj computes beside the queries, head by head.
#ifndef MLXCEL_MODELS_SHARED_GATED_DELTA_H_
#define MLXCEL_MODELS_SHARED_GATED_DELTA_H_

#include "models/shared/blocks.h"

// Extent: the numbers of all value heads.
#define MLX_DELTA_VALUES (MLX_DIM(delta.value_heads) | MLX_DIM(delta.value_dim) << 16)
// Hugging Face's norms multiply by 1 + weight.
#define MLX_PLUS_ONE .hf_value_offset = 1.0

// What follows the projections of the gated delta rule.
#define MLX_RULES_GATED_DELTA                                                                               \
  MLX_LAYER_MATRIX("linear_attn.conv1d.weight", "ssm_conv1d.weight", MLX_DIM(conv_width),                   \
                   MLX_DIM(conv_taps), MLX_IN_RECURRENT, .squeezed = true),                                 \
      MLX_LAYER_VECTOR("linear_attn.A_log", "ssm_a", MLX_DIM(delta.value_heads), MLX_IN_RECURRENT),         \
      MLX_LAYER_VECTOR("linear_attn.dt_bias", "ssm_dt.bias", MLX_DIM(delta.value_heads), MLX_IN_RECURRENT), \
      MLX_LAYER_VECTOR("linear_attn.norm.weight", "ssm_norm.weight", MLX_DIM(delta.value_dim),              \
                       MLX_IN_RECURRENT),                                                                   \
      MLX_LAYER_MATRIX("linear_attn.out_proj.weight", "ssm_out.weight", MLX_DIM(hidden), MLX_DELTA_VALUES,  \
                       MLX_IN_RECURRENT)

// The projections of Qwen3.5.
#define MLX_RULES_DELTA_PROJECTIONS                                                                    \
  MLX_LAYER_MATRIX("linear_attn.in_proj_qkv.weight", "attn_qkv.weight", MLX_DIM(conv_width),           \
                   MLX_DIM(hidden), MLX_IN_RECURRENT),                                                 \
      MLX_LAYER_MATRIX("linear_attn.in_proj_z.weight", "attn_gate.weight", MLX_DELTA_VALUES,           \
                       MLX_DIM(hidden), MLX_IN_RECURRENT),                                             \
      MLX_LAYER_MATRIX("linear_attn.in_proj_b.weight", "ssm_beta.weight", MLX_DIM(delta.value_heads),  \
                       MLX_DIM(hidden), MLX_IN_RECURRENT),                                             \
      MLX_LAYER_MATRIX("linear_attn.in_proj_a.weight", "ssm_alpha.weight", MLX_DIM(delta.value_heads), \
                       MLX_DIM(hidden), MLX_IN_RECURRENT)

#define MLX_RULES_GATED_ATTENTION                                                                            \
  MLX_LAYER_MATRIX("self_attn.q_proj.weight", "attn_q.weight", MLX_HEADS(gated_heads), MLX_DIM(hidden),      \
                   MLX_IN_ATTENTION),                                                                        \
      MLX_LAYER_MATRIX("self_attn.k_proj.weight", "attn_k.weight", MLX_HEADS(kv_heads), MLX_DIM(hidden),     \
                       MLX_IN_ATTENTION),                                                                    \
      MLX_LAYER_MATRIX("self_attn.v_proj.weight", "attn_v.weight", MLX_HEADS(kv_heads), MLX_DIM(hidden),     \
                       MLX_IN_ATTENTION),                                                                    \
      MLX_LAYER_MATRIX("self_attn.o_proj.weight", "attn_output.weight", MLX_DIM(hidden), MLX_HEADS(heads),   \
                       MLX_IN_ATTENTION),                                                                    \
      MLX_LAYER_VECTOR("self_attn.q_norm.weight", "attn_q_norm.weight", MLX_DIM(head_dim), MLX_IN_ATTENTION, \
                       MLX_PLUS_ONE),                                                                        \
      MLX_LAYER_VECTOR("self_attn.k_norm.weight", "attn_k_norm.weight", MLX_DIM(head_dim), MLX_IN_ATTENTION, \
                       MLX_PLUS_ONE)

// Reads what these layers need: sizes, kinds of layers, heads of both kinds and the rope. |kv_heads| is the
// default of Hugging Face's class. |tiled|: in GGUF files the value heads of a key head are not neighbours.
mlx_status_t mlx_read_gated_delta(const mlx_source_t *source, int64_t kv_heads, bool tiled,
                                  mlx_config_t *c) MLX_MUST_USE;

// A layer but for its MLP: x plus what linear attention or attention adds.
mlx_value_t mlx_block_gated_delta(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x);
// Such a layer with a mixture of experts and a shared expert.
mlx_value_t mlx_gated_delta_moe_layer(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x);

#endif  // MLXCEL_MODELS_SHARED_GATED_DELTA_H_
