// Parts that many architectures have alike, in Hugging Face's usual names: rules for their tensors, and the
// parts themselves in the words of ops.h. An architecture that has one of them otherwise writes it out.
#ifndef MLXCEL_MODELS_SHARED_BLOCKS_H_
#define MLXCEL_MODELS_SHARED_BLOCKS_H_

#include "graph/ops.h"
#include "models/shared/fields.h"

// ----------------------------------------------------------------------------------------------------------
// Rules

#define MLX_RULE_EMBED \
  MLX_MATRIX("model.embed_tokens.weight", "token_embd.weight", MLX_DIM(vocab), MLX_DIM(hidden))
#define MLX_RULE_HEAD \
  MLX_MATRIX("lm_head.weight", "output.weight", MLX_DIM(vocab), MLX_DIM(hidden), .present = mlx_has_own_head)
#define MLX_RULE_FINAL_NORM(...) \
  MLX_VECTOR("model.norm.weight", "output_norm.weight", MLX_DIM(hidden), __VA_ARGS__)

// A vector or a matrix of a layer.
#define MLX_LAYER_VECTOR(hf, gguf, extent, ...) \
  MLX_VECTOR("model.layers.%d." hf, "blk.%d." gguf, extent, __VA_ARGS__)
#define MLX_LAYER_MATRIX(hf, gguf, rows, columns, ...) \
  MLX_MATRIX("model.layers.%d." hf, "blk.%d." gguf, rows, columns, __VA_ARGS__)
#define MLX_LAYER_NORM(hf, gguf, ...) \
  MLX_LAYER_VECTOR(hf ".weight", gguf ".weight", MLX_DIM(hidden), __VA_ARGS__)

// |order|: how GGUF stores the rows of q and k, and of their biases
#define MLX_RULES_ATTENTION(order) MLX_RULES_ATTENTION_OF(order, order)
#define MLX_RULES_ATTENTION_OF(order, bias_order)                                                           \
  MLX_LAYER_MATRIX("self_attn.q_proj.weight", "attn_q.weight", MLX_HEADS(heads), MLX_DIM(hidden),           \
                   .gguf_order = order),                                                                    \
      MLX_LAYER_MATRIX("self_attn.k_proj.weight", "attn_k.weight", MLX_HEADS(kv_heads), MLX_DIM(hidden),    \
                       .gguf_order = order),                                                                \
      MLX_LAYER_MATRIX("self_attn.v_proj.weight", "attn_v.weight", MLX_HEADS(kv_heads), MLX_DIM(hidden)),   \
      MLX_LAYER_MATRIX("self_attn.o_proj.weight", "attn_output.weight", MLX_DIM(hidden), MLX_HEADS(heads)), \
      MLX_LAYER_VECTOR("self_attn.q_proj.bias", "attn_q.bias", MLX_HEADS(heads), .present = mlx_has_q_bias, \
                       .gguf_order = bias_order),                                                           \
      MLX_LAYER_VECTOR("self_attn.k_proj.bias", "attn_k.bias", MLX_HEADS(kv_heads),                         \
                       .present = mlx_has_kv_bias, .gguf_order = bias_order),                               \
      MLX_LAYER_VECTOR("self_attn.v_proj.bias", "attn_v.bias", MLX_HEADS(kv_heads),                         \
                       .present = mlx_has_kv_bias),                                                         \
      MLX_LAYER_VECTOR("self_attn.o_proj.bias", "attn_output.bias", MLX_DIM(hidden),                        \
                       .present = mlx_has_o_bias)

// One norm for all heads of q, one for those of k
#define MLX_RULES_QK_NORM(...)                                                             \
  MLX_LAYER_VECTOR("self_attn.q_norm.weight", "attn_q_norm.weight", MLX_DIM(head_dim),     \
                   .present = mlx_has_qk_norm, __VA_ARGS__),                               \
      MLX_LAYER_VECTOR("self_attn.k_norm.weight", "attn_k_norm.weight", MLX_DIM(head_dim), \
                       .present = mlx_has_qk_norm, __VA_ARGS__)

#define MLX_RULES_GATED_MLP                                                                               \
  MLX_LAYER_MATRIX("mlp.gate_proj.weight", "ffn_gate.weight", MLX_DIM(ffn), MLX_DIM(hidden)),             \
      MLX_LAYER_MATRIX("mlp.up_proj.weight", "ffn_up.weight", MLX_DIM(ffn), MLX_DIM(hidden)),             \
      MLX_LAYER_MATRIX("mlp.down_proj.weight", "ffn_down.weight", MLX_DIM(hidden), MLX_DIM(ffn)),         \
      MLX_LAYER_VECTOR("mlp.gate_proj.bias", "ffn_gate.bias", MLX_DIM(ffn), .present = mlx_has_mlp_bias), \
      MLX_LAYER_VECTOR("mlp.up_proj.bias", "ffn_up.bias", MLX_DIM(ffn), .present = mlx_has_mlp_bias),     \
      MLX_LAYER_VECTOR("mlp.down_proj.bias", "ffn_down.bias", MLX_DIM(hidden), .present = mlx_has_mlp_bias)

#define MLX_TENSORS(rules) .tensors = rules, .tensor_count = sizeof(rules) / sizeof *(rules)

// ----------------------------------------------------------------------------------------------------------
// Parts

// A weight, or a bias that may not be there, of layer |layer| in a function that has |g| and |layer|.
#define MLX_W(part) mlx_op_weight(g, "model.layers.%d." part ".weight", layer)
#define MLX_B(part, is_there) \
  ((is_there) ? mlx_op_weight(g, "model.layers.%d." part ".bias", layer) : MLX_NONE)

// What c says about the attention of one layer.
mlx_attention_t mlx_attention_of(const mlx_config_t *c, int layer);
// The rope of one layer: its own where it has a window, the short or the long one of a longrope.
const mlx_rope_t *mlx_rope_of(const mlx_graph_t *g, const mlx_config_t *c, int layer);

mlx_value_t mlx_block_embed(mlx_graph_t *g, const mlx_config_t *c, mlx_value_t tokens);
// q, k, v with or without bias, their heads normalised if c->qk_norm, turned unless c->ropeless; attention; o
mlx_value_t mlx_block_attention(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h);
// down(act(gate(h)) * up(h))
mlx_value_t mlx_block_gated_mlp(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h);
// llama.c: the whole network of Llama, which is that of others too. c->residual_scale scales what each half
// of a layer adds.
mlx_value_t mlx_llama_forward(mlx_graph_t *g, const mlx_model_t *model, mlx_value_t tokens);
// olmo2.c: that of OLMo 2.
mlx_value_t mlx_olmo2_forward(mlx_graph_t *g, const mlx_model_t *model, mlx_value_t tokens);
// Logits from the hidden states of the rows' last tokens, scaled and capped as c says
mlx_value_t mlx_block_head(mlx_graph_t *g, const mlx_model_t *model, mlx_value_t hidden);

#endif  // MLXCEL_MODELS_SHARED_BLOCKS_H_
