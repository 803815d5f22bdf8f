// The layers of Qwen3-Next and Qwen3.5; see gated_delta.h.
#include "models/shared/gated_delta.h"

#include <math.h>
#include <stdio.h>

// GGUF: a list of the recurrent layers, or every how many layers one has attention.
static mlx_status_t read_layers(const mlx_source_t *source, mlx_config_t *c) {
  const char *key = ".attention.recurrent_layers";
  int64_t every = 4;
  bool found;
  MLX_TRY(mlx_source_int(source, "full_attention_interval", ".full_attention_interval", 1, 1 << 20, &every,
                         &found));
  if (mlx_source_has(source, "layer_types", NULL))
    return mlx_read_recurrent_layers(source, "linear_attention", c);
  if (mlx_source_array_length(source, NULL, key)) {
    for (int64_t i = 0; i < c->layers; ++i) {
      int64_t recurrent;
      MLX_TRY(mlx_source_int_at(source, key, (size_t)i, &recurrent));
      c->recurrent[i] = recurrent != 0;
    }
    return NULL;
  }
  for (int64_t i = 0; i < c->layers; ++i) c->recurrent[i] = (i + 1) % every != 0;
  return NULL;
}

// The rates of GGUF files are not logarithms.
static mlx_status_t read_delta(const mlx_source_t *source, bool tiled, mlx_config_t *c) {
  mlx_delta_t *d = &c->delta;
  const bool gguf = mlx_source_is_gguf(source);
  int64_t inner = 0;
  bool found;
  d->key_heads = 16;
  d->value_heads = 32;
  d->key_dim = d->value_dim = 128;
  c->conv_taps = 4;
  MLX_TRY(mlx_source_int(source, "linear_num_key_heads", ".ssm.group_count", 1, 4096, &d->key_heads,
                         gguf ? NULL : &found));
  MLX_TRY(mlx_source_int(source, "linear_num_value_heads", ".ssm.time_step_rank", 1, 4096, &d->value_heads,
                         gguf ? NULL : &found));
  MLX_TRY(mlx_source_int(source, "linear_key_head_dim", ".ssm.state_size", 1, 256, &d->key_dim,
                         gguf ? NULL : &found));
  if (gguf) {
    MLX_TRY(mlx_source_int(source, NULL, ".ssm.inner_size", 1, 1 << 20, &inner, NULL));
    d->value_dim = d->key_dim;
    if (inner != d->value_heads * d->value_dim)
      return mlx_source_field_error(source, NULL, ".ssm.inner_size", MLX_INVALID_INPUT,
                                    "is %lld, not the %lld value heads times the %lld numbers of each",
                                    (long long)inner, (long long)d->value_heads, (long long)d->value_dim);
  } else {
    MLX_TRY(mlx_source_int(source, "linear_value_head_dim", NULL, 1, 256, &d->value_dim, &found));
  }
  MLX_TRY(mlx_source_int(source, "linear_conv_kernel_dim", ".ssm.conv_kernel", 2, 8, &c->conv_taps,
                         gguf ? NULL : &found));
  if (d->value_heads % d->key_heads)
    return mlx_source_field_error(source, "linear_num_key_heads", ".ssm.group_count", MLX_INVALID_INPUT,
                                  "is %lld, which does not divide the %lld value heads",
                                  (long long)d->key_heads, (long long)d->value_heads);
  d->scale = 1.0 / sqrt((double)d->key_dim);
  d->eps = 1e-6;
  d->log_rate = !gguf;
  d->tiled = gguf && tiled;
  c->conv_width = 2 * d->key_heads * d->key_dim + d->value_heads * d->value_dim;
  return NULL;
}

// M-RoPE: sections of the frequencies have positions of their own, which are equal for text tokens.
static mlx_status_t check_sections(const mlx_source_t *source, const mlx_config_t *c) {
  const char *key = ".rope.dimension_sections";
  const size_t count = mlx_source_array_length(source, NULL, key);
  int64_t sum = 0, section;
  for (size_t i = 0; i < count; ++i) {
    MLX_TRY(mlx_source_int_at(source, key, i, &section));
    if (section < 0 || section > c->rope.dims)
      return mlx_source_field_error(source, NULL, key, MLX_INVALID_INPUT,
                                    "has a section of no possible size");
    sum += section;
  }
  if (!count || sum == c->rope.dims / 2) return NULL;
  return mlx_source_field_error(source, NULL, key, MLX_INVALID_INPUT,
                                "must have a sum of %lld, the number of frequencies",
                                (long long)c->rope.dims / 2);
}

// mlx-lm writes whole norm weights when it writes the convolutions as [channels, taps, 1].
static bool has_whole_norms(const mlx_source_t *source, const mlx_config_t *c) {
  for (int64_t i = 0; i < c->layers; ++i) {
    char name[64];
    snprintf(name, sizeof name, "model.layers.%lld.linear_attn.conv1d.weight", (long long)i);
    const mlx_tensor_t *taps = mlx_source_tensor(source, name, NULL);
    if (taps) return taps->rank == 3 && taps->dims[1] != 1 && taps->dims[2] == 1;
  }
  return false;
}

