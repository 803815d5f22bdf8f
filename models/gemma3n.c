// Gemma 3n text model: the layers of Gemma 4's small models with four residual streams (AltUp), of which a
// layer computes one and predicts the others; a product of low rank beside attention (LAuReL); and gates of
// which only the largest numbers count (activation sparsity).
#include <math.h>
#include <string.h>

#include "models/shared/gemma.h"

#define STREAMS 4

static bool stores_kv(const mlx_config_t *c, int layer) { return !mlx_shares_kv(c, layer); }
static bool has_gain(const mlx_config_t *c) { return c->altup_scaled; }

// Keys or values, with their bias.
#define PROJECTION(name, gguf)                                                                        \
  MLX_LAYER_MATRIX("self_attn." name ".weight", gguf ".weight", MLX_HEADS(kv_heads), MLX_DIM(hidden), \
                   .in_layer = stores_kv),                                                            \
      MLX_LAYER_VECTOR("self_attn." name ".bias", gguf ".bias", MLX_HEADS(kv_heads),                  \
                       .present = mlx_has_kv_bias, .in_layer = stores_kv)
#define STACKED(hf, gguf)                                                \
  {                                                                      \
      .hf_name = "model." hf ".%e.weight",                               \
      .gguf_name = gguf ".weight",                                       \
      .rank = 3,                                                         \
      .dims = {MLX_DIM(more_streams), MLX_DIM(hidden), MLX_DIM(hidden)}, \
      .hf_stacked = true,                                                \
  }

static const mlx_tensor_rule_t gemma3n_tensors[] = {
    MLX_RULE_EMBED,
    MLX_RULES_LAYER_EMBEDDINGS(),
    STACKED("altup_projections", "altup_proj"),
    STACKED("altup_unembed_projections", "altup_unembd_proj"),
    MLX_LAYER_NORM("input_layernorm", "attn_norm"),
    MLX_LAYER_MATRIX("self_attn.q_proj.weight", "attn_q.weight", MLX_HEADS(heads), MLX_DIM(hidden)),
    MLX_LAYER_VECTOR("self_attn.q_proj.bias", "attn_q.bias", MLX_HEADS(heads), .present = mlx_has_q_bias),
    PROJECTION("k_proj", "attn_k"),
    PROJECTION("v_proj", "attn_v"),
    MLX_LAYER_MATRIX("self_attn.o_proj.weight", "attn_output.weight", MLX_DIM(hidden), MLX_HEADS(heads)),
    MLX_LAYER_VECTOR("self_attn.o_proj.bias", "attn_output.bias", MLX_DIM(hidden), .present = mlx_has_o_bias),
    MLX_LAYER_VECTOR("self_attn.q_norm.weight", "attn_q_norm.weight", MLX_DIM(head_dim)),
    MLX_LAYER_VECTOR("self_attn.k_norm.weight", "attn_k_norm.weight", MLX_DIM(head_dim),
                     .in_layer = stores_kv),
    MLX_LAYER_NORM("post_attention_layernorm", "post_attention_norm"),
    MLX_LAYER_NORM("pre_feedforward_layernorm", "ffn_norm"),
    MLX_RULES_GATED_MLP,
    MLX_LAYER_NORM("post_feedforward_layernorm", "post_ffw_norm"),
    MLX_LAYER_MATRIX("altup.modality_router.weight", "altup_router.weight", MLX_DIM(streams),
                     MLX_DIM(hidden)),
    MLX_LAYER_VECTOR("altup.router_norm.weight", "altup_router_norm.weight", MLX_DIM(hidden)),
    MLX_LAYER_MATRIX("altup.prediction_coefs.weight", "altup_predict_coef.weight", MLX_DIM(stream_pairs),
                     MLX_DIM(streams)),
    MLX_LAYER_MATRIX("altup.correction_coefs.weight", "altup_correct_coef.weight", MLX_DIM(streams),
                     MLX_DIM(streams)),
    MLX_LAYER_VECTOR("altup.correct_output_scale", "altup_correct_scale.weight", MLX_DIM(hidden),
                     .present = has_gain),
    MLX_LAYER_MATRIX("laurel.linear_left.weight", "laurel_l.weight", MLX_DIM(laurel_rank), MLX_DIM(hidden)),
    MLX_LAYER_MATRIX("laurel.linear_right.weight", "laurel_r.weight", MLX_DIM(hidden), MLX_DIM(laurel_rank)),
    MLX_LAYER_VECTOR("laurel.post_laurel_norm.weight", "laurel_post_norm.weight", MLX_DIM(hidden)),
    MLX_RULES_LAYER_EMBEDDING_OF_LAYER(),
    MLX_RULE_FINAL_NORM(),
    MLX_RULE_HEAD,
};

