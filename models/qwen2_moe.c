// Qwen2 with a mixture of experts for its MLP, beside one expert that every token uses as far as a gate lets
// it.
#include "models/shared/blocks.h"

static const mlx_tensor_rule_t qwen2_moe_tensors[] = {
    MLX_RULE_EMBED,
    MLX_LAYER_NORM("input_layernorm", "attn_norm"),
    MLX_RULES_ATTENTION(MLX_ROWS_AS_STORED),
    MLX_LAYER_NORM("post_attention_layernorm", "ffn_norm"),
    MLX_LAYER_MATRIX("mlp.gate.weight", "ffn_gate_inp.weight", MLX_DIM(experts), MLX_DIM(hidden)),
    MLX_EXPERTS("model.layers.%d.mlp.experts.%e.gate_proj.weight", "blk.%d.ffn_gate_exps.weight",
                MLX_DIM(expert_ffn), MLX_DIM(hidden), .hf_stacked = true,
                .mlx_name = "model.layers.%d.mlp.switch_mlp.gate_proj.weight"),
    MLX_EXPERTS("model.layers.%d.mlp.experts.%e.up_proj.weight", "blk.%d.ffn_up_exps.weight",
                MLX_DIM(expert_ffn), MLX_DIM(hidden), .hf_stacked = true,
                .mlx_name = "model.layers.%d.mlp.switch_mlp.up_proj.weight"),
    MLX_EXPERTS("model.layers.%d.mlp.experts.%e.down_proj.weight", "blk.%d.ffn_down_exps.weight",
                MLX_DIM(hidden), MLX_DIM(expert_ffn), .hf_stacked = true,
                .mlx_name = "model.layers.%d.mlp.switch_mlp.down_proj.weight"),
    MLX_LAYER_MATRIX("mlp.shared_expert.gate_proj.weight", "ffn_gate_shexp.weight", MLX_DIM(shared_ffn),
                     MLX_DIM(hidden)),
    MLX_LAYER_MATRIX("mlp.shared_expert.up_proj.weight", "ffn_up_shexp.weight", MLX_DIM(shared_ffn),
                     MLX_DIM(hidden)),
    MLX_LAYER_MATRIX("mlp.shared_expert.down_proj.weight", "ffn_down_shexp.weight", MLX_DIM(hidden),
                     MLX_DIM(shared_ffn)),
    MLX_LAYER_MATRIX("mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp.weight", MLX_DIM(one),
                     MLX_DIM(hidden)),
    MLX_RULE_FINAL_NORM(),
    MLX_RULE_HEAD,
};

// Layers without experts among the others are not supported.
static mlx_status_t refuse_dense_layers(const mlx_source_t *source) {
  int64_t step = 1;
  bool found;
  MLX_TRY(mlx_source_int(source, "decoder_sparse_step", NULL, 1, 1 << 20, &step, &found));
  if (step != 1)
    return mlx_source_field_error(source, "decoder_sparse_step", NULL, MLX_UNSUPPORTED,
                                  "is %lld; only 1 is supported", (long long)step);
  if (!mlx_source_array_length(source, "mlp_only_layers", NULL)) return NULL;
  return mlx_source_field_error(source, "mlp_only_layers", NULL, MLX_UNSUPPORTED,
                                "is not empty, which is not supported");
}

