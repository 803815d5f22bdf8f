// ERNIE 4.5: Llama whose positions turn neighbouring elements.
#include "models/shared/blocks.h"

static const mlx_tensor_rule_t ernie4_5_tensors[] = {
    MLX_RULE_EMBED,
    MLX_LAYER_NORM("input_layernorm", "attn_norm"),
    MLX_RULES_ATTENTION(MLX_ROWS_AS_STORED),
    MLX_LAYER_NORM("post_attention_layernorm", "ffn_norm"),
    MLX_RULES_GATED_MLP,
    MLX_RULE_FINAL_NORM(),
    MLX_RULE_HEAD,
};

static mlx_status_t ernie4_5_read_config(const mlx_source_t *source, mlx_config_t *c) {
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_SILU, &c->act));
  MLX_TRY(
      mlx_read_sizes(source, &(mlx_size_names_t){.default_head_dim = 128, .default_kv_heads = 2}, true, c));
  MLX_TRY(mlx_read_eps(source, "rms_norm_eps", ".attention.layer_norm_rms_epsilon", c));
  MLX_TRY(mlx_read_attention_bias(source, "use_bias", false, c));
  MLX_TRY(mlx_read_switch(source, "use_bias", "blk.0.ffn_up.bias", false, &c->mlp_bias));
  return mlx_read_rope(source, &(mlx_rope_fields_t){.default_theta = 500000.0, .adjacent = true}, c,
                       &c->rope);
}

static const char *const ernie4_5_types[] = {"ernie4_5", NULL};

const mlx_arch_t mlx_arch_ernie4_5 = {
    .hf_types = ernie4_5_types,
    .gguf_types = ernie4_5_types,
    MLX_TENSORS(ernie4_5_tensors),
    .read_config = ernie4_5_read_config,
    .forward = mlx_llama_forward,
    .head = mlx_block_head,
};
