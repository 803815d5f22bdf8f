// OLMo 3: OLMo 2 where three of four layers have a sliding window and an unscaled rope. Its GGUF files
// declare the architecture olmo2.
#include "models/shared/blocks.h"

static const mlx_tensor_rule_t olmo3_tensors[] = {MLX_RULES_OLMO2};

static bool olmo3_matches(const mlx_source_t *source) {
  return mlx_gguf_is_nonzero(source, ".attention.sliding_window");
}

static mlx_status_t olmo3_read_config(const mlx_source_t *source, mlx_config_t *c) {
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_SILU, &c->act));
  MLX_TRY(mlx_read_sizes(source, NULL, false, c));
  MLX_TRY(mlx_read_rms_eps(source, c));
  MLX_TRY(mlx_read_attention_bias(source, "attention_bias", false, c));
  MLX_TRY(mlx_read_windows(source, 4, 4096, c));
  MLX_TRY(mlx_read_rope(source, &(mlx_rope_fields_t){.group = "full_attention", .default_theta = 500000.0}, c,
                        &c->rope));
  mlx_rope_fields_t local = {.group = "sliding_attention", .default_theta = 500000.0, .unscaled = true};
  if (mlx_source_has(source, NULL, ".rope.freq_base_swa")) local.gguf_theta = ".rope.freq_base_swa";
  return mlx_read_rope(source, &local, c, &c->local_rope);
}

static const char *const olmo3_types[] = {"olmo3", NULL};
static const char *const olmo3_gguf_types[] = {"olmo2", NULL};

const mlx_arch_t mlx_arch_olmo3 = {
    .hf_types = olmo3_types,
    .gguf_types = olmo3_gguf_types,
    .matches = olmo3_matches,
    MLX_TENSORS(olmo3_tensors),
    .read_config = olmo3_read_config,
    .layer = mlx_olmo2_layer,
};
