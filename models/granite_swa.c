// Granite with sliding windows: attention sinks in all layers, and no rope in some of them.
#include "models/shared/blocks.h"

static const mlx_tensor_rule_t granite_swa_tensors[] = {
    MLX_RULE_EMBED,
    MLX_LAYER_NORM("input_layernorm", "attn_norm"),
    MLX_RULES_ATTENTION(MLX_ROWS_INTERLEAVED_HALVES),
    MLX_LAYER_VECTOR("self_attn.sinks", "attn_sinks.weight", MLX_DIM(heads)),
    MLX_LAYER_NORM("post_attention_layernorm", "ffn_norm"),
    MLX_RULES_GATED_MLP,
    MLX_RULE_FINAL_NORM(),
    MLX_RULE_HEAD,
};

// layer_rope_theta has the base of each layer, 0 for a layer without a rope. All other bases must be equal.
static mlx_status_t read_ropes(const mlx_source_t *source, mlx_config_t *c) {
  const char *key = "layer_rope_theta";
  const size_t listed = mlx_source_array_length(source, key, NULL);
  mlx_rope_fields_t rope = {0};
  if (listed && listed != (size_t)c->layers)
    return mlx_source_field_error(source, key, NULL, MLX_INVALID_INPUT,
                                  "must have one number for each of the %lld layers", (long long)c->layers);
  for (size_t i = 0; i < listed; ++i) {
    double theta;
    MLX_TRY(mlx_source_number_at(source, key, NULL, i, &theta));
    c->no_rope[i] = theta == 0.0;
    if (theta != 0.0 && rope.fixed_theta != 0.0 && theta != rope.fixed_theta)
      return mlx_source_field_error(source, key, NULL, MLX_UNSUPPORTED,
                                    "has %g and %g; only one base besides 0 is supported", rope.fixed_theta,
                                    theta);
    if (theta != 0.0) rope.fixed_theta = theta;
  }
  return mlx_read_rope(source, &rope, c, &c->rope);
}

static mlx_status_t granite_swa_read_config(const mlx_source_t *source, mlx_config_t *c) {
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_SILU, &c->act));
  MLX_TRY(mlx_read_sizes(source, &(mlx_size_names_t){.default_kv_heads = 4}, true, c));
  MLX_TRY(mlx_read_rms_eps(source, c));
  MLX_TRY(mlx_read_attention_bias(source, "attention_bias", false, c));
  MLX_TRY(mlx_read_flag(source, "mlp_bias", "blk.0.ffn_up.bias", false, &c->mlp_bias));
  MLX_TRY(mlx_read_multipliers(source, c));
  MLX_TRY(mlx_read_windows(source, 0, 128, c));
  if (!mlx_source_has(source, "layer_types", NULL))  // every fourth layer, the first included, has no window
    for (int64_t i = 0; i < c->layers; i += 4) c->windowed[i] = false;
  c->sinks = true;
  return read_ropes(source, c);
}

static const char *const granite_swa_types[] = {"granite_swa", NULL};
static const char *const granite_swa_gguf_types[] = {NULL};

const mlx_arch_t mlx_arch_granite_swa = {
    .hf_types = granite_swa_types,
    .gguf_types = granite_swa_gguf_types,
    MLX_TENSORS(granite_swa_tensors),
    .read_config = granite_swa_read_config,
    .layer = mlx_llama_layer,
};
