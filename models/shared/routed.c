// MLPs with a router; see routed.h.
#include "models/shared/routed.h"

#include <string.h>

bool mlx_has_choice_bias(const mlx_config_t *c) { return c->choice_bias; }
bool mlx_has_shared_expert(const mlx_config_t *c) { return c->shared_ffn > 0; }
bool mlx_has_shared_bias(const mlx_config_t *c) { return c->shared_ffn > 0 && c->mlp_bias; }

static const char *or_usual(const char *name, const char *usual) { return name ? name : usual; }

// The dense layers of mlp_layer_types, which transformers 5 writes, must be the first ones.
static mlx_status_t read_mlp_types(const mlx_source_t *source, mlx_config_t *c) {
  const char *key = "mlp_layer_types", *type;
  const size_t listed = mlx_source_array_length(source, key, NULL);
  if (!listed) return NULL;
  if (listed != (size_t)c->layers)
    return mlx_source_field_error(source, key, NULL, MLX_INVALID_INPUT,
                                  "must have one entry for each of the %lld layers", (long long)c->layers);
  c->dense_layers = 0;
  for (size_t i = 0; i < listed; ++i) {
    MLX_TRY(mlx_source_string_at(source, key, i, &type));
    const bool dense = !strcmp(type, "dense");
    if (!dense && strcmp(type, "sparse"))
      return mlx_source_field_error(source, key, NULL, MLX_UNSUPPORTED, "has '%s', an unsupported layer type",
                                    type);
    if (dense && c->dense_layers != (int64_t)i)
      return mlx_source_field_error(source, key, NULL, MLX_UNSUPPORTED,
                                    "has a dense layer after one with experts, which is not supported");
    c->dense_layers += dense;
  }
  return NULL;
}

static mlx_status_t read_groups(const mlx_source_t *source, const mlx_routed_fields_t *f, mlx_config_t *c) {
  const bool defaults = f->default_groups && !mlx_source_is_gguf(source);
  bool found;
  c->expert_groups = defaults ? f->default_groups : 1;
  c->expert_groups_used = defaults ? f->default_groups_used : 1;
  MLX_TRY(mlx_source_int(source, "n_group", ".expert_group_count", 0, 4096, &c->expert_groups, &found));
  MLX_TRY(mlx_source_int(source, "topk_group", ".expert_group_used_count", 0, 4096, &c->expert_groups_used,
                         &found));
  if (c->expert_groups <= 1) return NULL;
  const int64_t size = c->experts / c->expert_groups;
  if (c->experts % c->expert_groups || size < 2)
    return mlx_source_field_error(source, "n_group", ".expert_group_count", MLX_INVALID_INPUT,
                                  "is %lld, but %lld experts must be in equal groups of at least two",
                                  (long long)c->expert_groups, (long long)c->experts);
  if (c->expert_groups_used >= 1 && c->expert_groups_used <= c->expert_groups &&
      c->experts_used <= size * c->expert_groups_used)
    return NULL;
  return mlx_source_field_error(source, "topk_group", ".expert_group_used_count", MLX_INVALID_INPUT,
                                "is %lld; a token uses %lld experts of %lld groups of %lld",
                                (long long)c->expert_groups_used, (long long)c->experts_used,
                                (long long)c->expert_groups, (long long)size);
}

// The scale and the norm of the weights, and which function of the scores they are.
static mlx_status_t read_weights(const mlx_source_t *source, const mlx_routed_fields_t *f, mlx_config_t *c) {
  const int64_t supported = c->sigmoid_scores ? 2 : 1;
  int64_t gating = supported;
  bool found;
  c->experts_sum_to_one = f->default_sum;
  c->expert_scale = f->default_scale != 0.0 && !mlx_source_is_gguf(source) ? f->default_scale : 1.0;
  MLX_TRY(mlx_source_bool(source, or_usual(f->sum_to_one, "norm_topk_prob"), ".expert_weights_norm",
                          &c->experts_sum_to_one, &found));
  MLX_TRY(mlx_source_number(source, or_usual(f->scale, "routed_scaling_factor"), ".expert_weights_scale",
                            &c->expert_scale, &found));
  MLX_TRY(mlx_source_int(source, NULL, ".expert_gating_func", 0, 1 << 20, &gating, &found));
  if (gating == supported || !gating) return NULL;
  return mlx_source_field_error(source, NULL, ".expert_gating_func", MLX_UNSUPPORTED,
                                "is %lld; only %lld (%s) is supported", (long long)gating,
                                (long long)supported, c->sigmoid_scores ? "sigmoid" : "softmax");
}

