// InternLM3: Llama with one bias flag for q, k and v and one for all other matrices. Its GGUF files
// declare the architecture llama.
#include "models/shared/blocks.h"

static const mlx_tensor_rule_t internlm3_tensors[] = {MLX_RULES_LLAMA(MLX_ROWS_AS_STORED)};

static mlx_status_t internlm3_read_config(const mlx_source_t *source, mlx_config_t *c) {
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_SILU, &c->act));
  MLX_TRY(mlx_read_sizes(source, NULL, true, c));
  MLX_TRY(mlx_read_rms_eps(source, c));
  MLX_TRY(mlx_read_flag(source, "qkv_bias", NULL, false, &c->q_bias));
  MLX_TRY(mlx_read_flag(source, "bias", NULL, false, &c->o_bias));
  c->kv_bias = c->q_bias;
  c->mlp_bias = c->o_bias;
  return mlx_read_rope(source, &(mlx_rope_fields_t){0}, c, &c->rope);
}

static const char *const internlm3_types[] = {"internlm3", NULL};
static const char *const internlm3_gguf_types[] = {NULL};

const mlx_arch_t mlx_arch_internlm3 = {
    .hf_types = internlm3_types,
    .gguf_types = internlm3_gguf_types,
    MLX_TENSORS(internlm3_tensors),
    .read_config = internlm3_read_config,
    .layer = mlx_llama_layer,
};
