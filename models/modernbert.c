// ModernBERT as an encoder: rotary positions, a norm before each sublayer, a gated MLP, no biases. Two of
// three layers see only the tokens around their own.
#include <string.h>

#include "models/shared/encoder.h"

#define LAYER "model.layers.%d."

static const mlx_tensor_rule_t modernbert_tensors[] = {
    MLX_MATRIX("model.embeddings.tok_embeddings.weight", "token_embd.weight", MLX_DIM(vocab),
               MLX_DIM(hidden)),
    MLX_VECTOR("model.embeddings.norm.weight", "token_embd_norm.weight", MLX_DIM(hidden)),
    MLX_VECTOR(LAYER "attn_norm.weight", "blk.%d.attn_norm.weight", MLX_DIM(hidden),
               .layers = MLX_LATER_LAYERS),
    MLX_MATRIX(LAYER "attn.Wqkv.weight", "blk.%d.attn_qkv.weight", MLX_DIM(qkv_width), MLX_DIM(hidden)),
    MLX_MATRIX(LAYER "attn.Wo.weight", "blk.%d.attn_output.weight", MLX_DIM(hidden), MLX_DIM(hidden)),
    MLX_VECTOR(LAYER "mlp_norm.weight", "blk.%d.ffn_norm.weight", MLX_DIM(hidden)),
    MLX_MATRIX(LAYER "mlp.Wi.weight", "blk.%d.ffn_up.weight", MLX_DIM(gate_up_width), MLX_DIM(hidden)),
    MLX_MATRIX(LAYER "mlp.Wo.weight", "blk.%d.ffn_down.weight", MLX_DIM(hidden), MLX_DIM(ffn)),
    MLX_VECTOR("model.final_norm.weight", "output_norm.weight", MLX_DIM(hidden)),
    MLX_MATRIX("head.dense.weight", "none", MLX_DIM(hidden), MLX_DIM(hidden), .present = mlx_has_class_head),
    MLX_VECTOR("head.norm.weight", "none", MLX_DIM(hidden), .present = mlx_has_class_head),
    MLX_MATRIX("classifier.weight", "none", MLX_DIM(labels), MLX_DIM(hidden), .present = mlx_has_class_head),
    MLX_VECTOR("classifier.bias", "none", MLX_DIM(labels), .present = mlx_has_class_head),
};

static const mlx_rope_fields_t global_rope = {
    .group = "full_attention", .theta = "global_rope_theta", .default_theta = 160000.0};
static const mlx_rope_fields_t local_rope = {.group = "sliding_attention",
                                             .theta = "local_rope_theta",
                                             .gguf_theta = ".rope.freq_base_swa",
                                             .default_theta = 10000.0};

// The first of every |every| layers sees all tokens.
static mlx_status_t read_local_layers(const mlx_source_t *source, mlx_config_t *c) {
  int64_t every = 3, local = 128;
  bool found;
  MLX_TRY(mlx_source_int(source, "local_attention", ".attention.sliding_window", 2, 1 << 20, &local, &found));
  MLX_TRY(mlx_source_int(source, "global_attn_every_n_layers", ".attention.sliding_window_pattern", 1,
                         1 << 20, &every, &found));
  MLX_TRY(mlx_read_windows(source, 1, local, c));  // layer_types
  if (!mlx_source_has(source, "layer_types", NULL))
    for (int64_t i = 0; i < c->layers; ++i) c->windowed[i] = i % every != 0;
  c->window = local / 2;  // on each side
  return NULL;
}

static mlx_status_t read_class_head(const mlx_source_t *source, mlx_config_t *c) {
  const char *pooling = "cls";
  mlx_act_t act;
  bool found;
  MLX_TRY(mlx_require_flag(source, "classifier_bias", false));
  MLX_TRY(mlx_read_act(source, "classifier_activation", MLX_ACT_GELU, &act));
  MLX_TRY(mlx_source_string(source, "classifier_pooling", NULL, &pooling, &found));
  c->pooling = strcmp(pooling, "mean") ? MLX_POOL_CLS : MLX_POOL_MEAN;
  if (act == MLX_ACT_GELU && (c->pooling == MLX_POOL_MEAN || !strcmp(pooling, "cls"))) return NULL;
  return mlx_source_field_error(source, act == MLX_ACT_GELU ? "classifier_pooling" : "classifier_activation",
                                NULL, MLX_UNSUPPORTED, "is not supported: expected cls or mean, and gelu");
}

// llama.cpp's converter writes it under the name for RMSNorm. The pooling of a class head has no effect on
// embeddings.
static mlx_status_t read_eps(const mlx_source_t *source, mlx_config_t *c) {
  const char *rms = ".attention.layer_norm_rms_epsilon";
  int64_t unused;
  bool found;
  MLX_TRY(mlx_source_int(source, NULL, ".classifier.pooling_type", 0, 4, &unused, &found));
  return mlx_read_eps(source, "norm_eps",
                      mlx_source_has(source, NULL, rms) ? rms : ".attention.layer_norm_epsilon", c);
}

