// Hunyuan A13B: Hunyuan's dense network with experts and an expert that every token uses, of one width.
#include "models/shared/routed.h"

static const mlx_tensor_rule_t hunyuan_v1_moe_tensors[] = {
    MLX_RULE_EMBED,
    MLX_LAYER_NORM("input_layernorm", "attn_norm"),
    MLX_RULES_ATTENTION(MLX_ROWS_AS_STORED),
    MLX_LAYER_VECTOR("self_attn.query_layernorm.weight", "attn_q_norm.weight", MLX_DIM(head_dim)),
    MLX_LAYER_VECTOR("self_attn.key_layernorm.weight", "attn_k_norm.weight", MLX_DIM(head_dim)),
    MLX_LAYER_NORM("post_attention_layernorm", "ffn_norm"),
    MLX_RULES_ROUTED_MLP("mlp.gate.wg.weight", "", "mlp.shared_mlp."),
    MLX_RULE_FINAL_NORM(),
    MLX_RULE_HEAD,
};

// The field |key|: a number, or a list of one number per layer, of which all must be equal.
static mlx_status_t read_count(const mlx_source_t *source, const char *key, const char *gguf_key,
                               int64_t *out) {
  const size_t listed = mlx_source_array_length(source, key, NULL);
  double first = 0, number;
  if (!listed) return mlx_source_int(source, key, gguf_key, 1, 1 << 20, out, NULL);
  for (size_t i = 0; i < listed; ++i) {
    MLX_TRY(mlx_source_number_at(source, key, NULL, i, &number));
    if (!i) first = number;
    if (number != first || number < 1 || number > 1 << 20)
      return mlx_source_field_error(source, key, NULL, MLX_UNSUPPORTED,
                                    "has different numbers, which is not supported");
  }
  *out = (int64_t)first;
  return NULL;
}

// transformers has one width, intermediate_size; the published files name that of the experts, too.
static mlx_status_t read_experts(const mlx_source_t *source, mlx_config_t *c) {
  int64_t shared = 1, gating = 1;
  bool found;
  MLX_TRY(read_count(source, "num_experts", ".expert_count", &c->experts));
  MLX_TRY(read_count(source, "moe_topk", ".expert_used_count", &c->experts_used));
  c->expert_ffn = c->shared_ffn = c->ffn;
  MLX_TRY(mlx_source_int(source, NULL, ".expert_feed_forward_length", 1, 1 << 20, &c->expert_ffn, &found));
  MLX_TRY(
      mlx_source_int(source, NULL, ".expert_shared_feed_forward_length", 1, 1 << 20, &c->shared_ffn, &found));
  MLX_TRY(mlx_source_int(source, NULL, ".expert_shared_count", 1, 1, &shared, &found));
  MLX_TRY(mlx_source_int(source, NULL, ".expert_gating_func", 0, 1, &gating, &found));
  c->experts_sum_to_one = true;
  return NULL;
}

static mlx_status_t hunyuan_v1_moe_read_config(const mlx_source_t *source, mlx_config_t *c) {
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_SILU, &c->act));
  MLX_TRY(mlx_read_sizes(source, NULL, false, c));
  MLX_TRY(mlx_read_rms_eps(source, c));
  MLX_TRY(read_experts(source, c));
  MLX_TRY(mlx_read_attention_bias(source, "attention_bias", false, c));
  return mlx_read_rope(source, &(mlx_rope_fields_t){.alpha = "alpha"}, c, &c->rope);
}

static mlx_value_t hunyuan_v1_moe_layer(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x) {
  mlx_op_scope(g, "layer%d", layer);
  mlx_value_t h = mlx_op_rmsnorm(g, "attn_in", x, MLX_W("input_layernorm"), c->norm_eps);
  x = mlx_op_add(g, "after_attn", x, mlx_hunyuan_attention(g, c, layer, h));
  h = mlx_op_rmsnorm(g, "mlp_in", x, MLX_W("post_attention_layernorm"), c->norm_eps);
  return mlx_op_add(g, "out", x, mlx_block_routed_mlp(g, c, layer, h));
}

static const char *const hunyuan_v1_moe_types[] = {"hunyuan_v1_moe", NULL};
static const char *const hunyuan_v1_moe_gguf_types[] = {"hunyuan-moe", NULL};

const mlx_arch_t mlx_arch_hunyuan_v1_moe = {
    .hf_types = hunyuan_v1_moe_types,
    .gguf_types = hunyuan_v1_moe_gguf_types,
    MLX_TENSORS(hunyuan_v1_moe_tensors),
    .read_config = hunyuan_v1_moe_read_config,
    .layer = hunyuan_v1_moe_layer,
};
