// Gemma 2: Gemma with norms before and after attention and MLP, capped scores and logits, and a sliding
// window in every other layer.
#include "models/shared/blocks.h"

#include <math.h>

static const mlx_tensor_rule_t gemma2_tensors[] = {
    MLX_RULE_EMBED,
    MLX_LAYER_NORM("input_layernorm", "attn_norm", .hf_value_offset = 1.0),
    MLX_RULES_ATTENTION(MLX_ROWS_AS_STORED),
    MLX_LAYER_NORM("post_attention_layernorm", "post_attention_norm", .hf_value_offset = 1.0),
    MLX_LAYER_NORM("pre_feedforward_layernorm", "ffn_norm", .hf_value_offset = 1.0),
    MLX_RULES_GATED_MLP,
    MLX_LAYER_NORM("post_feedforward_layernorm", "post_ffw_norm", .hf_value_offset = 1.0),
    MLX_RULE_FINAL_NORM(.hf_value_offset = 1.0),
    MLX_RULE_HEAD,
};

static mlx_status_t gemma2_read_config(const mlx_source_t *source, mlx_config_t *c) {
  MLX_TRY(mlx_require_flag(source, "use_bidirectional_attention", false));
  MLX_TRY(mlx_read_act(source, "hidden_activation", MLX_ACT_GELU_TANH, &c->act));
  MLX_TRY(
      mlx_read_sizes(source, &(mlx_size_names_t){.default_head_dim = 256, .default_kv_heads = 4}, true, c));
  MLX_TRY(mlx_read_rms_eps(source, c));
  MLX_TRY(mlx_read_attention_bias(source, "attention_bias", false, c));
  MLX_TRY(mlx_read_query_scalar(source, 46, c));
  MLX_TRY(mlx_source_number(source, "attn_logit_softcapping", ".attn_logit_softcapping",
                            &c->attention_softcap, NULL));
  MLX_TRY(mlx_source_number(source, "final_logit_softcapping", ".final_logit_softcapping", &c->logit_softcap,
                            NULL));
  MLX_TRY(mlx_read_windows(source, 2, 4096, c));
  c->embed_scale = sqrt((double)c->hidden);
  return mlx_read_rope(source, &(mlx_rope_fields_t){0}, c, &c->rope);
}

mlx_value_t mlx_gemma2_layer(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x) {
  mlx_op_scope(g, "layer%d", layer);
  mlx_value_t h = mlx_op_rmsnorm(g, "attn_in", x, MLX_W("input_layernorm"), c->norm_eps);
  h = mlx_block_attention(g, c, layer, h);
  h = mlx_op_rmsnorm(g, "attn_out", h, MLX_W("post_attention_layernorm"), c->norm_eps);
  x = mlx_op_add(g, "after_attn", x, h);
  h = mlx_op_rmsnorm(g, "mlp_in", x, MLX_W("pre_feedforward_layernorm"), c->norm_eps);
  h = mlx_block_gated_mlp(g, c, layer, h);
  h = mlx_op_rmsnorm(g, "mlp_out", h, MLX_W("post_feedforward_layernorm"), c->norm_eps);
  return mlx_op_add(g, "out", x, h);
}

static const char *const gemma2_types[] = {"gemma2", NULL};

const mlx_arch_t mlx_arch_gemma2 = {
    .hf_types = gemma2_types,
    .gguf_types = gemma2_types,
    MLX_TENSORS(gemma2_tensors),
    .read_config = gemma2_read_config,
    .layer = mlx_gemma2_layer,
};
