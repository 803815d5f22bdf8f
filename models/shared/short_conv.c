// The layers of LFM2; see short_conv.h.
#include "models/shared/short_conv.h"

static mlx_status_t read_layers(const mlx_source_t *source, mlx_config_t *c) {
  if (mlx_source_is_gguf(source)) return mlx_read_layers_without_kv(source, c);
  if (mlx_source_has(source, "layer_types", NULL)) return mlx_read_recurrent_layers(source, "conv", c);
  // Older files list the layers with attention.
  const size_t count = mlx_source_array_length(source, "full_attn_idxs", NULL);
  for (int64_t i = 0; i < c->layers; ++i) c->recurrent[i] = count > 0;
  for (size_t i = 0; i < count; ++i) {
    double layer;
    MLX_TRY(mlx_source_number_at(source, "full_attn_idxs", NULL, i, &layer));
    if (layer < 0 || layer >= (double)c->layers)
      return mlx_source_field_error(source, "full_attn_idxs", NULL, MLX_INVALID_INPUT,
                                    "has a layer that the model does not have");
    c->recurrent[(int64_t)layer] = false;
  }
  return NULL;
}

mlx_status_t mlx_read_short_conv(const mlx_source_t *source, mlx_config_t *c) {
  const mlx_size_names_t names = {.default_kv_heads = 8};
  bool found;
  MLX_TRY(mlx_read_sizes(source, &names, true, c));
  MLX_TRY(mlx_source_bool(source, "tie_embedding", NULL, &c->tied_head, &found));  // the name in older files
  MLX_TRY(mlx_read_eps(source, "norm_eps", ".attention.layer_norm_rms_epsilon", c));
  MLX_TRY(mlx_read_flag(source, "conv_bias", NULL, false, &c->conv_bias));
  c->conv_taps = 3;
  MLX_TRY(mlx_source_int(source, "conv_L_cache", ".shortconv.l_cache", 2, 8, &c->conv_taps, &found));
  c->conv_in_width = 3 * c->hidden;
  MLX_TRY(read_layers(source, c));
  c->act = MLX_ACT_SILU;
  c->qk_norm = true;
  return mlx_read_rope(source, &(mlx_rope_fields_t){.default_theta = 1000000}, c, &c->rope);
}

static mlx_value_t convolution(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h) {
  const bool bias = c->conv_bias;
  mlx_value_t bcx = mlx_op_linear_bias(g, "bcx", h, MLX_W("conv.in_proj"), MLX_B("conv.in_proj", bias));
  mlx_value_t x = mlx_op_multiply(g, "bx", mlx_op_columns(g, "b", bcx, 0, c->hidden),
                                  mlx_op_columns(g, "x", bcx, 2 * c->hidden, c->hidden));
  x = mlx_op_convolve(g, "conv", false, x, MLX_W("conv.conv"), MLX_B("conv.conv", bias));
  x = mlx_op_multiply(g, "cx", mlx_op_columns(g, "c", bcx, c->hidden, c->hidden), x);
  return mlx_op_linear_bias(g, "o", x, MLX_W("conv.out_proj"), MLX_B("conv.out_proj", bias));
}

static mlx_value_t attention(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h) {
  const mlx_attention_t a = mlx_attention_of(c, layer);
  mlx_value_t q = mlx_op_linear(g, "q", h, MLX_W("self_attn.q_proj"));
  mlx_value_t k = mlx_op_linear(g, "k", h, MLX_W("self_attn.k_proj"));
  mlx_value_t v = mlx_op_linear(g, "v", h, MLX_W("self_attn.v_proj"));
  q = mlx_op_head_rmsnorm(g, "q_normed", q, c->head_dim, MLX_W("self_attn.q_layernorm"), c->norm_eps);
  k = mlx_op_head_rmsnorm(g, "k_normed", k, c->head_dim, MLX_W("self_attn.k_layernorm"), c->norm_eps);
  q = mlx_op_rope(g, "q_rope", q, c->head_dim, &c->rope);
  k = mlx_op_rope(g, "k_rope", k, c->head_dim, &c->rope);
  return mlx_op_linear(g, "o", mlx_op_attention(g, &a, q, k, v), MLX_W("self_attn.out_proj"));
}

mlx_value_t mlx_block_short_conv(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x) {
  mlx_op_scope(g, "layer%d", layer);
  mlx_value_t h = mlx_op_rmsnorm(g, "op_in", x, MLX_W("operator_norm"), c->norm_eps);
  h = c->recurrent[layer] ? convolution(g, c, layer, h) : attention(g, c, layer, h);
  return mlx_op_add(g, "after_op", x, h);
}

mlx_value_t mlx_block_short_conv_mlp(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h) {
  mlx_value_t gate = mlx_op_linear(g, "gate", h, MLX_W("feed_forward.w1"));  // [M, ffn]
  h = mlx_op_gated(g, "act", c->act, gate, mlx_op_linear(g, "up", h, MLX_W("feed_forward.w3")));
  return mlx_op_linear(g, "down", h, MLX_W("feed_forward.w2"));
}

mlx_value_t mlx_short_conv_forward(mlx_graph_t *g, const mlx_model_t *model, mlx_value_t tokens) {
  const mlx_config_t *c = &model->config;
  mlx_value_t x = mlx_block_embed(g, c, tokens);  // [M, hidden]
  for (int layer = 0; layer < c->layers; ++layer) x = model->arch->layer(g, c, layer, x);
  mlx_op_scope(g, "%s", "");
  return mlx_op_rmsnorm(g, "final", x, mlx_op_weight(g, "model.embedding_norm.weight"), c->norm_eps);
}
