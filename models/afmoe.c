// AFMoE (Arcee Trinity): norms before and after attention and MLP, head norms of q and k, a sigmoid gate of
// the attention's output, and experts after the first layers. Layers with full attention have no rope.
#include <math.h>

#include "models/shared/routed.h"

static const mlx_tensor_rule_t afmoe_tensors[] = {
    MLX_RULE_EMBED,
    MLX_LAYER_NORM("input_layernorm", "attn_norm"),
    MLX_RULES_ATTENTION(MLX_ROWS_AS_STORED),
    MLX_LAYER_MATRIX("self_attn.gate_proj.weight", "attn_gate.weight", MLX_HEADS(heads), MLX_DIM(hidden)),
    MLX_RULES_HEAD_QK_NORM(),
    MLX_LAYER_NORM("post_attention_layernorm", "post_attention_norm"),
    MLX_LAYER_NORM("pre_mlp_layernorm", "ffn_norm"),
    MLX_RULES_ROUTED_MLP("mlp.router.gate.weight", "mlp.expert_bias", "mlp.shared_experts."),
    MLX_LAYER_NORM("post_mlp_layernorm", "post_ffw_norm"),
    MLX_RULE_FINAL_NORM(),
    MLX_RULE_HEAD,
};

static mlx_status_t afmoe_read_config(const mlx_source_t *source, mlx_config_t *c) {
  const mlx_routed_fields_t routed = {.experts = "num_experts",
                                      .shared = "num_shared_experts",
                                      .dense = "num_dense_layers",
                                      .default_dense = 1,
                                      .scale = "route_scale",
                                      .sum_to_one = "route_norm",
                                      .default_sum = true};
  int64_t every = 4;
  bool found, mup = mlx_source_is_gguf(source);  // GGUF has no field for it; all published models have it
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_SILU, &c->act));
  MLX_TRY(mlx_read_sizes(source, &(mlx_size_names_t){.default_head_dim = 128}, false, c));
  MLX_TRY(mlx_read_rms_eps(source, c));
  c->sigmoid_scores = c->choice_bias = c->qk_norm = true;
  c->expert_sum_eps = 1e-20;
  MLX_TRY(mlx_read_routed(source, &routed, c));
  MLX_TRY(mlx_read_attention_bias(source, "attention_bias", false, c));
  MLX_TRY(mlx_source_bool(source, "mup_enabled", NULL, &mup, &found));
  if (mup) c->embed_scale = (double)(float)sqrt((double)c->hidden);
  MLX_TRY(mlx_source_int(source, "global_attn_every_n_layers", NULL, 1, 1 << 20, &every, &found));
  MLX_TRY(mlx_read_windows(source, every, 1024, c));
  for (int64_t i = 0; i < c->layers; ++i) c->no_rope[i] = !c->windowed[i];
  return mlx_read_rope(source, &(mlx_rope_fields_t){0}, c, &c->rope);
}

static mlx_value_t attention(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h) {
  const mlx_attention_t a = mlx_attention_of(c, layer);
  mlx_value_t gate = mlx_op_linear(g, "gate_in", h, MLX_W("self_attn.gate_proj"));  // [M, heads * head_dim]
  mlx_qkv_t p = mlx_block_qkv(g, c, layer, h);
  p.q = mlx_op_head_rmsnorm(g, "q_normed", p.q, c->head_dim, MLX_W("self_attn.q_norm"), c->norm_eps);
  p.k = mlx_op_head_rmsnorm(g, "k_normed", p.k, c->head_dim, MLX_W("self_attn.k_norm"), c->norm_eps);
  if (!c->no_rope[layer]) {
    p.q = mlx_op_rope(g, "q_rope", p.q, c->head_dim, &c->rope);
    p.k = mlx_op_rope(g, "k_rope", p.k, c->head_dim, &c->rope);
  }
  h = mlx_op_attention(g, &a, p.q, p.k, p.v);
  h = mlx_op_multiply(g, "gated", h, mlx_op_sigmoid(g, "gate_share", gate));
  return mlx_block_output(g, c, layer, h);
}

static mlx_value_t afmoe_layer(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x) {
  mlx_op_scope(g, "layer%d", layer);
  mlx_value_t h = mlx_op_rmsnorm(g, "attn_in", x, MLX_W("input_layernorm"), c->norm_eps);
  h = attention(g, c, layer, h);
  h = mlx_op_rmsnorm(g, "attn_out", h, MLX_W("post_attention_layernorm"), c->norm_eps);
  x = mlx_op_add(g, "after_attn", x, h);
  h = mlx_op_rmsnorm(g, "mlp_in", x, MLX_W("pre_mlp_layernorm"), c->norm_eps);
  h = mlx_block_routed_mlp(g, c, layer, h);
  h = mlx_op_rmsnorm(g, "mlp_out", h, MLX_W("post_mlp_layernorm"), c->norm_eps);
  return mlx_op_add(g, "out", x, h);
}

static const char *const afmoe_types[] = {"afmoe", NULL};

const mlx_arch_t mlx_arch_afmoe = {
    .hf_types = afmoe_types,
    .gguf_types = afmoe_types,
    MLX_TENSORS(afmoe_tensors),
    .read_config = afmoe_read_config,
    .layer = afmoe_layer,
};
