// OLMoE: all of q and all of k normalised, q, k and v clipped if the config says so, and a mixture of experts
// for the MLP.
#include "models/shared/blocks.h"

static const mlx_tensor_rule_t olmoe_tensors[] = {
    MLX_RULE_EMBED,
    MLX_LAYER_NORM("input_layernorm", "attn_norm"),
    MLX_RULES_ATTENTION(MLX_ROWS_AS_STORED),
    MLX_LAYER_VECTOR("self_attn.q_norm.weight", "attn_q_norm.weight", MLX_HEADS(heads)),
    MLX_LAYER_VECTOR("self_attn.k_norm.weight", "attn_k_norm.weight", MLX_HEADS(kv_heads)),
    MLX_LAYER_NORM("post_attention_layernorm", "ffn_norm"),
    MLX_LAYER_MATRIX("mlp.gate.weight", "ffn_gate_inp.weight", MLX_DIM(experts), MLX_DIM(hidden)),
    MLX_EXPERTS("model.layers.%d.mlp.experts.%e.gate_proj.weight", "blk.%d.ffn_gate_exps.weight",
                MLX_DIM(ffn), MLX_DIM(hidden), .hf_stacked = true,
                .mlx_name = "model.layers.%d.mlp.switch_mlp.gate_proj.weight"),
    MLX_EXPERTS("model.layers.%d.mlp.experts.%e.up_proj.weight", "blk.%d.ffn_up_exps.weight", MLX_DIM(ffn),
                MLX_DIM(hidden), .hf_stacked = true,
                .mlx_name = "model.layers.%d.mlp.switch_mlp.up_proj.weight"),
    MLX_EXPERTS("model.layers.%d.mlp.experts.%e.down_proj.weight", "blk.%d.ffn_down_exps.weight",
                MLX_DIM(hidden), MLX_DIM(ffn), .hf_stacked = true,
                .mlx_name = "model.layers.%d.mlp.switch_mlp.down_proj.weight"),
    MLX_RULE_FINAL_NORM(),
    MLX_RULE_HEAD,
};

static mlx_status_t olmoe_read_config(const mlx_source_t *source, mlx_config_t *c) {
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_SILU, &c->act));
  MLX_TRY(mlx_read_sizes(source, NULL, false, c));
  MLX_TRY(mlx_read_eps(source, "rms_norm_eps", ".attention.layer_norm_rms_epsilon", c));
  MLX_TRY(mlx_read_expert_count(source, c));
  MLX_TRY(mlx_source_int(source, "num_experts_per_tok", ".expert_used_count", 1, 64, &c->experts_used, NULL));
  MLX_TRY(mlx_read_expert_weights(source, false, c));
  MLX_TRY(mlx_read_attention_bias(source, "attention_bias", false, c));
  MLX_TRY(mlx_read_number(source, "clip_qkv", ".attention.clamp_kqv", 0.0, &c->clip));
  return mlx_read_rope(source, &(mlx_rope_fields_t){0}, c, &c->rope);
}

static mlx_value_t clip(mlx_graph_t *g, const mlx_config_t *c, const char *name, mlx_value_t x) {
  return c->clip > 0.0 ? mlx_op_clip(g, name, x, c->clip) : x;
}

static mlx_value_t olmoe_attention(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h) {
  const mlx_attention_t attention = mlx_attention_of(c, layer);
  mlx_value_t q = mlx_op_linear_bias(g, "q", h, MLX_W("self_attn.q_proj"),
                                     MLX_B("self_attn.q_proj", c->q_bias));  // [M, heads * head_dim]
  mlx_value_t k = mlx_op_linear_bias(g, "k", h, MLX_W("self_attn.k_proj"),
                                     MLX_B("self_attn.k_proj", c->kv_bias));  // [M, kv_heads * head_dim]
  mlx_value_t v =
      mlx_op_linear_bias(g, "v", h, MLX_W("self_attn.v_proj"), MLX_B("self_attn.v_proj", c->kv_bias));
  q = clip(g, c, "q_clipped", mlx_op_rmsnorm(g, "q_normed", q, MLX_W("self_attn.q_norm"), c->norm_eps));
  k = clip(g, c, "k_clipped", mlx_op_rmsnorm(g, "k_normed", k, MLX_W("self_attn.k_norm"), c->norm_eps));
  v = clip(g, c, "v_clipped", v);
  q = mlx_op_rope(g, "q_rope", q, c->head_dim, &c->rope);
  k = mlx_op_rope(g, "k_rope", k, c->head_dim, &c->rope);
  h = mlx_op_attention(g, &attention, q, k, v);
  return mlx_op_linear_bias(g, "o", h, MLX_W("self_attn.o_proj"), MLX_B("self_attn.o_proj", c->o_bias));
}

static mlx_value_t olmoe_experts(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h) {
  const mlx_experts_t experts = {.used = c->experts_used, .sum_to_one = c->experts_sum_to_one, .act = c->act};
  mlx_value_t scores = mlx_op_linear(g, "router", h, MLX_W("mlp.gate"));  // [M, experts]
  return mlx_op_experts(g, "experts", &experts, h, scores, MLX_W("mlp.experts.all.gate_proj"),
                        MLX_W("mlp.experts.all.up_proj"), MLX_W("mlp.experts.all.down_proj"));
}

static mlx_value_t olmoe_layer(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x) {
  mlx_op_scope(g, "layer%d", layer);
  mlx_value_t h = mlx_op_rmsnorm(g, "attn_in", x, MLX_W("input_layernorm"), c->norm_eps);
  x = mlx_op_add(g, "after_attn", x, olmoe_attention(g, c, layer, h));
  h = mlx_op_rmsnorm(g, "mlp_in", x, MLX_W("post_attention_layernorm"), c->norm_eps);
  return mlx_op_add(g, "out", x, olmoe_experts(g, c, layer, h));
}

static mlx_value_t olmoe_forward(mlx_graph_t *g, const mlx_model_t *model, mlx_value_t tokens) {
  const mlx_config_t *c = &model->config;
  mlx_value_t x = mlx_block_embed(g, c, tokens);  // [M, hidden]
  for (int layer = 0; layer < c->layers; ++layer) x = olmoe_layer(g, c, layer, x);
  mlx_op_scope(g, "%s", "");
  return mlx_op_rmsnorm(g, "final", x, mlx_op_weight(g, "model.norm.weight"), c->norm_eps);
}

static const char *const olmoe_types[] = {"olmoe", NULL};

const mlx_arch_t mlx_arch_olmoe = {
    .hf_types = olmoe_types,
    .gguf_types = olmoe_types,
    MLX_TENSORS(olmoe_tensors),
    .read_config = olmoe_read_config,
    .forward = olmoe_forward,
    .head = mlx_block_head,
};
