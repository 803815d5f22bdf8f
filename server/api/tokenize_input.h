// The bodies of requests to /tokenize and /detokenize.
#ifndef MLXCEL_SERVER_API_TOKENIZE_INPUT_H_
#define MLXCEL_SERVER_API_TOKENIZE_INPUT_H_

#include "server/api/fields.h"

typedef struct mlx_text_input {
  yyjson_doc *doc;    // owned: the body, which the other fields borrow from
  const char *model;  // NULL: not given
  // /tokenize
  const char *text;
  size_t length;
  int plain;             // special tokens in the text are text; -1: the server's default
  bool special, pieces;  // add the start token; report the bytes of each token
  // /detokenize
  yyjson_val *tokens;  // a list
  size_t count;
} mlx_text_input_t;

// Release |out| with mlx_text_input_clear, also after an error.
mlx_status_t mlx_tokenize_parse(const char *body, size_t length, mlx_text_t *unknown,
                                mlx_text_input_t *out) MLX_MUST_USE;
mlx_status_t mlx_detokenize_parse(const char *body, size_t length, mlx_text_t *unknown,
                                  mlx_text_input_t *out) MLX_MUST_USE;
void mlx_text_input_clear(mlx_text_input_t *input);

// Copies the ids of |tokens| to |out| [count].
mlx_status_t mlx_detokenize_ids(const mlx_text_input_t *input, int64_t vocab, int32_t *out) MLX_MUST_USE;

#endif  // MLXCEL_SERVER_API_TOKENIZE_INPUT_H_
