// The vocabulary of a GGUF tokenizer: tokens by id, their types, and a hash table from bytes to id.
#ifndef MLXCEL_MODELS_IMPORT_GGUF_VOCABULARY_H_
#define MLXCEL_MODELS_IMPORT_GGUF_VOCABULARY_H_

#include <stdint.h>

#include "base/budget.h"
#include "base/json_writer.h"
#include "base/text.h"
#include "models/import/gguf.h"

#define MLX_TOKENIZER_KEY(name) "tokenizer.ggml." name

typedef struct mlx_gguf_token {
  const char *bytes;  // borrowed from the file or from the vocabulary's |rewritten|
  size_t length;
} mlx_gguf_token_t;

// The numbers are the file format's.
typedef enum mlx_gguf_token_type {
  MLX_TOKEN_NORMAL = 1,
  MLX_TOKEN_UNKNOWN,
  MLX_TOKEN_CONTROL,
  MLX_TOKEN_USER_DEFINED,
  MLX_TOKEN_UNUSED,
  MLX_TOKEN_BYTE,
} mlx_gguf_token_type_t;

typedef struct mlx_gguf_vocabulary {
  mlx_gguf_token_t *tokens;  // by id
  uint8_t *types;            // by id; MLX_TOKEN_NORMAL if the file has no token_type
  size_t count;
  uint32_t *slots;  // open addressing: id + 1, or 0 if the slot is free
  size_t mask;
  mlx_budget_t *budget;  // borrowed: of the file
  mlx_text_t rewritten;  // token bytes, if tokenizer.json writes tokens differently from GGUF
} mlx_gguf_vocabulary_t;

// Appends |token| to |out| the way tokenizer.json writes it.
typedef void (*mlx_gguf_rewrite_t)(mlx_gguf_token_t token, uint8_t type, mlx_text_t *out);

// Reads tokens and token_type into |out|, whose budget the caller has set. |rewrite| may be NULL: tokens stay
// as stored. Release with mlx_gguf_vocabulary_clear, also after a failure.
mlx_status_t mlx_gguf_vocabulary_read(const mlx_gguf_t *gguf, mlx_gguf_rewrite_t rewrite,
                                      mlx_gguf_vocabulary_t *out) MLX_MUST_USE;
void mlx_gguf_vocabulary_clear(mlx_gguf_vocabulary_t *vocabulary);
// The id of the token whose bytes are |head| followed by |tail|, or -1.
int64_t mlx_gguf_vocabulary_find(const mlx_gguf_vocabulary_t *vocabulary, mlx_gguf_token_t head,
                                 mlx_gguf_token_t tail);
// The id of the unknown token: unknown_token_id, else the first token of type UNKNOWN, else -1.
mlx_status_t mlx_gguf_vocabulary_unknown(const mlx_gguf_t *gguf, const mlx_gguf_vocabulary_t *vocabulary,
                                         int64_t *out_id) MLX_MUST_USE;

// A required field that must be an array of strings.
mlx_status_t mlx_gguf_string_array(const mlx_gguf_t *gguf, const char *key,
                                   const mlx_gguf_field_t **out_field) MLX_MUST_USE;

// Writes one token as a string, and the whole vocabulary as the member "vocab", an object of ids.
void mlx_gguf_write_token(const mlx_gguf_vocabulary_t *vocabulary, size_t id, const char *key,
                          mlx_json_writer_t *json);
void mlx_gguf_write_vocabulary(const mlx_gguf_vocabulary_t *vocabulary, mlx_json_writer_t *json);

#endif  // MLXCEL_MODELS_IMPORT_GGUF_VOCABULARY_H_