// ----------------------------------------------------------------------------------------------------------
// Config

// The inverse of the normal distribution's cumulative function, by Newton's method. Two factors in f32, as
// PyTorch and llama.cpp's converter have them.
static float normal_quantile(float share) {
  double x = 0.0;
  for (int i = 0; i < 60; ++i) {
    const double density = exp(-0.5 * x * x) / sqrt(2.0 * acos(-1.0));
    const double step = (0.5 * erfc(-x / sqrt(2.0)) - (double)share) / density;
    x -= fmin(1.0, fmax(-1.0, step));
  }
  return (float)(x / sqrt(2.0)) * (float)sqrt(2.0);
}

// Standard deviations above the mean at which the gates of each layer begin; 0 in c->sparsity: all count.
static mlx_status_t read_sparsity(const mlx_source_t *source, mlx_config_t *c) {
  const char *key = "activation_sparsity_pattern", *gguf_key = ".activation_sparsity_scale";
  const bool gguf = mlx_source_is_gguf(source);
  const size_t listed = mlx_source_array_length(source, key, gguf_key);
  if (listed && listed != (size_t)c->layers)
    return mlx_source_field_error(source, key, gguf_key, MLX_INVALID_INPUT,
                                  "must have one number for each of the %lld layers", (long long)c->layers);
  for (int64_t i = 0; i < c->layers; ++i) {
    double value = c->layers > 10 && i < 10 ? 0.95 : 0.0;
    if (listed) MLX_TRY(mlx_source_limit_at(source, key, gguf_key, (size_t)i, &value));
    // The converter writes minus infinity for a layer in which all numbers count.
    if (gguf ? isinf(value) && value < 0.0 : value == 0.0) continue;
    if (gguf ? !isfinite(value) : !(value > 0.0 && value < 1.0))
      return mlx_source_field_error(source, key, gguf_key, MLX_INVALID_INPUT, "has %g, which is out of range",
                                    value);
    c->sparse[i] = true;
    c->sparsity[i] = gguf ? (float)value : normal_quantile((float)value);
  }
  return NULL;
}

static mlx_status_t read_altup(const mlx_source_t *source, mlx_config_t *c) {
  int64_t streams = STREAMS, active = 0;
  bool found, scaled = true;
  MLX_TRY(
      mlx_source_int(source, "altup_num_inputs", ".altup.num_inputs", STREAMS, STREAMS, &streams, &found));
  MLX_TRY(mlx_source_int(source, "altup_active_idx", ".altup.active_idx", 0, 0, &active, &found));
  MLX_TRY(mlx_source_bool(source, "altup_correct_scale", NULL, &scaled, &found));
  c->altup_scaled = scaled;
  c->streams = streams;
  c->more_streams = streams - 1;
  c->stream_pairs = streams * streams;
  if (!mlx_source_is_gguf(source)) {
    c->laurel_rank = 64;
    return mlx_source_int(source, "laurel_rank", NULL, 1, 1 << 16, &c->laurel_rank, &found);
  }
  const mlx_tensor_t *left = mlx_source_tensor(source, NULL, "blk.0.laurel_l.weight");
  c->laurel_rank = left && left->rank == 2 ? left->dims[0] : 1;
  return NULL;
}

// Layers with different widths are models that were cut out of a larger one.
static mlx_status_t read_widths(const mlx_source_t *source, mlx_config_t *c) {
  const char *key = "intermediate_size", *gguf_key = ".feed_forward_length";
  const size_t listed = mlx_source_array_length(source, key, gguf_key);
  for (size_t i = 0; i < listed; ++i) {
    double width;
    MLX_TRY(mlx_source_number_at(source, key, gguf_key, i, &width));
    if (!(width >= 1.0 && width <= 1 << 20) || width != floor(width) || (i && width != (double)c->ffn))
      return mlx_source_field_error(source, key, gguf_key, MLX_UNSUPPORTED,
                                    "must have the same width from 1 to %d for all layers", 1 << 20);
    c->ffn = (int64_t)width;
  }
  return NULL;
}

