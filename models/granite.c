// Granite: Llama with factors for the embedding, the scores, the output of each sublayer, and the logits.
#include "models/shared/blocks.h"

static const mlx_tensor_rule_t granite_tensors[] = {MLX_RULES_LLAMA(MLX_ROWS_INTERLEAVED_HALVES)};

static mlx_status_t granite_read_config(const mlx_source_t *source, mlx_config_t *c) {
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_SILU, &c->act));
  MLX_TRY(mlx_read_sizes(source, NULL, false, c));
  MLX_TRY(mlx_read_rms_eps(source, c));
  MLX_TRY(mlx_read_attention_bias(source, "attention_bias", false, c));
  MLX_TRY(mlx_read_flag(source, "mlp_bias", "blk.0.ffn_up.bias", false, &c->mlp_bias));
  MLX_TRY(mlx_read_multipliers(source, c));
  return mlx_read_rope(source, &(mlx_rope_fields_t){0}, c, &c->rope);
}

static const char *const granite_types[] = {"granite", NULL};

const mlx_arch_t mlx_arch_granite = {
    .hf_types = granite_types,
    .gguf_types = granite_types,
    MLX_TENSORS(granite_tensors),
    .read_config = granite_read_config,
    .layer = mlx_llama_layer,
};
