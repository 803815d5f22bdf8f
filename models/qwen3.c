// Qwen3: Llama with head norms of q and k. Later layers may have a sliding window.
#include "models/shared/blocks.h"

static const mlx_tensor_rule_t qwen3_tensors[] = {
    MLX_RULE_EMBED,
    MLX_LAYER_NORM("input_layernorm", "attn_norm"),
    MLX_RULES_ATTENTION(MLX_ROWS_AS_STORED),
    MLX_RULES_HEAD_QK_NORM(),
    MLX_LAYER_NORM("post_attention_layernorm", "ffn_norm"),
    MLX_RULES_GATED_MLP,
    MLX_RULE_FINAL_NORM(),
    MLX_RULE_HEAD,
};

static mlx_status_t qwen3_read_config(const mlx_source_t *source, mlx_config_t *c) {
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_SILU, &c->act));
  MLX_TRY(
      mlx_read_sizes(source, &(mlx_size_names_t){.default_head_dim = 128, .default_kv_heads = 32}, false, c));
  MLX_TRY(mlx_read_rms_eps(source, c));
  c->qk_norm = true;
  MLX_TRY(mlx_read_attention_bias(source, "attention_bias", false, c));
  MLX_TRY(mlx_read_qwen_windows(source, c));
  return mlx_read_rope(source, &(mlx_rope_fields_t){0}, c, &c->rope);
}

static const char *const qwen3_types[] = {"qwen3", NULL};

const mlx_arch_t mlx_arch_qwen3 = {
    .hf_types = qwen3_types,
    .gguf_types = qwen3_types,
    MLX_TENSORS(qwen3_tensors),
    .read_config = qwen3_read_config,
    .layer = mlx_llama_layer,
};
