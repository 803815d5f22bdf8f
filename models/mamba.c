// Mamba: layers of Mamba 1 blocks only, without attention and MLPs.
#include "models/shared/mamba1.h"

static const mlx_tensor_rule_t mamba_tensors[] = {
    MLX_MATRIX("model.embed_tokens.weight", "token_embd.weight", MLX_DIM(vocab), MLX_DIM(hidden),
               .hf_stored = "backbone.embeddings.weight"),
    MLX_LAYER_NORM("norm", "attn_norm", .hf_stored = "backbone.layers.%d.norm.weight"),
    MLX_RULES_MAMBA1("backbone.layers.%d.mixer."),
    MLX_VECTOR("model.norm.weight", "output_norm.weight", MLX_DIM(hidden),
               .hf_stored = "backbone.norm_f.weight"),
    MLX_RULE_HEAD,
};

static mlx_status_t mamba_read_config(const mlx_source_t *source, mlx_config_t *c) {
  static const mlx_mamba1_names_t names = {.inner = "intermediate_size",
                                           .expand = "expand",
                                           .state_size = "state_size",
                                           .taps = "conv_kernel",
                                           .step_rank = "time_step_rank",
                                           .conv_bias = "use_conv_bias",
                                           .bias = "use_bias"};
  bool norms = false, found;
  mlx_act_t act;
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_SILU, &act));
  if (act != MLX_ACT_SILU)
    return mlx_source_field_error(source, "hidden_act", NULL, MLX_UNSUPPORTED, "must be silu");
  MLX_TRY(mlx_source_bool(source, NULL, ".ssm.dt_b_c_rms", &norms, &found));
  if (norms)
    return mlx_source_field_error(source, NULL, ".ssm.dt_b_c_rms", MLX_UNSUPPORTED,
                                  "is true (Falcon Mamba), which is not supported");
  MLX_TRY(mlx_read_sizes(source, &(mlx_size_names_t){.no_attention = true}, true, c));
  MLX_TRY(mlx_read_eps(source, "layer_norm_epsilon", ".attention.layer_norm_rms_epsilon", c));
  for (int64_t i = 0; i < c->layers; ++i) c->recurrent[i] = true;
  return mlx_read_mamba1(source, &names, false, c);
}

static mlx_value_t mamba_layer(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x) {
  mlx_op_scope(g, "layer%d", layer);
  const mlx_value_t h = mlx_op_rmsnorm(g, "normed", x, MLX_W("norm"), c->norm_eps);
  return mlx_op_add(g, "out", x, mlx_block_mamba1(g, c, layer, h));
}

static const char *const mamba_types[] = {"mamba", NULL};

const mlx_arch_t mlx_arch_mamba = {
    .hf_types = mamba_types,
    .gguf_types = mamba_types,
    MLX_TENSORS(mamba_tensors),
    .read_config = mamba_read_config,
    .layer = mamba_layer,
};
