// Parts of the network that several architectures share; see blocks.h.
#include "models/shared/blocks.h"

int64_t mlx_head_dim_of(const mlx_config_t *c, int layer) {
  return c->global_head_dim && !c->windowed[layer] ? c->global_head_dim : c->head_dim;
}

static int64_t kv_heads_of(const mlx_config_t *c, int layer) {
  return c->global_kv_heads && !c->windowed[layer] ? c->global_kv_heads : c->kv_heads;
}

mlx_attention_t mlx_attention_of(const mlx_config_t *c, int layer) {
  return (mlx_attention_t){.layer = layer,
                           .heads = c->heads,
                           .kv_heads = kv_heads_of(c, layer),
                           .head_dim = mlx_head_dim_of(c, layer),
                           .scale = c->attention_scale,
                           .window = c->windowed[layer] && !c->encoder ? c->window : 0,
                           .whole = c->encoder,
                           .span = c->windowed[layer] && c->encoder ? c->window : 0,
                           .softcap = c->attention_softcap};
}

const mlx_rope_t *mlx_rope_of(const mlx_graph_t *g, const mlx_config_t *c, int layer) {
  if (c->local_context) return mlx_op_context(g) > c->local_context ? &c->rope : &c->local_rope;
  return c->windowed[layer] && c->local_rope.dims ? &c->local_rope : &c->rope;
}

mlx_value_t mlx_block_embed(mlx_graph_t *g, const mlx_config_t *c, mlx_value_t tokens) {
  mlx_value_t x = mlx_op_embed(g, mlx_op_weight(g, "model.embed_tokens.weight"), tokens);  // [M, hidden]
  return mlx_op_scale(g, "embedded_scaled", x, c->embed_scale);
}

mlx_qkv_t mlx_block_qkv(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h) {
  mlx_qkv_t qkv;
  qkv.q = mlx_op_linear_bias(g, "q", h, MLX_W("self_attn.q_proj"), MLX_B("self_attn.q_proj", c->q_bias));
  qkv.k = mlx_op_linear_bias(g, "k", h, MLX_W("self_attn.k_proj"), MLX_B("self_attn.k_proj", c->kv_bias));
  qkv.v = mlx_op_linear_bias(g, "v", h, MLX_W("self_attn.v_proj"), MLX_B("self_attn.v_proj", c->kv_bias));
  return qkv;
}

mlx_value_t mlx_block_output(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h) {
  return mlx_op_linear_bias(g, "o", h, MLX_W("self_attn.o_proj"), MLX_B("self_attn.o_proj", c->o_bias));
}

mlx_value_t mlx_block_attention(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h) {
  const mlx_rope_t *rope = mlx_rope_of(g, c, layer);
  mlx_attention_t attention = mlx_attention_of(c, layer);
  if (c->sinks) attention.sinks = mlx_op_weight(g, "model.layers.%d.self_attn.sinks", layer);  // [heads]
  mlx_qkv_t p = mlx_block_qkv(g, c, layer, h);
  if (c->qk_norm) {
    p.q = mlx_op_head_rmsnorm(g, "q_normed", p.q, c->head_dim, MLX_W("self_attn.q_norm"), c->norm_eps);
    p.k = mlx_op_head_rmsnorm(g, "k_normed", p.k, c->head_dim, MLX_W("self_attn.k_norm"), c->norm_eps);
  }
  if (!c->no_rope[layer]) {
    p.q = mlx_op_rope(g, "q_rope", p.q, c->head_dim, rope);
    p.k = mlx_op_rope(g, "k_rope", p.k, c->head_dim, rope);
  }
  return mlx_block_output(g, c, layer, mlx_op_attention(g, &attention, p.q, p.k, p.v));
}

mlx_value_t mlx_block_gated_mlp(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h) {
  mlx_value_t gate = mlx_op_linear_bias(g, "gate", h, MLX_W("mlp.gate_proj"),
                                        MLX_B("mlp.gate_proj", c->mlp_bias));  // [M, ffn]
  mlx_value_t up = mlx_op_linear_bias(g, "up", h, MLX_W("mlp.up_proj"), MLX_B("mlp.up_proj", c->mlp_bias));
  h = mlx_op_gated(g, "act", c->act, gate, up);
  return mlx_op_linear_bias(g, "down", h, MLX_W("mlp.down_proj"), MLX_B("mlp.down_proj", c->mlp_bias));
}

