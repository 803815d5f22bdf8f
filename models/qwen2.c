// Qwen2: Llama with biases of q, k and v. Later layers may have a sliding window.
#include "models/shared/blocks.h"

static const mlx_tensor_rule_t qwen2_tensors[] = {MLX_RULES_LLAMA(MLX_ROWS_AS_STORED)};

static mlx_status_t qwen2_read_config(const mlx_source_t *source, mlx_config_t *c) {
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_SILU, &c->act));
  MLX_TRY(mlx_read_sizes(source, &(mlx_size_names_t){.default_kv_heads = 32}, false, c));
  MLX_TRY(mlx_read_rms_eps(source, c));
  c->q_bias = c->kv_bias = true;
  MLX_TRY(mlx_read_qwen_windows(source, c));
  return mlx_read_rope(source, &(mlx_rope_fields_t){0}, c, &c->rope);
}

static const char *const qwen2_types[] = {"qwen2", NULL};

const mlx_arch_t mlx_arch_qwen2 = {
    .hf_types = qwen2_types,
    .gguf_types = qwen2_types,
    MLX_TENSORS(qwen2_tensors),
    .read_config = qwen2_read_config,
    .layer = mlx_llama_layer,
};