static mlx_status_t gemma3n_read_config(const mlx_source_t *source, mlx_config_t *c) {
  static const mlx_rope_fields_t global_rope = {.group = "full_attention", .default_theta = 1000000.0},
                                 local_rope = {.group = "sliding_attention",
                                               .theta = "rope_local_base_freq",
                                               .gguf_theta = ".rope.freq_base_swa",
                                               .unscaled = true};
  MLX_TRY(mlx_read_act(source, "hidden_activation", MLX_ACT_GELU_TANH, &c->act));
  const mlx_size_names_t names = {.default_head_dim = 256, .default_kv_heads = 2, .ffn_lists = true};
  MLX_TRY(mlx_read_sizes(source, &names, true, c));
  MLX_TRY(read_widths(source, c));
  MLX_TRY(mlx_read_rms_eps(source, c));
  MLX_TRY(mlx_read_attention_bias(source, "attention_bias", false, c));
  MLX_TRY(mlx_read_number(source, "final_logit_softcapping", ".final_logit_softcapping", 30.0,
                          &c->logit_softcap));
  MLX_TRY(mlx_read_windows(source, 5, 512, c));
  MLX_TRY(mlx_read_shared_kv(source, mlx_source_is_gguf(source) ? 0 : 15, c));
  MLX_TRY(mlx_read_layer_embedding(source, c));
  MLX_TRY(read_altup(source, c));
  MLX_TRY(read_sparsity(source, c));
  c->attention_scale = 1.0;
  c->embed_scale = sqrt((double)c->hidden);
  MLX_TRY(mlx_read_rope(source, &global_rope, c, &c->rope));
  return mlx_read_rope(source, &local_rope, c, &c->local_rope);
}

// ----------------------------------------------------------------------------------------------------------
// The network

typedef struct streams {
  mlx_value_t of[STREAMS];  // [M, hidden] each
} streams_t;

// What the coefficients of a layer are products of: [M, streams]
static mlx_value_t modalities(mlx_graph_t *g, const mlx_config_t *c, int layer, const char *name,
                              mlx_value_t x) {
  x = mlx_op_rmsnorm(g, "router_in", x, MLX_W("altup.router_norm"), c->norm_eps);
  x = mlx_op_scale(g, "router_in_scaled", x, 1.0 / (double)c->hidden);
  x = mlx_op_linear(g, "routed", x, MLX_W("altup.modality_router"));
  return mlx_op_softcap(g, name, x, 1.0);  // the hyperbolic tangent
}

static mlx_value_t scaled_by(mlx_graph_t *g, mlx_value_t x, mlx_value_t factors, int64_t column) {
  return mlx_op_scale_rows(g, "part", x, mlx_op_columns(g, "coefficient", factors, column, 1));
}

// Each stream plus a sum of all streams.
static streams_t predict(mlx_graph_t *g, const mlx_config_t *c, int layer, const streams_t *x) {
  mlx_value_t m = modalities(g, c, layer, "predictors", x->of[0]);
  m = mlx_op_linear(g, "prediction", m, MLX_W("altup.prediction_coefs"));  // [M, streams * streams]
  streams_t out;
  for (int to = 0; to < STREAMS; ++to) {
    mlx_value_t sum = scaled_by(g, x->of[0], m, to * STREAMS);
    for (int from = 1; from < STREAMS; ++from)
      sum = mlx_op_add(g, "sum", sum, scaled_by(g, x->of[from], m, to * STREAMS + from));
    out.of[to] = mlx_op_add(g, "predicted", sum, x->of[to]);
  }
  return out;
}

// Each prediction plus the share of it of how much |active| differs from the first one.
static streams_t correct(mlx_graph_t *g, const mlx_config_t *c, int layer, const streams_t *predicted,
                         mlx_value_t active) {
  mlx_value_t m = modalities(g, c, layer, "correctors", active);
  m = mlx_op_linear(g, "correction", m, MLX_W("altup.correction_coefs"));  // [M, streams]
  mlx_value_t change = mlx_op_scale(g, "minus_predicted", predicted->of[0], -1.0);
  change = mlx_op_add(g, "change", active, change);
  streams_t out;
  for (int i = 0; i < STREAMS; ++i) {
    const mlx_value_t part = mlx_op_add(g, "change_and_part", change, scaled_by(g, change, m, i));
    out.of[i] = mlx_op_add(g, "corrected", part, predicted->of[i]);
  }
  return out;
}

static mlx_value_t mlp(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h) {
  if (!c->sparse[layer]) return mlx_block_gated_mlp(g, c, layer, h);
  mlx_value_t gate = mlx_op_linear(g, "gate", h, MLX_W("mlp.gate_proj"));  // [M, ffn]
  gate = mlx_op_sparsify(g, "gate_sparse", gate, (double)c->sparsity[layer]);
  mlx_value_t up = mlx_op_linear(g, "up", h, MLX_W("mlp.up_proj"));
  return mlx_op_linear(g, "down", mlx_op_gated(g, "act", c->act, gate, up), MLX_W("mlp.down_proj"));
}

