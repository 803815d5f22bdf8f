// MiMo: Qwen2, and layers that predict the tokens after the next one, which decoding token by token does not
// use. llama.cpp's converter does not know it.
#include "models/shared/blocks.h"

static const mlx_tensor_rule_t mimo_tensors[] = {
    MLX_RULE_EMBED,
    MLX_LAYER_NORM("input_layernorm", "attn_norm"),
    MLX_RULES_ATTENTION(MLX_ROWS_AS_STORED),
    MLX_LAYER_NORM("post_attention_layernorm", "ffn_norm"),
    MLX_RULES_GATED_MLP,
    MLX_RULE_FINAL_NORM(),
    MLX_RULE_HEAD,
};

static mlx_status_t mimo_read_config(const mlx_source_t *source, mlx_config_t *c) {
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_SILU, &c->act));
  MLX_TRY(mlx_read_sizes(source, NULL, false, c));
  MLX_TRY(mlx_read_eps(source, "rms_norm_eps", NULL, c));
  MLX_TRY(mlx_require_switch(source, "attention_bias", true));
  c->q_bias = c->kv_bias = true;
  MLX_TRY(mlx_read_late_windows(source, c));
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
    .forward = mlx_llama_forward,
    .head = mlx_block_head,
};
