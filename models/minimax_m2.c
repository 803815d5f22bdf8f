// MiniMax-M2: one norm over all heads of q, and one of k, a rope over a part of each head, and experts chosen
// by sigmoids.
#include "models/shared/routed.h"

#define EXPERTS(hf, gguf, rows, columns, stored, part, mlx)                                                \
  MLX_EXPERTS("model.layers.%d.block_sparse_moe.experts.%e." hf ".weight", "blk.%d." gguf ".weight", rows, \
              columns, .hf_stacked = true, .hf_stored = "model.layers.%d.mlp.experts." stored,             \
              .hf_fused_part = part,                                                                       \
              .mlx_name = "model.layers.%d.block_sparse_moe.switch_mlp." mlx ".weight")

static const mlx_tensor_rule_t minimax_m2_tensors[] = {
    MLX_RULE_EMBED,
    MLX_LAYER_NORM("input_layernorm", "attn_norm"),
    MLX_RULES_ATTENTION(MLX_ROWS_AS_STORED),
    MLX_RULES_FULL_QK_NORM,
    MLX_LAYER_NORM("post_attention_layernorm", "ffn_norm"),
    MLX_LAYER_MATRIX("block_sparse_moe.gate.weight", "ffn_gate_inp.weight", MLX_DIM(experts),
                     MLX_DIM(hidden)),
    MLX_LAYER_VECTOR("block_sparse_moe.e_score_correction_bias", "exp_probs_b.bias", MLX_DIM(experts)),
    EXPERTS("w1", "ffn_gate_exps", MLX_DIM(ffn), MLX_DIM(hidden), "gate_up_proj", MLX_FUSED_FIRST_HALF,
            "gate_proj"),
    EXPERTS("w3", "ffn_up_exps", MLX_DIM(ffn), MLX_DIM(hidden), "gate_up_proj", MLX_FUSED_SECOND_HALF,
            "up_proj"),
    EXPERTS("w2", "ffn_down_exps", MLX_DIM(hidden), MLX_DIM(ffn), "down_proj", MLX_NOT_FUSED, "down_proj"),
    MLX_RULE_FINAL_NORM(),
    MLX_RULE_HEAD,
};

// The published files have the number of rotated dims, rotary_dim.
static mlx_status_t read_rope(const mlx_source_t *source, mlx_config_t *c) {
  const mlx_rope_fields_t rope = {.default_theta = 5000000.0, .partial = "partial_rotary_factor"};
  int64_t dims = c->head_dim;
  bool found;
  MLX_TRY(mlx_source_int(source, "rotary_dim", NULL, 2, c->head_dim, &dims, &found));
  mlx_rope_fields_t fields = rope;
  if (found) fields.default_partial = (double)dims / (double)c->head_dim;
  return mlx_read_rope(source, &fields, c, &c->rope);
}

static mlx_status_t minimax_m2_read_config(const mlx_source_t *source, mlx_config_t *c) {
  const mlx_size_names_t sizes = {.default_head_dim = 128, .default_kv_heads = 8};
  bool found;
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_SILU, &c->act));
  MLX_TRY(mlx_read_sizes(source, &sizes, false, c));
  MLX_TRY(mlx_source_int(source, NULL, ".expert_feed_forward_length", 1, 1 << 20, &c->ffn, &found));
  MLX_TRY(mlx_read_rms_eps(source, c));
  MLX_TRY(mlx_read_expert_counts(source, c));
  c->sigmoid_scores = true;
  MLX_TRY(mlx_read_expert_weights(source, true, c));
  return read_rope(source, c);
}

static mlx_value_t attention(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h) {
  const mlx_attention_t a = mlx_attention_of(c, layer);
  mlx_qkv_t p = mlx_block_qkv(g, c, layer, h);
  p.q = mlx_op_rmsnorm(g, "q_normed", p.q, MLX_W("self_attn.q_norm"), c->norm_eps);
  p.k = mlx_op_rmsnorm(g, "k_normed", p.k, MLX_W("self_attn.k_norm"), c->norm_eps);
  p.q = mlx_op_rope(g, "q_rope", p.q, c->head_dim, &c->rope);
  p.k = mlx_op_rope(g, "k_rope", p.k, c->head_dim, &c->rope);
  return mlx_block_output(g, c, layer, mlx_op_attention(g, &a, p.q, p.k, p.v));
}

static mlx_value_t experts(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h) {
  mlx_experts_t e = mlx_experts_of(c);
  e.choice_bias = mlx_op_weight(g, "model.layers.%d.block_sparse_moe.e_score_correction_bias", layer);
  mlx_value_t scores = mlx_op_linear(g, "router", h, MLX_W("block_sparse_moe.gate"));  // [M, experts]
  return mlx_op_experts(g, "experts", &e, h, scores, MLX_W("block_sparse_moe.experts.all.w1"),
                        MLX_W("block_sparse_moe.experts.all.w3"), MLX_W("block_sparse_moe.experts.all.w2"));
}

static mlx_value_t minimax_m2_layer(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x) {
  mlx_op_scope(g, "layer%d", layer);
  mlx_value_t h = mlx_op_rmsnorm(g, "attn_in", x, MLX_W("input_layernorm"), c->norm_eps);
  x = mlx_op_add(g, "after_attn", x, attention(g, c, layer, h));
  h = mlx_op_rmsnorm(g, "mlp_in", x, MLX_W("post_attention_layernorm"), c->norm_eps);
  return mlx_op_add(g, "out", x, experts(g, c, layer, h));
}

static const char *const minimax_m2_types[] = {"minimax_m2", NULL};
static const char *const minimax_m2_gguf_types[] = {"minimax-m2", NULL};

const mlx_arch_t mlx_arch_minimax_m2 = {
    .hf_types = minimax_m2_types,
    .gguf_types = minimax_m2_gguf_types,
    MLX_TENSORS(minimax_m2_tensors),
    .read_config = minimax_m2_read_config,
    .layer = minimax_m2_layer,
};
