// What encoders share: their settings, and the parts of BERT's network.
#ifndef MLXCEL_MODELS_SHARED_ENCODER_H_
#define MLXCEL_MODELS_SHARED_ENCODER_H_

#include "models/shared/blocks.h"

// The longest text of an encoder: no text is divided, and memory for the activations of all its tokens is
// taken when the model is loaded.
#define MLX_ENCODER_TOKENS 8192

// Marks the model as an encoder and reads its pooling, or that it has a class head, which reads the first
// token. c->context, the positions that the network can place, becomes the longest text.
mlx_status_t mlx_read_encoder(const mlx_source_t *source, mlx_config_t *c) MLX_MUST_USE;

// The tensors of BERT, whose names start with |prefix|. Further arguments are for the table of positions.
#define MLX_RULES_BERT(prefix, ...)                                                                          \
  MLX_MATRIX(prefix "embeddings.word_embeddings.weight", "token_embd.weight", MLX_DIM(vocab),                \
             MLX_DIM(hidden)),                                                                               \
      MLX_MATRIX(prefix "embeddings.token_type_embeddings.weight", "token_types.weight", MLX_DIM(types),     \
                 MLX_DIM(hidden), .present = mlx_has_types),                                                 \
      MLX_MATRIX(prefix "embeddings.position_embeddings.weight", "position_embd.weight", MLX_DIM(positions), \
                 MLX_DIM(hidden), __VA_ARGS__),                                                              \
      MLX_ENCODER_NORM(prefix "embeddings.LayerNorm", "token_embd_norm"),                                    \
      MLX_ENCODER_PRODUCT(prefix "encoder.layer.%d.attention.self.query", "blk.%d.attn_q", hidden, hidden),  \
      MLX_ENCODER_PRODUCT(prefix "encoder.layer.%d.attention.self.key", "blk.%d.attn_k", hidden, hidden),    \
      MLX_ENCODER_PRODUCT(prefix "encoder.layer.%d.attention.self.value", "blk.%d.attn_v", hidden, hidden),  \
      MLX_ENCODER_PRODUCT(prefix "encoder.layer.%d.attention.output.dense", "blk.%d.attn_output", hidden,    \
                          hidden),                                                                           \
      MLX_ENCODER_NORM(prefix "encoder.layer.%d.attention.output.LayerNorm", "blk.%d.attn_output_norm"),     \
      MLX_ENCODER_PRODUCT(prefix "encoder.layer.%d.intermediate.dense", "blk.%d.ffn_up", ffn, hidden),       \
      MLX_ENCODER_PRODUCT(prefix "encoder.layer.%d.output.dense", "blk.%d.ffn_down", hidden, ffn),           \
      MLX_ENCODER_NORM(prefix "encoder.layer.%d.output.LayerNorm", "blk.%d.layer_output_norm")

// A matrix and its bias; the weight and the bias of a norm.
#define MLX_ENCODER_PRODUCT(hf, gguf, rows, columns)                         \
  MLX_MATRIX(hf ".weight", gguf ".weight", MLX_DIM(rows), MLX_DIM(columns)), \
      MLX_VECTOR(hf ".bias", gguf ".bias", MLX_DIM(rows))
#define MLX_ENCODER_NORM(hf, gguf)                           \
  MLX_VECTOR(hf ".weight", gguf ".weight", MLX_DIM(hidden)), \
      MLX_VECTOR(hf ".bias", gguf ".bias", MLX_DIM(hidden))

// The two products of a class head. llama.cpp's converter leaves out the first one of BERT.
#define MLX_RULES_CLASS_HEAD(dense, out)                                                     \
  MLX_MATRIX(dense ".weight", "cls.weight", MLX_DIM(hidden), MLX_DIM(hidden),                \
             .present = mlx_has_class_head),                                                 \
      MLX_VECTOR(dense ".bias", "cls.bias", MLX_DIM(hidden), .present = mlx_has_class_head), \
      MLX_MATRIX(out ".weight", "cls.output.weight", MLX_DIM(labels), MLX_DIM(hidden),       \
                 .present = mlx_has_class_head),                                             \
      MLX_VECTOR(out ".bias", "cls.output.bias", MLX_DIM(labels), .present = mlx_has_class_head)
bool mlx_has_class_head(const mlx_config_t *c);

// Sets c->positions and c->context from the number of positions that the config gives, the first |padding| of
// which no token has. Rule of a table without these rows: .hf_row = mlx_row_after_padding, .fused_rows =
// MLX_DIM(position_rows).
mlx_status_t mlx_read_positions(const mlx_source_t *source, int64_t padding, mlx_config_t *c) MLX_MUST_USE;
int64_t mlx_row_after_padding(const mlx_config_t *c, int64_t row);
bool mlx_has_types(const mlx_config_t *c);  // for the present field of mlx_tensor_rule_t

// The fields of BERT's config. |padding|: rows of the table of positions in Hugging Face's files that belong
// to no position.
mlx_status_t mlx_read_bert(const mlx_source_t *source, int64_t padding, mlx_config_t *c) MLX_MUST_USE;
// The names of the weights of a network like BERT's, without ".weight". Those of a layer have "%d".
typedef struct mlx_bert_names {
  const char *words, *types, *positions, *norm;  // the embeddings; types NULL: there are none
  const char *q, *k, *v, *o, *attention_norm, *up, *down, *out_norm;
  const char *relative;  // biases by distance [buckets, heads], as in mlx_attention_t; NULL: none
} mlx_bert_names_t;

// The names for MLX_RULES_BERT.
#define MLX_BERT_NAMES(prefix)                                                \
  {                                                                           \
      .words = prefix "embeddings.word_embeddings",                           \
      .types = prefix "embeddings.token_type_embeddings",                     \
      .positions = prefix "embeddings.position_embeddings",                   \
      .norm = prefix "embeddings.LayerNorm",                                  \
      .q = prefix "encoder.layer.%d.attention.self.query",                    \
      .k = prefix "encoder.layer.%d.attention.self.key",                      \
      .v = prefix "encoder.layer.%d.attention.self.value",                    \
      .o = prefix "encoder.layer.%d.attention.output.dense",                  \
      .attention_norm = prefix "encoder.layer.%d.attention.output.LayerNorm", \
      .up = prefix "encoder.layer.%d.intermediate.dense",                     \
      .down = prefix "encoder.layer.%d.output.dense",                         \
      .out_norm = prefix "encoder.layer.%d.output.LayerNorm",                 \
  }

// The network of BERT: embeddings, and layers with a norm after each sublayer.
mlx_value_t mlx_bert_forward(mlx_graph_t *g, const mlx_config_t *c, const mlx_bert_names_t *names,
                             mlx_value_t tokens);

// The class head: the scores [W, labels] of the pooled rows [W, hidden], which a dense layer with tanh, or
// with ReLU, reads. Names without ".weight".
mlx_value_t mlx_class_head(mlx_graph_t *g, const char *dense, bool relu, const char *out, mlx_value_t pooled);

#endif  // MLXCEL_MODELS_SHARED_ENCODER_H_
