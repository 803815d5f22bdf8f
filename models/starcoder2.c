// StarCoder2: layer norms, biases everywhere, rotary positions, grouped-query attention with a sliding
// window, an ungated GELU MLP.
#include "models/shared/blocks.h"

static const mlx_tensor_rule_t starcoder2_tensors[] = {
    MLX_RULE_EMBED,
    MLX_LAYER_NORM_WITH_BIAS("input_layernorm", "attn_norm"),
    MLX_RULES_ATTENTION(MLX_ROWS_AS_STORED),
    MLX_LAYER_NORM_WITH_BIAS("post_attention_layernorm", "ffn_norm"),
    MLX_LAYER_MATRIX("mlp.c_fc.weight", "ffn_up.weight", MLX_DIM(ffn), MLX_DIM(hidden)),
    MLX_LAYER_VECTOR("mlp.c_fc.bias", "ffn_up.bias", MLX_DIM(ffn), .present = mlx_has_mlp_bias),
    MLX_LAYER_MATRIX("mlp.c_proj.weight", "ffn_down.weight", MLX_DIM(hidden), MLX_DIM(ffn)),
    MLX_LAYER_VECTOR("mlp.c_proj.bias", "ffn_down.bias", MLX_DIM(hidden), .present = mlx_has_mlp_bias),
    MLX_RULES_FINAL_NORM_WITH_BIAS,
    MLX_RULE_HEAD,
};

static mlx_status_t starcoder2_read_config(const mlx_source_t *source, mlx_config_t *c) {
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_GELU_TANH, &c->act));
  MLX_TRY(mlx_read_sizes(source, &(mlx_size_names_t){.default_kv_heads = 2}, true, c));
  MLX_TRY(mlx_read_eps(source, "norm_epsilon", ".attention.layer_norm_epsilon", c));
  MLX_TRY(mlx_read_attention_bias(source, "use_bias", true, c));
  MLX_TRY(mlx_read_flag(source, "use_bias", "blk.0.ffn_up.bias", true, &c->mlp_bias));
  MLX_TRY(mlx_read_windows(source, 0, 0, c));
  return mlx_read_rope(source, &(mlx_rope_fields_t){0}, c, &c->rope);
}

static mlx_value_t starcoder2_layer(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x) {
  mlx_op_scope(g, "layer%d", layer);
  mlx_value_t h = mlx_op_layernorm(g, "attn_in", x, MLX_W("input_layernorm"), MLX_B("input_layernorm", true),
                                   c->norm_eps);
  h = mlx_block_attention(g, c, layer, h);
  x = mlx_op_add(g, "after_attn", x, h);
  h = mlx_op_layernorm(g, "mlp_in", x, MLX_W("post_attention_layernorm"),
                       MLX_B("post_attention_layernorm", true), c->norm_eps);
  h = mlx_op_linear_bias(g, "up", h, MLX_W("mlp.c_fc"), MLX_B("mlp.c_fc", c->mlp_bias));  // [M, ffn]
  h = mlx_op_activate(g, "act", c->act, NULL, h);
  h = mlx_op_linear_bias(g, "down", h, MLX_W("mlp.c_proj"), MLX_B("mlp.c_proj", c->mlp_bias));
  return mlx_op_add(g, "out", x, h);
}

static mlx_value_t starcoder2_forward(mlx_graph_t *g, const mlx_model_t *model, mlx_value_t tokens) {
  const mlx_config_t *c = &model->config;
  mlx_value_t x = mlx_block_embed(g, c, tokens);  // [M, hidden]
  for (int layer = 0; layer < c->layers; ++layer) x = starcoder2_layer(g, c, layer, x);
  mlx_op_scope(g, "%s", "");
  return mlx_op_layernorm(g, "final", x, mlx_op_weight(g, "model.norm.weight"),
                          mlx_op_weight(g, "model.norm.bias"), c->norm_eps);
}

static const char *const starcoder2_types[] = {"starcoder2", NULL};

const mlx_arch_t mlx_arch_starcoder2 = {
    .hf_types = starcoder2_types,
    .gguf_types = starcoder2_types,
    MLX_TENSORS(starcoder2_tensors),
    .read_config = starcoder2_read_config,
    .forward = starcoder2_forward,
};
