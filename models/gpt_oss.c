// gpt-oss: a mixture of experts with biases and a clamped gate, alternating layers with and without a
// sliding window, and attention sinks. Hugging Face fuses gate and up of all experts in one tensor with
// alternating rows, stored as [in, out] or as MXFP4.
#include "models/shared/blocks.h"

#define EXPERTS "model.layers.%d.mlp.experts."

static const mlx_tensor_rule_t gpt_oss_tensors[] = {
    MLX_RULE_EMBED,
    MLX_LAYER_NORM("input_layernorm", "attn_norm"),
    MLX_RULES_ATTENTION(MLX_ROWS_AS_STORED),
    MLX_LAYER_VECTOR("self_attn.sinks", "attn_sinks.weight", MLX_DIM(heads)),
    MLX_LAYER_NORM("post_attention_layernorm", "post_attention_norm"),
    MLX_LAYER_MATRIX("mlp.router.weight", "ffn_gate_inp.weight", MLX_DIM(experts), MLX_DIM(hidden)),
    MLX_LAYER_VECTOR("mlp.router.bias", "ffn_gate_inp.bias", MLX_DIM(experts)),
    MLX_EXPERTS(EXPERTS "gate.weight", "blk.%d.ffn_gate_exps.weight", MLX_DIM(expert_ffn), MLX_DIM(hidden),
                .hf_stored = EXPERTS "gate_up_proj", .hf_fused_part = MLX_FUSED_EVEN_ROWS,
                .hf_order = MLX_ROWS_ARE_COLUMNS),
    MLX_EXPERTS(EXPERTS "up.weight", "blk.%d.ffn_up_exps.weight", MLX_DIM(expert_ffn), MLX_DIM(hidden),
                .hf_stored = EXPERTS "gate_up_proj", .hf_fused_part = MLX_FUSED_ODD_ROWS,
                .hf_order = MLX_ROWS_ARE_COLUMNS),
    MLX_EXPERTS(EXPERTS "down.weight", "blk.%d.ffn_down_exps.weight", MLX_DIM(hidden), MLX_DIM(expert_ffn),
                .hf_stored = EXPERTS "down_proj", .hf_order = MLX_ROWS_ARE_COLUMNS),
    MLX_MATRIX(EXPERTS "gate.bias", "blk.%d.ffn_gate_exps.bias", MLX_DIM(experts), MLX_DIM(expert_ffn),
               .hf_stored = EXPERTS "gate_up_proj_bias", .hf_fused_part = MLX_FUSED_EVEN_ROWS),
    MLX_MATRIX(EXPERTS "up.bias", "blk.%d.ffn_up_exps.bias", MLX_DIM(experts), MLX_DIM(expert_ffn),
               .hf_stored = EXPERTS "gate_up_proj_bias", .hf_fused_part = MLX_FUSED_ODD_ROWS),
    MLX_MATRIX(EXPERTS "down.bias", "blk.%d.ffn_down_exps.bias", MLX_DIM(experts), MLX_DIM(hidden),
               .hf_stored = EXPERTS "down_proj_bias"),
    MLX_RULE_FINAL_NORM(),
    MLX_RULE_HEAD,
};

static mlx_status_t gpt_oss_read_config(const mlx_source_t *source, mlx_config_t *c) {
  // If both fields are missing, the Hugging Face class uses the YaRN parameters of the published models. The
  // published files always have one of the fields, so this case is refused.
  const bool has_rope =
      mlx_source_has(source, "rope_parameters", NULL) || mlx_source_has(source, "rope_scaling", NULL);
  if (!has_rope && !mlx_source_is_gguf(source)) {
    return mlx_source_field_error(source, "rope_parameters", NULL, MLX_UNSUPPORTED, "is missing");
  }
  MLX_TRY(
      mlx_read_sizes(source, &(mlx_size_names_t){.default_head_dim = 64, .default_kv_heads = 8}, false, c));
  MLX_TRY(mlx_read_rms_eps(source, c));
  MLX_TRY(mlx_read_attention_bias(source, "attention_bias", true, c));
  MLX_TRY(mlx_read_expert_counts(source, c));
  MLX_TRY(mlx_source_int(source, "intermediate_size", ".expert_feed_forward_length", 1, 1 << 20,
                         &c->expert_ffn, NULL));
  MLX_TRY(mlx_read_number(source, "swiglu_limit", NULL, 7.0, &c->gate_limit));
  if (!(c->gate_limit > 0.0)) {
    return mlx_source_field_error(source, "swiglu_limit", NULL, MLX_INVALID_INPUT, "must be greater than 0");
  }
  MLX_TRY(mlx_read_number(source, "swiglu_alpha", NULL, 1.702, &c->gate_slope));
  MLX_TRY(mlx_read_windows(source, 2, 128, c));
  c->sinks = true;
  return mlx_read_rope(source, &(mlx_rope_fields_t){.default_theta = 150000.0, .gguf_untruncated = true}, c,
                       &c->rope);
}

static mlx_value_t gpt_oss_experts(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h) {
  const mlx_experts_t experts = {.used = c->experts_used,
                                 .sum_to_one = true,
                                 .limit = c->gate_limit,
                                 .slope = c->gate_slope,
                                 .gate_bias = MLX_B("mlp.experts.gate", true),
                                 .up_bias = MLX_B("mlp.experts.up", true),
                                 .down_bias = MLX_B("mlp.experts.down", true)};
  mlx_value_t scores =
      mlx_op_linear_bias(g, "router", h, MLX_W("mlp.router"), MLX_B("mlp.router", true));  // [M, experts]
  return mlx_op_experts(g, "experts", &experts, h, scores, MLX_W("mlp.experts.gate"), MLX_W("mlp.experts.up"),
                        MLX_W("mlp.experts.down"));
}

static mlx_value_t gpt_oss_layer(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x) {
  mlx_op_scope(g, "layer%d", layer);
  mlx_value_t h = mlx_op_rmsnorm(g, "attn_in", x, MLX_W("input_layernorm"), c->norm_eps);
  x = mlx_op_add(g, "after_attn", x, mlx_block_attention(g, c, layer, h));
  h = mlx_op_rmsnorm(g, "mlp_in", x, MLX_W("post_attention_layernorm"), c->norm_eps);
  return mlx_op_add(g, "out", x, gpt_oss_experts(g, c, layer, h));
}

static const char *const gpt_oss_types[] = {"gpt_oss", NULL};
static const char *const gpt_oss_gguf_types[] = {"gpt-oss", NULL};

const mlx_arch_t mlx_arch_gpt_oss = {
    .hf_types = gpt_oss_types,
    .gguf_types = gpt_oss_gguf_types,
    MLX_TENSORS(gpt_oss_tensors),
    .read_config = gpt_oss_read_config,
    .layer = gpt_oss_layer,
};
