// SmolLM3: Llama, but every fourth layer does not turn its heads.
#include "models/shared/blocks.h"

static const mlx_tensor_rule_t smollm3_tensors[] = {
    MLX_RULE_EMBED,
    MLX_LAYER_NORM("input_layernorm", "attn_norm"),
    MLX_RULES_ATTENTION(MLX_ROWS_INTERLEAVED_HALVES),
    MLX_LAYER_NORM("post_attention_layernorm", "ffn_norm"),
    MLX_RULES_GATED_MLP,
    MLX_RULE_FINAL_NORM(),
    MLX_RULE_HEAD,
};

// no_rope_layers has a 1 for each layer that does turn them.
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
    double turns = (i + 1) % interval != 0;
    if (listed) MLX_TRY(mlx_source_number_at(source, "no_rope_layers", (size_t)i, &turns));
    c->ropeless[i] = turns == 0.0;
  }
  return NULL;
}

// Where the file does not say which layers have a window, it is those that do not turn their heads.
static mlx_status_t read_smollm3_windows(const mlx_source_t *source, mlx_config_t *c) {
  bool on;
  MLX_TRY(mlx_read_switch(source, "use_sliding_window", NULL, false, &on));
  if (!on) return NULL;
  MLX_TRY(mlx_read_windows(source, 0, 0, c));
  for (int64_t i = 0; i < c->layers && !mlx_source_has(source, "layer_types", NULL); ++i)
    c->windowed[i] = c->window && c->ropeless[i];
  return NULL;
}

static mlx_status_t smollm3_read_config(const mlx_source_t *source, mlx_config_t *c) {
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_SILU, &c->act));
  MLX_TRY(mlx_read_sizes(source, &(mlx_size_names_t){.default_kv_heads = 4}, true, c));
  MLX_TRY(mlx_read_eps(source, "rms_norm_eps", ".attention.layer_norm_rms_epsilon", c));
  MLX_TRY(mlx_read_attention_bias(source, "attention_bias", false, c));
  MLX_TRY(mlx_read_switch(source, "mlp_bias", "blk.0.ffn_up.bias", false, &c->mlp_bias));
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
    .forward = mlx_llama_forward,
    .head = mlx_block_head,
};
