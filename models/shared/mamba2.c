// Mamba 2 blocks; see mamba2.h.
#include "models/shared/mamba2.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

bool mlx_has_scan_in_bias(const mlx_config_t *c) { return c->scan_in_bias; }
bool mlx_has_scan_out_bias(const mlx_config_t *c) { return c->scan_out_bias; }
bool mlx_has_scan_norm(const mlx_config_t *c) { return c->scan_norm_groups > 0; }

static int64_t inner_of(const mlx_config_t *c) { return c->scan.heads * c->scan.head_dim; }

// The convolution is linear before its bias, so factors of x, B and C are factors of its weights.
double mlx_scan_channel_factor(const mlx_config_t *c, int64_t channel) {
  const int64_t inner = inner_of(c), wide = c->scan.groups * c->scan.state_size;
  return channel < inner ? c->scan_scales[1] : c->scan_scales[channel < inner + wide ? 2 : 3];
}

// ----------------------------------------------------------------------------------------------------------
// The config

// Whether the first recurrent layer of a GGUF file has the tensor |name|.
static bool has_tensor(const mlx_source_t *source, const mlx_config_t *c, const char *name) {
  char full[64];
  int layer = 0;
  while (layer < c->layers && !c->recurrent[layer]) ++layer;
  snprintf(full, sizeof full, "blk.%d.%s", layer, name);
  return mlx_source_tensor(source, NULL, full) != NULL;
}

static mlx_status_t read_flags(const mlx_source_t *source, const mlx_mamba2_names_t *names, mlx_config_t *c) {
  const bool gguf = mlx_source_is_gguf(source);
  mlx_act_t act;
  MLX_TRY(mlx_read_act(source, names->act, MLX_ACT_SILU, &act));
  if (act != MLX_ACT_SILU)
    return mlx_source_field_error(source, names->act, NULL, MLX_UNSUPPORTED, "must be silu");
  MLX_TRY(mlx_read_flag(source, names->conv_bias, NULL, true, &c->conv_bias));
  if (gguf) c->conv_bias = has_tensor(source, c, "ssm_conv1d.bias");
  c->scan_in_bias = gguf && has_tensor(source, c, "ssm_in.bias");
  c->scan_out_bias = gguf && has_tensor(source, c, "ssm_out.bias");
  c->scan_norm_groups = !gguf ? 1 : has_tensor(source, c, "ssm_norm.weight") ? c->scan.groups : 0;
  return NULL;
}

// GGUF does not store the limits; the converter takes only models with the usual ones.
static mlx_status_t read_step_limit(const mlx_source_t *source, mlx_config_t *c) {
  const char *key = "time_step_limit";
  c->scan.min_step = 0.0;
  c->scan.max_step = INFINITY;
  if (!mlx_source_has(source, key, NULL)) return NULL;
  if (mlx_source_array_length(source, key, NULL) != 2)
    return mlx_source_field_error(source, key, NULL, MLX_INVALID_INPUT, "must be a list of two numbers");
  MLX_TRY(mlx_source_limit_at(source, key, NULL, 0, &c->scan.min_step));
  MLX_TRY(mlx_source_limit_at(source, key, NULL, 1, &c->scan.max_step));
  if (c->scan.min_step >= 0.0 && c->scan.max_step >= c->scan.min_step && isfinite(c->scan.min_step))
    return NULL;
  return mlx_source_field_error(source, key, NULL, MLX_INVALID_INPUT,
                                "must be a smallest step of at least 0 and a largest step");
}

