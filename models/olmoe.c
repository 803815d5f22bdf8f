// OLMoE: norms over all of q and all of k, optional clamping of q, k and v, and a mixture of experts
// instead of the MLP.
#include "models/shared/blocks.h"

static const mlx_tensor_rule_t olmoe_tensors[] = {
    MLX_RULE_EMBED,
    MLX_LAYER_NORM("input_layernorm", "attn_norm"),
    MLX_RULES_ATTENTION(MLX_ROWS_AS_STORED),
    MLX_RULES_FULL_QK_NORM,
    MLX_LAYER_NORM("post_attention_layernorm", "ffn_norm"),
    MLX_RULES_EXPERTS(MLX_DIM(ffn)),
    MLX_RULE_FINAL_NORM(),
    MLX_RULE_HEAD,
};

static mlx_status_t olmoe_read_config(const mlx_source_t *source, mlx_config_t *c) {
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_SILU, &c->act));
  MLX_TRY(mlx_read_sizes(source, NULL, false, c));
  MLX_TRY(mlx_read_rms_eps(source, c));
  MLX_TRY(mlx_read_expert_counts(source, c));
  MLX_TRY(mlx_read_expert_weights(source, false, c));
  MLX_TRY(mlx_read_attention_bias(source, "attention_bias", false, c));
  MLX_TRY(mlx_read_number(source, "clip_qkv", ".attention.clamp_kqv", 0.0, &c->clip));
  return mlx_read_rope(source, &(mlx_rope_fields_t){0}, c, &c->rope);
}

static mlx_value_t clip(mlx_graph_t *g, const mlx_config_t *c, const char *name, mlx_value_t x) {
  return c->clip > 0.0 ? mlx_op_clip(g, name, x, c->clip) : x;
}

static mlx_value_t olmoe_attention(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h) {
  const mlx_attention_t attention = mlx_attention_of(c, layer);
  mlx_qkv_t p = mlx_block_qkv(g, c, layer, h);
  p.q = clip(g, c, "q_clipped", mlx_op_rmsnorm(g, "q_normed", p.q, MLX_W("self_attn.q_norm"), c->norm_eps));
  p.k = clip(g, c, "k_clipped", mlx_op_rmsnorm(g, "k_normed", p.k, MLX_W("self_attn.k_norm"), c->norm_eps));
  p.v = clip(g, c, "v_clipped", p.v);
  p.q = mlx_op_rope(g, "q_rope", p.q, c->head_dim, &c->rope);
  p.k = mlx_op_rope(g, "k_rope", p.k, c->head_dim, &c->rope);
  h = mlx_op_attention(g, &attention, p.q, p.k, p.v);
  return mlx_block_output(g, c, layer, h);
}

static mlx_value_t olmoe_layer(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x) {
  mlx_op_scope(g, "layer%d", layer);
  mlx_value_t h = mlx_op_rmsnorm(g, "attn_in", x, MLX_W("input_layernorm"), c->norm_eps);
  x = mlx_op_add(g, "after_attn", x, olmoe_attention(g, c, layer, h));
  h = mlx_op_rmsnorm(g, "mlp_in", x, MLX_W("post_attention_layernorm"), c->norm_eps);
  return mlx_op_add(g, "out", x, mlx_block_experts(g, c, layer, h));
}

static const char *const olmoe_types[] = {"olmoe", NULL};

const mlx_arch_t mlx_arch_olmoe = {
    .hf_types = olmoe_types,
    .gguf_types = olmoe_types,
    MLX_TENSORS(olmoe_tensors),
    .read_config = olmoe_read_config,
    .layer = olmoe_layer,
};
