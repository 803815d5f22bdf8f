// GPT-NeoX and Pythia: layer norms, fused q, k and v, partial rope, parallel attention and GELU MLP.
#include "models/shared/blocks.h"

static const mlx_tensor_rule_t gpt_neox_tensors[] = {
    MLX_MATRIX("gpt_neox.embed_in.weight", "token_embd.weight", MLX_DIM(vocab), MLX_DIM(hidden)),
    MLX_VECTOR("gpt_neox.layers.%d.input_layernorm.weight", "blk.%d.attn_norm.weight", MLX_DIM(hidden)),
    MLX_VECTOR("gpt_neox.layers.%d.input_layernorm.bias", "blk.%d.attn_norm.bias", MLX_DIM(hidden)),
    MLX_MATRIX("gpt_neox.layers.%d.attention.query_key_value.weight", "blk.%d.attn_qkv.weight",
               MLX_DIM(qkv_width), MLX_DIM(hidden), .hf_order = MLX_ROWS_QKV_BY_HEAD),
    MLX_VECTOR("gpt_neox.layers.%d.attention.query_key_value.bias", "blk.%d.attn_qkv.bias",
               MLX_DIM(qkv_width), .hf_order = MLX_ROWS_QKV_BY_HEAD, .present = mlx_has_q_bias),
    MLX_MATRIX("gpt_neox.layers.%d.attention.dense.weight", "blk.%d.attn_output.weight", MLX_DIM(hidden),
               MLX_HEADS(heads)),
    MLX_VECTOR("gpt_neox.layers.%d.attention.dense.bias", "blk.%d.attn_output.bias", MLX_DIM(hidden),
               .present = mlx_has_q_bias),
    MLX_VECTOR("gpt_neox.layers.%d.post_attention_layernorm.weight", "blk.%d.ffn_norm.weight",
               MLX_DIM(hidden)),
    MLX_VECTOR("gpt_neox.layers.%d.post_attention_layernorm.bias", "blk.%d.ffn_norm.bias", MLX_DIM(hidden)),
    MLX_MATRIX("gpt_neox.layers.%d.mlp.dense_h_to_4h.weight", "blk.%d.ffn_up.weight", MLX_DIM(ffn),
               MLX_DIM(hidden)),
    MLX_VECTOR("gpt_neox.layers.%d.mlp.dense_h_to_4h.bias", "blk.%d.ffn_up.bias", MLX_DIM(ffn)),
    MLX_MATRIX("gpt_neox.layers.%d.mlp.dense_4h_to_h.weight", "blk.%d.ffn_down.weight", MLX_DIM(hidden),
               MLX_DIM(ffn)),
    MLX_VECTOR("gpt_neox.layers.%d.mlp.dense_4h_to_h.bias", "blk.%d.ffn_down.bias", MLX_DIM(hidden)),
    MLX_VECTOR("gpt_neox.final_layer_norm.weight", "output_norm.weight", MLX_DIM(hidden)),
    MLX_VECTOR("gpt_neox.final_layer_norm.bias", "output_norm.bias", MLX_DIM(hidden)),
    MLX_MATRIX("embed_out.weight", "output.weight", MLX_DIM(vocab), MLX_DIM(hidden),
               .present = mlx_has_untied_head),
};

static const mlx_rope_fields_t gpt_neox_rope = {
    .theta = "rotary_emb_base", .partial = "rotary_pct", .default_partial = 0.25};

static mlx_status_t gpt_neox_read_config(const mlx_source_t *source, mlx_config_t *c) {
  bool found;
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_GELU, &c->act));
  MLX_TRY(mlx_read_sizes(source, &(mlx_size_names_t){.kv_heads = "num_attention_heads"}, false, c));
  MLX_TRY(mlx_read_eps(source, "layer_norm_eps", ".attention.layer_norm_epsilon", c));
  MLX_TRY(mlx_read_flag(source, "attention_bias", "blk.0.attn_qkv.bias", true, &c->q_bias));
  c->parallel = true;
  MLX_TRY(mlx_source_bool(source, "use_parallel_residual", ".use_parallel_residual", &c->parallel, &found));
  return mlx_read_rope(source, &gpt_neox_rope, c, &c->rope);
}

