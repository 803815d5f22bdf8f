// Falcon-H1: Mamba 2 and attention read the same input in each layer and are added together, and many parts
// have a factor. GGUF files have the factors in their weights.
#include "models/shared/mamba2.h"

static const mlx_tensor_rule_t falcon_h1_tensors[] = {
    MLX_RULE_EMBED,
    MLX_LAYER_NORM("input_layernorm", "attn_norm"),
    MLX_RULES_MAMBA2("model.layers.%d.mamba."),
    MLX_RULES_ATTENTION(MLX_ROWS_AS_STORED),
    MLX_LAYER_VECTOR("pre_ff_layernorm.weight", "ffn_norm", MLX_DIM(hidden)),  // GGUF: without an ending
    MLX_RULES_FEED_FORWARD,
    MLX_VECTOR("model.norm.weight", "output_norm.weight", MLX_DIM(hidden),
               .hf_stored = "model.final_layernorm.weight"),
    MLX_RULE_HEAD,
};

// A list of |count| factors; without it all are 1.
static mlx_status_t read_factors(const mlx_source_t *source, const char *key, size_t count, double *out) {
  for (size_t i = 0; i < count; ++i) out[i] = 1.0;
  if (!mlx_source_has(source, key, NULL)) return NULL;
  if (mlx_source_array_length(source, key, NULL) != count)
    return mlx_source_field_error(source, key, NULL, MLX_INVALID_INPUT, "must be a list of %zu numbers",
                                  count);
  for (size_t i = 0; i < count; ++i) MLX_TRY(mlx_source_number_at(source, key, NULL, i, &out[i]));
  return NULL;
}

static mlx_status_t read_multipliers(const mlx_source_t *source, mlx_config_t *c) {
  double mlp[2];
  MLX_TRY(mlx_read_number(source, "embedding_multiplier", NULL, 1.0, &c->embed_scale));
  MLX_TRY(mlx_read_number(source, "lm_head_multiplier", NULL, 1.0, &c->logit_scale));
  MLX_TRY(mlx_read_number(source, "key_multiplier", NULL, 1.0, &c->key_scale));
  MLX_TRY(mlx_read_number(source, "attention_in_multiplier", NULL, 1.0, &c->attention_in_scale));
  MLX_TRY(mlx_read_number(source, "attention_out_multiplier", NULL, 1.0, &c->attention_out_scale));
  MLX_TRY(mlx_read_number(source, "ssm_in_multiplier", NULL, 1.0, &c->scan_in_scale));
  MLX_TRY(mlx_read_number(source, "ssm_out_multiplier", NULL, 1.0, &c->scan_out_scale));
  MLX_TRY(read_factors(source, "ssm_multipliers", 5, c->scan_scales));
  MLX_TRY(read_factors(source, "mlp_multipliers", 2, mlp));
  c->gate_scale = mlp[0];
  c->down_scale = mlp[1];
  return NULL;
}

// Width of the Mamba 2 block: mamba_d_ssm, or if that is null, mamba_expand * hidden.
static mlx_status_t read_inner(const mlx_source_t *source, const mlx_config_t *c, int64_t *out) {
  bool found;
  MLX_TRY(mlx_read_mamba2_expand(source, "mamba_expand", c, out));
  if (mlx_source_is_gguf(source)) return NULL;
  if (!mlx_source_mentions(source, "mamba_d_ssm")) *out = 1024;
  return mlx_source_int(source, "mamba_d_ssm", NULL, 1, 1 << 20, out, &found);
}

static mlx_status_t falcon_h1_read_config(const mlx_source_t *source, mlx_config_t *c) {
  const bool gguf = mlx_source_is_gguf(source);
  mlx_mamba2_names_t names = {MLX_MAMBA2_NAMES, .defaults = {.heads = 128, .groups = 1, .state_size = 256}};
  bool normed = false;
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_SILU, &c->act));
  MLX_TRY(mlx_read_sizes(source, &(mlx_size_names_t){.default_kv_heads = 8}, false, c));
  MLX_TRY(mlx_read_rms_eps(source, c));
  MLX_TRY(mlx_read_attention_bias(source, "attention_bias", false, c));
  MLX_TRY(mlx_read_flag(source, "mlp_bias", "blk.0.ffn_up.bias", false, &c->mlp_bias));
  for (int64_t i = 0; i < c->layers; ++i) c->recurrent[i] = true;
  MLX_TRY(read_inner(source, c, &names.inner));
  MLX_TRY(mlx_read_mamba2(source, &names, c));
  if (!gguf) {
    MLX_TRY(mlx_read_flag(source, "mamba_proj_bias", NULL, false, &c->scan_in_bias));
    MLX_TRY(mlx_read_flag(source, "projectors_bias", NULL, false, &c->scan_out_bias));
    MLX_TRY(mlx_read_flag(source, "mamba_norm_before_gate", NULL, true, &c->scan_norm_first));
    MLX_TRY(mlx_read_flag(source, "mamba_rms_norm", NULL, false, &normed));
    c->scan_norm_groups = normed ? c->scan.groups : 0;
  }
  MLX_TRY(read_multipliers(source, c));
  return mlx_read_rope(source, &(mlx_rope_fields_t){0}, c, &c->rope);
}

static mlx_value_t attention(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h) {
  const mlx_attention_t a = mlx_attention_of(c, layer);
  mlx_qkv_t p = mlx_block_qkv(g, c, layer, mlx_op_scale(g, "attn_scaled", h, c->attention_in_scale));
  p.k = mlx_op_scale(g, "k_scaled", p.k, c->key_scale);
  p.q = mlx_op_rope(g, "q_rope", p.q, c->head_dim, &c->rope);
  p.k = mlx_op_rope(g, "k_rope", p.k, c->head_dim, &c->rope);
  h = mlx_block_output(g, c, layer, mlx_op_attention(g, &a, p.q, p.k, p.v));
  return mlx_op_scale(g, "attn_out", h, c->attention_out_scale);
}

static mlx_value_t falcon_h1_layer(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x) {
  mlx_op_scope(g, "layer%d", layer);
  mlx_value_t h = mlx_op_rmsnorm(g, "attn_in", x, MLX_W("input_layernorm"), c->norm_eps);
  mlx_value_t both = mlx_op_add(g, "both", mlx_block_mamba2(g, c, layer, h), attention(g, c, layer, h));
  x = mlx_op_add(g, "after_attn", x, both);
  h = mlx_op_rmsnorm(g, "mlp_in", x, MLX_W("pre_ff_layernorm"), c->norm_eps);
  return mlx_op_add(g, "out", x, mlx_block_feed_forward(g, c, layer, h));
}

static const char *const falcon_h1_types[] = {"falcon_h1", NULL};
static const char *const falcon_h1_gguf_types[] = {"falcon-h1", NULL};

const mlx_arch_t mlx_arch_falcon_h1 = {
    .hf_types = falcon_h1_types,
    .gguf_types = falcon_h1_gguf_types,
    MLX_TENSORS(falcon_h1_tensors),
    .read_config = falcon_h1_read_config,
    .layer = falcon_h1_layer,
};
