// StableLM: layer norms, partial rope, and a gated MLP that may run parallel to the attention.
#include "models/shared/blocks.h"

static bool has_second_norm(const mlx_config_t *c) { return !c->parallel; }

static const mlx_tensor_rule_t stablelm_tensors[] = {
    MLX_RULE_EMBED,
    MLX_LAYER_NORM_WITH_BIAS("input_layernorm", "attn_norm"),
    MLX_RULES_ATTENTION(MLX_ROWS_AS_STORED),
    MLX_LAYER_MATRIX("self_attn.q_layernorm.norms.%e.weight", "attn_q_norm.weight", MLX_DIM(heads),
                     MLX_DIM(head_dim), .present = mlx_has_qk_norm, .hf_stacked = true),
    MLX_LAYER_MATRIX("self_attn.k_layernorm.norms.%e.weight", "attn_k_norm.weight", MLX_DIM(kv_heads),
                     MLX_DIM(head_dim), .present = mlx_has_qk_norm, .hf_stacked = true),
    MLX_LAYER_NORM_WITH_BIAS("post_attention_layernorm", "ffn_norm", .present = has_second_norm),
    MLX_RULES_GATED_MLP,
    MLX_RULES_FINAL_NORM_WITH_BIAS,
    MLX_RULE_HEAD,
};

static mlx_status_t stablelm_read_config(const mlx_source_t *source, mlx_config_t *c) {
  MLX_TRY(mlx_read_flag(source, "qk_layernorm", "blk.0.attn_q_norm.weight", false, &c->qk_norm));
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_SILU, &c->act));
  MLX_TRY(mlx_read_sizes(source, &(mlx_size_names_t){.default_kv_heads = 32}, false, c));
  MLX_TRY(mlx_read_eps(source, "layer_norm_eps", ".attention.layer_norm_epsilon", c));
  MLX_TRY(mlx_read_flag(source, "use_qkv_bias", "blk.0.attn_q.bias", false, &c->q_bias));
  c->kv_bias = c->q_bias;
  MLX_TRY(mlx_read_flag(source, "use_parallel_residual", NULL, false, &c->parallel));
  if (mlx_source_is_gguf(source)) c->parallel = !mlx_source_tensor(source, NULL, "blk.0.ffn_norm.weight");
  return mlx_read_rope(
      source, &(mlx_rope_fields_t){.partial = "partial_rotary_factor", .default_partial = 0.25}, c, &c->rope);
}

static mlx_value_t stablelm_attention(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h) {
  const mlx_attention_t attention = mlx_attention_of(c, layer);
  mlx_qkv_t p = mlx_block_qkv(g, c, layer, h);
  if (c->qk_norm) {  // one weight per head: [heads, head_dim]
    p.q = mlx_op_head_layernorm(g, "q_normed", p.q, c->head_dim, MLX_W("self_attn.q_layernorm.norms.all"),
                                c->norm_eps);
    p.k = mlx_op_head_layernorm(g, "k_normed", p.k, c->head_dim, MLX_W("self_attn.k_layernorm.norms.all"),
                                c->norm_eps);
  }
  p.q = mlx_op_rope(g, "q_rope", p.q, c->head_dim, &c->rope);
  p.k = mlx_op_rope(g, "k_rope", p.k, c->head_dim, &c->rope);
  h = mlx_op_attention(g, &attention, p.q, p.k, p.v);
  return mlx_op_linear(g, "o", h, MLX_W("self_attn.o_proj"));
}

static mlx_value_t stablelm_layer(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x) {
  mlx_op_scope(g, "layer%d", layer);
  mlx_value_t in = mlx_op_layernorm(g, "attn_in", x, MLX_W("input_layernorm"), MLX_B("input_layernorm", true),
                                    c->norm_eps);
  x = mlx_op_add(g, "after_attn", x, stablelm_attention(g, c, layer, in));
  if (!c->parallel) {
    in = mlx_op_layernorm(g, "mlp_in", x, MLX_W("post_attention_layernorm"),
                          MLX_B("post_attention_layernorm", true), c->norm_eps);
  }
  return mlx_op_add(g, "out", x, mlx_block_gated_mlp(g, c, layer, in));
}

static mlx_value_t stablelm_forward(mlx_graph_t *g, const mlx_model_t *model, mlx_value_t tokens) {
  const mlx_config_t *c = &model->config;
  mlx_value_t x = mlx_block_embed(g, c, tokens);  // [M, hidden]
  for (int layer = 0; layer < c->layers; ++layer) x = stablelm_layer(g, c, layer, x);
  mlx_op_scope(g, "%s", "");
  return mlx_op_layernorm(g, "final", x, mlx_op_weight(g, "model.norm.weight"),
                          mlx_op_weight(g, "model.norm.bias"), c->norm_eps);
}

static const char *const stablelm_types[] = {"stablelm", NULL};

const mlx_arch_t mlx_arch_stablelm = {
    .hf_types = stablelm_types,
    .gguf_types = stablelm_types,
    MLX_TENSORS(stablelm_tensors),
    .read_config = stablelm_read_config,
    .forward = stablelm_forward,
};
