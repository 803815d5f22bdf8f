// Granite with a mixture of experts instead of the MLP.
#include "models/shared/blocks.h"

// Hugging Face fuses gate and up of all experts in one tensor, gate first.
#define STORED "model.layers.%d.block_sparse_moe."

static const mlx_tensor_rule_t granitemoe_tensors[] = {
    MLX_RULE_EMBED,
    MLX_LAYER_NORM("input_layernorm", "attn_norm"),
    MLX_RULES_ATTENTION(MLX_ROWS_INTERLEAVED_HALVES),
    MLX_LAYER_NORM("post_attention_layernorm", "ffn_norm"),
    MLX_LAYER_MATRIX("block_sparse_moe.router.layer.weight", "ffn_gate_inp.weight", MLX_DIM(experts),
                     MLX_DIM(hidden)),
    MLX_EXPERTS(STORED "gate.weight", "blk.%d.ffn_gate_exps.weight", MLX_DIM(ffn), MLX_DIM(hidden),
                .hf_stored = STORED "input_linear.weight", .hf_fused_part = MLX_FUSED_FIRST_HALF),
    MLX_EXPERTS(STORED "up.weight", "blk.%d.ffn_up_exps.weight", MLX_DIM(ffn), MLX_DIM(hidden),
                .hf_stored = STORED "input_linear.weight", .hf_fused_part = MLX_FUSED_SECOND_HALF),
    MLX_EXPERTS(STORED "output_linear.weight", "blk.%d.ffn_down_exps.weight", MLX_DIM(hidden), MLX_DIM(ffn)),
    MLX_RULE_FINAL_NORM(),
    MLX_RULE_HEAD,
};

static mlx_status_t granitemoe_read_config(const mlx_source_t *source, mlx_config_t *c) {
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_SILU, &c->act));
  MLX_TRY(mlx_read_sizes(source, NULL, false, c));
  MLX_TRY(mlx_read_rms_eps(source, c));
  MLX_TRY(mlx_read_attention_bias(source, "attention_bias", false, c));
  MLX_TRY(mlx_read_expert_counts(source, c));
  MLX_TRY(mlx_read_multipliers(source, c));
  return mlx_read_rope(source, &(mlx_rope_fields_t){0}, c, &c->rope);
}

static mlx_value_t granitemoe_experts(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h) {
  const mlx_experts_t experts = {.used = c->experts_used, .sum_to_one = true, .act = c->act};
  mlx_value_t scores = mlx_op_linear(g, "router", h, MLX_W("block_sparse_moe.router.layer"));  // [M, experts]
  return mlx_op_experts(g, "experts", &experts, h, scores, MLX_W("block_sparse_moe.gate"),
                        MLX_W("block_sparse_moe.up"), MLX_W("block_sparse_moe.output_linear"));
}

static mlx_value_t granitemoe_layer(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x) {
  mlx_op_scope(g, "layer%d", layer);
  mlx_value_t h = mlx_op_rmsnorm(g, "attn_in", x, MLX_W("input_layernorm"), c->norm_eps);
  h = mlx_block_attention(g, c, layer, h);
  x = mlx_op_add(g, "after_attn", x, mlx_op_scale(g, "attn_scaled", h, c->residual_scale));
  h = mlx_op_rmsnorm(g, "mlp_in", x, MLX_W("post_attention_layernorm"), c->norm_eps);
  h = granitemoe_experts(g, c, layer, h);
  return mlx_op_add(g, "out", x, mlx_op_scale(g, "mlp_scaled", h, c->residual_scale));
}

static const char *const granitemoe_types[] = {"granitemoe", NULL};

const mlx_arch_t mlx_arch_granitemoe = {
    .hf_types = granitemoe_types,
    .gguf_types = granitemoe_types,
    MLX_TENSORS(granitemoe_tensors),
    .read_config = granitemoe_read_config,
    .layer = granitemoe_layer,
};
