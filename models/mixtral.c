// Mixtral: Mistral with a mixture of experts instead of the MLP. Its GGUF files declare the architecture
// llama.
#include "models/shared/blocks.h"

static const mlx_tensor_rule_t mixtral_tensors[] = {
    MLX_RULE_EMBED,
    MLX_LAYER_NORM("input_layernorm", "attn_norm"),
    MLX_RULES_ATTENTION(MLX_ROWS_INTERLEAVED_HALVES),
    MLX_LAYER_NORM("post_attention_layernorm", "ffn_norm"),
    MLX_LAYER_MATRIX("block_sparse_moe.gate.weight", "ffn_gate_inp.weight", MLX_DIM(experts),
                     MLX_DIM(hidden)),
    MLX_EXPERTS("model.layers.%d.block_sparse_moe.experts.%e.w1.weight", "blk.%d.ffn_gate_exps.weight",
                MLX_DIM(ffn), MLX_DIM(hidden), .hf_stacked = true,
                .mlx_name = "model.layers.%d.block_sparse_moe.switch_mlp.gate_proj.weight"),
    MLX_EXPERTS("model.layers.%d.block_sparse_moe.experts.%e.w3.weight", "blk.%d.ffn_up_exps.weight",
                MLX_DIM(ffn), MLX_DIM(hidden), .hf_stacked = true,
                .mlx_name = "model.layers.%d.block_sparse_moe.switch_mlp.up_proj.weight"),
    MLX_EXPERTS("model.layers.%d.block_sparse_moe.experts.%e.w2.weight", "blk.%d.ffn_down_exps.weight",
                MLX_DIM(hidden), MLX_DIM(ffn), .hf_stacked = true,
                .mlx_name = "model.layers.%d.block_sparse_moe.switch_mlp.down_proj.weight"),
    MLX_RULE_FINAL_NORM(),
    MLX_RULE_HEAD,
};

static bool mixtral_matches(const mlx_source_t *source) {
  return mlx_gguf_is_nonzero(source, ".expert_count");
}

static mlx_status_t mixtral_read_config(const mlx_source_t *source, mlx_config_t *c) {
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_SILU, &c->act));
  MLX_TRY(mlx_read_sizes(source, &(mlx_size_names_t){.default_kv_heads = 8}, false, c));
  MLX_TRY(mlx_read_rms_eps(source, c));
  MLX_TRY(mlx_read_expert_counts(source, c));
  MLX_TRY(mlx_read_expert_weights(source, true, c));
  c->experts_sum_to_one = true;  // Mixtral ignores norm_topk_prob
  MLX_TRY(mlx_read_windows(source, 0, 0, c));
  return mlx_read_rope(source, &(mlx_rope_fields_t){.default_theta = 1000000.0}, c, &c->rope);
}

static mlx_value_t mixtral_experts(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h) {
  const mlx_experts_t experts = {.used = c->experts_used, .sum_to_one = c->experts_sum_to_one, .act = c->act};
  mlx_value_t scores = mlx_op_linear(g, "router", h, MLX_W("block_sparse_moe.gate"));  // [M, experts]
  return mlx_op_experts(g, "experts", &experts, h, scores, MLX_W("block_sparse_moe.experts.all.w1"),
                        MLX_W("block_sparse_moe.experts.all.w3"), MLX_W("block_sparse_moe.experts.all.w2"));
}

static mlx_value_t mixtral_layer(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x) {
  mlx_op_scope(g, "layer%d", layer);
  mlx_value_t h = mlx_op_rmsnorm(g, "attn_in", x, MLX_W("input_layernorm"), c->norm_eps);
  x = mlx_op_add(g, "after_attn", x, mlx_block_attention(g, c, layer, h));
  h = mlx_op_rmsnorm(g, "mlp_in", x, MLX_W("post_attention_layernorm"), c->norm_eps);
  return mlx_op_add(g, "out", x, mixtral_experts(g, c, layer, h));
}

static const char *const mixtral_types[] = {"mixtral", NULL};
static const char *const mixtral_gguf_types[] = {"llama", NULL};

const mlx_arch_t mlx_arch_mixtral = {
    .hf_types = mixtral_types,
    .gguf_types = mixtral_gguf_types,
    .matches = mixtral_matches,
    MLX_TENSORS(mixtral_tensors),
    .read_config = mixtral_read_config,
    .layer = mixtral_layer,
};
