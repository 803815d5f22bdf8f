// MiniCPM3: latent attention in MiniCPM, with factors for the embedding, the output of each sublayer, and the
// logits.
#include <math.h>

#include "models/shared/latent.h"

static const mlx_tensor_rule_t minicpm3_tensors[] = {
    MLX_RULE_EMBED,
    MLX_LAYER_NORM("input_layernorm", "attn_norm"),
    MLX_RULES_LATENT_ATTENTION,
    MLX_LAYER_NORM("post_attention_layernorm", "ffn_norm"),
    MLX_RULES_GATED_MLP,
    MLX_RULE_FINAL_NORM(),
    MLX_RULE_HEAD,
};

// A number of config.json, whose null means |without|.
static mlx_status_t read_factor(const mlx_source_t *source, const char *key, double fallback, double without,
                                double *out) {
  MLX_TRY(mlx_read_number(source, key, NULL, mlx_source_mentions(source, key) ? without : fallback, out));
  if (*out > 0.0 && isfinite(*out)) return NULL;
  return mlx_source_field_error(source, key, NULL, MLX_INVALID_INPUT, "must be greater than 0");
}

static mlx_status_t minicpm3_read_config(const mlx_source_t *source, mlx_config_t *c) {
  double depth, base;
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_SILU, &c->act));
  MLX_TRY(mlx_read_sizes(source, &(mlx_size_names_t){.default_kv_heads = 40, .latent = true}, true, c));
  MLX_TRY(mlx_read_rms_eps(source, c));
  MLX_TRY(mlx_read_flag(source, "mlp_bias", NULL, false, &c->mlp_bias));
  MLX_TRY(read_factor(source, "scale_emb", 12, 12, &c->embed_scale));
  MLX_TRY(read_factor(source, "scale_depth", 1.4, sqrt((double)c->layers), &depth));
  MLX_TRY(read_factor(source, "dim_model_base", 256, (double)c->hidden, &base));
  c->residual_scale = depth / sqrt((double)c->layers);
  c->logit_scale = base / (double)c->hidden;
  return mlx_read_latent(source,
                         &(mlx_latent_fields_t){.kv_rank = 256,
                                                .query_rank = 768,
                                                .nope_dim = 64,
                                                .rope_dim = 32,
                                                .hidden_values = true,
                                                .fixed_interleaved = true},
                         c);
}

static mlx_value_t minicpm3_layer(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x) {
  mlx_op_scope(g, "layer%d", layer);
  mlx_value_t h = mlx_op_rmsnorm(g, "attn_in", x, MLX_W("input_layernorm"), c->norm_eps);
  h = mlx_block_latent_attention(g, c, layer, h);
  x = mlx_op_add(g, "after_attn", x, mlx_op_scale(g, "attn_scaled", h, c->residual_scale));
  h = mlx_op_rmsnorm(g, "mlp_in", x, MLX_W("post_attention_layernorm"), c->norm_eps);
  h = mlx_block_gated_mlp(g, c, layer, h);
  return mlx_op_add(g, "out", x, mlx_op_scale(g, "mlp_scaled", h, c->residual_scale));
}

static const char *const minicpm3_types[] = {"minicpm3", NULL};
static const char *const minicpm3_gguf_types[] = {NULL};

const mlx_arch_t mlx_arch_minicpm3 = {
    .hf_types = minicpm3_types,
    .gguf_types = minicpm3_gguf_types,
    MLX_TENSORS(minicpm3_tensors),
    .read_config = minicpm3_read_config,
    .layer = minicpm3_layer,
};
