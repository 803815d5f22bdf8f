// Bamba: layers of Mamba 2 and of attention, each with an MLP. RoPE rotates half of a head.
#include "models/shared/mamba2.h"

#define ATTENTION .layers = MLX_ATTENTION_LAYERS
#define RECURRENT .layers = MLX_RECURRENT_LAYERS

static const mlx_tensor_rule_t bamba_tensors[] = {
    MLX_RULE_EMBED,
    MLX_LAYER_NORM("input_layernorm", "attn_norm"),
    MLX_RULES_MAMBA2("model.layers.%d.mamba.", RECURRENT),
    MLX_RULES_ATTENTION(MLX_ROWS_INTERLEAVED_HALVES, ATTENTION),
    MLX_LAYER_NORM("pre_ff_layernorm", "ffn_norm"),
    MLX_RULES_FEED_FORWARD,
    MLX_VECTOR("model.norm.weight", "output_norm.weight", MLX_DIM(hidden),
               .hf_stored = "model.final_layernorm.weight"),
    MLX_RULE_HEAD,
};

// attn_layer_indices lists the layers with attention.
static mlx_status_t read_layers(const mlx_source_t *source, mlx_config_t *c) {
  const char *key = "attn_layer_indices";
  if (mlx_source_is_gguf(source)) return mlx_read_layers_without_kv(source, c);
  for (int64_t i = 0; i < c->layers; ++i) c->recurrent[i] = true;
  for (size_t i = 0; i < mlx_source_array_length(source, key, NULL); ++i) {
    double layer;
    MLX_TRY(mlx_source_number_at(source, key, NULL, i, &layer));
    if (!(layer >= 0 && layer < (double)c->layers))
      return mlx_source_field_error(source, key, NULL, MLX_INVALID_INPUT,
                                    "has a layer that the model does not have");
    c->recurrent[(int64_t)layer] = false;
  }
  return NULL;
}

static mlx_status_t bamba_read_config(const mlx_source_t *source, mlx_config_t *c) {
  mlx_mamba2_names_t names = {MLX_MAMBA2_NAMES, .defaults = {.heads = 128, .groups = 1, .state_size = 256}};
  const mlx_rope_fields_t rope = {.partial = "partial_rotary_factor", .default_partial = 0.5};
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_SILU, &c->act));
  MLX_TRY(mlx_read_sizes(source, &(mlx_size_names_t){.default_kv_heads = 8}, false, c));
  MLX_TRY(mlx_read_rms_eps(source, c));
  MLX_TRY(mlx_read_attention_bias(source, "attention_bias", false, c));
  MLX_TRY(mlx_read_flag(source, "mlp_bias", "blk.0.ffn_up.bias", false, &c->mlp_bias));
  MLX_TRY(read_layers(source, c));
  MLX_TRY(mlx_read_mamba2_expand(source, "mamba_expand", c, &names.inner));
  MLX_TRY(mlx_read_mamba2(source, &names, c));
  if (!mlx_source_is_gguf(source)) {
    MLX_TRY(mlx_read_flag(source, "mamba_proj_bias", NULL, false, &c->scan_in_bias));
    c->scan_out_bias = c->scan_in_bias;
  }
  return mlx_read_rope(source, &rope, c, &c->rope);
}

static mlx_value_t bamba_layer(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x) {
  mlx_op_scope(g, "layer%d", layer);
  mlx_value_t h = mlx_op_rmsnorm(g, "attn_in", x, MLX_W("input_layernorm"), c->norm_eps);
  h = c->recurrent[layer] ? mlx_block_mamba2(g, c, layer, h) : mlx_block_attention(g, c, layer, h);
  x = mlx_op_add(g, "after_attn", x, h);
  h = mlx_op_rmsnorm(g, "mlp_in", x, MLX_W("pre_ff_layernorm"), c->norm_eps);
  return mlx_op_add(g, "out", x, mlx_block_feed_forward(g, c, layer, h));
}

static const char *const bamba_types[] = {"bamba", NULL};
static const char *const bamba_gguf_types[] = {"granitehybrid", NULL};

const mlx_arch_t mlx_arch_bamba = {
    .hf_types = bamba_types,
    .gguf_types = bamba_gguf_types,
    .matches = mlx_gguf_is_bamba,
    MLX_TENSORS(bamba_tensors),
    .read_config = bamba_read_config,
    .layer = bamba_layer,
};
