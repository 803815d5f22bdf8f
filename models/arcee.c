// Arcee AFM: Llama with an ungated MLP and the activation relu(x)^2.
#include "models/shared/blocks.h"

static const mlx_tensor_rule_t arcee_tensors[] = {
    MLX_RULE_EMBED,
    MLX_LAYER_NORM("input_layernorm", "attn_norm"),
    MLX_RULES_ATTENTION(MLX_ROWS_INTERLEAVED_HALVES),
    MLX_LAYER_NORM("post_attention_layernorm", "ffn_norm"),
    MLX_LAYER_MATRIX("mlp.up_proj.weight", "ffn_up.weight", MLX_DIM(ffn), MLX_DIM(hidden)),
    MLX_LAYER_MATRIX("mlp.down_proj.weight", "ffn_down.weight", MLX_DIM(hidden), MLX_DIM(ffn)),
    MLX_LAYER_VECTOR("mlp.up_proj.bias", "ffn_up.bias", MLX_DIM(ffn), .present = mlx_has_mlp_bias),
    MLX_LAYER_VECTOR("mlp.down_proj.bias", "ffn_down.bias", MLX_DIM(hidden), .present = mlx_has_mlp_bias),
    MLX_RULE_FINAL_NORM(),
    MLX_RULE_HEAD,
};

static mlx_status_t arcee_read_config(const mlx_source_t *source, mlx_config_t *c) {
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_RELU2, &c->act));
  MLX_TRY(mlx_read_sizes(source, NULL, false, c));
  MLX_TRY(mlx_read_rms_eps(source, c));
  MLX_TRY(mlx_read_attention_bias(source, "attention_bias", false, c));
  MLX_TRY(mlx_read_flag(source, "mlp_bias", "blk.0.ffn_up.bias", false, &c->mlp_bias));
  return mlx_read_rope(source, &(mlx_rope_fields_t){0}, c, &c->rope);
}

static mlx_value_t arcee_layer(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x) {
  mlx_op_scope(g, "layer%d", layer);
  mlx_value_t h = mlx_op_rmsnorm(g, "attn_in", x, MLX_W("input_layernorm"), c->norm_eps);
  x = mlx_op_add(g, "after_attn", x, mlx_block_attention(g, c, layer, h));
  h = mlx_op_rmsnorm(g, "mlp_in", x, MLX_W("post_attention_layernorm"), c->norm_eps);
  h = mlx_op_linear_bias(g, "up", h, MLX_W("mlp.up_proj"), MLX_B("mlp.up_proj", c->mlp_bias));  // [M, ffn]
  h = mlx_op_activate(g, "act", c->act, NULL, h);
  h = mlx_op_linear_bias(g, "down", h, MLX_W("mlp.down_proj"), MLX_B("mlp.down_proj", c->mlp_bias));
  return mlx_op_add(g, "out", x, h);
}

static const char *const arcee_types[] = {"arcee", NULL};

const mlx_arch_t mlx_arch_arcee = {
    .hf_types = arcee_types,
    .gguf_types = arcee_types,
    MLX_TENSORS(arcee_tensors),
    .read_config = arcee_read_config,
    .layer = arcee_layer,
};
