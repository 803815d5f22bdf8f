// OLMo: Llama with layer norms that have no weights, and optional clamping of q, k and v.
#include "models/shared/blocks.h"

static const mlx_tensor_rule_t olmo_tensors[] = {
    MLX_RULE_EMBED,
    // llama.cpp's converter reorders the rows of q and k, but not their biases.
    MLX_RULES_ATTENTION_ORDERED(MLX_ROWS_INTERLEAVED_HALVES, MLX_ROWS_AS_STORED),
    MLX_RULES_GATED_MLP,
    MLX_RULE_HEAD,
};

static mlx_status_t olmo_read_config(const mlx_source_t *source, mlx_config_t *c) {
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_SILU, &c->act));
  MLX_TRY(mlx_read_sizes(source, NULL, false, c));
  MLX_TRY(mlx_read_attention_bias(source, "attention_bias", false, c));
  MLX_TRY(mlx_read_number(source, "clip_qkv", ".attention.clamp_kqv", 0.0, &c->clip));
  MLX_TRY(mlx_read_number(source, NULL, ".attention.layer_norm_epsilon", 1e-5, &c->norm_eps));
  return mlx_read_rope(source, &(mlx_rope_fields_t){0}, c, &c->rope);
}

// q, k or v, clamped if the config has clip_qkv.
static mlx_value_t project(mlx_graph_t *g, const mlx_config_t *c, const char *name, mlx_value_t h,
                           mlx_value_t weight, mlx_value_t bias) {
  mlx_value_t x = mlx_op_linear_bias(g, c->clip > 0.0 ? "unclipped" : name, h, weight, bias);
  return c->clip > 0.0 ? mlx_op_clip(g, name, x, c->clip) : x;
}

static mlx_value_t olmo_attention(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h) {
  const mlx_attention_t attention = mlx_attention_of(c, layer);
  mlx_value_t q = project(g, c, "q", h, MLX_W("self_attn.q_proj"),
                          MLX_B("self_attn.q_proj", c->q_bias));  // [M, heads * head_dim]
  mlx_value_t k = project(g, c, "k", h, MLX_W("self_attn.k_proj"),
                          MLX_B("self_attn.k_proj", c->kv_bias));  // [M, kv_heads * head_dim]
  mlx_value_t v = project(g, c, "v", h, MLX_W("self_attn.v_proj"), MLX_B("self_attn.v_proj", c->kv_bias));
  q = mlx_op_rope(g, "q_rope", q, c->head_dim, &c->rope);
  k = mlx_op_rope(g, "k_rope", k, c->head_dim, &c->rope);
  h = mlx_op_attention(g, &attention, q, k, v);
  return mlx_op_linear_bias(g, "o", h, MLX_W("self_attn.o_proj"), MLX_B("self_attn.o_proj", c->o_bias));
}

static mlx_value_t olmo_layer(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x) {
  mlx_op_scope(g, "layer%d", layer);
  mlx_value_t h = mlx_op_layernorm(g, "attn_in", x, MLX_NONE, MLX_NONE, c->norm_eps);
  x = mlx_op_add(g, "after_attn", x, olmo_attention(g, c, layer, h));
  h = mlx_op_layernorm(g, "mlp_in", x, MLX_NONE, MLX_NONE, c->norm_eps);
  return mlx_op_add(g, "out", x, mlx_block_gated_mlp(g, c, layer, h));
}

static mlx_value_t olmo_forward(mlx_graph_t *g, const mlx_model_t *model, mlx_value_t tokens) {
  const mlx_config_t *c = &model->config;
  mlx_value_t x = mlx_block_embed(g, c, tokens);  // [M, hidden]
  for (int layer = 0; layer < c->layers; ++layer) x = olmo_layer(g, c, layer, x);
  mlx_op_scope(g, "%s", "");
  return mlx_op_layernorm(g, "final", x, MLX_NONE, MLX_NONE, c->norm_eps);
}

static const char *const olmo_types[] = {"olmo", NULL};

const mlx_arch_t mlx_arch_olmo = {
    .hf_types = olmo_types,
    .gguf_types = olmo_types,
    MLX_TENSORS(olmo_tensors),
    .read_config = olmo_read_config,
    .forward = olmo_forward,
};
