// Qwen2 with a mixture of experts instead of the MLP, and a shared expert for every token, weighted by a
// sigmoid gate.
#include "models/shared/blocks.h"

static const mlx_tensor_rule_t qwen2_moe_tensors[] = {
    MLX_RULE_EMBED,
    MLX_LAYER_NORM("input_layernorm", "attn_norm"),
    MLX_RULES_ATTENTION(MLX_ROWS_AS_STORED),
    MLX_LAYER_NORM("post_attention_layernorm", "ffn_norm"),
    MLX_RULES_EXPERTS(MLX_DIM(expert_ffn)),
    MLX_RULES_SHARED_EXPERT,
    MLX_RULE_FINAL_NORM(),
    MLX_RULE_HEAD,
};

static mlx_status_t qwen2_moe_read_config(const mlx_source_t *source, mlx_config_t *c) {
  MLX_TRY(mlx_require_experts_everywhere(source));
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_SILU, &c->act));
  MLX_TRY(mlx_read_sizes(source, &(mlx_size_names_t){.default_kv_heads = 16}, false, c));
  MLX_TRY(mlx_read_rms_eps(source, c));
  MLX_TRY(mlx_read_shared_experts(source, false, c));
  MLX_TRY(mlx_read_flag(source, "qkv_bias", "blk.0.attn_q.bias", true, &c->q_bias));
  c->kv_bias = c->q_bias;
  MLX_TRY(mlx_read_qwen_windows(source, c));
  return mlx_read_rope(source, &(mlx_rope_fields_t){0}, c, &c->rope);
}

static mlx_value_t qwen2_moe_layer(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x) {
  mlx_op_scope(g, "layer%d", layer);
  mlx_value_t h = mlx_op_rmsnorm(g, "attn_in", x, MLX_W("input_layernorm"), c->norm_eps);
  x = mlx_op_add(g, "after_attn", x, mlx_block_attention(g, c, layer, h));
  h = mlx_op_rmsnorm(g, "mlp_in", x, MLX_W("post_attention_layernorm"), c->norm_eps);
  return mlx_op_add(g, "out", x, mlx_block_shared_experts(g, c, layer, h));
}

static const char *const qwen2_moe_types[] = {"qwen2_moe", NULL};
static const char *const qwen2_moe_gguf_types[] = {"qwen2moe", NULL};

const mlx_arch_t mlx_arch_qwen2_moe = {
    .hf_types = qwen2_moe_types,
    .gguf_types = qwen2_moe_gguf_types,
    MLX_TENSORS(qwen2_moe_tensors),
    .read_config = qwen2_moe_read_config,
    .layer = qwen2_moe_layer,
};
