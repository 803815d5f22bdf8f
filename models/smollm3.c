// SmolLM3: Llama where every fourth layer has no rope.
#include "models/shared/blocks.h"

static const mlx_tensor_rule_t smollm3_tensors[] = {MLX_RULES_LLAMA(MLX_ROWS_INTERLEAVED_HALVES)};

// Despite its name, no_rope_layers has a 1 for each layer with a rope.
static mlx_status_t read_no_rope_layers(const mlx_source_t *source, mlx_config_t *c) {
  const size_t listed = mlx_source_array_length(source, "no_rope_layers", NULL);
  int64_t interval = 4;
  bool found;
  MLX_TRY(mlx_source_int(source, "no_rope_layer_interval", NULL, 1, 1 << 20, &interval, &found));
  if (listed && listed != (size_t)c->layers) {
    return mlx_source_field_error(source, "no_rope_layers", NULL, MLX_INVALID_INPUT,
                                  "must have one entry for each of the %lld layers", (long long)c->layers);
  }
  for (int64_t i = 0; i < c->layers; ++i) {
    double has_rope = (i + 1) % interval != 0;
    if (listed) MLX_TRY(mlx_source_number_at(source, "no_rope_layers", NULL, (size_t)i, &has_rope));
    c->no_rope[i] = has_rope == 0.0;
  }
  return NULL;
}

// Without layer_types, the layers without rope have the window.
static mlx_status_t read_smollm3_windows(const mlx_source_t *source, mlx_config_t *c) {
  bool on;
  MLX_TRY(mlx_read_flag(source, "use_sliding_window", NULL, false, &on));
  if (!on) return NULL;
  MLX_TRY(mlx_read_windows(source, 0, 0, c));
  for (int64_t i = 0; i < c->layers && !mlx_source_has(source, "layer_types", NULL); ++i)
    c->windowed[i] = c->window && c->no_rope[i];
  return NULL;
}

static mlx_status_t smollm3_read_config(const mlx_source_t *source, mlx_config_t *c) {
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_SILU, &c->act));
  MLX_TRY(mlx_read_sizes(source, &(mlx_size_names_t){.default_kv_heads = 4}, true, c));
  MLX_TRY(mlx_read_rms_eps(source, c));
  MLX_TRY(mlx_read_attention_bias(source, "attention_bias", false, c));
  MLX_TRY(mlx_read_flag(source, "mlp_bias", "blk.0.ffn_up.bias", false, &c->mlp_bias));
  MLX_TRY(read_no_rope_layers(source, c));
  MLX_TRY(read_smollm3_windows(source, c));
  return mlx_read_rope(source, &(mlx_rope_fields_t){.default_theta = 2000000.0}, c, &c->rope);
}

static const char *const smollm3_types[] = {"smollm3", NULL};

const mlx_arch_t mlx_arch_smollm3 = {
    .hf_types = smollm3_types,
    .gguf_types = smollm3_types,
    MLX_TENSORS(smollm3_tensors),
    .read_config = smollm3_read_config,
    .layer = mlx_llama_layer,
};
