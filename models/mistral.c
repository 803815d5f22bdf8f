// Mistral: Llama with sliding-window attention. Its GGUF files declare the architecture llama, and most
// omit the window. Those are read as Llama, which is equal for contexts up to the window.
#include "models/shared/blocks.h"

static const mlx_tensor_rule_t mistral_tensors[] = {MLX_RULES_LLAMA(MLX_ROWS_INTERLEAVED_HALVES)};

static bool mistral_matches(const mlx_source_t *source) {
  return mlx_gguf_is_nonzero(source, ".attention.sliding_window") &&
         !mlx_gguf_is_nonzero(source, ".expert_count");
}

static mlx_status_t mistral_read_config(const mlx_source_t *source, mlx_config_t *c) {
  if (mlx_source_has(source, "layer_types", NULL)) {
    return mlx_source_field_error(source, "layer_types", NULL, MLX_UNSUPPORTED,
                                  "is given, but Mistral has the same attention in all layers");
  }
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_SILU, &c->act));
  MLX_TRY(mlx_read_sizes(source, &(mlx_size_names_t){.default_kv_heads = 8}, false, c));
  MLX_TRY(mlx_read_rms_eps(source, c));
  MLX_TRY(mlx_read_windows(source, 0, 4096, c));
  return mlx_read_rope(source, &(mlx_rope_fields_t){0}, c, &c->rope);
}

static const char *const mistral_types[] = {"mistral", NULL};
static const char *const mistral_gguf_types[] = {"llama", NULL};

const mlx_arch_t mlx_arch_mistral = {
    .hf_types = mistral_types,
    .gguf_types = mistral_gguf_types,
    .matches = mistral_matches,
    MLX_TENSORS(mistral_tensors),
    .read_config = mistral_read_config,
    .layer = mlx_llama_layer,
};
