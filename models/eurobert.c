// EuroBERT as an encoder: Llama's network with attention of whole texts.
#include "models/shared/encoder.h"

static const mlx_tensor_rule_t eurobert_tensors[] = {MLX_RULES_LLAMA(MLX_ROWS_AS_STORED)};

static mlx_status_t eurobert_read_config(const mlx_source_t *source, mlx_config_t *c) {
  static const mlx_size_names_t names = {.encoder = true};
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_SILU, &c->act));
  MLX_TRY(mlx_read_sizes(source, &names, false, c));
  MLX_TRY(mlx_read_rms_eps(source, c));
  MLX_TRY(mlx_read_attention_bias(source, "attention_bias", false, c));
  MLX_TRY(mlx_read_flag(source, "mlp_bias", "blk.0.ffn_up.bias", false, &c->mlp_bias));
  MLX_TRY(mlx_read_rope(source, &(mlx_rope_fields_t){0}, c, &c->rope));
  return mlx_read_encoder(source, c);
}

static const char *const eurobert_types[] = {"eurobert", NULL};

const mlx_arch_t mlx_arch_eurobert = {
    .hf_types = eurobert_types,
    .gguf_types = eurobert_types,
    MLX_TENSORS(eurobert_tensors),
    .read_config = eurobert_read_config,
    .layer = mlx_llama_layer,
};
