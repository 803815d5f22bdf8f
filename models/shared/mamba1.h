// Mamba 1 blocks: rules of their tensors, the reader of their sizes, and the block as calls of graph/ops.h.
#ifndef MLXCEL_MODELS_SHARED_MAMBA1_H_
#define MLXCEL_MODELS_SHARED_MAMBA1_H_

#include "models/shared/blocks.h"

// |stored|: what the names in Hugging Face's files begin with. Further arguments apply to all rules.
// clang-format off
#define MLX_RULES_MAMBA1(stored, ...)                                                                        \
  MLX_LAYER_MATRIX("mamba.in_proj.weight", "ssm_in.weight", MLX_DIM(conv_in_width), MLX_DIM(hidden),         \
                   .hf_stored = stored "in_proj.weight", __VA_ARGS__),                                       \
  MLX_LAYER_VECTOR("mamba.in_proj.bias", "ssm_in.bias", MLX_DIM(conv_in_width),                              \
                   .hf_stored = stored "in_proj.bias", .present = mlx_has_mamba1_bias, __VA_ARGS__),         \
  MLX_LAYER_MATRIX("mamba.conv1d.weight", "ssm_conv1d.weight", MLX_DIM(scan.heads), MLX_DIM(conv_taps),      \
                   .hf_stored = stored "conv1d.weight", .squeezed = true, __VA_ARGS__),                      \
  MLX_LAYER_VECTOR("mamba.conv1d.bias", "ssm_conv1d.bias", MLX_DIM(scan.heads),                              \
                   .hf_stored = stored "conv1d.bias", .present = mlx_has_conv_bias, __VA_ARGS__),            \
  MLX_LAYER_MATRIX("mamba.x_proj.weight", "ssm_x.weight", MLX_DIM(scan_x_width), MLX_DIM(scan.heads),        \
                   .hf_stored = stored "x_proj.weight", __VA_ARGS__),                                        \
  MLX_LAYER_MATRIX("mamba.dt_proj.weight", "ssm_dt.weight", MLX_DIM(scan.heads), MLX_DIM(step_rank),         \
                   .hf_stored = stored "dt_proj.weight", __VA_ARGS__),                                       \
  MLX_LAYER_VECTOR("mamba.dt_proj.bias", "ssm_dt.bias", MLX_DIM(scan.heads),                                 \
                   .hf_stored = stored "dt_proj.bias", __VA_ARGS__),                                         \
  MLX_LAYER_MATRIX("mamba.A_log", "ssm_a", MLX_DIM(scan.heads), MLX_DIM(scan.state_size),                    \
                   .hf_stored = stored "A_log", __VA_ARGS__),                                                \
  MLX_LAYER_VECTOR("mamba.D", "ssm_d", MLX_DIM(scan.heads), .hf_stored = stored "D", __VA_ARGS__),           \
  MLX_LAYER_MATRIX("mamba.out_proj.weight", "ssm_out.weight", MLX_DIM(hidden), MLX_DIM(scan.heads),          \
                   .hf_stored = stored "out_proj.weight", __VA_ARGS__),                                      \
  MLX_LAYER_VECTOR("mamba.out_proj.bias", "ssm_out.bias", MLX_DIM(hidden),                                   \
                   .hf_stored = stored "out_proj.bias", .present = mlx_has_mamba1_bias, __VA_ARGS__)

// Norms of the parts of x_proj's result, which Jamba has.
#define MLX_RULES_MAMBA1_NORMS(stored, ...)                                                                  \
  MLX_LAYER_VECTOR("mamba.dt_layernorm.weight", "ssm_dt_norm.weight", MLX_DIM(step_rank),                    \
                   .hf_stored = stored "dt_layernorm.weight", __VA_ARGS__),                                  \
  MLX_LAYER_VECTOR("mamba.b_layernorm.weight", "ssm_b_norm.weight", MLX_DIM(scan.state_size),                \
                   .hf_stored = stored "b_layernorm.weight", __VA_ARGS__),                                   \
  MLX_LAYER_VECTOR("mamba.c_layernorm.weight", "ssm_c_norm.weight", MLX_DIM(scan.state_size),                \
                   .hf_stored = stored "c_layernorm.weight", __VA_ARGS__)
// clang-format on

// The names of the fields in config.json. |inner|: the number of channels, else |expand| * hidden; NULL:
// there is no such field.
typedef struct mlx_mamba1_names {
  const char *inner, *expand, *state_size, *taps, *step_rank, *conv_bias, *bias;
} mlx_mamba1_names_t;

// Reads c->scan, the sizes of the convolution and of the projections. Call after mlx_read_sizes and after
// c->recurrent is known, which must have a layer. |norms|: the parts of x_proj's result have norms, with
// weights.
mlx_status_t mlx_read_mamba1(const mlx_source_t *source, const mlx_mamba1_names_t *names, bool norms,
                             mlx_config_t *c) MLX_MUST_USE;

// One block, from h [M, hidden] to [M, hidden].
mlx_value_t mlx_block_mamba1(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h);

// For the present field of mlx_tensor_rule_t.
bool mlx_has_mamba1_bias(const mlx_config_t *c);

#endif  // MLXCEL_MODELS_SHARED_MAMBA1_H_
