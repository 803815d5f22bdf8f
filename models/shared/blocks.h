// Parts that several architectures share: rules for their tensors under Hugging Face's usual names, and the
// parts of the network as calls of graph/ops.h. An architecture that differs writes out its own.
#ifndef MLXCEL_MODELS_SHARED_BLOCKS_H_
#define MLXCEL_MODELS_SHARED_BLOCKS_H_

#include "graph/ops.h"
#include "models/model.h"
#include "models/shared/fields.h"

// ----------------------------------------------------------------------------------------------------------
// Tensor rules

#define MLX_TENSORS(rules) .tensors = rules, .tensor_count = sizeof(rules) / sizeof *(rules)

// Of a rule whose weight only some layers have.
#define MLX_IN_ATTENTION .layers = MLX_ATTENTION_LAYERS
#define MLX_IN_RECURRENT .layers = MLX_RECURRENT_LAYERS
#define MLX_IN_DENSE .layers = MLX_DENSE_LAYERS
#define MLX_IN_EXPERTS .layers = MLX_EXPERT_LAYERS

// One vector or matrix of each layer.
#define MLX_LAYER_VECTOR(hf, gguf, extent, ...) \
  MLX_VECTOR("model.layers.%d." hf, "blk.%d." gguf, extent, __VA_ARGS__)
#define MLX_LAYER_MATRIX(hf, gguf, rows, columns, ...) \
  MLX_MATRIX("model.layers.%d." hf, "blk.%d." gguf, rows, columns, __VA_ARGS__)
// A norm with a weight, and one with a weight and a bias.
#define MLX_LAYER_NORM(hf, gguf, ...) \
  MLX_LAYER_VECTOR(hf ".weight", gguf ".weight", MLX_DIM(hidden), __VA_ARGS__)
#define MLX_LAYER_NORM_WITH_BIAS(hf, gguf, ...) \
  MLX_LAYER_NORM(hf, gguf, __VA_ARGS__),        \
      MLX_LAYER_VECTOR(hf ".bias", gguf ".bias", MLX_DIM(hidden), __VA_ARGS__)

#define MLX_RULE_EMBED \
  MLX_MATRIX("model.embed_tokens.weight", "token_embd.weight", MLX_DIM(vocab), MLX_DIM(hidden))
#define MLX_RULE_HEAD                                                            \
  MLX_MATRIX("lm_head.weight", "output.weight", MLX_DIM(vocab), MLX_DIM(hidden), \
             .present = mlx_has_untied_head)
#define MLX_RULE_HEAD_BIAS \
  MLX_VECTOR("lm_head.bias", "output.bias", MLX_DIM(vocab), .present = mlx_has_head_bias)
#define MLX_RULE_FINAL_NORM(...) \
  MLX_VECTOR("model.norm.weight", "output_norm.weight", MLX_DIM(hidden), __VA_ARGS__)
#define MLX_RULES_FINAL_NORM_WITH_BIAS \
  MLX_RULE_FINAL_NORM(), MLX_VECTOR("model.norm.bias", "output_norm.bias", MLX_DIM(hidden))

// q, k, v and o with optional biases. |order| is how GGUF stores the rows of q and k, |bias_order| those of
// their biases. Further arguments apply to all of these rules.
#define MLX_RULES_ATTENTION(order, ...) MLX_RULES_ATTENTION_ORDERED(order, order, __VA_ARGS__)
#define MLX_RULES_ATTENTION_ORDERED(order, bias_order, ...)                                                 \
  MLX_LAYER_MATRIX("self_attn.q_proj.weight", "attn_q.weight", MLX_HEADS(heads), MLX_DIM(hidden),           \
                   .gguf_order = order, __VA_ARGS__),                                                       \
      MLX_LAYER_MATRIX("self_attn.k_proj.weight", "attn_k.weight", MLX_HEADS(kv_heads), MLX_DIM(hidden),    \
                       .gguf_order = order, __VA_ARGS__),                                                   \
      MLX_LAYER_MATRIX("self_attn.v_proj.weight", "attn_v.weight", MLX_HEADS(kv_heads), MLX_DIM(hidden),    \
                       __VA_ARGS__),                                                                        \
      MLX_LAYER_MATRIX("self_attn.o_proj.weight", "attn_output.weight", MLX_DIM(hidden), MLX_HEADS(heads),  \
                       __VA_ARGS__),                                                                        \
      MLX_LAYER_VECTOR("self_attn.q_proj.bias", "attn_q.bias", MLX_HEADS(heads), .present = mlx_has_q_bias, \
                       .gguf_order = bias_order, __VA_ARGS__),                                              \
      MLX_LAYER_VECTOR("self_attn.k_proj.bias", "attn_k.bias", MLX_HEADS(kv_heads),                         \
                       .present = mlx_has_kv_bias, .gguf_order = bias_order, __VA_ARGS__),                  \
      MLX_LAYER_VECTOR("self_attn.v_proj.bias", "attn_v.bias", MLX_HEADS(kv_heads),                         \
                       .present = mlx_has_kv_bias, __VA_ARGS__),                                            \
      MLX_LAYER_VECTOR("self_attn.o_proj.bias", "attn_output.bias", MLX_DIM(hidden),                        \
                       .present = mlx_has_o_bias, __VA_ARGS__)

