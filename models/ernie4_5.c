// ERNIE 4.5: Llama with a rope over adjacent elements.
#include "models/shared/blocks.h"

static const mlx_tensor_rule_t ernie4_5_tensors[] = {MLX_RULES_LLAMA(MLX_ROWS_AS_STORED)};

static mlx_status_t ernie4_5_read_config(const mlx_source_t *source, mlx_config_t *c) {
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_SILU, &c->act));
  MLX_TRY(
      mlx_read_sizes(source, &(mlx_size_names_t){.default_head_dim = 128, .default_kv_heads = 2}, true, c));
  MLX_TRY(mlx_read_rms_eps(source, c));
  MLX_TRY(mlx_read_attention_bias(source, "use_bias", false, c));
  MLX_TRY(mlx_read_flag(source, "use_bias", "blk.0.ffn_up.bias", false, &c->mlp_bias));
  return mlx_read_rope(source, &(mlx_rope_fields_t){.default_theta = 500000.0, .adjacent = true}, c,
                       &c->rope);
}

static const char *const ernie4_5_types[] = {"ernie4_5", NULL};

const mlx_arch_t mlx_arch_ernie4_5 = {
    .hf_types = ernie4_5_types,
    .gguf_types = ernie4_5_types,
    MLX_TENSORS(ernie4_5_tensors),
    .read_config = ernie4_5_read_config,
    .layer = mlx_llama_layer,
};
