// OLMo Hybrid: layers with the gated delta rule (linear attention), whose norms are before attention and MLP,
// and layers of OLMo 2, whose norms are after them. Attention usually has no positions.
#include <math.h>

#include "models/shared/blocks.h"

// Extents: the numbers of all key heads, and of all value heads.
#define KEYS (MLX_DIM(delta.key_heads) | MLX_DIM(delta.key_dim) << 16)
#define VALUES (MLX_DIM(delta.value_heads) | MLX_DIM(delta.value_dim) << 16)
#define RECURRENT MLX_IN_RECURRENT
#define MIXER "linear_attn."

static const mlx_tensor_rule_t olmo_hybrid_tensors[] = {
    MLX_RULE_EMBED,
    MLX_LAYER_NORM("input_layernorm", "", RECURRENT,
                   .hf_stored = "model.layers.%d.attention_layer_norm.weight"),
    MLX_LAYER_MATRIX(MIXER "q_proj.weight", "", KEYS, MLX_DIM(hidden), RECURRENT),
    MLX_LAYER_MATRIX(MIXER "k_proj.weight", "", KEYS, MLX_DIM(hidden), RECURRENT),
    MLX_LAYER_MATRIX(MIXER "v_proj.weight", "", VALUES, MLX_DIM(hidden), RECURRENT),
    MLX_LAYER_MATRIX(MIXER "g_proj.weight", "", VALUES, MLX_DIM(hidden), RECURRENT),
    MLX_LAYER_MATRIX(MIXER "a_proj.weight", "", MLX_DIM(delta.value_heads), MLX_DIM(hidden), RECURRENT),
    MLX_LAYER_MATRIX(MIXER "b_proj.weight", "", MLX_DIM(delta.value_heads), MLX_DIM(hidden), RECURRENT),
    MLX_LAYER_MATRIX(MIXER "q_conv1d.weight", "", KEYS, MLX_DIM(conv_taps), RECURRENT, .squeezed = true),
    MLX_LAYER_MATRIX(MIXER "k_conv1d.weight", "", KEYS, MLX_DIM(conv_taps), RECURRENT, .squeezed = true),
    MLX_LAYER_MATRIX(MIXER "v_conv1d.weight", "", VALUES, MLX_DIM(conv_taps), RECURRENT, .squeezed = true),
    MLX_LAYER_VECTOR(MIXER "A_log", "", MLX_DIM(delta.value_heads), RECURRENT),
    MLX_LAYER_VECTOR(MIXER "dt_bias", "", MLX_DIM(delta.value_heads), RECURRENT),
    MLX_LAYER_VECTOR(MIXER "o_norm.weight", "", MLX_DIM(delta.value_dim), RECURRENT),
    MLX_LAYER_MATRIX(MIXER "o_proj.weight", "", MLX_DIM(hidden), VALUES, RECURRENT),
    MLX_RULES_ATTENTION(MLX_ROWS_AS_STORED, MLX_IN_ATTENTION),
    MLX_LAYER_VECTOR("self_attn.q_norm.weight", "", MLX_HEADS(heads), MLX_IN_ATTENTION),
    MLX_LAYER_VECTOR("self_attn.k_norm.weight", "", MLX_HEADS(kv_heads), MLX_IN_ATTENTION),
    MLX_LAYER_NORM("post_attention_layernorm", "",
                   .hf_stored = "model.layers.%d.feedforward_layer_norm.weight"),
    MLX_RULES_GATED_MLP,
    MLX_LAYER_NORM("post_feedforward_layernorm", "", MLX_IN_ATTENTION),
    MLX_RULE_FINAL_NORM(),
    MLX_RULE_HEAD,
};

static mlx_status_t read_delta(const mlx_source_t *source, mlx_config_t *c) {
  mlx_delta_t *d = &c->delta;
  bool negative = true, found;
  d->key_heads = d->value_heads = c->heads;
  c->conv_taps = 4;
  MLX_TRY(mlx_source_int(source, "linear_num_key_heads", NULL, 1, 4096, &d->key_heads, &found));
  MLX_TRY(mlx_source_int(source, "linear_num_value_heads", NULL, 1, 4096, &d->value_heads, &found));
  d->key_dim = 3 * c->hidden / (4 * d->key_heads);
  MLX_TRY(mlx_source_int(source, "linear_key_head_dim", NULL, 1, 256, &d->key_dim, &found));
  d->value_dim = 2 * d->key_dim;
  MLX_TRY(mlx_source_int(source, "linear_value_head_dim", NULL, 1, 512, &d->value_dim, &found));
  MLX_TRY(mlx_source_int(source, "linear_conv_kernel_dim", NULL, 2, 8, &c->conv_taps, &found));
  MLX_TRY(mlx_source_bool(source, "linear_allow_neg_eigval", NULL, &negative, &found));
  if (d->key_dim < 1 || d->key_dim > 256)
    return mlx_source_field_error(source, "linear_key_head_dim", NULL, MLX_INVALID_INPUT,
                                  "must be between 1 and 256");
  if (d->value_heads % d->key_heads)
    return mlx_source_field_error(source, "linear_num_key_heads", NULL, MLX_INVALID_INPUT,
                                  "is %lld, which does not divide the %lld value heads",
                                  (long long)d->key_heads, (long long)d->value_heads);
  d->scale = 1.0 / sqrt((double)d->key_dim);
  d->eps = 1e-6;
  d->beta_scale = negative ? 2.0 : 0.0;
  d->log_rate = true;
  return NULL;
}

