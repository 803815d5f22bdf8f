// BitNet b1.58: Llama with a norm before the output projection of attention, and one before that of the MLP.
// The weights of llama.cpp's files are ternary numbers times a scale, and their activation is SiLU.
// Directories whose quantization_config asks for 8-bit activations are refused.
#include "models/shared/blocks.h"

static const mlx_tensor_rule_t bitnet_tensors[] = {
    MLX_RULE_EMBED,
    MLX_LAYER_NORM("input_layernorm", "attn_norm"),
    MLX_RULES_ATTENTION(MLX_ROWS_AS_STORED),
    MLX_LAYER_VECTOR("self_attn.attn_sub_norm.weight", "attn_sub_norm.weight", MLX_HEADS(heads)),
    MLX_LAYER_NORM("post_attention_layernorm", "ffn_norm"),
    MLX_RULES_GATED_MLP,
    MLX_LAYER_VECTOR("mlp.ffn_sub_norm.weight", "ffn_sub_norm.weight", MLX_DIM(ffn)),
    MLX_RULE_FINAL_NORM(),
    MLX_RULE_HEAD,
};

static mlx_status_t bitnet_read_config(const mlx_source_t *source, mlx_config_t *c) {
  MLX_TRY(
      mlx_read_act(source, "hidden_act", mlx_source_is_gguf(source) ? MLX_ACT_SILU : MLX_ACT_RELU2, &c->act));
  MLX_TRY(mlx_read_sizes(source, &(mlx_size_names_t){.default_kv_heads = 5}, false, c));
  MLX_TRY(mlx_read_rms_eps(source, c));
  MLX_TRY(mlx_read_attention_bias(source, "attention_bias", false, c));
  return mlx_read_rope(source, &(mlx_rope_fields_t){.default_theta = 500000.0}, c, &c->rope);
}

static mlx_value_t attention(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h) {
  const mlx_attention_t a = mlx_attention_of(c, layer);
  mlx_qkv_t p = mlx_block_qkv(g, c, layer, h);
  p.q = mlx_op_rope(g, "q_rope", p.q, c->head_dim, &c->rope);
  p.k = mlx_op_rope(g, "k_rope", p.k, c->head_dim, &c->rope);
  h = mlx_op_attention(g, &a, p.q, p.k, p.v);  // [M, heads * head_dim]
  h = mlx_op_rmsnorm(g, "attended_normed", h, MLX_W("self_attn.attn_sub_norm"), c->norm_eps);
  return mlx_block_output(g, c, layer, h);
}

static mlx_value_t mlp(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h) {
  mlx_value_t gate = mlx_op_linear(g, "gate", h, MLX_W("mlp.gate_proj"));  // [M, ffn]
  mlx_value_t up = mlx_op_linear(g, "up", h, MLX_W("mlp.up_proj"));
  h = mlx_op_gated(g, "act", c->act, gate, up);
  h = mlx_op_rmsnorm(g, "inner_normed", h, MLX_W("mlp.ffn_sub_norm"), c->norm_eps);
  return mlx_op_linear(g, "down", h, MLX_W("mlp.down_proj"));
}

static mlx_value_t bitnet_layer(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x) {
  mlx_op_scope(g, "layer%d", layer);
  mlx_value_t h = mlx_op_rmsnorm(g, "attn_in", x, MLX_W("input_layernorm"), c->norm_eps);
  x = mlx_op_add(g, "after_attn", x, attention(g, c, layer, h));
  h = mlx_op_rmsnorm(g, "mlp_in", x, MLX_W("post_attention_layernorm"), c->norm_eps);
  return mlx_op_add(g, "out", x, mlp(g, c, layer, h));
}

static const char *const bitnet_types[] = {"bitnet", NULL};

const mlx_arch_t mlx_arch_bitnet = {
    .hf_types = bitnet_types,
    .gguf_types = bitnet_types,
    MLX_TENSORS(bitnet_tensors),
    .read_config = bitnet_read_config,
    .layer = bitnet_layer,
};
