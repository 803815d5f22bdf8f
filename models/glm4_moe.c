// GLM-4.5 to 4.7: Llama with optional head norms of q and k, a rope over half of each head, and experts after
// the first layers, chosen by sigmoids. The layers for multi-token prediction are not used.
#include "models/shared/routed.h"

static const mlx_tensor_rule_t glm4_moe_tensors[] = {
    MLX_RULE_EMBED,
    MLX_LAYER_NORM("input_layernorm", "attn_norm"),
    MLX_RULES_ATTENTION(MLX_ROWS_AS_STORED),
    MLX_RULES_HEAD_QK_NORM(),
    MLX_LAYER_NORM("post_attention_layernorm", "post_attention_norm"),
    MLX_RULES_ROUTED_MLP("mlp.gate.weight", "mlp.gate.e_score_correction_bias", "mlp.shared_experts."),
    MLX_RULE_FINAL_NORM(),
    MLX_RULE_HEAD,
};

static mlx_status_t glm4_moe_read_config(const mlx_source_t *source, mlx_config_t *c) {
  const mlx_rope_fields_t rope = {.partial = "partial_rotary_factor", .default_partial = 0.5};
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_SILU, &c->act));
  MLX_TRY(mlx_read_sizes(source, &(mlx_size_names_t){.default_kv_heads = 8}, false, c));
  MLX_TRY(mlx_read_draft_layers(source, 1, c));
  MLX_TRY(mlx_read_rms_eps(source, c));
  c->sigmoid_scores = c->choice_bias = true;
  c->expert_sum_eps = 1e-20;
  MLX_TRY(mlx_read_routed(source, &(mlx_routed_fields_t){.default_dense = 1, .default_sum = true}, c));
  MLX_TRY(mlx_read_flag(source, "attention_bias", "blk.0.attn_q.bias", false, &c->q_bias));
  MLX_TRY(mlx_read_flag(source, "attention_bias", "blk.0.attn_k.bias", false, &c->kv_bias));
  MLX_TRY(mlx_read_flag(source, "use_qk_norm", "blk.0.attn_q_norm.weight", false, &c->qk_norm));
  return mlx_read_rope(source, &rope, c, &c->rope);
}

static const char *const glm4_moe_types[] = {"glm4_moe", NULL};
static const char *const glm4_moe_gguf_types[] = {"glm4moe", NULL};

const mlx_arch_t mlx_arch_glm4_moe = {
    .hf_types = glm4_moe_types,
    .gguf_types = glm4_moe_gguf_types,
    MLX_TENSORS(glm4_moe_tensors),
    .read_config = glm4_moe_read_config,
    .layer = mlx_routed_layer,
};