// The width of a head: in GGUF files that of all heads by their number, else a field that may be "auto".
static mlx_status_t read_head_dim(const mlx_source_t *source, const mlx_mamba2_names_t *names,
                                  mlx_scan_t *s) {
  int64_t inner = names->inner;
  const char *text = NULL;
  bool found = false;
  if (mlx_source_is_gguf(source)) {
    MLX_TRY(mlx_source_int(source, NULL, ".ssm.inner_size", 1, 1 << 20, &inner, NULL));
    s->head_dim = inner / s->heads;
  } else if (mlx_source_array_length(source, names->head_dim, NULL) == 0) {
    mlx_status_t status = mlx_source_string(source, names->head_dim, NULL, &text, &found);
    mlx_status_free(status);  // a number: read below
    const bool chosen = !status && (!found || !strcmp(text, "auto"));
    s->head_dim = chosen && inner ? inner / s->heads : s->head_dim;
    if (!chosen || !inner)
      MLX_TRY(mlx_source_int(source, names->head_dim, NULL, 1, 4096, &s->head_dim, &found));
  }
  if (s->head_dim > 0 && s->head_dim <= 4096 && (!inner || inner == s->heads * s->head_dim)) return NULL;
  return mlx_source_field_error(source, names->head_dim, ".ssm.inner_size", MLX_INVALID_INPUT,
                                "is wrong: %lld heads cannot have %lld numbers together", (long long)s->heads,
                                (long long)inner);
}

bool mlx_gguf_is_bamba(const mlx_source_t *source) {
  bool rotary = false, found;
  mlx_status_t status = mlx_source_bool(source, NULL, ".rope.scaling.finetuned", &rotary, &found);
  mlx_status_free(status);
  return rotary;
}

mlx_status_t mlx_read_mamba2_layers(const mlx_source_t *source, const char *key, mlx_config_t *c) {
  if (mlx_source_is_gguf(source)) return mlx_read_layers_without_kv(source, c);
  if (mlx_source_array_length(source, key, NULL) != (size_t)c->layers)
    return mlx_source_field_error(source, key, NULL, MLX_INVALID_INPUT,
                                  "must have one entry for each of the %lld layers", (long long)c->layers);
  for (int64_t i = 0; i < c->layers; ++i) {
    const char *type;
    MLX_TRY(mlx_source_string_at(source, key, (size_t)i, &type));
    c->recurrent[i] = !strcmp(type, "linear_attention") || !strcmp(type, "mamba");
    if (!c->recurrent[i] && strcmp(type, "full_attention") && strcmp(type, "attention"))
      return mlx_source_field_error(source, key, NULL, MLX_UNSUPPORTED, "has '%s', an unsupported layer type",
                                    type);
  }
  return NULL;
}

mlx_status_t mlx_read_mamba2_expand(const mlx_source_t *source, const char *name, const mlx_config_t *c,
                                    int64_t *out_inner) {
  int64_t expand = 2;
  bool found;
  *out_inner = 0;
  if (mlx_source_is_gguf(source)) return NULL;
  MLX_TRY(mlx_source_int(source, name, NULL, 1, 64, &expand, &found));
  *out_inner = expand * c->hidden;
  return NULL;
}

mlx_status_t mlx_read_mamba2(const mlx_source_t *source, const mlx_mamba2_names_t *names, mlx_config_t *c) {
  mlx_scan_t *s = &c->scan;
  const bool gguf = mlx_source_is_gguf(source);
  bool found, *const missing = gguf ? NULL : &found;  // GGUF files have no defaults
  *s = names->defaults;
  c->conv_taps = 4;
  MLX_TRY(mlx_source_int(source, names->heads, ".ssm.time_step_rank", 1, 4096, &s->heads, missing));
  MLX_TRY(mlx_source_int(source, names->groups, ".ssm.group_count", 1, 4096, &s->groups, missing));
  MLX_TRY(mlx_source_int(source, names->state_size, ".ssm.state_size", 1, 256, &s->state_size, missing));
  MLX_TRY(mlx_source_int(source, names->taps, ".ssm.conv_kernel", 2, 8, &c->conv_taps, missing));
  MLX_TRY(read_head_dim(source, names, s));
  if (s->heads % s->groups)
    return mlx_source_field_error(source, names->groups, ".ssm.group_count", MLX_INVALID_INPUT,
                                  "is %lld, which does not divide the %lld heads", (long long)s->groups,
                                  (long long)s->heads);
  s->log_rate = !gguf;
  c->conv_width = inner_of(c) + 2 * s->groups * s->state_size;
  c->conv_in_width = inner_of(c) + c->conv_width + s->heads;
  c->scan_in_scale = c->scan_out_scale = c->gate_scale = c->down_scale = 1.0;
  for (int i = 0; i < 5; ++i) c->scan_scales[i] = 1.0;
  MLX_TRY(read_flags(source, names, c));
  return read_step_limit(source, c);
}

