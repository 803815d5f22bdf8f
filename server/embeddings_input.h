// The body of a request for embeddings: OpenAI's /v1/embeddings and Ollama's /api/embed.
#ifndef MLXCEL_SERVER_EMBEDDINGS_INPUT_H_
#define MLXCEL_SERVER_EMBEDDINGS_INPUT_H_

#include "server/fields.h"

#define MLX_MAX_EMBEDDINGS 2048  // inputs of a request

typedef struct mlx_embeddings_input {
  yyjson_doc *doc;    // owned: the body, which the other fields borrow from
  const char *model;  // NULL: not given
  bool base64;
  int64_t dimensions;   // -1: as many as the model has
  yyjson_val **inputs;  // owned [count]: texts and lists of token ids, none of them empty
  size_t count;
} mlx_embeddings_input_t;

// Release |out| with mlx_embeddings_input_clear, also after an error.
mlx_status_t mlx_embeddings_parse(const char *body, size_t length, bool ollama,
                                  mlx_embeddings_input_t *out) MLX_MUST_USE;
void mlx_embeddings_input_clear(mlx_embeddings_input_t *input);

// Copies the token ids of input |index|, a list, to |out|, which has room for all of them.
mlx_status_t mlx_embeddings_ids(const mlx_embeddings_input_t *input, size_t index, int64_t vocab,
                                int32_t *out) MLX_MUST_USE;

#endif  // MLXCEL_SERVER_EMBEDDINGS_INPUT_H_
