// Mamba 2: layers of Mamba 2 blocks only, without attention and MLPs.
#include "models/shared/mamba2.h"

static const mlx_tensor_rule_t mamba2_tensors[] = {
    MLX_MATRIX("model.embed_tokens.weight", "token_embd.weight", MLX_DIM(vocab), MLX_DIM(hidden),
               .hf_stored = "backbone.embeddings.weight"),
    MLX_LAYER_NORM("norm", "attn_norm", .hf_stored = "backbone.layers.%d.norm.weight"),
    MLX_RULES_MAMBA2("backbone.layers.%d.mixer."),
    MLX_VECTOR("model.norm.weight", "output_norm.weight", MLX_DIM(hidden),
               .hf_stored = "backbone.norm_f.weight"),
    MLX_RULE_HEAD,
};

static mlx_status_t mamba2_read_config(const mlx_source_t *source, mlx_config_t *c) {
  mlx_mamba2_names_t names = {
      .heads = "num_heads",
      .head_dim = "head_dim",
      .groups = "n_groups",
      .state_size = "state_size",
      .taps = "conv_kernel",
      .conv_bias = "use_conv_bias",
      .act = "hidden_act",
      .defaults = {.heads = 128, .groups = 8, .head_dim = 64, .state_size = 128},
  };
  MLX_TRY(mlx_read_sizes(source, &(mlx_size_names_t){.no_attention = true}, false, c));
  MLX_TRY(mlx_read_eps(source, "layer_norm_epsilon", ".attention.layer_norm_rms_epsilon", c));
  for (int64_t i = 0; i < c->layers; ++i) c->recurrent[i] = true;
  MLX_TRY(mlx_read_mamba2_expand(source, "expand", c, &names.inner));
  MLX_TRY(mlx_read_mamba2(source, &names, c));
  if (mlx_source_is_gguf(source)) return NULL;
  MLX_TRY(mlx_read_flag(source, "use_bias", NULL, false, &c->scan_in_bias));
  c->scan_out_bias = c->scan_in_bias;
  return NULL;
}

static mlx_value_t mamba2_layer(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x) {
  mlx_op_scope(g, "layer%d", layer);
  mlx_value_t h = mlx_op_rmsnorm(g, "normed", x, MLX_W("norm"), c->norm_eps);
  return mlx_op_add(g, "out", x, mlx_block_mamba2(g, c, layer, h));
}

static const char *const mamba2_types[] = {"mamba2", NULL};

const mlx_arch_t mlx_arch_mamba2 = {
    .hf_types = mamba2_types,
    .gguf_types = mamba2_types,
    MLX_TENSORS(mamba2_tensors),
    .read_config = mamba2_read_config,
    .layer = mamba2_layer,
};
