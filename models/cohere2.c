// Command R7B: Command R where three of four layers have a sliding window and the fourth has no rope.
#include "models/shared/blocks.h"

static const mlx_tensor_rule_t cohere2_tensors[] = {
    MLX_RULE_EMBED,
    MLX_LAYER_NORM("input_layernorm", "attn_norm"),
    MLX_RULES_ATTENTION(MLX_ROWS_AS_STORED),
    MLX_RULES_GATED_MLP,
    MLX_RULE_FINAL_NORM(),
    MLX_RULE_HEAD,
};

static mlx_status_t cohere2_read_config(const mlx_source_t *source, mlx_config_t *c) {
  int64_t every = 4;
  bool found;
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_SILU, &c->act));
  MLX_TRY(mlx_read_sizes(source, NULL, true, c));
  MLX_TRY(mlx_read_eps(source, "layer_norm_eps", ".attention.layer_norm_epsilon", c));
  MLX_TRY(mlx_read_attention_bias(source, "attention_bias", false, c));
  MLX_TRY(mlx_source_number(source, "logit_scale", ".logit_scale", &c->logit_scale, NULL));
  MLX_TRY(mlx_source_int(source, "sliding_window_pattern", NULL, 1, 1 << 20, &every, &found));
  MLX_TRY(mlx_read_windows(source, every, 4096, c));
  for (int64_t i = 0; i < c->layers; ++i) c->no_rope[i] = !c->windowed[i];
  return mlx_read_rope(source, &(mlx_rope_fields_t){.adjacent = true}, c, &c->rope);
}

static mlx_value_t cohere2_layer(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x) {
  mlx_op_scope(g, "layer%d", layer);
  mlx_value_t h = mlx_op_layernorm(g, "in", x, MLX_W("input_layernorm"), MLX_NONE, c->norm_eps);
  mlx_value_t attended = mlx_block_attention(g, c, layer, h);
  h = mlx_block_gated_mlp(g, c, layer, h);
  x = mlx_op_add(g, "after_attn", x, attended);
  return mlx_op_add(g, "out", x, h);
}

static mlx_value_t cohere2_forward(mlx_graph_t *g, const mlx_model_t *model, mlx_value_t tokens) {
  const mlx_config_t *c = &model->config;
  mlx_value_t x = mlx_block_embed(g, c, tokens);  // [M, hidden]
  for (int layer = 0; layer < c->layers; ++layer) x = cohere2_layer(g, c, layer, x);
  mlx_op_scope(g, "%s", "");
  return mlx_op_layernorm(g, "final", x, mlx_op_weight(g, "model.norm.weight"), MLX_NONE, c->norm_eps);
}

static const char *const cohere2_types[] = {"cohere2", NULL};

const mlx_arch_t mlx_arch_cohere2 = {
    .hf_types = cohere2_types,
    .gguf_types = cohere2_types,
    MLX_TENSORS(cohere2_tensors),
    .read_config = cohere2_read_config,
    .forward = cohere2_forward,
};
