// K-EXAONE: norms before attention and MLP, head norms of q and k, and experts after the first layers, chosen
// by sigmoids. In models with sliding windows, layers with full attention have no rope.
#include "models/shared/routed.h"

static const mlx_tensor_rule_t exaone_moe_tensors[] = {
    MLX_RULE_EMBED,
    MLX_LAYER_NORM("input_layernorm", "attn_norm"),
    MLX_RULES_ATTENTION(MLX_ROWS_AS_STORED),
    MLX_RULES_HEAD_QK_NORM(),
    MLX_LAYER_NORM("post_attention_layernorm", "ffn_norm"),
    MLX_RULES_ROUTED_MLP("mlp.gate.weight", "mlp.e_score_correction_bias", "mlp.shared_experts."),
    MLX_RULE_FINAL_NORM(),
    MLX_RULE_HEAD,
};

static mlx_status_t exaone_moe_read_config(const mlx_source_t *source, mlx_config_t *c) {
  const mlx_routed_fields_t routed = {.experts = "num_experts",
                                      .shared = "num_shared_experts",
                                      .default_dense = 1,
                                      .default_scale = 2.5,
                                      .default_sum = true};
  int64_t every = 4;
  bool found;
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_SILU, &c->act));
  MLX_TRY(mlx_read_sizes(source, &(mlx_size_names_t){.default_kv_heads = 32}, false, c));
  MLX_TRY(mlx_read_draft_layers(source, 0, c));
  MLX_TRY(mlx_read_rms_eps(source, c));
  c->sigmoid_scores = c->choice_bias = c->qk_norm = true;
  c->expert_sum_eps = 1e-20;
  MLX_TRY(mlx_read_routed(source, &routed, c));
  if (!mlx_source_has(source, "layer_types", NULL))  // else the field may be a text
    MLX_TRY(mlx_source_int(source, "sliding_window_pattern", NULL, 0, 1 << 20, &every, &found));
  MLX_TRY(mlx_read_windows(source, every, 4096, c));
  for (int64_t i = 0; i < c->layers; ++i) c->no_rope[i] = c->window && !c->windowed[i];
  return mlx_read_rope(source, &(mlx_rope_fields_t){0}, c, &c->rope);
}

static const char *const exaone_moe_types[] = {"exaone_moe", NULL};
static const char *const exaone_moe_gguf_types[] = {"exaone-moe", NULL};
static const char *const exaone_moe_unused[] = {"mtp.", NULL};

const mlx_arch_t mlx_arch_exaone_moe = {
    .hf_types = exaone_moe_types,
    .gguf_types = exaone_moe_gguf_types,
    MLX_TENSORS(exaone_moe_tensors),
    .unused = exaone_moe_unused,
    .read_config = exaone_moe_read_config,
    .layer = mlx_routed_layer,
};