static mlx_status_t qwen2_moe_read_config(const mlx_source_t *source, mlx_config_t *c) {
  MLX_TRY(refuse_dense_layers(source));
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_SILU, &c->act));
  MLX_TRY(mlx_read_sizes(source, &(mlx_size_names_t){.default_kv_heads = 16}, false, c));
  MLX_TRY(mlx_read_eps(source, "rms_norm_eps", ".attention.layer_norm_rms_epsilon", c));
  MLX_TRY(mlx_read_expert_count(source, c));
  MLX_TRY(mlx_source_int(source, "num_experts_per_tok", ".expert_used_count", 1, 64, &c->experts_used, NULL));
  MLX_TRY(mlx_source_int(source, "moe_intermediate_size", ".expert_feed_forward_length", 1, 1 << 20,
                         &c->expert_ffn, NULL));
  MLX_TRY(mlx_source_int(source, "shared_expert_intermediate_size", ".expert_shared_feed_forward_length", 1,
                         1 << 20, &c->shared_ffn, NULL));
  MLX_TRY(mlx_read_expert_weights(source, false, c));
  c->one = 1;
  MLX_TRY(mlx_read_switch(source, "qkv_bias", "blk.0.attn_q.bias", true, &c->q_bias));
  c->kv_bias = c->q_bias;
  MLX_TRY(mlx_read_late_windows(source, c));
  return mlx_read_rope(source, &(mlx_rope_fields_t){0}, c, &c->rope);
}

static mlx_value_t qwen2_moe_experts(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h) {
  const mlx_experts_t experts = {.used = c->experts_used, .sum_to_one = c->experts_sum_to_one, .act = c->act};
  mlx_value_t scores = mlx_op_linear(g, "router", h, MLX_W("mlp.gate"));  // [M, experts]
  return mlx_op_experts(g, "experts", &experts, h, scores, MLX_W("mlp.experts.all.gate_proj"),
                        MLX_W("mlp.experts.all.up_proj"), MLX_W("mlp.experts.all.down_proj"));
}

static mlx_value_t qwen2_moe_mlp(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h) {
  mlx_value_t gate =
      mlx_op_linear(g, "shared_gate", h, MLX_W("mlp.shared_expert.gate_proj"));  // [M, shared_ffn]
  mlx_value_t up = mlx_op_linear(g, "shared_up", h, MLX_W("mlp.shared_expert.up_proj"));
  mlx_value_t shared = mlx_op_gated(g, "shared_act", c->act, gate, up);
  shared = mlx_op_linear(g, "shared_down", shared, MLX_W("mlp.shared_expert.down_proj"));
  mlx_value_t share =
      mlx_op_sigmoid(g, "share", mlx_op_linear(g, "share_in", h, MLX_W("mlp.shared_expert_gate")));  // [M, 1]
  shared = mlx_op_scale_rows(g, "shared", shared, share);
  return mlx_op_add(g, "mlp", qwen2_moe_experts(g, c, layer, h), shared);
}

static mlx_value_t qwen2_moe_layer(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x) {
  mlx_op_scope(g, "layer%d", layer);
  mlx_value_t h = mlx_op_rmsnorm(g, "attn_in", x, MLX_W("input_layernorm"), c->norm_eps);
  x = mlx_op_add(g, "after_attn", x, mlx_block_attention(g, c, layer, h));
  h = mlx_op_rmsnorm(g, "mlp_in", x, MLX_W("post_attention_layernorm"), c->norm_eps);
  return mlx_op_add(g, "out", x, qwen2_moe_mlp(g, c, layer, h));
}

static mlx_value_t qwen2_moe_forward(mlx_graph_t *g, const mlx_model_t *model, mlx_value_t tokens) {
  const mlx_config_t *c = &model->config;
  mlx_value_t x = mlx_block_embed(g, c, tokens);  // [M, hidden]
  for (int layer = 0; layer < c->layers; ++layer) x = qwen2_moe_layer(g, c, layer, x);
  mlx_op_scope(g, "%s", "");
  return mlx_op_rmsnorm(g, "final", x, mlx_op_weight(g, "model.norm.weight"), c->norm_eps);
}

static const char *const qwen2_moe_types[] = {"qwen2_moe", NULL};
static const char *const qwen2_moe_gguf_types[] = {"qwen2moe", NULL};

const mlx_arch_t mlx_arch_qwen2_moe = {
    .hf_types = qwen2_moe_types,
    .gguf_types = qwen2_moe_gguf_types,
    MLX_TENSORS(qwen2_moe_tensors),
    .read_config = qwen2_moe_read_config,
    .forward = qwen2_moe_forward,
    .head = mlx_block_head,
};
