// Phi-1 and Phi-2: one layer norm for parallel attention and GELU MLP, partial rope, and biases
// everywhere, also in the LM head.
#include "models/shared/blocks.h"

static const mlx_tensor_rule_t phi_tensors[] = {
    MLX_RULE_EMBED,
    MLX_LAYER_NORM_WITH_BIAS("input_layernorm", "attn_norm"),
    MLX_LAYER_MATRIX("self_attn.q_proj.weight", "attn_q.weight", MLX_HEADS(heads), MLX_DIM(hidden)),
    MLX_LAYER_VECTOR("self_attn.q_proj.bias", "attn_q.bias", MLX_HEADS(heads)),
    MLX_LAYER_MATRIX("self_attn.k_proj.weight", "attn_k.weight", MLX_HEADS(kv_heads), MLX_DIM(hidden)),
    MLX_LAYER_VECTOR("self_attn.k_proj.bias", "attn_k.bias", MLX_HEADS(kv_heads)),
    MLX_LAYER_MATRIX("self_attn.v_proj.weight", "attn_v.weight", MLX_HEADS(kv_heads), MLX_DIM(hidden)),
    MLX_LAYER_VECTOR("self_attn.v_proj.bias", "attn_v.bias", MLX_HEADS(kv_heads)),
    MLX_LAYER_MATRIX("self_attn.dense.weight", "attn_output.weight", MLX_DIM(hidden), MLX_HEADS(heads)),
    MLX_LAYER_VECTOR("self_attn.dense.bias", "attn_output.bias", MLX_DIM(hidden)),
    MLX_LAYER_MATRIX("mlp.fc1.weight", "ffn_up.weight", MLX_DIM(ffn), MLX_DIM(hidden)),
    MLX_LAYER_VECTOR("mlp.fc1.bias", "ffn_up.bias", MLX_DIM(ffn)),
    MLX_LAYER_MATRIX("mlp.fc2.weight", "ffn_down.weight", MLX_DIM(hidden), MLX_DIM(ffn)),
    MLX_LAYER_VECTOR("mlp.fc2.bias", "ffn_down.bias", MLX_DIM(hidden)),
    MLX_VECTOR("model.final_layernorm.weight", "output_norm.weight", MLX_DIM(hidden)),
    MLX_VECTOR("model.final_layernorm.bias", "output_norm.bias", MLX_DIM(hidden)),
    MLX_RULE_HEAD,
    MLX_VECTOR("lm_head.bias", "output.bias", MLX_DIM(vocab)),
};

static mlx_status_t phi_read_config(const mlx_source_t *source, mlx_config_t *c) {
  MLX_TRY(mlx_require_flag(source, "qk_layernorm", false));
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_GELU_TANH, &c->act));
  MLX_TRY(mlx_read_sizes(source, NULL, false, c));
  MLX_TRY(mlx_read_eps(source, "layer_norm_eps", ".attention.layer_norm_epsilon", c));
  return mlx_read_rope(
      source, &(mlx_rope_fields_t){.partial = "partial_rotary_factor", .default_partial = 0.5}, c, &c->rope);
}

static mlx_value_t phi_attention(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h) {
  const mlx_attention_t attention = mlx_attention_of(c, layer);
  mlx_value_t q = mlx_op_linear_bias(g, "q", h, MLX_W("self_attn.q_proj"),
                                     MLX_B("self_attn.q_proj", true));  // [M, heads * head_dim]
  mlx_value_t k = mlx_op_linear_bias(g, "k", h, MLX_W("self_attn.k_proj"),
                                     MLX_B("self_attn.k_proj", true));  // [M, kv_heads * head_dim]
  mlx_value_t v = mlx_op_linear_bias(g, "v", h, MLX_W("self_attn.v_proj"), MLX_B("self_attn.v_proj", true));
  q = mlx_op_rope(g, "q_rope", q, c->head_dim, &c->rope);
  k = mlx_op_rope(g, "k_rope", k, c->head_dim, &c->rope);
  h = mlx_op_attention(g, &attention, q, k, v);
  return mlx_op_linear_bias(g, "o", h, MLX_W("self_attn.dense"), MLX_B("self_attn.dense", true));
}

static mlx_value_t phi_layer(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x) {
  mlx_op_scope(g, "layer%d", layer);
  mlx_value_t in =
      mlx_op_layernorm(g, "in", x, MLX_W("input_layernorm"), MLX_B("input_layernorm", true), c->norm_eps);
  mlx_value_t attended = phi_attention(g, c, layer, in);
  mlx_value_t h = mlx_op_linear_bias(g, "up", in, MLX_W("mlp.fc1"), MLX_B("mlp.fc1", true));  // [M, ffn]
  h = mlx_op_activate(g, "act", c->act, NULL, h);
  h = mlx_op_linear_bias(g, "down", h, MLX_W("mlp.fc2"), MLX_B("mlp.fc2", true));
  x = mlx_op_add(g, "after_attn", x, attended);
  return mlx_op_add(g, "out", x, h);
}

static mlx_value_t phi_forward(mlx_graph_t *g, const mlx_model_t *model, mlx_value_t tokens) {
  const mlx_config_t *c = &model->config;
  mlx_value_t x = mlx_block_embed(g, c, tokens);  // [M, hidden]
  for (int layer = 0; layer < c->layers; ++layer) x = phi_layer(g, c, layer, x);
  mlx_op_scope(g, "%s", "");
  return mlx_op_layernorm(g, "final", x, mlx_op_weight(g, "model.final_layernorm.weight"),
                          mlx_op_weight(g, "model.final_layernorm.bias"), c->norm_eps);
}

static mlx_value_t phi_head(mlx_graph_t *g, const mlx_model_t *model, mlx_value_t hidden) {
  const char *name = model->config.tied_head ? "model.embed_tokens.weight" : "lm_head.weight";
  return mlx_op_linear_bias(g, "logits", hidden, mlx_op_weight(g, "%s", name),
                            mlx_op_weight(g, "lm_head.bias"));  // [sequences, vocab]
}

static const char *const phi_types[] = {"phi", NULL};
static const char *const phi_gguf_types[] = {"phi2", NULL};

const mlx_arch_t mlx_arch_phi = {
    .hf_types = phi_types,
    .gguf_types = phi_gguf_types,
    MLX_TENSORS(phi_tensors),
    .read_config = phi_read_config,
    .forward = phi_forward,
    .head = phi_head,
};