mlx_value_t mlx_block_fused_gated_mlp(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h) {
  mlx_value_t gate_up = mlx_op_linear(g, "gate_up", h, MLX_W("mlp.gate_up_proj"));  // [M, 2 * ffn]
  mlx_value_t gate = mlx_op_columns(g, "gate", gate_up, 0, c->ffn);
  mlx_value_t up = mlx_op_columns(g, "up", gate_up, c->ffn, c->ffn);
  return mlx_op_linear(g, "down", mlx_op_gated(g, "act", c->act, gate, up), MLX_W("mlp.down_proj"));
}

mlx_experts_t mlx_experts_of(const mlx_config_t *c) {
  return (mlx_experts_t){.used = c->experts_used,
                         .sum_to_one = c->experts_sum_to_one,
                         .sigmoid = c->sigmoid_scores,
                         .groups = c->expert_groups,
                         .groups_used = c->expert_groups_used,
                         .groups_by_best = c->expert_groups_by_best,
                         .sum_eps = c->expert_sum_eps,
                         .weight_scale = c->expert_scale,
                         .act = c->act};
}

mlx_value_t mlx_block_experts(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h) {
  mlx_experts_t experts = mlx_experts_of(c);
  if (c->choice_bias)
    experts.choice_bias = mlx_op_weight(g, "model.layers.%d.mlp.gate.e_score_correction_bias", layer);
  mlx_value_t scores = mlx_op_linear(g, "router", h, MLX_W("mlp.gate"));  // [M, experts]
  return mlx_op_experts(g, "experts", &experts, h, scores, MLX_W("mlp.experts.all.gate_proj"),
                        MLX_W("mlp.experts.all.up_proj"), MLX_W("mlp.experts.all.down_proj"));
}

mlx_value_t mlx_block_shared_experts(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h) {
  mlx_value_t gate =
      mlx_op_linear(g, "shared_gate", h, MLX_W("mlp.shared_expert.gate_proj"));  // [M, shared_ffn]
  mlx_value_t up = mlx_op_linear(g, "shared_up", h, MLX_W("mlp.shared_expert.up_proj"));
  mlx_value_t shared = mlx_op_gated(g, "shared_act", c->act, gate, up);
  shared = mlx_op_linear(g, "shared_down", shared, MLX_W("mlp.shared_expert.down_proj"));
  mlx_value_t weight =
      mlx_op_sigmoid(g, "share", mlx_op_linear(g, "share_in", h, MLX_W("mlp.shared_expert_gate")));  // [M, 1]
  shared = mlx_op_scale_rows(g, "shared", shared, weight);
  return mlx_op_add(g, "mlp", shared, mlx_block_experts(g, c, layer, h));
}

mlx_value_t mlx_block_forward(mlx_graph_t *g, const mlx_model_t *model, mlx_value_t tokens) {
  const mlx_config_t *c = &model->config;
  mlx_value_t x = mlx_block_embed(g, c, tokens);  // [M, hidden]
  for (int layer = 0; layer < c->layers; ++layer) x = model->arch->layer(g, c, layer, x);
  mlx_op_scope(g, "%s", "");
  return mlx_op_rmsnorm(g, "final", x, mlx_op_weight(g, "model.norm.weight"), c->norm_eps);
}

mlx_value_t mlx_block_head(mlx_graph_t *g, const mlx_model_t *model, mlx_value_t hidden) {
  const mlx_config_t *c = &model->config;
  const char *name = c->tied_head ? "model.embed_tokens.weight" : "lm_head.weight";
  mlx_value_t logits =
      mlx_op_linear_bias(g, "logits", hidden, mlx_op_weight(g, "%s", name),
                         c->head_bias ? mlx_op_weight(g, "lm_head.bias") : MLX_NONE);  // [sequences, vocab]
  logits = mlx_op_scale(g, "logits_scaled", logits, c->logit_scale);
  return c->logit_softcap != 0.0 ? mlx_op_softcap(g, "logits_capped", logits, c->logit_softcap) : logits;
}
