// Gemma: Llama with a GELU gate, embeddings scaled by sqrt(hidden), and norms that multiply by 1 + weight.
#include "models/shared/blocks.h"

#include <math.h>

static const mlx_tensor_rule_t gemma_tensors[] = {
    MLX_RULE_EMBED,
    MLX_LAYER_NORM("input_layernorm", "attn_norm", .hf_value_offset = 1.0),
    MLX_RULES_ATTENTION(MLX_ROWS_AS_STORED),
    MLX_LAYER_NORM("post_attention_layernorm", "ffn_norm", .hf_value_offset = 1.0),
    MLX_RULES_GATED_MLP,
    MLX_RULE_FINAL_NORM(.hf_value_offset = 1.0),
    MLX_RULE_HEAD,
};

// Gemma files with "gelu" mean the tanh approximation.
static mlx_status_t read_gemma_act(const mlx_source_t *source, mlx_config_t *c) {
  const bool newer = mlx_source_has(source, "hidden_activation", NULL);
  MLX_TRY(mlx_read_act(source, newer ? "hidden_activation" : "hidden_act", MLX_ACT_GELU_TANH, &c->act));
  if (c->act == MLX_ACT_GELU) c->act = MLX_ACT_GELU_TANH;
  return NULL;
}

static mlx_status_t gemma_read_config(const mlx_source_t *source, mlx_config_t *c) {
  MLX_TRY(mlx_require_flag(source, "use_bidirectional_attention", false));
  MLX_TRY(read_gemma_act(source, c));
  MLX_TRY(
      mlx_read_sizes(source, &(mlx_size_names_t){.default_head_dim = 256, .default_kv_heads = 16}, true, c));
  MLX_TRY(mlx_read_rms_eps(source, c));
  MLX_TRY(mlx_read_attention_bias(source, "attention_bias", false, c));
  c->embed_scale = sqrt((double)c->hidden);
  return mlx_read_rope(source, &(mlx_rope_fields_t){0}, c, &c->rope);
}

static const char *const gemma_types[] = {"gemma", NULL};

const mlx_arch_t mlx_arch_gemma = {
    .hf_types = gemma_types,
    .gguf_types = gemma_types,
    MLX_TENSORS(gemma_tensors),
    .read_config = gemma_read_config,
    .layer = mlx_llama_layer,
};