static mlx_status_t modernbert_read_config(const mlx_source_t *source, mlx_config_t *c) {
  static const mlx_size_names_t names = {.encoder = true};
  MLX_TRY(mlx_require_flag(source, "attention_bias", false));
  MLX_TRY(mlx_require_flag(source, "mlp_bias", false));
  MLX_TRY(mlx_require_flag(source, "norm_bias", false));
  MLX_TRY(mlx_read_act(source, "hidden_activation", MLX_ACT_GELU, &c->act));
  MLX_TRY(mlx_read_sizes(source, &names, true, c));
  MLX_TRY(read_eps(source, c));
  MLX_TRY(read_local_layers(source, c));
  MLX_TRY(mlx_read_rope(source, &global_rope, c, &c->rope));
  MLX_TRY(mlx_read_rope(source, &local_rope, c, &c->local_rope));
  MLX_TRY(mlx_read_encoder(source, c));
  return c->labels ? read_class_head(source, c) : NULL;
}

#define W(part) mlx_op_weight(g, LAYER part ".weight", layer)

static mlx_value_t modernbert_layer(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x) {
  const mlx_attention_t attention = mlx_attention_of(c, layer);
  const mlx_rope_t *rope = mlx_rope_of(g, c, layer);
  mlx_op_scope(g, "layer%d", layer);
  mlx_value_t h = layer ? mlx_op_layernorm(g, "attn_in", x, W("attn_norm"), MLX_NONE, c->norm_eps) : x;
  mlx_value_t qkv = mlx_op_linear(g, "qkv", h, W("attn.Wqkv"));  // [M, 3 * hidden]
  mlx_value_t q = mlx_op_rope(g, "q_rope", mlx_op_columns(g, "q", qkv, 0, c->hidden), c->head_dim, rope);
  mlx_value_t k =
      mlx_op_rope(g, "k_rope", mlx_op_columns(g, "k", qkv, c->hidden, c->hidden), c->head_dim, rope);
  mlx_value_t v = mlx_op_columns(g, "v", qkv, 2 * c->hidden, c->hidden);
  h = mlx_op_linear(g, "o", mlx_op_attention(g, &attention, q, k, v), W("attn.Wo"));
  x = mlx_op_add(g, "after_attn", x, h);

  h = mlx_op_layernorm(g, "mlp_in", x, W("mlp_norm"), MLX_NONE, c->norm_eps);
  h = mlx_op_linear(g, "gate_up", h, W("mlp.Wi"));  // [M, 2 * ffn]: gate, then up
  h = mlx_op_gated(g, "act", c->act, mlx_op_columns(g, "gate", h, 0, c->ffn),
                   mlx_op_columns(g, "up", h, c->ffn, c->ffn));
  return mlx_op_add(g, "out", x, mlx_op_linear(g, "down", h, W("mlp.Wo")));
}

static mlx_value_t modernbert_forward(mlx_graph_t *g, const mlx_model_t *model, mlx_value_t tokens) {
  const mlx_config_t *c = &model->config;
  mlx_value_t x = mlx_op_embed(g, mlx_op_weight(g, "model.embeddings.tok_embeddings.weight"), tokens);
  x = mlx_op_layernorm(g, "embedded_normed", x, mlx_op_weight(g, "model.embeddings.norm.weight"), MLX_NONE,
                       c->norm_eps);
  for (int layer = 0; layer < c->layers; ++layer) x = modernbert_layer(g, c, layer, x);
  mlx_op_scope(g, "%s", "");
  return mlx_op_layernorm(g, "final", x, mlx_op_weight(g, "model.final_norm.weight"), MLX_NONE, c->norm_eps);
}

static mlx_value_t modernbert_head(mlx_graph_t *g, const mlx_model_t *model, mlx_value_t pooled) {
  mlx_value_t h = mlx_op_linear(g, "class_dense", pooled, mlx_op_weight(g, "head.dense.weight"));
  h = mlx_op_activate(g, "class_act", MLX_ACT_GELU, NULL, h);
  h = mlx_op_layernorm(g, "class_norm", h, mlx_op_weight(g, "head.norm.weight"), MLX_NONE,
                       model->config.norm_eps);
  return mlx_op_linear_bias(g, "scores", h, mlx_op_weight(g, "classifier.weight"),
                            mlx_op_weight(g, "classifier.bias"));
}

static const char *const modernbert_types[] = {"modernbert", NULL};
static const char *const modernbert_gguf_types[] = {"modern-bert", NULL};
static const char *const modernbert_unused[] = {"head.", "decoder.", NULL};

const mlx_arch_t mlx_arch_modernbert = {
    .hf_types = modernbert_types,
    .gguf_types = modernbert_gguf_types,
    MLX_TENSORS(modernbert_tensors),
    .unused = modernbert_unused,
    .read_config = modernbert_read_config,
    .forward = modernbert_forward,
    .head = modernbert_head,
};
