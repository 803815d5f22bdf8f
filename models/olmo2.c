// OLMo 2: Llama with norms after attention and MLP instead of before, and norms over all of q and all of
// k.
#include "models/shared/blocks.h"

static const mlx_tensor_rule_t olmo2_tensors[] = {MLX_RULES_OLMO2};

// GGUF files of OLMo 3 also declare the architecture olmo2.
static bool olmo2_matches(const mlx_source_t *source) {
  return !mlx_gguf_is_nonzero(source, ".attention.sliding_window");
}

static mlx_status_t olmo2_read_config(const mlx_source_t *source, mlx_config_t *c) {
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_SILU, &c->act));
  MLX_TRY(mlx_read_sizes(source, NULL, false, c));
  MLX_TRY(mlx_read_rms_eps(source, c));
  MLX_TRY(mlx_read_attention_bias(source, "attention_bias", false, c));
  return mlx_read_rope(source, &(mlx_rope_fields_t){0}, c, &c->rope);
}

static mlx_value_t olmo2_attention(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x) {
  const mlx_rope_t *rope = mlx_rope_of(g, c, layer);
  const mlx_attention_t attention = mlx_attention_of(c, layer);
  mlx_qkv_t p = mlx_block_qkv(g, c, layer, x);
  p.q = mlx_op_rmsnorm(g, "q_normed", p.q, MLX_W("self_attn.q_norm"), c->norm_eps);
  p.k = mlx_op_rmsnorm(g, "k_normed", p.k, MLX_W("self_attn.k_norm"), c->norm_eps);
  if (!c->no_rope[layer]) {
    p.q = mlx_op_rope(g, "q_rope", p.q, c->head_dim, rope);
    p.k = mlx_op_rope(g, "k_rope", p.k, c->head_dim, rope);
  }
  mlx_value_t h = mlx_op_attention(g, &attention, p.q, p.k, p.v);
  return mlx_block_output(g, c, layer, h);
}

mlx_value_t mlx_olmo2_layer(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x) {
  mlx_op_scope(g, "layer%d", layer);
  mlx_value_t h = olmo2_attention(g, c, layer, x);
  h = mlx_op_rmsnorm(g, "attn_out", h, MLX_W("post_attention_layernorm"), c->norm_eps);
  x = mlx_op_add(g, "after_attn", x, h);
  h = mlx_block_gated_mlp(g, c, layer, x);
  h = mlx_op_rmsnorm(g, "mlp_out", h, MLX_W("post_feedforward_layernorm"), c->norm_eps);
  return mlx_op_add(g, "out", x, h);
}

static const char *const olmo2_types[] = {"olmo2", NULL};

const mlx_arch_t mlx_arch_olmo2 = {
    .hf_types = olmo2_types,
    .gguf_types = olmo2_types,
    .matches = olmo2_matches,
    MLX_TENSORS(olmo2_tensors),
    .read_config = olmo2_read_config,
    .layer = mlx_olmo2_layer,
};
