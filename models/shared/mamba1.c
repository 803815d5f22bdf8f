// Mamba 1 blocks; see mamba1.h.
#include "models/shared/mamba1.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

bool mlx_has_mamba1_bias(const mlx_config_t *c) { return c->scan_in_bias; }

// The rank of the steps is "auto" in config.json for the usual one.
static mlx_status_t read_step_rank(const mlx_source_t *source, const char *key, mlx_config_t *c) {
  const char *text;
  bool found, automatic = false;
  c->step_rank = (c->hidden + 15) / 16;
  if (!mlx_source_is_gguf(source)) {
    mlx_status_t status = mlx_source_string(source, key, NULL, &text, &found);
    automatic = !status && found && !strcmp(text, "auto");
    mlx_status_free(status);  // a number: read below
  }
  if (automatic) return NULL;
  return mlx_source_int(source, key, ".ssm.time_step_rank", 1, 1 << 20, &c->step_rank,
                        mlx_source_is_gguf(source) ? NULL : &found);
}

// Whether the first recurrent layer of a GGUF file has the tensor |name|.
static bool has_tensor(const mlx_source_t *source, const mlx_config_t *c, const char *name) {
  char full[64];
  int layer = 0;
  while (layer < c->layers && !c->recurrent[layer]) ++layer;
  snprintf(full, sizeof full, "blk.%d.%s", layer, name);
  return mlx_source_tensor(source, NULL, full) != NULL;
}

mlx_status_t mlx_read_mamba1(const mlx_source_t *source, const mlx_mamba1_names_t *names, bool norms,
                             mlx_config_t *c) {
  mlx_scan_t *s = &c->scan;
  const bool gguf = mlx_source_is_gguf(source);
  bool found, *const missing = gguf ? NULL : &found;  // GGUF files have no defaults
  int64_t expand = 2;
  *s = (mlx_scan_t){.groups = 1, .head_dim = 1, .state_size = 16, .max_step = INFINITY, .state_rates = true};
  c->conv_taps = 4;
  MLX_TRY(mlx_source_int(source, names->expand, NULL, 1, 64, &expand, &found));
  s->heads = expand * c->hidden;
  MLX_TRY(mlx_source_int(source, names->inner, ".ssm.inner_size", 1, 1 << 20, &s->heads, missing));
  MLX_TRY(mlx_source_int(source, names->state_size, ".ssm.state_size", 1, 256, &s->state_size, missing));
  MLX_TRY(mlx_source_int(source, names->taps, ".ssm.conv_kernel", 2, 8, &c->conv_taps, missing));
  MLX_TRY(read_step_rank(source, names->step_rank, c));
  MLX_TRY(mlx_read_flag(source, names->conv_bias, NULL, true, &c->conv_bias));
  MLX_TRY(mlx_read_flag(source, names->bias, NULL, false, &c->scan_in_bias));
  if (gguf) c->conv_bias = has_tensor(source, c, "ssm_conv1d.bias");
  if (gguf) c->scan_in_bias = has_tensor(source, c, "ssm_in.bias");
  s->log_rate = !gguf;
  c->scan_part_norms = norms;
  c->conv_in_width = 2 * s->heads;
  c->scan_x_width = c->step_rank + 2 * s->state_size;
  return NULL;
}

mlx_value_t mlx_block_mamba1(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h) {
  const int64_t inner = c->scan.heads, rank = c->step_rank, size = c->scan.state_size;
  const mlx_value_t in = mlx_op_linear_bias(g, "xz", h, MLX_W("mamba.in_proj"),
                                            MLX_B("mamba.in_proj", c->scan_in_bias));  // [M, 2 * inner]
  mlx_value_t x = mlx_op_columns(g, "x", in, 0, inner);
  const mlx_value_t z = mlx_op_columns(g, "z", in, inner, inner);
  x = mlx_op_convolve(g, "conv", true, x, MLX_W("mamba.conv1d"), MLX_B("mamba.conv1d", c->conv_bias));
  const mlx_value_t parts = mlx_op_linear(g, "dt_b_c", x, MLX_W("mamba.x_proj"));  // [M, scan_x_width]
  mlx_value_t step = mlx_op_columns(g, "dt", parts, 0, rank), bc;
  if (c->scan_part_norms) {
    mlx_value_t b = mlx_op_columns(g, "b", parts, rank, size);
    mlx_value_t to = mlx_op_columns(g, "c", parts, rank + size, size);
    step = mlx_op_rmsnorm(g, "dt_normed", step, MLX_W("mamba.dt_layernorm"), c->norm_eps);
    b = mlx_op_rmsnorm(g, "b_normed", b, MLX_W("mamba.b_layernorm"), c->norm_eps);
    to = mlx_op_rmsnorm(g, "c_normed", to, MLX_W("mamba.c_layernorm"), c->norm_eps);
    bc = mlx_op_join(g, "b_c", b, to);
  } else {
    bc = mlx_op_columns(g, "b_c", parts, rank, 2 * size);
  }
  step = mlx_op_linear(g, "step", step, MLX_W("mamba.dt_proj"));  // [M, inner]
  x = mlx_op_scan(g, "scan", &c->scan, mlx_op_join(g, "x_b_c", x, bc), step,
                  mlx_op_weight(g, "model.layers.%d.mamba.A_log", layer),
                  mlx_op_weight(g, "model.layers.%d.mamba.dt_proj.bias", layer),
                  mlx_op_weight(g, "model.layers.%d.mamba.D", layer));  // [M, inner]
  x = mlx_op_gated(g, "gated", MLX_ACT_SILU, z, x);
  return mlx_op_linear_bias(g, "scan_o", x, MLX_W("mamba.out_proj"),
                            MLX_B("mamba.out_proj", c->scan_in_bias));
}