// Norms of q and k: one weight [head_dim] that all heads share, or one weight over all heads together.
#define MLX_RULES_HEAD_QK_NORM(...)                                                        \
  MLX_LAYER_VECTOR("self_attn.q_norm.weight", "attn_q_norm.weight", MLX_DIM(head_dim),     \
                   .present = mlx_has_qk_norm, __VA_ARGS__),                               \
      MLX_LAYER_VECTOR("self_attn.k_norm.weight", "attn_k_norm.weight", MLX_DIM(head_dim), \
                       .present = mlx_has_qk_norm, __VA_ARGS__)
#define MLX_RULES_FULL_QK_NORM                                                         \
  MLX_LAYER_VECTOR("self_attn.q_norm.weight", "attn_q_norm.weight", MLX_HEADS(heads)), \
      MLX_LAYER_VECTOR("self_attn.k_norm.weight", "attn_k_norm.weight", MLX_HEADS(kv_heads))

// down(act(gate(h)) * up(h)) with optional biases.
#define MLX_RULES_GATED_MLP                                                                               \
  MLX_LAYER_MATRIX("mlp.gate_proj.weight", "ffn_gate.weight", MLX_DIM(ffn), MLX_DIM(hidden)),             \
      MLX_LAYER_MATRIX("mlp.up_proj.weight", "ffn_up.weight", MLX_DIM(ffn), MLX_DIM(hidden)),             \
      MLX_LAYER_MATRIX("mlp.down_proj.weight", "ffn_down.weight", MLX_DIM(hidden), MLX_DIM(ffn)),         \
      MLX_LAYER_VECTOR("mlp.gate_proj.bias", "ffn_gate.bias", MLX_DIM(ffn), .present = mlx_has_mlp_bias), \
      MLX_LAYER_VECTOR("mlp.up_proj.bias", "ffn_up.bias", MLX_DIM(ffn), .present = mlx_has_mlp_bias),     \
      MLX_LAYER_VECTOR("mlp.down_proj.bias", "ffn_down.bias", MLX_DIM(hidden), .present = mlx_has_mlp_bias)

// The same with gate and up in one tensor, without biases.
#define MLX_RULES_FUSED_GATED_MLP                                                                        \
  MLX_LAYER_MATRIX("mlp.gate_up_proj.weight", "ffn_up.weight", MLX_DIM(gate_up_width), MLX_DIM(hidden)), \
      MLX_LAYER_MATRIX("mlp.down_proj.weight", "ffn_down.weight", MLX_DIM(hidden), MLX_DIM(ffn))

// A router and experts of inner width |width|. Hugging Face has one tensor per expert, or one for all with
// gate and up fused; MLX has one for all.
#define MLX_RULES_EXPERTS(width)                                                                        \
  MLX_LAYER_MATRIX("mlp.gate.weight", "ffn_gate_inp.weight", MLX_DIM(experts), MLX_DIM(hidden)),        \
      MLX_STACKED_EXPERTS("mlp.", "gate_proj", "ffn_gate_exps", width, MLX_DIM(hidden), "gate_up_proj", \
                          MLX_FUSED_FIRST_HALF),                                                        \
      MLX_STACKED_EXPERTS("mlp.", "up_proj", "ffn_up_exps", width, MLX_DIM(hidden), "gate_up_proj",     \
                          MLX_FUSED_SECOND_HALF),                                                       \
      MLX_STACKED_EXPERTS("mlp.", "down_proj", "ffn_down_exps", MLX_DIM(hidden), width, "down_proj",    \
                          MLX_NOT_FUSED)
#define MLX_STACKED_EXPERTS(block, hf, gguf, rows, columns, stored, part, ...)                              \
  MLX_EXPERTS("model.layers.%d." block "experts.%e." hf ".weight", "blk.%d." gguf ".weight", rows, columns, \
              .hf_stacked = true, .hf_stored = "model.layers.%d." block "experts." stored,                  \
              .hf_fused_part = part, .mlx_name = "model.layers.%d." block "switch_mlp." hf ".weight",       \
              __VA_ARGS__)

// An expert that every token uses, and its gate.
#define MLX_RULES_SHARED_EXPERT                                                                        \
  MLX_LAYER_MATRIX("mlp.shared_expert.gate_proj.weight", "ffn_gate_shexp.weight", MLX_DIM(shared_ffn), \
                   MLX_DIM(hidden)),                                                                   \
      MLX_LAYER_MATRIX("mlp.shared_expert.up_proj.weight", "ffn_up_shexp.weight", MLX_DIM(shared_ffn), \
                       MLX_DIM(hidden)),                                                               \
      MLX_LAYER_MATRIX("mlp.shared_expert.down_proj.weight", "ffn_down_shexp.weight", MLX_DIM(hidden), \
                       MLX_DIM(shared_ffn)),                                                           \
      MLX_LAYER_MATRIX("mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp.weight", MLX_DIM(one),     \
                       MLX_DIM(hidden))

