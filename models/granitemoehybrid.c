// Granite 4: layers of Mamba 2 and of attention, each with an MLP that all tokens use, and beside it a
// mixture of experts unless the model is dense. Attention usually has no positions.
#include <string.h>

#include "models/shared/mamba2.h"

#define ATTENTION .layers = MLX_ATTENTION_LAYERS
#define RECURRENT .layers = MLX_RECURRENT_LAYERS
// Hugging Face fuses gate and up of all experts in one tensor, gate first; and those of the shared MLP.
#define STORED "model.layers.%d.block_sparse_moe."

static bool is_mixture(const mlx_config_t *c) { return c->experts > 0; }
static bool is_fused(const mlx_config_t *c) { return c->fused_mlp; }
static bool is_split_mixture(const mlx_config_t *c) { return !c->fused_mlp && is_mixture(c); }
static bool is_split_dense(const mlx_config_t *c) { return !c->fused_mlp && !is_mixture(c); }
static bool is_dense(const mlx_config_t *c) { return !is_mixture(c); }

#define EXPERTS .present = is_mixture
static const mlx_tensor_rule_t granitemoehybrid_tensors[] = {
    MLX_RULE_EMBED,
    MLX_LAYER_NORM("input_layernorm", "attn_norm"),
    MLX_RULES_MAMBA2("model.layers.%d.mamba.", RECURRENT),
    MLX_RULES_ATTENTION(MLX_ROWS_INTERLEAVED_HALVES, ATTENTION),
    MLX_LAYER_NORM("post_attention_layernorm", "ffn_norm"),
    MLX_LAYER_MATRIX("block_sparse_moe.router.layer.weight", "ffn_gate_inp.weight", MLX_DIM(experts),
                     MLX_DIM(hidden), EXPERTS),
    MLX_EXPERTS(STORED "gate.weight", "blk.%d.ffn_gate_exps.weight", MLX_DIM(ffn), MLX_DIM(hidden),
                .hf_stored = STORED "input_linear.weight", .hf_fused_part = MLX_FUSED_FIRST_HALF, EXPERTS),
    MLX_EXPERTS(STORED "up.weight", "blk.%d.ffn_up_exps.weight", MLX_DIM(ffn), MLX_DIM(hidden),
                .hf_stored = STORED "input_linear.weight", .hf_fused_part = MLX_FUSED_SECOND_HALF, EXPERTS),
    MLX_EXPERTS(STORED "output_linear.weight", "blk.%d.ffn_down_exps.weight", MLX_DIM(hidden), MLX_DIM(ffn),
                EXPERTS),
    MLX_LAYER_MATRIX("shared_mlp.input_linear.weight", "", MLX_DIM(gate_up_width), MLX_DIM(hidden),
                     .present = is_fused),
    MLX_LAYER_MATRIX("shared_mlp.gate.weight", "ffn_gate_shexp.weight", MLX_DIM(shared_ffn), MLX_DIM(hidden),
                     .present = is_split_mixture),
    MLX_LAYER_MATRIX("shared_mlp.up.weight", "ffn_up_shexp.weight", MLX_DIM(shared_ffn), MLX_DIM(hidden),
                     .present = is_split_mixture),
    MLX_LAYER_MATRIX("shared_mlp.gate.weight", "ffn_gate.weight", MLX_DIM(shared_ffn), MLX_DIM(hidden),
                     .present = is_split_dense),
    MLX_LAYER_MATRIX("shared_mlp.up.weight", "ffn_up.weight", MLX_DIM(shared_ffn), MLX_DIM(hidden),
                     .present = is_split_dense),
    MLX_LAYER_MATRIX("shared_mlp.output_linear.weight", "ffn_down_shexp.weight", MLX_DIM(hidden),
                     MLX_DIM(shared_ffn), .present = is_mixture),
    MLX_LAYER_MATRIX("shared_mlp.output_linear.weight", "ffn_down.weight", MLX_DIM(hidden),
                     MLX_DIM(shared_ffn), .present = is_dense),
    MLX_RULE_FINAL_NORM(),
    MLX_RULE_HEAD,
};

// GGUF files of dense models have the width of the shared MLP as that of the MLP.
static mlx_status_t read_experts(const mlx_source_t *source, mlx_config_t *c) {
  const bool gguf = mlx_source_is_gguf(source);
  bool found;
  c->experts = gguf ? 0 : 8;
  c->experts_used = 2;
  c->shared_ffn = gguf ? c->ffn : 1024;
  c->fused_mlp = !gguf;
  MLX_TRY(mlx_source_int(source, "num_local_experts", ".expert_count", 0, 4096, &c->experts, &found));
  MLX_TRY(
      mlx_source_int(source, "num_experts_per_tok", ".expert_used_count", 0, 64, &c->experts_used, &found));
  if (c->experts && (c->experts_used < 1 || c->experts_used > c->experts))
    return mlx_source_field_error(source, "num_experts_per_tok", ".expert_used_count", MLX_INVALID_INPUT,
                                  "must be from 1 to the number of experts, %lld", (long long)c->experts);
  MLX_TRY(mlx_source_int(source, "shared_intermediate_size", ".expert_shared_feed_forward_length", 1, 1 << 20,
                         &c->shared_ffn, &found));
  c->gate_up_width = 2 * c->shared_ffn;
  return NULL;
}

