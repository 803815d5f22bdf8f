// dots.llm1: Qwen3 with experts after the first layers, chosen by sigmoids.
#include "models/shared/routed.h"

static const mlx_tensor_rule_t dots1_tensors[] = {
    MLX_RULE_EMBED,
    MLX_LAYER_NORM("input_layernorm", "attn_norm"),
    MLX_RULES_ATTENTION(MLX_ROWS_AS_STORED),
    MLX_RULES_HEAD_QK_NORM(),
    MLX_LAYER_NORM("post_attention_layernorm", "ffn_norm"),
    MLX_RULES_ROUTED_MLP("mlp.gate.weight", "mlp.gate.e_score_correction_bias", "mlp.shared_experts."),
    MLX_RULE_FINAL_NORM(),
    MLX_RULE_HEAD,
};

// Without layer_types, layers from max_window_layers on have a sliding window.
static mlx_status_t read_windows(const mlx_source_t *source, mlx_config_t *c) {
  int64_t first = 62;
  bool found;
  if (mlx_source_is_gguf(source)) return NULL;  // has no field for windows
  MLX_TRY(mlx_read_windows(source, 0, 4096, c));
  MLX_TRY(mlx_source_int(source, "max_window_layers", NULL, 0, 1 << 20, &first, &found));
  if (mlx_source_has(source, "layer_types", NULL)) return NULL;
  for (int64_t i = 0; i < c->layers && i < first; ++i) c->windowed[i] = false;
  return NULL;
}

static mlx_status_t dots1_read_config(const mlx_source_t *source, mlx_config_t *c) {
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_SILU, &c->act));
  MLX_TRY(mlx_read_sizes(source, &(mlx_size_names_t){.default_kv_heads = 32}, false, c));
  MLX_TRY(mlx_read_rms_eps(source, c));
  c->sigmoid_scores = c->choice_bias = c->qk_norm = true;
  c->expert_sum_eps = 1e-20;
  MLX_TRY(mlx_read_routed(source, &(mlx_routed_fields_t){0}, c));
  MLX_TRY(mlx_read_attention_bias(source, "attention_bias", false, c));
  MLX_TRY(read_windows(source, c));
  return mlx_read_rope(source, &(mlx_rope_fields_t){0}, c, &c->rope);
}

static const char *const dots1_types[] = {"dots1", NULL};

const mlx_arch_t mlx_arch_dots1 = {
    .hf_types = dots1_types,
    .gguf_types = dots1_types,
    MLX_TENSORS(dots1_tensors),
    .read_config = dots1_read_config,
    .layer = mlx_routed_layer,
};
