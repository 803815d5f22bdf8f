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

static mlx_status_t granite_swa_read_config(const mlx_source_t *source, mlx_config_t *c) {
  mlx_rope_fields_t rope = {0};
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
  MLX_TRY(mlx_read_layer_ropes(source, c, &rope));
  return mlx_read_rope(source, &rope, c, &c->rope);
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
