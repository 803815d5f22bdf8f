// LFM2 with a mixture of experts after the first layers. The weights of the experts are sigmoids; a bias of
// each expert counts only for the choice.
#include <stdio.h>

#include "models/shared/short_conv.h"

static bool has_choice_bias(const mlx_config_t *c) { return c->choice_bias; }

#define EXPERTS(hf, gguf, rows, columns, mlx, stored, part)                                            \
  MLX_EXPERTS("model.layers.%d.feed_forward.experts.%e." hf ".weight", "blk.%d." gguf ".weight", rows, \
              columns, MLX_IN_EXPERTS, .hf_stacked = true,                                             \
              .hf_stored = "model.layers.%d.feed_forward.experts." stored, .hf_fused_part = part,      \
              .mlx_name = "model.layers.%d.feed_forward.switch_mlp." mlx ".weight")

static const mlx_tensor_rule_t lfm2_moe_tensors[] = {
    MLX_RULE_EMBED,
    MLX_RULES_SHORT_CONV,
    MLX_LAYER_NORM("ffn_norm", "ffn_norm"),
    MLX_RULES_SHORT_CONV_MLP(MLX_IN_DENSE),
    MLX_LAYER_MATRIX("feed_forward.gate.weight", "ffn_gate_inp.weight", MLX_DIM(experts), MLX_DIM(hidden),
                     MLX_IN_EXPERTS),
    MLX_LAYER_VECTOR("feed_forward.expert_bias", "exp_probs_b.bias", MLX_DIM(experts), MLX_IN_EXPERTS,
                     .present = has_choice_bias),
    EXPERTS("w1", "ffn_gate_exps", MLX_DIM(expert_ffn), MLX_DIM(hidden), "gate_proj", "gate_up_proj",
            MLX_FUSED_FIRST_HALF),
    EXPERTS("w3", "ffn_up_exps", MLX_DIM(expert_ffn), MLX_DIM(hidden), "up_proj", "gate_up_proj",
            MLX_FUSED_SECOND_HALF),
    EXPERTS("w2", "ffn_down_exps", MLX_DIM(hidden), MLX_DIM(expert_ffn), "down_proj", "down_proj",
            MLX_NOT_FUSED),
    MLX_RULE_EMBEDDING_NORM,
    MLX_RULE_HEAD,
};

// GGUF files have no field for the bias.
static mlx_status_t read_choice_bias(const mlx_source_t *source, mlx_config_t *c) {
  char name[48];
  bool found;
  snprintf(name, sizeof name, "blk.%d.exp_probs_b.bias", (int)c->dense_layers);
  c->choice_bias = !mlx_source_is_gguf(source) || mlx_source_tensor(source, NULL, name);
  return mlx_source_bool(source, "use_expert_bias", NULL, &c->choice_bias, &found);
}

static mlx_status_t lfm2_moe_read_config(const mlx_source_t *source, mlx_config_t *c) {
  const bool gguf = mlx_source_is_gguf(source);
  bool found;
  MLX_TRY(mlx_read_short_conv(source, c));
  c->experts = 32;
  c->experts_used = 4;
  c->expert_ffn = 1792;
  c->dense_layers = gguf ? 0 : 2;
  MLX_TRY(mlx_source_int(source, "num_experts", ".expert_count", 1, 4096, &c->experts, gguf ? NULL : &found));
  MLX_TRY(mlx_source_int(source, "num_experts_per_tok", ".expert_used_count", 1, 64, &c->experts_used,
                         gguf ? NULL : &found));
  MLX_TRY(mlx_source_int(source, "moe_intermediate_size", ".expert_feed_forward_length", 1, 1 << 20,
                         &c->expert_ffn, gguf ? NULL : &found));
  MLX_TRY(mlx_source_int(source, "num_dense_layers", ".leading_dense_block_count", 0, c->layers,
                         &c->dense_layers, &found));
  c->sigmoid_scores = true;
  c->expert_sum_eps = 1e-6;
  MLX_TRY(mlx_read_expert_weights(source, true, c));
  return read_choice_bias(source, c);
}

static mlx_value_t experts(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h) {
  mlx_experts_t e = mlx_experts_of(c);
  if (c->choice_bias) e.choice_bias = mlx_op_weight(g, "model.layers.%d.feed_forward.expert_bias", layer);
  mlx_value_t scores = mlx_op_linear(g, "router", h, MLX_W("feed_forward.gate"));  // [M, experts]
  return mlx_op_experts(g, "experts", &e, h, scores, MLX_W("feed_forward.experts.all.w1"),
                        MLX_W("feed_forward.experts.all.w3"), MLX_W("feed_forward.experts.all.w2"));
}

static mlx_value_t lfm2_moe_layer(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x) {
  x = mlx_block_short_conv(g, c, layer, x);
  mlx_value_t h = mlx_op_rmsnorm(g, "mlp_in", x, MLX_W("ffn_norm"), c->norm_eps);
  h = layer < c->dense_layers ? mlx_block_short_conv_mlp(g, c, layer, h) : experts(g, c, layer, h);
  return mlx_op_add(g, "out", x, h);
}

static const char *const lfm2_moe_types[] = {"lfm2_moe", NULL};
static const char *const lfm2_moe_gguf_types[] = {"lfm2moe", NULL};

const mlx_arch_t mlx_arch_lfm2_moe = {
    .hf_types = lfm2_moe_types,
    .gguf_types = lfm2_moe_gguf_types,
    MLX_TENSORS(lfm2_moe_tensors),
    .read_config = lfm2_moe_read_config,
    .layer = lfm2_moe_layer,
    .forward = mlx_short_conv_forward,
};