// Every fourth layer has attention, unless layer_types says otherwise.
static mlx_status_t read_layers(const mlx_source_t *source, mlx_config_t *c) {
  if (mlx_source_has(source, "layer_types", NULL))
    return mlx_read_recurrent_layers(source, "linear_attention", c);
  for (int64_t i = 0; i < c->layers; ++i) c->recurrent[i] = i % 4 != 3;
  if (c->layers < 4) c->recurrent[c->layers - 1] = false;
  return NULL;
}

static mlx_status_t olmo_hybrid_read_config(const mlx_source_t *source, mlx_config_t *c) {
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_SILU, &c->act));
  if (c->act != MLX_ACT_SILU)
    return mlx_source_field_error(source, "hidden_act", NULL, MLX_UNSUPPORTED, "must be silu");
  MLX_TRY(mlx_read_sizes(source, NULL, false, c));
  MLX_TRY(mlx_read_rms_eps(source, c));
  MLX_TRY(mlx_read_attention_bias(source, "attention_bias", false, c));
  MLX_TRY(read_layers(source, c));
  MLX_TRY(read_delta(source, c));
  // A base that is null means that nothing rotates; one that is missing is the default.
  const bool rotary = mlx_source_has(source, "rope_parameters.rope_theta", NULL) ||
                      !(mlx_source_mentions(source, "rope_parameters.rope_theta") ||
                        mlx_source_mentions(source, "rope_theta"));
  for (int64_t i = 0; i < c->layers; ++i) c->no_rope[i] = !rotary;
  return rotary ? mlx_read_rope(source, &(mlx_rope_fields_t){0}, c, &c->rope) : NULL;
}

// SiLU of a causal convolution of a projection of h.
#define CONVOLVED(name, part)                                                                  \
  mlx_op_convolve(g, name "_conv", true, mlx_op_linear(g, name, h, MLX_W(MIXER part "_proj")), \
                  MLX_W(MIXER part "_conv1d"), MLX_NONE)

static mlx_value_t linear_attention(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h) {
  mlx_value_t qkv = mlx_op_join(g, "qk", CONVOLVED("q", "q"), CONVOLVED("k", "k"));
  qkv = mlx_op_join(g, "qkv", qkv, CONVOLVED("v", "v"));
  mlx_value_t step = mlx_op_linear(g, "step", h, MLX_W(MIXER "a_proj"));  // [M, value heads]
  mlx_value_t beta = mlx_op_linear(g, "beta", h, MLX_W(MIXER "b_proj"));
  mlx_value_t gate = mlx_op_linear(g, "gate", h, MLX_W(MIXER "g_proj"));  // [M, values]
  mlx_value_t x = mlx_op_delta(g, "delta", &c->delta, qkv, step, beta,
                               mlx_op_weight(g, "model.layers.%d." MIXER "A_log", layer),
                               mlx_op_weight(g, "model.layers.%d." MIXER "dt_bias", layer));
  x = mlx_op_head_rmsnorm(g, "delta_normed", x, c->delta.value_dim, MLX_W(MIXER "o_norm"), 1e-5);
  x = mlx_op_gated(g, "gated", MLX_ACT_SILU, gate, x);
  return mlx_op_linear(g, "o", x, MLX_W(MIXER "o_proj"));
}

static mlx_value_t olmo_hybrid_layer(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x) {
  if (!c->recurrent[layer]) return mlx_olmo2_layer(g, c, layer, x);
  mlx_op_scope(g, "layer%d", layer);
  mlx_value_t h = mlx_op_rmsnorm(g, "attn_in", x, MLX_W("input_layernorm"), c->norm_eps);
  x = mlx_op_add(g, "after_attn", x, linear_attention(g, c, layer, h));
  h = mlx_op_rmsnorm(g, "mlp_in", x, MLX_W("post_attention_layernorm"), c->norm_eps);
  return mlx_op_add(g, "out", x, mlx_block_gated_mlp(g, c, layer, h));
}

static const char *const olmo_hybrid_types[] = {"olmo_hybrid", NULL};
static const char *const olmo_hybrid_gguf_types[] = {NULL};  // llama.cpp has no converter

const mlx_arch_t mlx_arch_olmo_hybrid = {
    .hf_types = olmo_hybrid_types,
    .gguf_types = olmo_hybrid_gguf_types,
    MLX_TENSORS(olmo_hybrid_tensors),
    .read_config = olmo_hybrid_read_config,
    .layer = olmo_hybrid_layer,
};
