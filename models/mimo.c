// MiMo: Qwen2 with additional layers for multi-token prediction, which are not used here. llama.cpp cannot
// convert it to GGUF.
#include "models/shared/blocks.h"

static const mlx_tensor_rule_t mimo_tensors[] = {MLX_RULES_LLAMA(MLX_ROWS_AS_STORED)};

static mlx_status_t mimo_read_config(const mlx_source_t *source, mlx_config_t *c) {
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_SILU, &c->act));
  MLX_TRY(mlx_read_sizes(source, NULL, false, c));
  MLX_TRY(mlx_read_rms_eps(source, c));
  MLX_TRY(mlx_require_flag(source, "attention_bias", true));
  c->q_bias = c->kv_bias = true;
  MLX_TRY(mlx_read_qwen_windows(source, c));
  return mlx_read_rope(source, &(mlx_rope_fields_t){0}, c, &c->rope);
}

static const char *const mimo_types[] = {"mimo", NULL};
static const char *const mimo_gguf_types[] = {NULL};
static const char *const mimo_unused[] = {"model.mtp_layers.", NULL};

const mlx_arch_t mlx_arch_mimo = {
    .hf_types = mimo_types,
    .gguf_types = mimo_gguf_types,
    MLX_TENSORS(mimo_tensors),
    .unused = mimo_unused,
    .read_config = mimo_read_config,
    .layer = mlx_llama_layer,
};
