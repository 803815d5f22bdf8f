// Command R: layer norms without bias, parallel attention and MLP, rope over adjacent elements, scaled
// logits.
#include "models/shared/blocks.h"

static const mlx_tensor_rule_t cohere_tensors[] = {
    MLX_RULE_EMBED,
    MLX_LAYER_NORM("input_layernorm", "attn_norm"),
    MLX_RULES_ATTENTION(MLX_ROWS_AS_STORED),
    MLX_LAYER_MATRIX("self_attn.q_norm.weight", "attn_q_norm.weight", MLX_DIM(heads), MLX_DIM(head_dim),
                     .present = mlx_has_qk_norm),
    MLX_LAYER_MATRIX("self_attn.k_norm.weight", "attn_k_norm.weight", MLX_DIM(kv_heads), MLX_DIM(head_dim),
                     .present = mlx_has_qk_norm),
    MLX_RULES_GATED_MLP,
    MLX_RULE_FINAL_NORM(),
    MLX_RULE_HEAD,
};

static mlx_status_t cohere_read_config(const mlx_source_t *source, mlx_config_t *c) {
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_SILU, &c->act));
  MLX_TRY(mlx_read_sizes(source, NULL, true, c));
  MLX_TRY(mlx_read_eps(source, "layer_norm_eps", ".attention.layer_norm_epsilon", c));
  MLX_TRY(mlx_read_attention_bias(source, "attention_bias", false, c));
  MLX_TRY(mlx_read_flag(source, "use_qk_norm", "blk.0.attn_q_norm.weight", false, &c->qk_norm));
  MLX_TRY(mlx_source_number(source, "logit_scale", ".logit_scale", &c->logit_scale, NULL));
  return mlx_read_rope(source, &(mlx_rope_fields_t){.default_theta = 500000.0, .adjacent = true}, c,
                       &c->rope);
}

static mlx_value_t cohere_attention(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h) {
  const mlx_attention_t attention = mlx_attention_of(c, layer);
  mlx_qkv_t p = mlx_block_qkv(g, c, layer, h);
  if (c->qk_norm) {  // one weight per head: [heads, head_dim]
    p.q = mlx_op_head_layernorm(g, "q_normed", p.q, c->head_dim, MLX_W("self_attn.q_norm"), c->norm_eps);
    p.k = mlx_op_head_layernorm(g, "k_normed", p.k, c->head_dim, MLX_W("self_attn.k_norm"), c->norm_eps);
  }
  p.q = mlx_op_rope(g, "q_rope", p.q, c->head_dim, &c->rope);
  p.k = mlx_op_rope(g, "k_rope", p.k, c->head_dim, &c->rope);
  h = mlx_op_attention(g, &attention, p.q, p.k, p.v);
  return mlx_block_output(g, c, layer, h);
}

static mlx_value_t cohere_layer(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x) {
  mlx_op_scope(g, "layer%d", layer);
  mlx_value_t h = mlx_op_layernorm(g, "in", x, MLX_W("input_layernorm"), MLX_NONE, c->norm_eps);
  mlx_value_t attended = cohere_attention(g, c, layer, h);
  h = mlx_block_gated_mlp(g, c, layer, h);
  x = mlx_op_add(g, "after_attn", x, attended);
  return mlx_op_add(g, "out", x, h);
}

static mlx_value_t cohere_forward(mlx_graph_t *g, const mlx_model_t *model, mlx_value_t tokens) {
  const mlx_config_t *c = &model->config;
  mlx_value_t x = mlx_block_embed(g, c, tokens);  // [M, hidden]
  for (int layer = 0; layer < c->layers; ++layer) x = cohere_layer(g, c, layer, x);
  mlx_op_scope(g, "%s", "");
  return mlx_op_layernorm(g, "final", x, mlx_op_weight(g, "model.norm.weight"), MLX_NONE, c->norm_eps);
}

static const char *const cohere_types[] = {"cohere", NULL};
static const char *const cohere_gguf_types[] = {"command-r", NULL};

const mlx_arch_t mlx_arch_cohere = {
    .hf_types = cohere_types,
    .gguf_types = cohere_gguf_types,
    MLX_TENSORS(cohere_tensors),
    .read_config = cohere_read_config,
    .forward = cohere_forward,
};
