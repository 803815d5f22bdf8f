// Muse Glimmer: norms before and after attention and MLP, queries and keys divided by their length, a sigmoid
// gate of the attention's output, and embeddings that are normalised. The layers without a window, which are
// every fourth one and the last, have no rope.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "models/shared/blocks.h"

static const mlx_tensor_rule_t muse_glimmer_tensors[] = {
    MLX_RULE_EMBED,
    MLX_LAYER_NORM("input_layernorm", "attn_norm", .hf_value_offset = 1.0),
    MLX_RULES_ATTENTION(MLX_ROWS_INTERLEAVED_HALVES),
    MLX_LAYER_MATRIX("self_attn.gate_proj.weight", "attn_gate.weight", MLX_HEADS(heads), MLX_DIM(hidden)),
    MLX_LAYER_NORM("post_attention_layernorm", "post_attention_norm", .hf_value_offset = 1.0),
    MLX_LAYER_NORM("pre_feedforward_layernorm", "ffn_norm", .hf_value_offset = 1.0),
    MLX_RULES_GATED_MLP,
    MLX_LAYER_NORM("post_feedforward_layernorm", "post_ffw_norm", .hf_value_offset = 1.0),
    MLX_RULE_FINAL_NORM(),
    MLX_RULE_HEAD,
};

// GGUF files have the factor of all queries as the weight of a norm, and a weight of ones for the keys.
static mlx_status_t read_norm(const mlx_source_t *source, const mlx_config_t *c, const char *part,
                              float *factor) {
  char name[64];
  for (int64_t i = 0; i < c->layers; ++i) {
    snprintf(name, sizeof name, "blk.%lld.%s.weight", (long long)i, part);
    const mlx_tensor_t *tensor = mlx_source_tensor(source, NULL, name);
    if (!tensor || tensor->dtype != MLX_F32 || tensor->rank != 1 || tensor->dims[0] != c->head_dim)
      return mlx_error(MLX_INVALID_INPUT, "%s: tensor '%s' must have %lld numbers in f32",
                       mlx_source_path(source), name, (long long)c->head_dim);
    for (int64_t k = 0; k < c->head_dim; ++k) {
      float value;
      memcpy(&value, (const char *)tensor->data + 4 * k, sizeof value);
      if (*factor == 0.0f) *factor = value;
      if (value != *factor || !isfinite(value))
        return mlx_error(MLX_UNSUPPORTED, "%s: tensor '%s' has %g, but all numbers must be %g",
                         mlx_source_path(source), name, (double)value, (double)*factor);
    }
  }
  return NULL;
}

static mlx_status_t read_query_scale(const mlx_source_t *source, mlx_config_t *c) {
  double scale = 3.87;
  bool found;
  if (mlx_source_is_gguf(source)) {
    float queries = 0.0f, keys = 1.0f;
    MLX_TRY(read_norm(source, c, "attn_q_norm", &queries));
    MLX_TRY(read_norm(source, c, "attn_k_norm", &keys));
    scale = queries;
  } else {
    MLX_TRY(mlx_source_number(source, "qk_scale_factor", NULL, &scale, &found));
  }
  // The factor of the queries is one of the scores; f32, as GGUF stores it.
  c->attention_scale *= (double)(float)scale;
  return NULL;
}

static mlx_status_t muse_glimmer_read_config(const mlx_source_t *source, mlx_config_t *c) {
  const bool gguf = mlx_source_is_gguf(source);
  mlx_rope_fields_t rope = {0};
  bool found;
  MLX_TRY(mlx_read_act(source, "hidden_activation", MLX_ACT_SILU, &c->act));
  MLX_TRY(
      mlx_read_sizes(source, &(mlx_size_names_t){.default_head_dim = 128, .default_kv_heads = 2}, false, c));
  c->norm_eps = 1e-5;
  MLX_TRY(mlx_read_rms_eps(source, c));
  MLX_TRY(mlx_read_number(source, "post_norm_eps", NULL, 1e-8, &c->post_norm_eps));
  MLX_TRY(mlx_read_attention_bias(source, "attention_bias", false, c));
  MLX_TRY(read_query_scale(source, c));
  c->logit_softcap = gguf ? 0.0 : 20.0;
  MLX_TRY(mlx_source_number(source, "final_logit_softcapping", ".final_logit_softcapping", &c->logit_softcap,
                            &found));
  MLX_TRY(mlx_read_number(source, "output_multiplier", ".logit_scale", 0.19611613513818404, &c->logit_scale));
  MLX_TRY(mlx_read_windows(source, 0, 2048, c));
  if (!mlx_source_has(source, "layer_types", NULL) &&
      !mlx_source_array_length(source, NULL, ".attention.sliding_window_pattern"))
    for (int64_t i = c->layers - 1; i >= 0; i -= 4) c->windowed[i] = false;
  for (int64_t i = 0; i < c->layers; ++i)
    c->no_rope[i] = gguf ? !c->windowed[i] : (c->layers - 1 - i) % 4 == 0;
  MLX_TRY(mlx_read_layer_ropes(source, c, &rope));
  return mlx_read_rope(source, &rope, c, &c->rope);
}

