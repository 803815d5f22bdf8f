// Gemma 3, the text model: Gemma 2 with the heads of q and k normalised instead of caps; five of six layers
// have a window and a rope of their own.
#include "models/shared/blocks.h"

#include <math.h>

static const mlx_tensor_rule_t gemma3_tensors[] = {
    MLX_RULE_EMBED,
    MLX_LAYER_NORM("input_layernorm", "attn_norm", .hf_less = 1.0),
    MLX_RULES_ATTENTION(MLX_ROWS_AS_STORED),
    MLX_RULES_QK_NORM(.hf_less = 1.0),
    MLX_LAYER_NORM("post_attention_layernorm", "post_attention_norm", .hf_less = 1.0),
    MLX_LAYER_NORM("pre_feedforward_layernorm", "ffn_norm", .hf_less = 1.0),
    MLX_RULES_GATED_MLP,
    MLX_LAYER_NORM("post_feedforward_layernorm", "post_ffw_norm", .hf_less = 1.0),
    MLX_RULE_FINAL_NORM(.hf_less = 1.0),
    MLX_RULE_HEAD,
};

// GGUF does not say query_pre_attn_scalar: it is the width of a head, but in the largest model, of 62 layers,
// hidden / heads.
static mlx_status_t read_scale(const mlx_source_t *source, mlx_config_t *c) {
  double width = (double)(c->layers == 62 ? c->hidden / c->heads : c->head_dim);
  if (!mlx_source_is_gguf(source))
    MLX_TRY(mlx_source_number(source, "query_pre_attn_scalar", NULL, &width, NULL));
  if (!(width > 0.0))
    return mlx_source_field_error(source, "query_pre_attn_scalar", NULL, MLX_INVALID_INPUT,
                                  "must be greater than 0");
  c->attention_scale = 1.0 / sqrt(width);
  return NULL;
}

static const mlx_rope_fields_t global_rope = {.group = "full_attention", .default_theta = 1000000.0};
static const mlx_rope_fields_t local_rope = {.group = "sliding_attention",
                                             .theta = "rope_local_base_freq",
                                             .gguf_theta = ".rope.freq_base_swa",
                                             .unscaled = true};

static mlx_status_t gemma3_read_config(const mlx_source_t *source, mlx_config_t *c) {
  int64_t every = 6;
  bool found;
  MLX_TRY(mlx_require_switch(source, "use_bidirectional_attention", false));
  MLX_TRY(mlx_read_act(source, "hidden_activation", MLX_ACT_GELU_TANH, &c->act));
  MLX_TRY(
      mlx_read_sizes(source, &(mlx_size_names_t){.default_head_dim = 256, .default_kv_heads = 4}, true, c));
  MLX_TRY(mlx_read_eps(source, "rms_norm_eps", ".attention.layer_norm_rms_epsilon", c));
  MLX_TRY(mlx_read_attention_bias(source, "attention_bias", false, c));
  MLX_TRY(read_scale(source, c));
  MLX_TRY(mlx_read_number(source, "attn_logit_softcapping", ".attn_logit_softcapping", 0.0,
                          &c->attention_softcap));
  MLX_TRY(
      mlx_read_number(source, "final_logit_softcapping", ".final_logit_softcapping", 0.0, &c->logit_softcap));
  MLX_TRY(mlx_source_int(source, "sliding_window_pattern", NULL, 1, 1 << 20, &every, &found));
  MLX_TRY(mlx_read_windows(source, every, 4096, c));
  c->qk_norm = true;
  c->embed_scale = sqrt((double)c->hidden);
  MLX_TRY(mlx_read_rope(source, &global_rope, c, &c->rope));
  return mlx_read_rope(source, &local_rope, c, &c->local_rope);
}

static mlx_value_t gemma3_layer(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x) {
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

static mlx_value_t gemma3_forward(mlx_graph_t *g, const mlx_model_t *model, mlx_value_t tokens) {
  const mlx_config_t *c = &model->config;
  mlx_value_t x = mlx_block_embed(g, c, tokens);  // [M, hidden]
  for (int layer = 0; layer < c->layers; ++layer) x = gemma3_layer(g, c, layer, x);
  mlx_op_scope(g, "%s", "");
  return mlx_op_rmsnorm(g, "final", x, mlx_op_weight(g, "model.norm.weight"), c->norm_eps);
}

static const char *const gemma3_types[] = {"gemma3_text", NULL};
static const char *const gemma3_gguf_types[] = {"gemma3", NULL};

const mlx_arch_t mlx_arch_gemma3 = {
    .hf_types = gemma3_types,
    .gguf_types = gemma3_gguf_types,
    MLX_TENSORS(gemma3_tensors),
    .read_config = gemma3_read_config,
    .forward = gemma3_forward,
    .head = mlx_block_head,
};
