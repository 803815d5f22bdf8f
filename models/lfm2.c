// LFM2: short convolutions and attention.
#include <math.h>

#include "models/shared/short_conv.h"

static const mlx_tensor_rule_t lfm2_tensors[] = {
    MLX_RULE_EMBED,
    MLX_RULES_SHORT_CONV,
    MLX_LAYER_NORM("ffn_norm", "ffn_norm"),
    MLX_RULES_SHORT_CONV_MLP(),
    MLX_RULE_EMBEDDING_NORM,
    MLX_RULE_HEAD,
};

// The width of the MLP is computed from fields of config.json; GGUF has the result.
static mlx_status_t read_ffn(const mlx_source_t *source, mlx_config_t *c) {
  bool adjust = true, found;
  double factor = 1.0;
  int64_t multiple = 256;
  if (mlx_source_is_gguf(source)) return NULL;
  MLX_TRY(mlx_source_int(source, "block_ff_dim", NULL, 1, 1 << 20, &c->ffn, &found));
  MLX_TRY(mlx_source_bool(source, "block_auto_adjust_ff_dim", NULL, &adjust, &found));
  MLX_TRY(mlx_read_number(source, "block_ffn_dim_multiplier", NULL, 1.0, &factor));
  MLX_TRY(mlx_source_int(source, "block_multiple_of", NULL, 1, 1 << 20, &multiple, &found));
  if (!adjust) return NULL;
  const double width = floor(factor * floor(2.0 * (double)c->ffn / 3.0));
  if (!(width >= 1.0 && width <= 1 << 20))
    return mlx_source_field_error(source, "block_ffn_dim_multiplier", NULL, MLX_INVALID_INPUT,
                                  "gives an MLP of no possible width");
  c->ffn = ((int64_t)width + multiple - 1) / multiple * multiple;
  return NULL;
}

static mlx_status_t lfm2_read_config(const mlx_source_t *source, mlx_config_t *c) {
  MLX_TRY(mlx_read_short_conv(source, c));
  return read_ffn(source, c);
}

static mlx_value_t lfm2_layer(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x) {
  x = mlx_block_short_conv(g, c, layer, x);
  mlx_value_t h = mlx_op_rmsnorm(g, "mlp_in", x, MLX_W("ffn_norm"), c->norm_eps);
  return mlx_op_add(g, "out", x, mlx_block_short_conv_mlp(g, c, layer, h));
}

static const char *const lfm2_types[] = {"lfm2", NULL};

const mlx_arch_t mlx_arch_lfm2 = {
    .hf_types = lfm2_types,
    .gguf_types = lfm2_types,
    MLX_TENSORS(lfm2_tensors),
    .read_config = lfm2_read_config,
    .layer = lfm2_layer,
    .forward = mlx_short_conv_forward,
};
