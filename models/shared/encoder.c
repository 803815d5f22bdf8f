// Settings of encoders, and the parts of their networks that several share.
#include "models/shared/encoder.h"

#include <string.h>

#include "models/import/classifier.h"
#include "models/import/sentence.h"

// A limit that is not given is 0.
static void limit_context(mlx_config_t *c, int64_t tokens) {
  if (tokens && tokens < c->context) c->context = tokens;
}

mlx_status_t mlx_read_encoder(const mlx_source_t *source, mlx_config_t *c) {
  mlx_sentence_t sentence;
  mlx_classifier_t classifier;
  MLX_TRY(mlx_sentence_read(source, &sentence));
  MLX_TRY(mlx_classifier_read(source, &classifier));
  c->encoder = true;
  c->pooling = sentence.pooling;
  c->normalize = sentence.normalize;
  c->dense_count = sentence.dense_count;
  memcpy(c->dense, sentence.dense, sizeof c->dense);
  c->tied_head = true;  // no LM head is needed
  limit_context(c, MLX_ENCODER_TOKENS);
  limit_context(c, sentence.max_tokens);
  if (!classifier.labels) return NULL;
  if (c->dense_count)
    return mlx_error(MLX_UNSUPPORTED, "%s: modules.json has dense layers, and config.json a class head",
                     mlx_source_path(source));
  if (classifier.has_tokens)
    return mlx_error(MLX_UNSUPPORTED, "%s: modules.json has LogitScore, which only decoders can have",
                     mlx_source_path(source));
  if (mlx_source_is_gguf(source) && !mlx_source_tensor(source, NULL, "cls.weight"))
    return mlx_status_hint(
        mlx_error(MLX_UNSUPPORTED, "%s: tensor 'cls.weight' is missing: the dense layer of the class head",
                  mlx_source_path(source)),
        "llama.cpp's converter leaves it out for BERT, which changes the scores: use the directory of the "
        "model");
  limit_context(c, classifier.max_tokens);
  c->labels = classifier.labels;
  c->pooling = MLX_POOL_CLS;
  c->normalize = false;
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// BERT

static mlx_status_t require_absolute(const mlx_source_t *source) {
  const char *kind = "absolute";
  bool found;
  MLX_TRY(mlx_source_string(source, "position_embedding_type", NULL, &kind, &found));
  if (!strcmp(kind, "absolute")) return NULL;
  return mlx_source_field_error(source, "position_embedding_type", NULL, MLX_UNSUPPORTED,
                                "is '%s'; only absolute positions are supported", kind);
}

mlx_status_t mlx_read_positions(const mlx_source_t *source, int64_t padding, mlx_config_t *c) {
  c->position_rows = c->context;
  if (!mlx_source_is_gguf(source)) c->context -= padding;
  c->positions = c->context;
  if (c->context > 0) return NULL;
  return mlx_source_field_error(source, "max_position_embeddings", ".context_length", MLX_INVALID_INPUT,
                                "has no room for a token");
}

bool mlx_has_types(const mlx_config_t *c) { return c->types; }

int64_t mlx_row_after_padding(const mlx_config_t *c, int64_t row) {
  return row + c->position_rows - c->positions;
}

mlx_status_t mlx_read_bert(const mlx_source_t *source, int64_t padding, mlx_config_t *c) {
  static const mlx_size_names_t names = {.encoder = true};
  const mlx_tensor_t *types = mlx_source_tensor(source, NULL, "token_types.weight");
  bool found;
  MLX_TRY(mlx_require_flag(source, "is_decoder", false));
  MLX_TRY(mlx_require_flag(source, "add_cross_attention", false));
  MLX_TRY(require_absolute(source));
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_GELU, &c->act));
  MLX_TRY(mlx_read_sizes(source, &names, true, c));
  c->types = types ? types->dims[0] : mlx_source_is_gguf(source) ? 0 : 2;  // DistilBERT's file has none
  MLX_TRY(mlx_source_int(source, "type_vocab_size", NULL, 1, 1 << 20, &c->types, &found));
  MLX_TRY(mlx_read_positions(source, padding, c));
  MLX_TRY(mlx_read_eps(source, "layer_norm_eps", ".attention.layer_norm_epsilon", c));
  return mlx_read_encoder(source, c);
}

