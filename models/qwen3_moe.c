// Qwen3 with a mixture of experts instead of the MLP.
#include "models/shared/blocks.h"

static const mlx_tensor_rule_t qwen3_moe_tensors[] = {
    MLX_RULE_EMBED,
    MLX_LAYER_NORM("input_layernorm", "attn_norm"),
    MLX_RULES_ATTENTION(MLX_ROWS_AS_STORED),
    MLX_RULES_HEAD_QK_NORM(),
    MLX_LAYER_NORM("post_attention_layernorm", "ffn_norm"),
    MLX_RULES_EXPERTS(MLX_DIM(expert_ffn)),
    MLX_RULE_FINAL_NORM(),
    MLX_RULE_HEAD,
};

static mlx_status_t qwen3_moe_read_config(const mlx_source_t *source, mlx_config_t *c) {
  MLX_TRY(mlx_require_experts_everywhere(source));
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_SILU, &c->act));
  MLX_TRY(mlx_read_sizes(source, &(mlx_size_names_t){.default_kv_heads = 4}, false, c));
  MLX_TRY(mlx_read_rms_eps(source, c));
  MLX_TRY(mlx_read_expert_counts(source, c));
  MLX_TRY(mlx_source_int(source, "moe_intermediate_size", ".expert_feed_forward_length", 1, 1 << 20,
                         &c->expert_ffn, NULL));
  MLX_TRY(mlx_read_expert_weights(source, mlx_source_is_gguf(source), c));
  c->qk_norm = true;
  MLX_TRY(mlx_read_attention_bias(source, "attention_bias", false, c));
  MLX_TRY(mlx_read_qwen_windows(source, c));
  return mlx_read_rope(source, &(mlx_rope_fields_t){0}, c, &c->rope);
}

static mlx_value_t qwen3_moe_layer(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x) {
  mlx_op_scope(g, "layer%d", layer);
  mlx_value_t h = mlx_op_rmsnorm(g, "attn_in", x, MLX_W("input_layernorm"), c->norm_eps);
  x = mlx_op_add(g, "after_attn", x, mlx_block_attention(g, c, layer, h));
  h = mlx_op_rmsnorm(g, "mlp_in", x, MLX_W("post_attention_layernorm"), c->norm_eps);
  return mlx_op_add(g, "out", x, mlx_block_experts(g, c, layer, h));
}

static const char *const qwen3_moe_types[] = {"qwen3_moe", NULL};
static const char *const qwen3_moe_gguf_types[] = {"qwen3moe", NULL};

const mlx_arch_t mlx_arch_qwen3_moe = {
    .hf_types = qwen3_moe_types,
    .gguf_types = qwen3_moe_gguf_types,
    MLX_TENSORS(qwen3_moe_tensors),
    .read_config = qwen3_moe_read_config,
    .layer = qwen3_moe_layer,
};
