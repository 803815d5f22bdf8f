// Command A+: Command R7B with experts after the first layers. Scores of the chosen experts become weights by
// a softmax or by sigmoids.
#include <string.h>

#include "models/shared/routed.h"

static const mlx_tensor_rule_t cohere2_moe_tensors[] = {
    MLX_RULE_EMBED,
    MLX_LAYER_NORM("input_layernorm", "attn_norm"),
    MLX_RULES_ATTENTION(MLX_ROWS_AS_STORED),
    MLX_RULES_ROUTED_MLP("mlp.gate.weight", "", "mlp.shared_experts."),
    MLX_RULE_FINAL_NORM(),
    MLX_RULE_HEAD,
};

// |key|, which must be |first| or |second|. *|out|: whether it is |second|. |fallback| if it is missing.
static mlx_status_t read_choice(const mlx_source_t *source, const char *key, const char *first,
                                const char *second, bool fallback, bool *out) {
  const char *text;
  bool found;
  *out = fallback;
  MLX_TRY(mlx_source_string(source, key, NULL, &text, &found));
  if (!found) return NULL;
  *out = !strcmp(text, second);
  if (*out || !strcmp(text, first)) return NULL;
  return mlx_source_field_error(source, key, NULL, MLX_UNSUPPORTED, "is '%s'; '%s' and '%s' are supported",
                                text, first, second);
}

// intermediate_size is the width of an expert.
static mlx_status_t read_experts(const mlx_source_t *source, mlx_config_t *c) {
  const mlx_routed_fields_t routed = {.experts = "num_experts",
                                      .width = "intermediate_size",
                                      .shared = "num_shared_experts",
                                      .default_sum = true};
  bool average;
  MLX_TRY(read_choice(source, "expert_selection_fn", "softmax", "sigmoid", false, &c->sigmoid_scores));
  MLX_TRY(mlx_read_routed(source, &routed, c));
  if (!c->sigmoid_scores) c->experts_sum_to_one = true;  // the softmax is over the chosen experts
  MLX_TRY(read_choice(source, "shared_expert_combination_strategy", "sum", "average", true, &average));
  c->residual_scale = average && c->shared_ffn ? 0.5 : 1.0;
  if (!c->dense_layers) return NULL;
  return mlx_source_int(source, "prefix_dense_intermediate_size", NULL, 1, 1 << 20, &c->ffn, NULL);
}

// Layers with full attention have no rope, except dense ones if all dense layers have full attention.
static mlx_status_t read_layers(const mlx_source_t *source, mlx_config_t *c) {
  int64_t every = 4, dense_every = 1, dense = 0;
  bool found;
  MLX_TRY(mlx_source_int(source, "sliding_window_pattern", NULL, 1, 1 << 20, &every, &found));
  MLX_TRY(
      mlx_source_int(source, "prefix_dense_sliding_window_pattern", NULL, 1, 1 << 20, &dense_every, &found));
  MLX_TRY(mlx_source_int(source, "first_k_dense_replace", NULL, 0, c->layers, &dense, &found));
  MLX_TRY(mlx_read_windows(source, every, 4096, c));
  const bool listed = mlx_source_has(source, "layer_types", NULL);
  for (int64_t i = 0; i < c->layers; ++i) {
    const int64_t nth = i < dense ? i : i - dense;
    if (!listed) c->windowed[i] = c->window && (nth + 1) % (i < dense ? dense_every : every) != 0;
    c->no_rope[i] = !c->windowed[i] && !(i < c->dense_layers && dense_every == 1);
  }
  return NULL;
}

static mlx_status_t cohere2_moe_read_config(const mlx_source_t *source, mlx_config_t *c) {
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_SILU, &c->act));
  MLX_TRY(mlx_read_sizes(source, &(mlx_size_names_t){.default_head_dim = 128}, true, c));
  c->norm_centered = !mlx_source_has(source, "rms_norm_eps", NULL);
  MLX_TRY(mlx_read_eps(source, c->norm_centered ? "layer_norm_eps" : "rms_norm_eps", NULL, c));
  MLX_TRY(mlx_read_attention_bias(source, "attention_bias", false, c));
  MLX_TRY(mlx_source_number(source, "logit_scale", NULL, &c->logit_scale, NULL));
  MLX_TRY(read_experts(source, c));
  MLX_TRY(read_layers(source, c));
  return mlx_read_rope(source, &(mlx_rope_fields_t){.adjacent = true}, c, &c->rope);
}

static mlx_value_t norm(mlx_graph_t *g, const mlx_config_t *c, const char *name, mlx_value_t x,
                        mlx_value_t weight) {
  return c->norm_centered ? mlx_op_layernorm(g, name, x, weight, MLX_NONE, c->norm_eps)
                          : mlx_op_rmsnorm(g, name, x, weight, c->norm_eps);
}

static mlx_value_t cohere2_moe_layer(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x) {
  mlx_op_scope(g, "layer%d", layer);
  mlx_value_t h = norm(g, c, "in", x, MLX_W("input_layernorm"));
  mlx_value_t attended = mlx_block_attention(g, c, layer, h);
  h = mlx_block_routed_mlp(g, c, layer, h);
  if (layer >= c->dense_layers) h = mlx_op_scale(g, "mlp_scaled", h, c->residual_scale);
  x = mlx_op_add(g, "after_attn", x, attended);
  return mlx_op_add(g, "out", x, h);
}

static mlx_value_t cohere2_moe_forward(mlx_graph_t *g, const mlx_model_t *model, mlx_value_t tokens) {
  const mlx_config_t *c = &model->config;
  mlx_value_t x = mlx_block_embed(g, c, tokens);  // [M, hidden]
  for (int layer = 0; layer < c->layers; ++layer) x = cohere2_moe_layer(g, c, layer, x);
  mlx_op_scope(g, "%s", "");
  return norm(g, c, "final", x, mlx_op_weight(g, "model.norm.weight"));
}

static const char *const cohere2_moe_types[] = {"cohere2_moe", NULL};
static const char *const cohere2_moe_gguf_types[] = {NULL};

const mlx_arch_t mlx_arch_cohere2_moe = {
    .hf_types = cohere2_moe_types,
    .gguf_types = cohere2_moe_gguf_types,
    MLX_TENSORS(cohere2_moe_tensors),
    .read_config = cohere2_moe_read_config,
    .forward = cohere2_moe_forward,
};
