// Qwen3.5: three layers with the gated delta rule (linear attention) to one with attention.
#include "models/shared/gated_delta.h"

static const mlx_tensor_rule_t qwen3_5_tensors[] = {
    MLX_RULE_EMBED,
    MLX_LAYER_NORM("input_layernorm", "attn_norm", MLX_PLUS_ONE),
    MLX_RULES_DELTA_PROJECTIONS,
    MLX_RULES_GATED_DELTA,
    MLX_RULES_GATED_ATTENTION,
    MLX_LAYER_NORM("post_attention_layernorm", "post_attention_norm", MLX_PLUS_ONE),
    MLX_RULES_GATED_MLP,
    MLX_RULE_FINAL_NORM(MLX_PLUS_ONE),
    MLX_RULE_HEAD,
};

static mlx_status_t qwen3_5_read_config(const mlx_source_t *source, mlx_config_t *c) {
  return mlx_read_gated_delta(source, 4, true, c);
}

static mlx_value_t qwen3_5_layer(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x) {
  x = mlx_block_gated_delta(g, c, layer, x);
  mlx_value_t h = mlx_op_rmsnorm(g, "mlp_in", x, MLX_W("post_attention_layernorm"), c->norm_eps);
  return mlx_op_add(g, "out", x, mlx_block_gated_mlp(g, c, layer, h));
}

// The draft layers (MTP) guess several tokens at once; decoding token by token does not use them.
static const char *const qwen3_5_unused[] = {"mtp.", NULL};
static const char *const qwen3_5_types[] = {"qwen3_5_text", NULL};
static const char *const qwen3_5_gguf_types[] = {"qwen35", NULL};

const mlx_arch_t mlx_arch_qwen3_5 = {
    .hf_types = qwen3_5_types,
    .gguf_types = qwen3_5_gguf_types,
    MLX_TENSORS(qwen3_5_tensors),
    .unused = qwen3_5_unused,
    .read_config = qwen3_5_read_config,
    .layer = qwen3_5_layer,
};