mlx_status_t mlx_read_routed(const mlx_source_t *source, const mlx_routed_fields_t *f, mlx_config_t *c) {
  int64_t shared = 0;
  bool found;
  MLX_TRY(mlx_source_int(source, or_usual(f->experts, "n_routed_experts"), ".expert_count", 1, 4096,
                         &c->experts, NULL));
  MLX_TRY(mlx_source_int(source, or_usual(f->used, "num_experts_per_tok"), ".expert_used_count", 1, 64,
                         &c->experts_used, NULL));
  MLX_TRY(mlx_source_int(source, or_usual(f->width, "moe_intermediate_size"), ".expert_feed_forward_length",
                         1, 1 << 20, &c->expert_ffn, NULL));
  MLX_TRY(mlx_source_int(source, or_usual(f->shared, "n_shared_experts"), ".expert_shared_count", 0, 64,
                         &shared, NULL));
  c->shared_ffn = shared * c->expert_ffn;
  MLX_TRY(
      mlx_source_int(source, NULL, ".expert_shared_feed_forward_length", 0, 1 << 20, &c->shared_ffn, &found));
  c->dense_layers = mlx_source_is_gguf(source) ? 0 : f->default_dense;
  MLX_TRY(mlx_source_int(source, or_usual(f->dense, "first_k_dense_replace"), ".leading_dense_block_count", 0,
                         MLX_MAX_LAYERS, &c->dense_layers, &found));
  if (c->dense_layers > c->layers) c->dense_layers = c->layers;
  MLX_TRY(read_mlp_types(source, c));
  MLX_TRY(read_groups(source, f, c));
  return read_weights(source, f, c);
}

mlx_status_t mlx_read_draft_layers(const mlx_source_t *source, int64_t fallback, mlx_config_t *c) {
  const bool gguf = mlx_source_is_gguf(source);
  bool found;
  c->draft_layers = gguf ? 0 : fallback;
  MLX_TRY(mlx_source_int(source, "num_nextn_predict_layers", ".nextn_predict_layers", 0,
                         gguf ? c->layers - 1 : MLX_MAX_LAYERS, &c->draft_layers, &found));
  if (gguf) c->layers -= c->draft_layers;
  return NULL;
}

static mlx_value_t shared_expert(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h) {
  const bool bias = c->mlp_bias;
  mlx_value_t gate = mlx_op_linear_bias(g, "shared_gate", h, MLX_W("mlp.shared_experts.gate_proj"),
                                        MLX_B("mlp.shared_experts.gate_proj", bias));  // [M, shared_ffn]
  mlx_value_t up = mlx_op_linear_bias(g, "shared_up", h, MLX_W("mlp.shared_experts.up_proj"),
                                      MLX_B("mlp.shared_experts.up_proj", bias));
  h = mlx_op_gated(g, "shared_act", c->act, gate, up);
  return mlx_op_linear_bias(g, "shared_down", h, MLX_W("mlp.shared_experts.down_proj"),
                            MLX_B("mlp.shared_experts.down_proj", bias));
}

mlx_value_t mlx_block_routed_mlp(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h) {
  if (layer < c->dense_layers) return mlx_block_gated_mlp(g, c, layer, h);
  mlx_value_t routed = mlx_block_experts(g, c, layer, h);
  return c->shared_ffn ? mlx_op_add(g, "mlp", routed, shared_expert(g, c, layer, h)) : routed;
}

mlx_value_t mlx_routed_layer(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x) {
  mlx_op_scope(g, "layer%d", layer);
  mlx_value_t h = mlx_op_rmsnorm(g, "attn_in", x, MLX_W("input_layernorm"), c->norm_eps);
  x = mlx_op_add(g, "after_attn", x, mlx_block_attention(g, c, layer, h));
  h = mlx_op_rmsnorm(g, "mlp_in", x, MLX_W("post_attention_layernorm"), c->norm_eps);
  return mlx_op_add(g, "out", x, mlx_block_routed_mlp(g, c, layer, h));
}