static mlx_value_t attention(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h) {
  const mlx_attention_t a = mlx_attention_of(c, layer);
  mlx_value_t gate = mlx_op_linear(g, "gate_in", h, MLX_W("self_attn.gate_proj"));  // [M, heads * head_dim]
  mlx_qkv_t p = mlx_block_qkv(g, c, layer, h);
  p.q = mlx_op_head_rmsnorm(g, "q_normed", p.q, c->head_dim, MLX_NONE, c->norm_eps);
  p.k = mlx_op_head_rmsnorm(g, "k_normed", p.k, c->head_dim, MLX_NONE, c->norm_eps);
  if (!c->no_rope[layer]) {
    p.q = mlx_op_rope(g, "q_rope", p.q, c->head_dim, &c->rope);
    p.k = mlx_op_rope(g, "k_rope", p.k, c->head_dim, &c->rope);
  }
  h = mlx_op_attention(g, &a, p.q, p.k, p.v);
  h = mlx_op_multiply(g, "gated", h, mlx_op_sigmoid(g, "gate_share", gate));
  return mlx_block_output(g, c, layer, h);
}

static mlx_value_t muse_glimmer_layer(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x) {
  mlx_op_scope(g, "layer%d", layer);
  mlx_value_t h = mlx_op_rmsnorm(g, "attn_in", x, MLX_W("input_layernorm"), c->norm_eps);
  h = attention(g, c, layer, h);
  h = mlx_op_rmsnorm(g, "attn_out", h, MLX_W("post_attention_layernorm"), c->post_norm_eps);
  x = mlx_op_add(g, "after_attn", x, h);
  h = mlx_op_rmsnorm(g, "mlp_in", x, MLX_W("pre_feedforward_layernorm"), c->norm_eps);
  h = mlx_block_gated_mlp(g, c, layer, h);
  h = mlx_op_rmsnorm(g, "mlp_out", h, MLX_W("post_feedforward_layernorm"), c->post_norm_eps);
  return mlx_op_add(g, "out", x, h);
}

static mlx_value_t muse_glimmer_forward(mlx_graph_t *g, const mlx_model_t *model, mlx_value_t tokens) {
  const mlx_config_t *c = &model->config;
  mlx_value_t x = mlx_block_embed(g, c, tokens);  // [M, hidden]
  x = mlx_op_head_rmsnorm(g, "embedded_normed", x, c->hidden, MLX_NONE, c->norm_eps);
  for (int layer = 0; layer < c->layers; ++layer) x = muse_glimmer_layer(g, c, layer, x);
  mlx_op_scope(g, "%s", "");
  return mlx_op_rmsnorm(g, "final", x, mlx_op_weight(g, "model.norm.weight"), c->norm_eps);
}

// Of GGUF files; read_query_scale reads them.
static const char *const muse_glimmer_ignored[] = {".attn_q_norm.weight", ".attn_k_norm.weight", NULL};
static const char *const muse_glimmer_types[] = {"muse_glimmer_text", NULL};
static const char *const muse_glimmer_gguf_types[] = {"muse-glimmer", NULL};

const mlx_arch_t mlx_arch_muse_glimmer = {
    .hf_types = muse_glimmer_types,
    .gguf_types = muse_glimmer_gguf_types,
    MLX_TENSORS(muse_glimmer_tensors),
    .ignored = muse_glimmer_ignored,
    .read_config = muse_glimmer_read_config,
    .forward = muse_glimmer_forward,
};