static streams_t layer_of(mlx_graph_t *g, const mlx_config_t *c, int layer, const streams_t *x,
                          mlx_value_t embedding) {
  mlx_op_scope(g, "layer%d", layer);
  const streams_t predicted = predict(g, c, layer, x);
  mlx_value_t in = mlx_op_rmsnorm(g, "attn_in", predicted.of[0], MLX_W("input_layernorm"), c->norm_eps);
  mlx_value_t low = mlx_op_linear(g, "laurel_left", in, MLX_W("laurel.linear_left"));  // [M, laurel_rank]
  low = mlx_op_linear(g, "laurel_right", low, MLX_W("laurel.linear_right"));
  low = mlx_op_rmsnorm(g, "laurel_normed", low, MLX_W("laurel.post_laurel_norm"), c->norm_eps);
  low = mlx_op_add(g, "laurel", in, low);
  mlx_value_t h = mlx_block_gemma_attention(g, c, layer, in);
  h = mlx_op_rmsnorm(g, "attn_out", h, MLX_W("post_attention_layernorm"), c->norm_eps);
  h = mlx_op_add(g, "after_attn", predicted.of[0], h);
  const mlx_value_t both = mlx_op_scale(g, "with_laurel", mlx_op_add(g, "both", h, low), sqrt(0.5));
  h = mlx_op_rmsnorm(g, "mlp_in", both, MLX_W("pre_feedforward_layernorm"), c->norm_eps);
  h = mlx_op_rmsnorm(g, "mlp_out", mlp(g, c, layer, h), MLX_W("post_feedforward_layernorm"), c->norm_eps);
  h = mlx_op_add(g, "after_mlp", both, h);
  streams_t out = correct(g, c, layer, &predicted, h);
  h = out.of[0];
  if (c->altup_scaled)
    h = mlx_op_gain(g, "corrected_scaled", h,
                    mlx_op_weight(g, "model.layers.%d.altup.correct_output_scale", layer));
  h = mlx_block_layer_embedding(g, c, layer, h, embedding);
  for (int i = 1; i < STREAMS; ++i) out.of[i] = mlx_op_add(g, "out", out.of[i], h);
  return out;
}

// |parts|: products for the second stream on, side by side. Their mean of squares becomes that of |first|.
static streams_t matched(mlx_graph_t *g, const mlx_config_t *c, mlx_value_t first, mlx_value_t parts) {
  streams_t out = {{first}};
  for (int i = 1; i < STREAMS; ++i) {
    mlx_value_t x = mlx_op_columns(g, "stream", parts, (i - 1) * c->hidden, c->hidden);
    out.of[i] = mlx_op_match(g, "stream_matched", x, first, 1e-5);
  }
  return out;
}

static mlx_value_t joined(mlx_graph_t *g, mlx_value_t a, mlx_value_t b, mlx_value_t c) {
  return mlx_op_join(g, "three", mlx_op_join(g, "two", a, b), c);
}

static mlx_value_t gemma3n_forward(mlx_graph_t *g, const mlx_model_t *model, mlx_value_t tokens) {
  const mlx_config_t *c = &model->config;
  mlx_value_t x = mlx_block_embed(g, c, tokens);  // [M, hidden]
  const mlx_value_t embedding = mlx_block_layer_embeddings(g, c, tokens, x);
  mlx_value_t parts = mlx_op_head_linear(g, "streams_in", joined(g, x, x, x),
                                         mlx_op_weight(g, "model.altup_projections.all.weight"));
  streams_t streams = matched(g, c, x, parts);
  for (int layer = 0; layer < c->layers; ++layer) streams = layer_of(g, c, layer, &streams, embedding);
  mlx_op_scope(g, "%s", "");
  parts = mlx_op_head_linear(g, "streams_out", joined(g, streams.of[1], streams.of[2], streams.of[3]),
                             mlx_op_weight(g, "model.altup_unembed_projections.all.weight"));
  streams = matched(g, c, streams.of[0], parts);
  x = streams.of[0];
  for (int i = 1; i < STREAMS; ++i) x = mlx_op_add(g, "streams_sum", x, streams.of[i]);
  x = mlx_op_scale(g, "streams_mean", x, 1.0 / STREAMS);
  return mlx_op_rmsnorm(g, "final", x, mlx_op_weight(g, "model.norm.weight"), c->norm_eps);
}

// Files have the gain also if it is not used.
static const char *const gemma3n_ignored[] = {".altup.correct_output_scale", NULL};
static const char *const gemma3n_types[] = {"gemma3n_text", NULL};
static const char *const gemma3n_gguf_types[] = {"gemma3n", NULL};

const mlx_arch_t mlx_arch_gemma3n = {
    .hf_types = gemma3n_types,
    .gguf_types = gemma3n_gguf_types,
    MLX_TENSORS(gemma3n_tensors),
    .ignored = gemma3n_ignored,
    .skips = mlx_skips_shared_kv,
    .read_config = gemma3n_read_config,
    .forward = gemma3n_forward,
};
