// Nemotron and Minitron: layer norms whose gain is 1 + weight, a rope over a part of each head, and an MLP of
// squared ReLU without a gate.
#include "models/shared/blocks.h"

#define PLUS_ONE .hf_value_offset = 1.0

static const mlx_tensor_rule_t nemotron_tensors[] = {
    MLX_RULE_EMBED,
    MLX_LAYER_NORM("input_layernorm", "attn_norm", PLUS_ONE),
    MLX_LAYER_VECTOR("input_layernorm.bias", "attn_norm.bias", MLX_DIM(hidden)),
    MLX_RULES_ATTENTION(MLX_ROWS_AS_STORED),
    MLX_LAYER_NORM("post_attention_layernorm", "ffn_norm", PLUS_ONE),
    MLX_LAYER_VECTOR("post_attention_layernorm.bias", "ffn_norm.bias", MLX_DIM(hidden)),
    MLX_LAYER_MATRIX("mlp.up_proj.weight", "ffn_up.weight", MLX_DIM(ffn), MLX_DIM(hidden)),
    MLX_LAYER_MATRIX("mlp.down_proj.weight", "ffn_down.weight", MLX_DIM(hidden), MLX_DIM(ffn)),
    MLX_LAYER_VECTOR("mlp.up_proj.bias", "ffn_up.bias", MLX_DIM(ffn), .present = mlx_has_mlp_bias),
    MLX_LAYER_VECTOR("mlp.down_proj.bias", "ffn_down.bias", MLX_DIM(hidden), .present = mlx_has_mlp_bias),
    MLX_RULE_FINAL_NORM(PLUS_ONE),
    MLX_VECTOR("model.norm.bias", "output_norm.bias", MLX_DIM(hidden)),
    MLX_RULE_HEAD,
};

static mlx_status_t nemotron_read_config(const mlx_source_t *source, mlx_config_t *c) {
  const mlx_rope_fields_t rope = {.partial = "partial_rotary_factor", .default_partial = 0.5};
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_RELU2, &c->act));
  MLX_TRY(mlx_read_sizes(source, NULL, false, c));
  MLX_TRY(mlx_read_eps(source, "norm_eps", ".attention.layer_norm_epsilon", c));
  MLX_TRY(mlx_read_attention_bias(source, "attention_bias", false, c));
  MLX_TRY(mlx_read_flag(source, "mlp_bias", "blk.0.ffn_up.bias", false, &c->mlp_bias));
  return mlx_read_rope(source, &rope, c, &c->rope);
}

static mlx_value_t mlp(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h) {
  const bool bias = c->mlp_bias;
  h = mlx_op_linear_bias(g, "up", h, MLX_W("mlp.up_proj"), MLX_B("mlp.up_proj", bias));  // [M, ffn]
  h = mlx_op_activate(g, "act", c->act, NULL, h);
  return mlx_op_linear_bias(g, "down", h, MLX_W("mlp.down_proj"), MLX_B("mlp.down_proj", bias));
}

static mlx_value_t nemotron_layer(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x) {
  mlx_op_scope(g, "layer%d", layer);
  mlx_value_t h = mlx_op_layernorm(g, "attn_in", x, MLX_W("input_layernorm"), MLX_B("input_layernorm", true),
                                   c->norm_eps);
  x = mlx_op_add(g, "after_attn", x, mlx_block_attention(g, c, layer, h));
  h = mlx_op_layernorm(g, "mlp_in", x, MLX_W("post_attention_layernorm"),
                       MLX_B("post_attention_layernorm", true), c->norm_eps);
  return mlx_op_add(g, "out", x, mlp(g, c, layer, h));
}

static mlx_value_t nemotron_forward(mlx_graph_t *g, const mlx_model_t *model, mlx_value_t tokens) {
  const mlx_config_t *c = &model->config;
  mlx_value_t x = mlx_block_embed(g, c, tokens);  // [M, hidden]
  for (int layer = 0; layer < c->layers; ++layer) x = nemotron_layer(g, c, layer, x);
  mlx_op_scope(g, "%s", "");
  return mlx_op_layernorm(g, "final", x, mlx_op_weight(g, "model.norm.weight"),
                          mlx_op_weight(g, "model.norm.bias"), c->norm_eps);
}

static const char *const nemotron_types[] = {"nemotron", NULL};

const mlx_arch_t mlx_arch_nemotron = {
    .hf_types = nemotron_types,
    .gguf_types = nemotron_types,
    MLX_TENSORS(nemotron_tensors),
    .read_config = nemotron_read_config,
    .forward = nemotron_forward,
};
