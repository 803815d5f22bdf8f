// Mistral: Llama, where a query sees only the last positions. Its GGUF files say that they are Llama, and
// most do not say how many positions: those are read as Llama, which is the same as long as a text fits into
// the window.
#include "models/shared/blocks.h"

static const mlx_tensor_rule_t mistral_tensors[] = {
    MLX_RULE_EMBED,
    MLX_LAYER_NORM("input_layernorm", "attn_norm"),
    MLX_RULES_ATTENTION(MLX_ROWS_INTERLEAVED_HALVES),
    MLX_LAYER_NORM("post_attention_layernorm", "ffn_norm"),
    MLX_RULES_GATED_MLP,
    MLX_RULE_FINAL_NORM(),
    MLX_RULE_HEAD,
};

static bool mistral_takes(const mlx_source_t *source) {
  return mlx_gguf_says(source, ".attention.sliding_window") && !mlx_gguf_says(source, ".expert_count");
}

static mlx_status_t mistral_read_config(const mlx_source_t *source, mlx_config_t *c) {
  if (mlx_source_has(source, "layer_types", NULL)) {
    return mlx_source_field_error(source, "layer_types", NULL, MLX_UNSUPPORTED,
                                  "is given; in this model all layers are alike");
  }
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_SILU, &c->act));
  MLX_TRY(mlx_read_sizes(source, &(mlx_size_names_t){.default_kv_heads = 8}, false, c));
  MLX_TRY(mlx_read_eps(source, "rms_norm_eps", ".attention.layer_norm_rms_epsilon", c));
  MLX_TRY(mlx_read_windows(source, 0, 4096, c));
  return mlx_read_rope(source, &(mlx_rope_fields_t){0}, c, &c->rope);
}

static const char *const mistral_types[] = {"mistral", NULL};
static const char *const mistral_gguf_types[] = {"llama", NULL};

const mlx_arch_t mlx_arch_mistral = {
    .hf_types = mistral_types,
    .gguf_types = mistral_gguf_types,
    .takes = mistral_takes,
    MLX_TENSORS(mistral_tensors),
    .read_config = mistral_read_config,
    .forward = mlx_llama_forward,
    .head = mlx_block_head,
};
