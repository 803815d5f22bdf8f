// Hunyuan dense models: Llama with head norms of q and k after the rope.
#include "models/shared/blocks.h"

static const mlx_tensor_rule_t hunyuan_v1_dense_tensors[] = {
    MLX_RULE_EMBED,
    MLX_LAYER_NORM("input_layernorm", "attn_norm"),
    MLX_RULES_ATTENTION(MLX_ROWS_AS_STORED),
    MLX_LAYER_VECTOR("self_attn.query_layernorm.weight", "attn_q_norm.weight", MLX_DIM(head_dim)),
    MLX_LAYER_VECTOR("self_attn.key_layernorm.weight", "attn_k_norm.weight", MLX_DIM(head_dim)),
    MLX_LAYER_NORM("post_attention_layernorm", "ffn_norm"),
    MLX_RULES_GATED_MLP,
    MLX_RULE_FINAL_NORM(),
    MLX_RULE_HEAD,
};

static mlx_status_t hunyuan_v1_dense_read_config(const mlx_source_t *source, mlx_config_t *c) {
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_SILU, &c->act));
  MLX_TRY(mlx_read_sizes(source, NULL, false, c));
  MLX_TRY(mlx_read_rms_eps(source, c));
  MLX_TRY(mlx_read_attention_bias(source, "attention_bias", false, c));
  return mlx_read_rope(source, &(mlx_rope_fields_t){.alpha = "alpha"}, c, &c->rope);
}

mlx_value_t mlx_hunyuan_attention(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h) {
  const mlx_attention_t attention = mlx_attention_of(c, layer);
  mlx_qkv_t p = mlx_block_qkv(g, c, layer, h);
  p.q = mlx_op_rope(g, "q_rope", p.q, c->head_dim, &c->rope);
  p.k = mlx_op_rope(g, "k_rope", p.k, c->head_dim, &c->rope);
  p.q = mlx_op_head_rmsnorm(g, "q_normed", p.q, c->head_dim, MLX_W("self_attn.query_layernorm"), c->norm_eps);
  p.k = mlx_op_head_rmsnorm(g, "k_normed", p.k, c->head_dim, MLX_W("self_attn.key_layernorm"), c->norm_eps);
  h = mlx_op_attention(g, &attention, p.q, p.k, p.v);
  return mlx_block_output(g, c, layer, h);
}

static mlx_value_t hunyuan_v1_dense_layer(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x) {
  mlx_op_scope(g, "layer%d", layer);
  mlx_value_t h = mlx_op_rmsnorm(g, "attn_in", x, MLX_W("input_layernorm"), c->norm_eps);
  x = mlx_op_add(g, "after_attn", x, mlx_hunyuan_attention(g, c, layer, h));
  h = mlx_op_rmsnorm(g, "mlp_in", x, MLX_W("post_attention_layernorm"), c->norm_eps);
  return mlx_op_add(g, "out", x, mlx_block_gated_mlp(g, c, layer, h));
}

static const char *const hunyuan_v1_dense_types[] = {"hunyuan_v1_dense", NULL};
static const char *const hunyuan_v1_dense_gguf_types[] = {"hunyuan-dense", NULL};

const mlx_arch_t mlx_arch_hunyuan_v1_dense = {
    .hf_types = hunyuan_v1_dense_types,
    .gguf_types = hunyuan_v1_dense_gguf_types,
    MLX_TENSORS(hunyuan_v1_dense_tensors),
    .read_config = hunyuan_v1_dense_read_config,
    .layer = hunyuan_v1_dense_layer,
};