// Without rotary positions, unless position_embedding_type is "rope".
static mlx_status_t read_positions(const mlx_source_t *source, mlx_config_t *c) {
  const char *key = "position_embedding_type", *type = "nope";
  bool found;
  MLX_TRY(mlx_source_string(source, key, NULL, &type, &found));
  if (strcmp(type, "nope") && strcmp(type, "rope"))
    return mlx_source_field_error(source, key, NULL, MLX_UNSUPPORTED, "is '%s'; must be rope or nope", type);
  for (int64_t i = 0; i < c->layers; ++i) c->no_rope[i] = strcmp(type, "rope") != 0;
  return mlx_read_rope(source, &(mlx_rope_fields_t){0}, c, &c->rope);
}

static mlx_status_t granitemoehybrid_read_config(const mlx_source_t *source, mlx_config_t *c) {
  mlx_mamba2_names_t names = {MLX_MAMBA2_NAMES, .defaults = {.heads = 128, .groups = 1, .state_size = 256}};
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_SILU, &c->act));
  MLX_TRY(mlx_read_sizes(source, NULL, false, c));
  MLX_TRY(mlx_read_rms_eps(source, c));
  MLX_TRY(mlx_read_attention_bias(source, "attention_bias", false, c));
  for (int64_t i = 0; i < c->layers; ++i) c->recurrent[i] = true;
  if (mlx_source_is_gguf(source) || mlx_source_has(source, "layer_types", NULL))
    MLX_TRY(mlx_read_mamba2_layers(source, "layer_types", c));
  MLX_TRY(mlx_read_mamba2_expand(source, "mamba_expand", c, &names.inner));
  MLX_TRY(mlx_read_mamba2(source, &names, c));
  if (!mlx_source_is_gguf(source)) {
    MLX_TRY(mlx_read_flag(source, "mamba_proj_bias", NULL, false, &c->scan_in_bias));
    c->scan_out_bias = c->scan_in_bias;
  }
  MLX_TRY(read_experts(source, c));
  MLX_TRY(mlx_read_multipliers(source, c));
  return read_positions(source, c);
}

static mlx_value_t experts(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h) {
  const mlx_experts_t e = {.used = c->experts_used, .sum_to_one = true, .act = c->act};
  mlx_value_t scores = mlx_op_linear(g, "router", h, MLX_W("block_sparse_moe.router.layer"));  // [M, experts]
  return mlx_op_experts(g, "experts", &e, h, scores, MLX_W("block_sparse_moe.gate"),
                        MLX_W("block_sparse_moe.up"), MLX_W("block_sparse_moe.output_linear"));
}

static mlx_value_t shared_mlp(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h) {
  mlx_value_t gate, up;  // [M, shared_ffn]
  if (c->fused_mlp) {
    mlx_value_t both = mlx_op_linear(g, "gate_up", h, MLX_W("shared_mlp.input_linear"));
    gate = mlx_op_columns(g, "gate", both, 0, c->shared_ffn);
    up = mlx_op_columns(g, "up", both, c->shared_ffn, c->shared_ffn);
  } else {
    gate = mlx_op_linear(g, "gate", h, MLX_W("shared_mlp.gate"));
    up = mlx_op_linear(g, "up", h, MLX_W("shared_mlp.up"));
  }
  h = mlx_op_gated(g, "act", c->act, gate, up);
  return mlx_op_linear(g, "down", h, MLX_W("shared_mlp.output_linear"));
}

static mlx_value_t granitemoehybrid_layer(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x) {
  mlx_op_scope(g, "layer%d", layer);
  mlx_value_t h = mlx_op_rmsnorm(g, "attn_in", x, MLX_W("input_layernorm"), c->norm_eps);
  h = c->recurrent[layer] ? mlx_block_mamba2(g, c, layer, h) : mlx_block_attention(g, c, layer, h);
  x = mlx_op_add(g, "after_attn", x, mlx_op_scale(g, "attn_scaled", h, c->residual_scale));
  h = mlx_op_rmsnorm(g, "mlp_in", x, MLX_W("post_attention_layernorm"), c->norm_eps);
  mlx_value_t out = shared_mlp(g, c, layer, h);
  if (is_mixture(c)) out = mlx_op_add(g, "mlp", experts(g, c, layer, h), out);
  return mlx_op_add(g, "out", x, mlx_op_scale(g, "mlp_scaled", out, c->residual_scale));
}

// Bamba has the same name in GGUF files, and rotary positions.
static bool has_no_positions(const mlx_source_t *source) { return !mlx_gguf_is_bamba(source); }

static const char *const granitemoehybrid_types[] = {"granitemoehybrid", NULL};
static const char *const granitemoehybrid_gguf_types[] = {"granitehybrid", NULL};

const mlx_arch_t mlx_arch_granitemoehybrid = {
    .hf_types = granitemoehybrid_types,
    .gguf_types = granitemoehybrid_gguf_types,
    .matches = has_no_positions,
    MLX_TENSORS(granitemoehybrid_tensors),
    .read_config = granitemoehybrid_read_config,
    .layer = granitemoehybrid_layer,
};
