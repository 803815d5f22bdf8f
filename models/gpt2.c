// GPT-2: learned positions, layer norms, fused q, k and v, a GELU MLP. Hugging Face stores its matrices as
// [in, out].
#include "models/shared/blocks.h"

static const mlx_tensor_rule_t gpt2_tensors[] = {
    MLX_MATRIX("transformer.wte.weight", "token_embd.weight", MLX_DIM(vocab), MLX_DIM(hidden)),
    MLX_MATRIX("transformer.wpe.weight", "position_embd.weight", MLX_DIM(context), MLX_DIM(hidden)),
    MLX_VECTOR("transformer.h.%d.ln_1.weight", "blk.%d.attn_norm.weight", MLX_DIM(hidden)),
    MLX_VECTOR("transformer.h.%d.ln_1.bias", "blk.%d.attn_norm.bias", MLX_DIM(hidden)),
    MLX_MATRIX("transformer.h.%d.attn.c_attn.weight", "blk.%d.attn_qkv.weight", MLX_DIM(qkv_width),
               MLX_DIM(hidden), .hf_order = MLX_ROWS_ARE_COLUMNS),
    MLX_VECTOR("transformer.h.%d.attn.c_attn.bias", "blk.%d.attn_qkv.bias", MLX_DIM(qkv_width)),
    MLX_MATRIX("transformer.h.%d.attn.c_proj.weight", "blk.%d.attn_output.weight", MLX_DIM(hidden),
               MLX_DIM(hidden), .hf_order = MLX_ROWS_ARE_COLUMNS),
    MLX_VECTOR("transformer.h.%d.attn.c_proj.bias", "blk.%d.attn_output.bias", MLX_DIM(hidden)),
    MLX_VECTOR("transformer.h.%d.ln_2.weight", "blk.%d.ffn_norm.weight", MLX_DIM(hidden)),
    MLX_VECTOR("transformer.h.%d.ln_2.bias", "blk.%d.ffn_norm.bias", MLX_DIM(hidden)),
    MLX_MATRIX("transformer.h.%d.mlp.c_fc.weight", "blk.%d.ffn_up.weight", MLX_DIM(ffn), MLX_DIM(hidden),
               .hf_order = MLX_ROWS_ARE_COLUMNS),
    MLX_VECTOR("transformer.h.%d.mlp.c_fc.bias", "blk.%d.ffn_up.bias", MLX_DIM(ffn)),
    MLX_MATRIX("transformer.h.%d.mlp.c_proj.weight", "blk.%d.ffn_down.weight", MLX_DIM(hidden), MLX_DIM(ffn),
               .hf_order = MLX_ROWS_ARE_COLUMNS),
    MLX_VECTOR("transformer.h.%d.mlp.c_proj.bias", "blk.%d.ffn_down.bias", MLX_DIM(hidden)),
    MLX_VECTOR("transformer.ln_f.weight", "output_norm.weight", MLX_DIM(hidden)),
    MLX_VECTOR("transformer.ln_f.bias", "output_norm.bias", MLX_DIM(hidden)),
    MLX_RULE_HEAD,
};

static mlx_status_t gpt2_read_config(const mlx_source_t *source, mlx_config_t *c) {
  static const mlx_size_names_t names = {.layers = "n_layer",
                                         .hidden = "n_embd",
                                         .ffn = "n_inner",
                                         .heads = "n_head",
                                         .kv_heads = "n_head",
                                         .context = "n_positions"};
  MLX_TRY(mlx_require_flag(source, "add_cross_attention", false));
  MLX_TRY(mlx_read_act(source, "activation_function", MLX_ACT_GELU_TANH, &c->act));
  MLX_TRY(mlx_read_sizes(source, &names, true, c));
  MLX_TRY(mlx_require_flag(source, "scale_attn_by_inverse_layer_idx", false));
  MLX_TRY(mlx_require_flag(source, "scale_attn_weights", true));
  return mlx_read_eps(source, "layer_norm_epsilon", ".attention.layer_norm_epsilon", c);
}

#define W(part) mlx_op_weight(g, "transformer.h.%d." part ".weight", layer)
#define B(part) mlx_op_weight(g, "transformer.h.%d." part ".bias", layer)

static mlx_value_t gpt2_layer(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x) {
  const mlx_attention_t attention = mlx_attention_of(c, layer);
  mlx_op_scope(g, "layer%d", layer);
  mlx_value_t h = mlx_op_layernorm(g, "attn_in", x, W("ln_1"), B("ln_1"), c->norm_eps);
  mlx_value_t qkv = mlx_op_linear_bias(g, "qkv", h, W("attn.c_attn"), B("attn.c_attn"));  // [M, 3 * hidden]
  mlx_value_t q = mlx_op_columns(g, "q", qkv, 0, c->hidden);
  mlx_value_t k = mlx_op_columns(g, "k", qkv, c->hidden, c->hidden);
  mlx_value_t v = mlx_op_columns(g, "v", qkv, 2 * c->hidden, c->hidden);
  h = mlx_op_attention(g, &attention, q, k, v);
  h = mlx_op_linear_bias(g, "o", h, W("attn.c_proj"), B("attn.c_proj"));
  x = mlx_op_add(g, "after_attn", x, h);

  h = mlx_op_layernorm(g, "mlp_in", x, W("ln_2"), B("ln_2"), c->norm_eps);
  h = mlx_op_linear_bias(g, "up", h, W("mlp.c_fc"), B("mlp.c_fc"));  // [M, ffn]
  h = mlx_op_activate(g, "act", c->act, NULL, h);
  h = mlx_op_linear_bias(g, "down", h, W("mlp.c_proj"), B("mlp.c_proj"));
  return mlx_op_add(g, "out", x, h);
}

static mlx_value_t gpt2_forward(mlx_graph_t *g, const mlx_model_t *model, mlx_value_t tokens) {
  const mlx_config_t *c = &model->config;
  mlx_value_t x = mlx_op_embed(g, mlx_op_weight(g, "transformer.wte.weight"), tokens);  // [M, hidden]
  mlx_value_t position = mlx_op_embed(g, mlx_op_weight(g, "transformer.wpe.weight"), mlx_op_positions(g));
  x = mlx_op_add(g, "placed", x, position);
  for (int layer = 0; layer < c->layers; ++layer) x = gpt2_layer(g, c, layer, x);
  mlx_op_scope(g, "%s", "");
  return mlx_op_layernorm(g, "final", x, mlx_op_weight(g, "transformer.ln_f.weight"),
                          mlx_op_weight(g, "transformer.ln_f.bias"), c->norm_eps);
}

static mlx_value_t gpt2_head(mlx_graph_t *g, const mlx_model_t *model, mlx_value_t hidden) {
  const char *name = model->config.tied_head ? "transformer.wte.weight" : "lm_head.weight";
  return mlx_op_linear(g, "logits", hidden, mlx_op_weight(g, "%s", name));  // [sequences, vocab]
}

static const char *const gpt2_types[] = {"gpt2", NULL};
static const char *const gpt2_ignored[] = {".attn.bias", ".attn.masked_bias", NULL};

const mlx_arch_t mlx_arch_gpt2 = {
    .hf_types = gpt2_types,
    .gguf_types = gpt2_types,
    MLX_TENSORS(gpt2_tensors),
    .ignored = gpt2_ignored,
    .read_config = gpt2_read_config,
    .forward = gpt2_forward,
    .head = gpt2_head,
};
