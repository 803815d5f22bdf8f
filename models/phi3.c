// Phi-3 and Phi-4: Llama with fused q, k and v, fused gate and up, and longrope for long contexts.
#include "models/shared/blocks.h"

#include <string.h>

static const mlx_tensor_rule_t phi3_tensors[] = {
    MLX_RULE_EMBED,
    MLX_LAYER_NORM("input_layernorm", "attn_norm"),
    MLX_LAYER_MATRIX("self_attn.qkv_proj.weight", "attn_qkv.weight", MLX_DIM(qkv_width), MLX_DIM(hidden)),
    MLX_LAYER_MATRIX("self_attn.o_proj.weight", "attn_output.weight", MLX_DIM(hidden), MLX_HEADS(heads)),
    MLX_LAYER_NORM("post_attention_layernorm", "ffn_norm"),
    MLX_RULES_FUSED_GATED_MLP,
    MLX_RULE_FINAL_NORM(),
    MLX_RULE_HEAD,
};

// Hugging Face's Phi-3 class does not implement yarn as other classes do. GGUF files have no scaling type,
// only two tensors of factors.
static mlx_status_t refuse_yarn(const mlx_source_t *source) {
  const char *type = "";
  bool found;
  MLX_TRY(mlx_source_string(source, "rope_scaling.type", NULL, &type, &found));
  if (strcmp(type, "yarn")) return NULL;
  return mlx_source_field_error(source, "rope_scaling.type", NULL, MLX_UNSUPPORTED,
                                "is 'yarn', which is not supported for Phi-3");
}

static mlx_status_t phi3_read_config(const mlx_source_t *source, mlx_config_t *c) {
  MLX_TRY(refuse_yarn(source));
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_SILU, &c->act));
  MLX_TRY(mlx_read_sizes(source, NULL, false, c));
  MLX_TRY(mlx_read_rms_eps(source, c));
  MLX_TRY(mlx_read_windows(source, 0, 0, c));
  return mlx_read_rope(source, &(mlx_rope_fields_t){.partial = "partial_rotary_factor"}, c, &c->rope);
}

static mlx_value_t phi3_attention(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h) {
  const int64_t queries = c->heads * c->head_dim, keys = c->kv_heads * c->head_dim;
  const mlx_rope_t *rope = mlx_rope_of(g, c, layer);
  const mlx_attention_t attention = mlx_attention_of(c, layer);
  mlx_value_t qkv =
      mlx_op_linear(g, "qkv", h, MLX_W("self_attn.qkv_proj"));  // [M, (heads + 2 kv_heads) * head_dim]
  mlx_value_t q = mlx_op_columns(g, "q", qkv, 0, queries);
  mlx_value_t k = mlx_op_columns(g, "k", qkv, queries, keys);
  mlx_value_t v = mlx_op_columns(g, "v", qkv, queries + keys, keys);
  q = mlx_op_rope(g, "q_rope", q, c->head_dim, rope);
  k = mlx_op_rope(g, "k_rope", k, c->head_dim, rope);
  h = mlx_op_attention(g, &attention, q, k, v);
  return mlx_op_linear(g, "o", h, MLX_W("self_attn.o_proj"));
}

static mlx_value_t phi3_layer(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x) {
  mlx_op_scope(g, "layer%d", layer);
  mlx_value_t h = mlx_op_rmsnorm(g, "attn_in", x, MLX_W("input_layernorm"), c->norm_eps);
  x = mlx_op_add(g, "after_attn", x, phi3_attention(g, c, layer, h));
  h = mlx_op_rmsnorm(g, "mlp_in", x, MLX_W("post_attention_layernorm"), c->norm_eps);
  return mlx_op_add(g, "out", x, mlx_block_fused_gated_mlp(g, c, layer, h));
}

static const char *const phi3_types[] = {"phi3", NULL};

const mlx_arch_t mlx_arch_phi3 = {
    .hf_types = phi3_types,
    .gguf_types = phi3_types,
    MLX_TENSORS(phi3_tensors),
    .read_config = phi3_read_config,
    .layer = phi3_layer,
};
