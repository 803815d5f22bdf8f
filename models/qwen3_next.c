// Qwen3-Next: the network of Qwen3.5 with a mixture of experts. Files fuse the four projections of linear
// attention to two, whose rows are grouped by key head: q, k, v and z of a head, and beta and step of its
// value heads. GGUF files have the first of the two in parts, and the value heads in the order of Hugging
// Face.
#include "models/shared/gated_delta.h"

// Rows of v, and of z, of one key head.
static int64_t value_rows(const mlx_config_t *c) {
  return c->delta.value_heads / c->delta.key_heads * c->delta.value_dim;
}

// Row |row| of a part with |size| rows for each key head. The part starts at |start| of the |all| rows that
// the fused tensor has for each key head.
static int64_t grouped_row(int64_t row, int64_t size, int64_t start, int64_t all) {
  return row / size * all + start + row % size;
}

static int64_t qkv_row(const mlx_config_t *c, int64_t row) {
  const int64_t dim = c->delta.key_dim, keys = c->delta.key_heads * dim, all = 2 * (dim + value_rows(c));
  if (row < 2 * keys) return grouped_row(row % keys, dim, row / keys * dim, all);
  return grouped_row(row - 2 * keys, value_rows(c), 2 * dim, all);
}

static int64_t z_row(const mlx_config_t *c, int64_t row) {
  const int64_t size = value_rows(c);
  return grouped_row(row, size, 2 * c->delta.key_dim + size, 2 * (c->delta.key_dim + size));
}

static int64_t beta_row(const mlx_config_t *c, int64_t row) {
  const int64_t size = c->delta.value_heads / c->delta.key_heads;
  return grouped_row(row, size, 0, 2 * size);
}

static int64_t step_row(const mlx_config_t *c, int64_t row) {
  const int64_t size = c->delta.value_heads / c->delta.key_heads;
  return grouped_row(row, size, size, 2 * size);
}

#define QKVZ                                                                        \
  MLX_IN_RECURRENT, .hf_stored = "model.layers.%d.linear_attn.in_proj_qkvz.weight", \
      .fused_rows = MLX_DIM(delta_qkvz)
#define BA                                                                        \
  MLX_IN_RECURRENT, .hf_stored = "model.layers.%d.linear_attn.in_proj_ba.weight", \
      .fused_rows = MLX_DIM(delta_ba)

static const mlx_tensor_rule_t qwen3_next_tensors[] = {
    MLX_RULE_EMBED,
    MLX_LAYER_NORM("input_layernorm", "attn_norm", MLX_PLUS_ONE),
    MLX_LAYER_MATRIX("linear_attn.in_proj_qkv.weight", "attn_qkv.weight", MLX_DIM(conv_width),
                     MLX_DIM(hidden), QKVZ, .hf_row = qkv_row),
    MLX_LAYER_MATRIX("linear_attn.in_proj_z.weight", "attn_gate.weight", MLX_DELTA_VALUES, MLX_DIM(hidden),
                     QKVZ, .hf_row = z_row),
    MLX_LAYER_MATRIX("linear_attn.in_proj_b.weight", "ssm_ba.weight", MLX_DIM(delta.value_heads),
                     MLX_DIM(hidden), BA, .hf_row = beta_row, .gguf_row = beta_row),
    MLX_LAYER_MATRIX("linear_attn.in_proj_a.weight", "ssm_ba.weight", MLX_DIM(delta.value_heads),
                     MLX_DIM(hidden), BA, .hf_row = step_row, .gguf_row = step_row),
    MLX_RULES_GATED_DELTA,
    MLX_RULES_GATED_ATTENTION,
    MLX_LAYER_NORM("post_attention_layernorm", "post_attention_norm", MLX_PLUS_ONE),
    MLX_RULES_EXPERTS(MLX_DIM(expert_ffn)),
    MLX_RULES_SHARED_EXPERT,
    MLX_RULE_FINAL_NORM(MLX_PLUS_ONE),
    MLX_RULE_HEAD,
};

static mlx_status_t qwen3_next_read_config(const mlx_source_t *source, mlx_config_t *c) {
  MLX_TRY(mlx_require_experts_everywhere(source));
  MLX_TRY(mlx_read_gated_delta(source, 2, false, c));
  c->delta_qkvz = c->conv_width + c->delta.value_heads * c->delta.value_dim;
  c->delta_ba = 2 * c->delta.value_heads;
  return mlx_read_shared_experts(source, true, c);
}

// The draft layers (MTP) guess several tokens at once; decoding token by token does not use them.
static const char *const qwen3_next_unused[] = {"mtp.", NULL};
static const char *const qwen3_next_types[] = {"qwen3_next", NULL};
static const char *const qwen3_next_gguf_types[] = {"qwen3next", NULL};

const mlx_arch_t mlx_arch_qwen3_next = {
    .hf_types = qwen3_next_types,
    .gguf_types = qwen3_next_gguf_types,
    MLX_TENSORS(qwen3_next_tensors),
    .unused = qwen3_next_unused,
    .read_config = qwen3_next_read_config,
    .layer = mlx_gated_delta_moe_layer,
};