// The weight NAME.weight of layer |layer|; "%d" in the name stands for the layer.
static mlx_value_t layer_weight(mlx_graph_t *g, const char *name, int layer, const char *ending) {
  const char *mark = strstr(name, "%d");
  if (!mark) return mlx_op_weight(g, "%s%s", name, ending);
  return mlx_op_weight(g, "%.*s%d%s%s", (int)(mark - name), name, layer, mark + 2, ending);
}

static mlx_value_t product(mlx_graph_t *g, int layer, const char *name, const char *weight, mlx_value_t x) {
  return mlx_op_linear_bias(g, name, x, layer_weight(g, weight, layer, ".weight"),
                            layer_weight(g, weight, layer, ".bias"));
}

bool mlx_has_class_head(const mlx_config_t *c) { return c->labels > 0; }

mlx_value_t mlx_class_head(mlx_graph_t *g, const char *dense, bool relu, const char *out,
                           mlx_value_t pooled) {
  mlx_value_t h = product(g, 0, "class_dense", dense, pooled);  // [W, hidden]
  h = relu ? mlx_op_activate(g, "class_act", MLX_ACT_RELU, NULL, h) : mlx_op_softcap(g, "class_act", h, 1.0);
  return product(g, 0, "scores", out, h);  // [W, labels]
}

static mlx_value_t norm(mlx_graph_t *g, const mlx_config_t *c, int layer, const char *name,
                        const char *weight, mlx_value_t x) {
  return mlx_op_layernorm(g, name, x, layer_weight(g, weight, layer, ".weight"),
                          layer_weight(g, weight, layer, ".bias"), c->norm_eps);
}

static mlx_value_t bert_layer(mlx_graph_t *g, const mlx_config_t *c, const mlx_bert_names_t *n, int layer,
                              mlx_value_t x) {
  mlx_attention_t attention = mlx_attention_of(c, layer);
  mlx_op_scope(g, "layer%d", layer);
  if (n->relative) attention.relative = layer_weight(g, n->relative, layer, ".weight");
  mlx_value_t q = product(g, layer, "q", n->q, x);
  mlx_value_t k = product(g, layer, "k", n->k, x);
  mlx_value_t v = product(g, layer, "v", n->v, x);
  mlx_value_t h = mlx_op_attention(g, &attention, q, k, v);
  h = product(g, layer, "o", n->o, h);
  h = mlx_op_add(g, "after_attn", h, x);
  x = norm(g, c, layer, "attn_out", n->attention_norm, h);

  h = product(g, layer, "up", n->up, x);  // [M, ffn]
  h = mlx_op_activate(g, "act", c->act, NULL, h);
  h = product(g, layer, "down", n->down, h);
  h = mlx_op_add(g, "after_mlp", h, x);
  return norm(g, c, layer, "out", n->out_norm, h);
}

mlx_value_t mlx_bert_forward(mlx_graph_t *g, const mlx_config_t *c, const mlx_bert_names_t *n,
                             mlx_value_t tokens) {
  mlx_value_t x = mlx_op_embed(g, mlx_op_weight(g, "%s.weight", n->words), tokens);  // [M, hidden]
  if (n->types && c->types)
    x = mlx_op_add(g, "typed", x, mlx_op_embed(g, mlx_op_weight(g, "%s.weight", n->types), mlx_op_types(g)));
  x = mlx_op_add(g, "placed", x,
                 mlx_op_embed(g, mlx_op_weight(g, "%s.weight", n->positions), mlx_op_positions(g)));
  x = norm(g, c, 0, "embedded_normed", n->norm, x);
  for (int layer = 0; layer < c->layers; ++layer) x = bert_layer(g, c, n, layer, x);
  mlx_op_scope(g, "%s", "");
  return x;
}
