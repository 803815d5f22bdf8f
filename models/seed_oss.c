// Seed-OSS: Llama with biases of q, k and v.
#include "models/shared/blocks.h"

static const mlx_tensor_rule_t seed_oss_tensors[] = {
    MLX_RULE_EMBED,
    MLX_LAYER_NORM("input_layernorm", "attn_norm"),
    MLX_RULES_ATTENTION(MLX_ROWS_AS_STORED),
    MLX_LAYER_NORM("post_attention_layernorm", "post_attention_norm"),
    MLX_RULES_GATED_MLP,
    MLX_RULE_FINAL_NORM(),
    MLX_RULE_HEAD,
};

static mlx_status_t seed_oss_read_config(const mlx_source_t *source, mlx_config_t *c) {
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_SILU, &c->act));
  MLX_TRY(
      mlx_read_sizes(source, &(mlx_size_names_t){.default_head_dim = 128, .default_kv_heads = 8}, false, c));
  MLX_TRY(mlx_read_rms_eps(source, c));
  MLX_TRY(mlx_read_flag(source, "attention_bias", "blk.0.attn_q.bias", true, &c->q_bias));
  c->kv_bias = c->q_bias;
  MLX_TRY(mlx_read_flag(source, "attention_out_bias", "blk.0.attn_output.bias", false, &c->o_bias));
  MLX_TRY(mlx_read_flag(source, "mlp_bias", "blk.0.ffn_up.bias", false, &c->mlp_bias));
  return mlx_read_rope(source, &(mlx_rope_fields_t){0}, c, &c->rope);
}

static const char *const seed_oss_types[] = {"seed_oss", NULL};

const mlx_arch_t mlx_arch_seed_oss = {
    .hf_types = seed_oss_types,
    .gguf_types = seed_oss_types,
    MLX_TENSORS(seed_oss_tensors),
    .read_config = seed_oss_read_config,
    .layer = mlx_llama_layer,
};
