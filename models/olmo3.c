// OLMo 3: OLMo 2, where three of four layers have a window and a rope that is not scaled. Its GGUF files say
// that they are OLMo 2.
#include "models/shared/blocks.h"

static const mlx_tensor_rule_t olmo3_tensors[] = {
    MLX_RULE_EMBED,
    MLX_RULES_ATTENTION(MLX_ROWS_AS_STORED),
    MLX_LAYER_VECTOR("self_attn.q_norm.weight", "attn_q_norm.weight", MLX_HEADS(heads)),
    MLX_LAYER_VECTOR("self_attn.k_norm.weight", "attn_k_norm.weight", MLX_HEADS(kv_heads)),
    MLX_LAYER_NORM("post_attention_layernorm", "post_attention_norm"),
    MLX_RULES_GATED_MLP,
    MLX_LAYER_NORM("post_feedforward_layernorm", "post_ffw_norm"),
    MLX_RULE_FINAL_NORM(),
    MLX_RULE_HEAD,
};

static bool olmo3_takes(const mlx_source_t *source) {
  return mlx_gguf_says(source, ".attention.sliding_window");
}

static mlx_status_t olmo3_read_config(const mlx_source_t *source, mlx_config_t *c) {
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_SILU, &c->act));
  MLX_TRY(mlx_read_sizes(source, NULL, false, c));
  MLX_TRY(mlx_read_eps(source, "rms_norm_eps", ".attention.layer_norm_rms_epsilon", c));
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
    .takes = olmo3_takes,
    MLX_TENSORS(olmo3_tensors),
    .read_config = olmo3_read_config,
    .forward = mlx_olmo2_forward,
    .head = mlx_block_head,
};
