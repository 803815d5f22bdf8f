// EXAONE 4: Llama with norms after attention and MLP instead of before, and head norms of q and k. In
// models with sliding windows, layers with full attention have no rope.
#include "models/shared/blocks.h"

static const mlx_tensor_rule_t exaone4_tensors[] = {
    // clang-format off
    MLX_RULE_EMBED,
    MLX_RULES_ATTENTION(MLX_ROWS_AS_STORED),
    MLX_RULES_HEAD_QK_NORM(),
    MLX_LAYER_NORM("post_attention_layernorm", "post_attention_norm"),
    MLX_RULES_GATED_MLP,
    MLX_LAYER_NORM("post_feedforward_layernorm", "post_ffw_norm"),
    MLX_RULE_FINAL_NORM(),
    MLX_RULE_HEAD,
    // clang-format on
};

static mlx_status_t exaone4_read_config(const mlx_source_t *source, mlx_config_t *c) {
  int64_t every = 4;
  bool found;
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_SILU, &c->act));
  MLX_TRY(mlx_read_sizes(source, &(mlx_size_names_t){.default_kv_heads = 32}, false, c));
  MLX_TRY(mlx_read_rms_eps(source, c));
  MLX_TRY(mlx_source_int(source, "sliding_window_pattern", NULL, 0, 1 << 20, &every, &found));
  MLX_TRY(mlx_read_windows(source, every, 4096, c));
  for (int64_t i = 0; i < c->layers; ++i) c->no_rope[i] = c->window && !c->windowed[i];
  c->qk_norm = true;
  return mlx_read_rope(source, &(mlx_rope_fields_t){0}, c, &c->rope);
}

static mlx_value_t exaone4_layer(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x) {
  mlx_op_scope(g, "layer%d", layer);
  mlx_value_t h = mlx_block_attention(g, c, layer, x);
  h = mlx_op_rmsnorm(g, "attn_out", h, MLX_W("post_attention_layernorm"), c->norm_eps);
  x = mlx_op_add(g, "after_attn", x, h);
  h = mlx_block_gated_mlp(g, c, layer, x);
  h = mlx_op_rmsnorm(g, "mlp_out", h, MLX_W("post_feedforward_layernorm"), c->norm_eps);
  return mlx_op_add(g, "out", x, h);
}

static const char *const exaone4_types[] = {"exaone4", NULL};

const mlx_arch_t mlx_arch_exaone4 = {
    .hf_types = exaone4_types,
    .gguf_types = exaone4_types,
    MLX_TENSORS(exaone4_tensors),
    .read_config = exaone4_read_config,
    .layer = exaone4_layer,
};
