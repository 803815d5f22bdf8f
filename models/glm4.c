// GLM-4: Llama with norms before and after attention and MLP, a fused gate and up, and a rope over
// adjacent elements of half of each head.
#include "models/shared/blocks.h"

static const mlx_tensor_rule_t glm4_tensors[] = {
    MLX_RULE_EMBED,
    MLX_LAYER_NORM("input_layernorm", "attn_norm"),
    MLX_RULES_ATTENTION(MLX_ROWS_AS_STORED),
    MLX_LAYER_NORM("post_self_attn_layernorm", "post_attention_norm"),
    MLX_LAYER_NORM("post_attention_layernorm", "ffn_norm"),
    MLX_RULES_FUSED_GATED_MLP,
    MLX_LAYER_NORM("post_mlp_layernorm", "post_ffw_norm"),
    MLX_RULE_FINAL_NORM(),
    MLX_RULE_HEAD,
};

static const mlx_rope_fields_t glm4_rope = {
    .partial = "partial_rotary_factor", .default_partial = 0.5, .adjacent = true};

static mlx_status_t glm4_read_config(const mlx_source_t *source, mlx_config_t *c) {
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_SILU, &c->act));
  MLX_TRY(
      mlx_read_sizes(source, &(mlx_size_names_t){.default_head_dim = 128, .default_kv_heads = 2}, false, c));
  MLX_TRY(mlx_read_rms_eps(source, c));
  MLX_TRY(mlx_read_flag(source, "attention_bias", "blk.0.attn_q.bias", true, &c->q_bias));
  MLX_TRY(mlx_read_flag(source, "attention_bias", "blk.0.attn_k.bias", true, &c->kv_bias));
  return mlx_read_rope(source, &glm4_rope, c, &c->rope);
}

static mlx_value_t glm4_layer(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x) {
  mlx_op_scope(g, "layer%d", layer);
  mlx_value_t h = mlx_op_rmsnorm(g, "attn_in", x, MLX_W("input_layernorm"), c->norm_eps);
  h = mlx_block_attention(g, c, layer, h);
  h = mlx_op_rmsnorm(g, "attn_out", h, MLX_W("post_self_attn_layernorm"), c->norm_eps);
  x = mlx_op_add(g, "after_attn", x, h);
  h = mlx_op_rmsnorm(g, "mlp_in", x, MLX_W("post_attention_layernorm"), c->norm_eps);
  h = mlx_block_fused_gated_mlp(g, c, layer, h);
  h = mlx_op_rmsnorm(g, "mlp_out", h, MLX_W("post_mlp_layernorm"), c->norm_eps);
  return mlx_op_add(g, "out", x, h);
}

static const char *const glm4_types[] = {"glm4", NULL};

const mlx_arch_t mlx_arch_glm4 = {
    .hf_types = glm4_types,
    .gguf_types = glm4_types,
    MLX_TENSORS(glm4_tensors),
    .read_config = glm4_read_config,
    .layer = glm4_layer,
};