// clang-format off
// All rules of Llama. |order| and |bias_order| are as for MLX_RULES_ATTENTION_ORDERED.
#define MLX_RULES_LLAMA(order) MLX_RULES_LLAMA_ORDERED(order, order)
#define MLX_RULES_LLAMA_ORDERED(order, bias_order)       \
  MLX_RULE_EMBED,                                        \
  MLX_LAYER_NORM("input_layernorm", "attn_norm"),        \
  MLX_RULES_ATTENTION_ORDERED(order, bias_order),        \
  MLX_LAYER_NORM("post_attention_layernorm", "ffn_norm"), \
  MLX_RULES_GATED_MLP,                                   \
  MLX_RULE_FINAL_NORM(),                                 \
  MLX_RULE_HEAD

// All rules of OLMo 2.
#define MLX_RULES_OLMO2                                              \
  MLX_RULE_EMBED,                                                    \
  MLX_RULES_ATTENTION(MLX_ROWS_AS_STORED),                           \
  MLX_RULES_FULL_QK_NORM,                                            \
  MLX_LAYER_NORM("post_attention_layernorm", "post_attention_norm"), \
  MLX_RULES_GATED_MLP,                                               \
  MLX_LAYER_NORM("post_feedforward_layernorm", "post_ffw_norm"),     \
  MLX_RULE_FINAL_NORM(),                                             \
  MLX_RULE_HEAD
// clang-format on

// ----------------------------------------------------------------------------------------------------------
// Parts of the network

// A weight, or an optional bias, of layer |layer|. The calling function must have |g| and |layer|.
#define MLX_W(part) mlx_op_weight(g, "model.layers.%d." part ".weight", layer)
#define MLX_B(part, present) ((present) ? mlx_op_weight(g, "model.layers.%d." part ".bias", layer) : MLX_NONE)

// The size of a head of one layer.
int64_t mlx_head_dim_of(const mlx_config_t *c, int layer);
// How the config's router chooses and weighs experts, without its bias of the choice.
mlx_experts_t mlx_experts_of(const mlx_config_t *c);
// The attention parameters of one layer: of whole texts in an encoder, where |window| is that of each side.
mlx_attention_t mlx_attention_of(const mlx_config_t *c, int layer);
// The rope of one layer: local_rope for windowed layers that have one; for a longrope the short or the long
// one, by the context length being compiled.
const mlx_rope_t *mlx_rope_of(const mlx_graph_t *g, const mlx_config_t *c, int layer);

mlx_value_t mlx_block_embed(mlx_graph_t *g, const mlx_config_t *c, mlx_value_t tokens);

// The projections of h [M, hidden] with optional biases.
typedef struct mlx_qkv {
  mlx_value_t q;     // [M, heads * head_dim]
  mlx_value_t k, v;  // [M, kv_heads * head_dim]
} mlx_qkv_t;
mlx_qkv_t mlx_block_qkv(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h);
// The output projection of h [M, heads * head_dim] with an optional bias -> [M, hidden].
mlx_value_t mlx_block_output(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h);
// mlx_block_qkv, head norms if c->qk_norm, rope unless c->no_rope, attention, mlx_block_output.
mlx_value_t mlx_block_attention(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h);

// For MLX_RULES_GATED_MLP, MLX_RULES_FUSED_GATED_MLP and MLX_RULES_EXPERTS.
mlx_value_t mlx_block_gated_mlp(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h);
mlx_value_t mlx_block_fused_gated_mlp(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h);
// Of MLX_RULES_ROUTED_MLP (models/shared/routed.h), too.
mlx_value_t mlx_block_experts(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h);
// mlx_block_experts plus a shared expert, weighted by a sigmoid (MLX_RULES_SHARED_EXPERT).
mlx_value_t mlx_block_shared_experts(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h);

// The LM head: logits of the hidden states, scaled by c->logit_scale and capped by c->logit_softcap.
mlx_value_t mlx_block_head(mlx_graph_t *g, const mlx_model_t *model, mlx_value_t hidden);
// The network of most architectures: the embedding, the architecture's |layer| for each layer, and an
// RMSNorm.
mlx_value_t mlx_block_forward(mlx_graph_t *g, const mlx_model_t *model, mlx_value_t tokens);

// The attention of hunyuan_v1_dense.c, with its projections.
mlx_value_t mlx_hunyuan_attention(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h);
// Layers that other architectures reuse: llama.c, gemma2.c, olmo2.c. mlx_llama_layer scales the
// output of each sublayer by c->residual_scale.
mlx_value_t mlx_llama_layer(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x);
mlx_value_t mlx_gemma2_layer(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x);
mlx_value_t mlx_olmo2_layer(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x);

#endif  // MLXCEL_MODELS_SHARED_BLOCKS_H_