mlx_status_t mlx_read_gated_delta(const mlx_source_t *source, int64_t kv_heads, bool tiled, mlx_config_t *c) {
  const mlx_size_names_t names = {.default_head_dim = 256, .default_kv_heads = kv_heads};
  const mlx_rope_fields_t rope = {.partial = "partial_rotary_factor", .default_partial = 0.25};
  bool found;
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_SILU, &c->act));
  if (c->act != MLX_ACT_SILU)
    return mlx_source_field_error(source, "hidden_act", NULL, MLX_UNSUPPORTED, "must be silu");
  MLX_TRY(mlx_read_sizes(source, &names, false, c));
  MLX_TRY(mlx_source_int(source, NULL, ".nextn_predict_layers", 0, c->layers - 1, &c->draft_layers, &found));
  c->layers -= c->draft_layers;
  MLX_TRY(mlx_read_rms_eps(source, c));
  MLX_TRY(mlx_require_flag(source, "attention_bias", false));
  MLX_TRY(read_layers(source, c));
  MLX_TRY(read_delta(source, tiled, c));
  c->gated_heads = 2 * c->heads;
  c->whole_norms = has_whole_norms(source, c);
  MLX_TRY(mlx_read_rope(source, &rope, c, &c->rope));
  return check_sections(source, c);
}

static mlx_value_t linear_attention(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h) {
  mlx_value_t qkv = mlx_op_linear(g, "qkv", h, MLX_W("linear_attn.in_proj_qkv"));  // [M, conv_width]
  mlx_value_t z = mlx_op_linear(g, "z", h, MLX_W("linear_attn.in_proj_z"));
  mlx_value_t beta = mlx_op_linear(g, "beta", h, MLX_W("linear_attn.in_proj_b"));  // [M, value heads]
  mlx_value_t step = mlx_op_linear(g, "step", h, MLX_W("linear_attn.in_proj_a"));
  qkv = mlx_op_convolve(g, "conv", true, qkv, MLX_W("linear_attn.conv1d"), MLX_NONE);
  mlx_value_t x = mlx_op_delta(g, "delta", &c->delta, qkv, step, beta,
                               mlx_op_weight(g, "model.layers.%d.linear_attn.A_log", layer),
                               mlx_op_weight(g, "model.layers.%d.linear_attn.dt_bias", layer));
  x = mlx_op_head_rmsnorm(g, "delta_normed", x, c->delta.value_dim, MLX_W("linear_attn.norm"), c->norm_eps);
  x = mlx_op_gated(g, "gated", MLX_ACT_SILU, z, x);
  return mlx_op_linear(g, "o", x, MLX_W("linear_attn.out_proj"));
}

static mlx_value_t attention(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h) {
  const mlx_attention_t a = mlx_attention_of(c, layer);
  mlx_value_t both = mlx_op_linear(g, "q_gate", h, MLX_W("self_attn.q_proj"));
  mlx_value_t q = mlx_op_head_columns(g, "q", both, 2 * c->head_dim, 0, c->head_dim);
  mlx_value_t gate = mlx_op_head_columns(g, "gate", both, 2 * c->head_dim, c->head_dim, c->head_dim);
  mlx_value_t k = mlx_op_linear(g, "k", h, MLX_W("self_attn.k_proj"));
  mlx_value_t v = mlx_op_linear(g, "v", h, MLX_W("self_attn.v_proj"));
  q = mlx_op_head_rmsnorm(g, "q_normed", q, c->head_dim, MLX_W("self_attn.q_norm"), c->norm_eps);
  k = mlx_op_head_rmsnorm(g, "k_normed", k, c->head_dim, MLX_W("self_attn.k_norm"), c->norm_eps);
  q = mlx_op_rope(g, "q_rope", q, c->head_dim, &c->rope);
  k = mlx_op_rope(g, "k_rope", k, c->head_dim, &c->rope);
  mlx_value_t x = mlx_op_attention(g, &a, q, k, v);
  x = mlx_op_multiply(g, "attended_gated", x, mlx_op_sigmoid(g, "opened", gate));
  return mlx_op_linear(g, "o", x, MLX_W("self_attn.o_proj"));
}

mlx_value_t mlx_block_gated_delta(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x) {
  mlx_op_scope(g, "layer%d", layer);
  mlx_value_t h = mlx_op_rmsnorm(g, "attn_in", x, MLX_W("input_layernorm"), c->norm_eps);
  h = c->recurrent[layer] ? linear_attention(g, c, layer, h) : attention(g, c, layer, h);
  return mlx_op_add(g, "after_attn", x, h);
}

mlx_value_t mlx_gated_delta_moe_layer(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x) {
  x = mlx_block_gated_delta(g, c, layer, x);
  mlx_value_t h = mlx_op_rmsnorm(g, "mlp_in", x, MLX_W("post_attention_layernorm"), c->norm_eps);
  return mlx_op_add(g, "out", x, mlx_block_shared_experts(g, c, layer, h));
}
