// Mamba 2 blocks, which several architectures share: rules of their tensors, readers of their sizes, and the
// block as calls of graph/ops.h.
#ifndef MLXCEL_MODELS_SHARED_MAMBA2_H_
#define MLXCEL_MODELS_SHARED_MAMBA2_H_

#include "models/shared/blocks.h"

#define MLX_SCAN_WIDTH (MLX_DIM(scan.heads) | MLX_DIM(scan.head_dim) << 16)  // of all heads

// |stored|: what the names in Hugging Face's files begin with. Further arguments apply to all rules that
// are always present.
#define MLX_RULES_MAMBA2(stored, ...)                                                                       \
  MLX_LAYER_MATRIX("mamba.in_proj.weight", "ssm_in.weight", MLX_DIM(conv_in_width), MLX_DIM(hidden),        \
                   .hf_stored = stored "in_proj.weight", __VA_ARGS__),                                      \
      MLX_LAYER_VECTOR("mamba.in_proj.bias", "ssm_in.bias", MLX_DIM(conv_in_width),                         \
                       .hf_stored = stored "in_proj.bias", .present = mlx_has_scan_in_bias, __VA_ARGS__),   \
      MLX_LAYER_MATRIX("mamba.conv1d.weight", "ssm_conv1d.weight", MLX_DIM(conv_width), MLX_DIM(conv_taps), \
                       .hf_stored = stored "conv1d.weight", .squeezed = true,                               \
                       .hf_row_factor = mlx_scan_channel_factor, __VA_ARGS__),                              \
      MLX_LAYER_VECTOR("mamba.conv1d.bias", "ssm_conv1d.bias", MLX_DIM(conv_width),                         \
                       .hf_stored = stored "conv1d.bias", .present = mlx_has_conv_bias, __VA_ARGS__),       \
      MLX_LAYER_VECTOR("mamba.A_log", "ssm_a", MLX_DIM(scan.heads), .hf_stored = stored "A_log",            \
                       .flat = true, __VA_ARGS__),                                                          \
      MLX_LAYER_VECTOR("mamba.D", "ssm_d", MLX_DIM(scan.heads), .hf_stored = stored "D", .flat = true,      \
                       __VA_ARGS__),                                                                        \
      MLX_LAYER_VECTOR("mamba.dt_bias", "ssm_dt.bias", MLX_DIM(scan.heads), .hf_stored = stored "dt_bias",  \
                       __VA_ARGS__),                                                                        \
      MLX_LAYER_VECTOR("mamba.norm.weight", "ssm_norm.weight", MLX_SCAN_WIDTH,                              \
                       .hf_stored = stored "norm.weight", .flat = true, .present = mlx_has_scan_norm,       \
                       __VA_ARGS__),                                                                        \
      MLX_LAYER_MATRIX("mamba.out_proj.weight", "ssm_out.weight", MLX_DIM(hidden), MLX_SCAN_WIDTH,          \
                       .hf_stored = stored "out_proj.weight", __VA_ARGS__),                                 \
      MLX_LAYER_VECTOR("mamba.out_proj.bias", "ssm_out.bias", MLX_DIM(hidden),                              \
                       .hf_stored = stored "out_proj.bias", .present = mlx_has_scan_out_bias, __VA_ARGS__)

// The MLP of Bamba and Falcon-H1.
#define MLX_RULES_FEED_FORWARD                                                                             \
  MLX_LAYER_MATRIX("feed_forward.gate_proj.weight", "ffn_gate.weight", MLX_DIM(ffn), MLX_DIM(hidden)),     \
      MLX_LAYER_MATRIX("feed_forward.up_proj.weight", "ffn_up.weight", MLX_DIM(ffn), MLX_DIM(hidden)),     \
      MLX_LAYER_MATRIX("feed_forward.down_proj.weight", "ffn_down.weight", MLX_DIM(hidden), MLX_DIM(ffn)), \
      MLX_LAYER_VECTOR("feed_forward.gate_proj.bias", "ffn_gate.bias", MLX_DIM(ffn),                       \
                       .present = mlx_has_mlp_bias),                                                       \
      MLX_LAYER_VECTOR("feed_forward.up_proj.bias", "ffn_up.bias", MLX_DIM(ffn),                           \
                       .present = mlx_has_mlp_bias),                                                       \
      MLX_LAYER_VECTOR("feed_forward.down_proj.bias", "ffn_down.bias", MLX_DIM(hidden),                    \
                       .present = mlx_has_mlp_bias)

// The names of the sizes in config.json, and the defaults of the Hugging Face class.
typedef struct mlx_mamba2_names {
  const char *heads, *head_dim, *groups, *state_size, *taps, *conv_bias, *act;
  mlx_scan_t defaults;
  int64_t inner;  // heads * head_dim that config.json asks for; 0: not known. Ignored for GGUF
} mlx_mamba2_names_t;
#define MLX_MAMBA2_NAMES                                                            \
  .heads = "mamba_n_heads", .head_dim = "mamba_d_head", .groups = "mamba_n_groups", \
  .state_size = "mamba_d_state", .taps = "mamba_d_conv", .conv_bias = "mamba_conv_bias", .act = "hidden_act"

// Reads c->scan, the sizes of the convolution, time_step_limit and whether the convolution has a bias. Call
// after c->hidden and c->recurrent are known. The norm has one group in Hugging Face's files and the groups
// of the scan in GGUF files, until the caller changes it. All factors are 1.
mlx_status_t mlx_read_mamba2(const mlx_source_t *source, const mlx_mamba2_names_t *names,
                             mlx_config_t *c) MLX_MUST_USE;
// Which layers of |key|, a list of config.json, are Mamba 2 and which are attention; in GGUF files those
// without KV heads.
mlx_status_t mlx_read_mamba2_layers(const mlx_source_t *source, const char *key,
                                    mlx_config_t *c) MLX_MUST_USE;
// mamba_expand * hidden, which the Mamba blocks of some architectures have as their width.
mlx_status_t mlx_read_mamba2_expand(const mlx_source_t *source, const char *name, const mlx_config_t *c,
                                    int64_t *out_inner) MLX_MUST_USE;

// Whether a GGUF file of granitehybrid is a Bamba, which has rotary positions.
bool mlx_gguf_is_bamba(const mlx_source_t *source);

// One block, from h [M, hidden] to [M, hidden].
mlx_value_t mlx_block_mamba2(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h);

// The MLP of MLX_RULES_FEED_FORWARD, with the factors of its gate and of its result.
mlx_value_t mlx_block_feed_forward(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h);

// For the fields of mlx_tensor_rule_t.
bool mlx_has_scan_in_bias(const mlx_config_t *c);
bool mlx_has_scan_out_bias(const mlx_config_t *c);
bool mlx_has_scan_norm(const mlx_config_t *c);
double mlx_scan_channel_factor(const mlx_config_t *c, int64_t channel);

#endif  // MLXCEL_MODELS_SHARED_MAMBA2_H_
