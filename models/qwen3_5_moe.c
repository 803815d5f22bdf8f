// Qwen3.5 with a mixture of experts, and a shared expert that a sigmoid gate weights.
#include "models/shared/gated_delta.h"

static const mlx_tensor_rule_t qwen3_5_moe_tensors[] = {
    MLX_RULE_EMBED,
    MLX_LAYER_NORM("input_layernorm", "attn_norm", MLX_PLUS_ONE),
    MLX_RULES_DELTA_PROJECTIONS,
    MLX_RULES_GATED_DELTA,
    MLX_RULES_GATED_ATTENTION,
    MLX_LAYER_NORM("post_attention_layernorm", "post_attention_norm", MLX_PLUS_ONE),
    MLX_RULES_EXPERTS(MLX_DIM(expert_ffn)),
    MLX_RULES_SHARED_EXPERT,
    MLX_RULE_FINAL_NORM(MLX_PLUS_ONE),
    MLX_RULE_HEAD,
};

static mlx_status_t qwen3_5_moe_read_config(const mlx_source_t *source, mlx_config_t *c) {
  MLX_TRY(mlx_read_gated_delta(source, 2, true, c));
  MLX_TRY(mlx_require_flag(source, "norm_topk_prob", true));
  return mlx_read_shared_experts(source, true, c);
}

// The draft layers (MTP) guess several tokens at once; decoding token by token does not use them.
static const char *const qwen3_5_moe_unused[] = {"mtp.", NULL};
static const char *const qwen3_5_moe_types[] = {"qwen3_5_moe_text", NULL};
static const char *const qwen3_5_moe_gguf_types[] = {"qwen35moe", NULL};

const mlx_arch_t mlx_arch_qwen3_5_moe = {
    .hf_types = qwen3_5_moe_types,
    .gguf_types = qwen3_5_moe_gguf_types,
    MLX_TENSORS(qwen3_5_moe_tensors),
    .unused = qwen3_5_moe_unused,
    .read_config = qwen3_5_moe_read_config,
    .layer = mlx_gated_delta_moe_layer,
};