#define W(part) mlx_op_weight(g, "gpt_neox.layers.%d." part ".weight", layer)
#define B(part) mlx_op_weight(g, "gpt_neox.layers.%d." part ".bias", layer)

static mlx_value_t gpt_neox_attention(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h) {
  const int64_t width = c->heads * c->head_dim;
  const mlx_attention_t attention = mlx_attention_of(c, layer);
  mlx_value_t qkv =
      mlx_op_linear_bias(g, "qkv", h, W("attention.query_key_value"),
                         c->q_bias ? B("attention.query_key_value") : MLX_NONE);  // [M, 3 * heads * head_dim]
  mlx_value_t q = mlx_op_columns(g, "q", qkv, 0, width);
  mlx_value_t k = mlx_op_columns(g, "k", qkv, width, width);
  mlx_value_t v = mlx_op_columns(g, "v", qkv, 2 * width, width);
  q = mlx_op_rope(g, "q_rope", q, c->head_dim, &c->rope);
  k = mlx_op_rope(g, "k_rope", k, c->head_dim, &c->rope);
  h = mlx_op_attention(g, &attention, q, k, v);
  return mlx_op_linear_bias(g, "o", h, W("attention.dense"), c->q_bias ? B("attention.dense") : MLX_NONE);
}

static mlx_value_t gpt_neox_layer(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x) {
  mlx_op_scope(g, "layer%d", layer);
  mlx_value_t h = mlx_op_layernorm(g, "attn_in", x, W("input_layernorm"), B("input_layernorm"), c->norm_eps);
  mlx_value_t after = mlx_op_add(g, "after_attn", x, gpt_neox_attention(g, c, layer, h));
  h = mlx_op_layernorm(g, "mlp_in", c->parallel ? x : after, W("post_attention_layernorm"),
                       B("post_attention_layernorm"), c->norm_eps);
  h = mlx_op_linear_bias(g, "up", h, W("mlp.dense_h_to_4h"), B("mlp.dense_h_to_4h"));  // [M, ffn]
  h = mlx_op_activate(g, "act", c->act, NULL, h);
  h = mlx_op_linear_bias(g, "down", h, W("mlp.dense_4h_to_h"), B("mlp.dense_4h_to_h"));
  return mlx_op_add(g, "out", after, h);
}

static mlx_value_t gpt_neox_forward(mlx_graph_t *g, const mlx_model_t *model, mlx_value_t tokens) {
  const mlx_config_t *c = &model->config;
  mlx_value_t x = mlx_op_embed(g, mlx_op_weight(g, "gpt_neox.embed_in.weight"), tokens);  // [M, hidden]
  for (int layer = 0; layer < c->layers; ++layer) x = gpt_neox_layer(g, c, layer, x);
  mlx_op_scope(g, "%s", "");
  return mlx_op_layernorm(g, "final", x, mlx_op_weight(g, "gpt_neox.final_layer_norm.weight"),
                          mlx_op_weight(g, "gpt_neox.final_layer_norm.bias"), c->norm_eps);
}

static mlx_value_t gpt_neox_head(mlx_graph_t *g, const mlx_model_t *model, mlx_value_t hidden) {
  const char *name = model->config.tied_head ? "gpt_neox.embed_in.weight" : "embed_out.weight";
  return mlx_op_linear(g, "logits", hidden, mlx_op_weight(g, "%s", name));  // [sequences, vocab]
}

static const char *const gpt_neox_types[] = {"gpt_neox", NULL};
static const char *const gpt_neox_gguf_types[] = {"gptneox", NULL};
static const char *const gpt_neox_ignored[] = {".attention.bias", ".attention.masked_bias", NULL};

const mlx_arch_t mlx_arch_gpt_neox = {
    .hf_types = gpt_neox_types,
    .gguf_types = gpt_neox_gguf_types,
    MLX_TENSORS(gpt_neox_tensors),
    .ignored = gpt_neox_ignored,
    .read_config = gpt_neox_read_config,
    .forward = gpt_neox_forward,
    .head = gpt_neox_head,
};