// ----------------------------------------------------------------------------------------------------------
// The block

static mlx_value_t gated_norm(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x,
                              mlx_value_t z) {
  const int64_t inner = inner_of(c);
  if (!c->scan_norm_first) x = mlx_op_gated(g, "gated", MLX_ACT_SILU, z, x);
  if (c->scan_norm_groups == 1)
    x = mlx_op_rmsnorm(g, "scan_normed", x, MLX_W("mamba.norm"), c->norm_eps);
  else if (c->scan_norm_groups)
    x = mlx_op_head_rmsnorm(g, "scan_normed", x, inner / c->scan_norm_groups, MLX_W("mamba.norm"),
                            c->norm_eps);
  return c->scan_norm_first ? mlx_op_gated(g, "gated", MLX_ACT_SILU, z, x) : x;
}

mlx_value_t mlx_block_mamba2(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h) {
  const int64_t inner = inner_of(c);
  h = mlx_op_scale(g, "scan_in", h, c->scan_in_scale);
  mlx_value_t in = mlx_op_linear_bias(g, "zxbcdt", h, MLX_W("mamba.in_proj"),
                                      MLX_B("mamba.in_proj", c->scan_in_bias));  // [M, conv_in_width]
  mlx_value_t z = mlx_op_columns(g, "z", in, 0, inner);
  mlx_value_t xbc = mlx_op_columns(g, "xbc", in, inner, c->conv_width);
  mlx_value_t step = mlx_op_columns(g, "dt", in, inner + c->conv_width, c->scan.heads);
  z = mlx_op_scale(g, "z_scaled", z, c->scan_scales[0]);
  step = mlx_op_scale(g, "dt_scaled", step, c->scan_scales[4]);
  xbc = mlx_op_convolve(g, "conv", true, xbc, MLX_W("mamba.conv1d"), MLX_B("mamba.conv1d", c->conv_bias));
  mlx_value_t x =
      mlx_op_scan(g, "scan", &c->scan, xbc, step, mlx_op_weight(g, "model.layers.%d.mamba.A_log", layer),
                  mlx_op_weight(g, "model.layers.%d.mamba.dt_bias", layer),
                  mlx_op_weight(g, "model.layers.%d.mamba.D", layer));  // [M, inner]
  x = gated_norm(g, c, layer, x, z);
  x = mlx_op_linear_bias(g, "scan_o", x, MLX_W("mamba.out_proj"), MLX_B("mamba.out_proj", c->scan_out_bias));
  return mlx_op_scale(g, "scan_out", x, c->scan_out_scale);
}

mlx_value_t mlx_block_feed_forward(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h) {
  const bool bias = c->mlp_bias;
  mlx_value_t gate = mlx_op_linear_bias(g, "gate", h, MLX_W("feed_forward.gate_proj"),
                                        MLX_B("feed_forward.gate_proj", bias));  // [M, ffn]
  mlx_value_t up =
      mlx_op_linear_bias(g, "up", h, MLX_W("feed_forward.up_proj"), MLX_B("feed_forward.up_proj", bias));
  h = mlx_op_gated(g, "act", c->act, mlx_op_scale(g, "gate_scaled", gate, c->gate_scale), up);
  h = mlx_op_linear_bias(g, "down", h, MLX_W("feed_forward.down_proj"),
                         MLX_B("feed_forward.down_proj", bias));
  return mlx_op_scale(g, "down_scaled", h, c->down_scale);
}
