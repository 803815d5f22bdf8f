// ERNIE 4.5 with experts after the first layers: a softmax of the scores, and a bias of the choice.
#include <stdio.h>

#include "models/shared/routed.h"

static const mlx_tensor_rule_t ernie4_5_moe_tensors[] = {
    MLX_RULE_EMBED,
    MLX_LAYER_NORM("input_layernorm", "attn_norm"),
    MLX_RULES_ATTENTION(MLX_ROWS_AS_STORED),
    MLX_LAYER_NORM("post_attention_layernorm", "ffn_norm"),
    MLX_RULES_ROUTED_MLP("mlp.gate.weight", "mlp.moe_statics.e_score_correction_bias", "mlp.shared_experts."),
    MLX_RULE_FINAL_NORM(),
    MLX_RULE_HEAD,
    MLX_RULE_HEAD_BIAS,
};

// Experts must be in all layers after the dense ones, and their weights must be divided by their sum: a
// least divisor that could be larger is refused.
static mlx_status_t require_usual_mixture(const mlx_source_t *source, const mlx_config_t *c) {
  int64_t interval = 1, end = c->layers - 1;
  double least = 1e-12;
  bool found;
  MLX_TRY(mlx_source_int(source, "moe_layer_interval", ".interleave_moe_layer_step", 1, 1 << 20, &interval,
                         &found));
  if (interval != 1)
    return mlx_source_field_error(source, "moe_layer_interval", ".interleave_moe_layer_step", MLX_UNSUPPORTED,
                                  "is %lld; only 1 is supported", (long long)interval);
  MLX_TRY(mlx_source_int(source, "moe_layer_end_index", NULL, -1, 1 << 20, &end, &found));
  if (end != -1 && end != c->layers - 1)
    return mlx_source_field_error(source, "moe_layer_end_index", NULL, MLX_UNSUPPORTED,
                                  "is %lld; only the last layer is supported", (long long)end);
  MLX_TRY(mlx_source_number(source, "moe_norm_min", NULL, &least, &found));
  if (least <= 1e-6) return NULL;
  return mlx_source_field_error(source, "moe_norm_min", NULL, MLX_UNSUPPORTED,
                                "is %g; at most 1e-6 is supported", least);
}

static mlx_status_t ernie4_5_moe_read_config(const mlx_source_t *source, mlx_config_t *c) {
  const mlx_rope_fields_t rope = {.default_theta = 500000.0, .adjacent = true};
  const mlx_routed_fields_t routed = {.experts = "moe_num_experts",
                                      .used = "moe_k",
                                      .shared = "moe_num_shared_experts",
                                      .dense = "moe_layer_start_index",
                                      .default_dense = 1,
                                      .default_sum = true};
  char bias[48];
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_SILU, &c->act));
  MLX_TRY(mlx_read_sizes(source, &(mlx_size_names_t){.default_kv_heads = 4}, true, c));
  MLX_TRY(mlx_read_rms_eps(source, c));
  MLX_TRY(mlx_read_routed(source, &routed, c));
  MLX_TRY(require_usual_mixture(source, c));
  snprintf(bias, sizeof bias, "blk.%d.exp_probs_b.bias", (int)c->dense_layers);
  MLX_TRY(mlx_read_flag(source, NULL, bias, true, &c->choice_bias));
  MLX_TRY(mlx_read_attention_bias(source, "use_bias", false, c));
  MLX_TRY(mlx_read_flag(source, "use_bias", "blk.0.ffn_up.bias", false, &c->mlp_bias));
  MLX_TRY(mlx_read_flag(source, "use_bias", "output.bias", false, &c->head_bias));
  return mlx_read_rope(source, &rope, c, &c->rope);
}

// The layers for multi-token prediction.
static const char *const ernie4_5_moe_unused[] = {"model.mtp_", NULL};
static const char *const ernie4_5_moe_types[] = {"ernie4_5_moe", NULL};
static const char *const ernie4_5_moe_gguf_types[] = {"ernie4_5-moe", NULL};

const mlx_arch_t mlx_arch_ernie4_5_moe = {
    .hf_types = ernie4_5_moe_types,
    .gguf_types = ernie4_5_moe_gguf_types,
    MLX_TENSORS(ernie4_5_moe_tensors),
    .unused = ernie4_5_moe_unused,
    .read_config = ernie4_5_moe_read_config,
    .layer = mlx_routed_layer,
};
