// Phi-3.5-MoE: LayerNorm, and two experts per token whose weights are softmaxes over scores near the best one
// (SparseMixer).
#include "models/shared/blocks.h"

#define NORM(name, gguf)                                             \
  MLX_LAYER_VECTOR(name ".weight", gguf ".weight", MLX_DIM(hidden)), \
      MLX_LAYER_VECTOR(name ".bias", gguf ".bias", MLX_DIM(hidden))
// Published files have a matrix for each expert; transformers 5 reads and writes these names.
#define EXPERTS(hf, mlx, gguf, rows, columns)                                                              \
  MLX_EXPERTS("model.layers.%d.block_sparse_moe.experts.%e." hf ".weight", "blk.%d." gguf ".weight", rows, \
              columns, .hf_stacked = true,                                                                 \
              .mlx_name = "model.layers.%d.block_sparse_moe.switch_mlp." mlx ".weight")

static const mlx_tensor_rule_t phimoe_tensors[] = {
    MLX_RULE_EMBED,
    NORM("input_layernorm", "attn_norm"),
    MLX_RULES_ATTENTION(MLX_ROWS_AS_STORED),
    NORM("post_attention_layernorm", "ffn_norm"),
    MLX_LAYER_MATRIX("block_sparse_moe.gate.weight", "ffn_gate_inp.weight", MLX_DIM(experts),
                     MLX_DIM(hidden)),
    EXPERTS("w1", "gate_proj", "ffn_gate_exps", MLX_DIM(ffn), MLX_DIM(hidden)),
    EXPERTS("w3", "up_proj", "ffn_up_exps", MLX_DIM(ffn), MLX_DIM(hidden)),
    EXPERTS("w2", "down_proj", "ffn_down_exps", MLX_DIM(hidden), MLX_DIM(ffn)),
    MLX_RULE_FINAL_NORM(),
    MLX_VECTOR("model.norm.bias", "output_norm.bias", MLX_DIM(hidden)),
    MLX_RULE_HEAD,
    MLX_VECTOR("lm_head.bias", "output.bias", MLX_DIM(vocab), .present = mlx_has_head_bias),
};

static mlx_status_t phimoe_read_config(const mlx_source_t *source, mlx_config_t *c) {
  double jitter;
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_SILU, &c->act));
  MLX_TRY(mlx_read_sizes(source, &(mlx_size_names_t){.default_kv_heads = 8}, false, c));
  MLX_TRY(mlx_read_rms_eps(source, c));
  MLX_TRY(mlx_read_expert_counts(source, c));
  if (c->experts_used != 2 || c->experts < 2)
    return mlx_source_field_error(source, "num_experts_per_tok", ".expert_used_count", MLX_UNSUPPORTED,
                                  "is %lld; only 2 is supported", (long long)c->experts_used);
  MLX_TRY(mlx_read_number(source, "router_jitter_noise", NULL, 0.01, &jitter));
  if (!(jitter > 0.0 && jitter <= 1.0))
    return mlx_source_field_error(source, "router_jitter_noise", NULL, MLX_INVALID_INPUT,
                                  "is %g; it must be greater than 0 and at most 1", jitter);
  c->expert_spread = 2.0 * jitter;
  MLX_TRY(mlx_read_attention_bias(source, "attention_bias", false, c));
  MLX_TRY(mlx_read_flag(source, "lm_head_bias", "output.bias", false, &c->head_bias));
  if (mlx_source_is_gguf(source)) c->head_bias = mlx_source_tensor(source, NULL, "output.bias") != NULL;
  MLX_TRY(mlx_read_windows(source, 0, 0, c));
  return mlx_read_rope(source, &(mlx_rope_fields_t){.default_theta = 1000000.0, .mscales = true}, c,
                       &c->rope);
}

static mlx_value_t norm(mlx_graph_t *g, const mlx_config_t *c, int layer, const char *name, const char *part,
                        mlx_value_t x) {
  return mlx_op_layernorm(g, name, x, mlx_op_weight(g, "model.layers.%d.%s.weight", layer, part),
                          mlx_op_weight(g, "model.layers.%d.%s.bias", layer, part), c->norm_eps);
}

static mlx_value_t phimoe_layer(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x) {
  mlx_op_scope(g, "layer%d", layer);
  const mlx_experts_t experts = {.used = c->experts_used, .spread = c->expert_spread, .act = c->act};
  mlx_value_t h = norm(g, c, layer, "attn_in", "input_layernorm", x);
  x = mlx_op_add(g, "after_attn", x, mlx_block_attention(g, c, layer, h));
  h = norm(g, c, layer, "mlp_in", "post_attention_layernorm", x);
  const mlx_value_t scores = mlx_op_linear(g, "router", h, MLX_W("block_sparse_moe.gate"));  // [M, experts]
  h = mlx_op_experts(g, "experts", &experts, h, scores, MLX_W("block_sparse_moe.experts.all.w1"),
                     MLX_W("block_sparse_moe.experts.all.w3"), MLX_W("block_sparse_moe.experts.all.w2"));
  return mlx_op_add(g, "out", x, h);
}

static mlx_value_t phimoe_forward(mlx_graph_t *g, const mlx_model_t *model, mlx_value_t tokens) {
  const mlx_config_t *c = &model->config;
  mlx_value_t x = mlx_block_embed(g, c, tokens);  // [M, hidden]
  for (int layer = 0; layer < c->layers; ++layer) x = phimoe_layer(g, c, layer, x);
  mlx_op_scope(g, "%s", "");
  return mlx_op_layernorm(g, "final", x, mlx_op_weight(g, "model.norm.weight"),
                          mlx_op_weight(g, "model.norm.bias"), c->norm_eps);
}

static const char *const phimoe_types[] = {"phimoe", NULL};

const mlx_arch_t mlx_arch_phimoe = {
    .hf_types = phimoe_types,
    .gguf_types = phimoe_types,
    MLX_TENSORS(phimoe_tensors),
    .read_config = phimoe_read_config,
    .forward = phimoe_forward,
};
