// What the writers of tokenizer.json share: gguf_tokenizer.c (byte-level BPE and all that is common) and
// gguf_wordlike.c (SentencePiece's two and WordPiece). Nobody else includes this.
#ifndef MLXCEL_MODELS_IMPORT_GGUF_TOKENIZER_H_
#define MLXCEL_MODELS_IMPORT_GGUF_TOKENIZER_H_

#include <stdint.h>

#include "base/memory.h"
#include "base/text.h"
#include "models/import/gguf.h"

#define MLX_TOKENIZER_KEY(name) "tokenizer.ggml." name

typedef struct mlx_gguf_token {
  const char *bytes;  // borrowed from the file or from the vocabulary's |spelled|
  size_t length;
} mlx_gguf_token_t;

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
  uint8_t *types;            // by id; NORMAL where the file does not say
  size_t count;
  uint32_t *slots;  // id + 1, or 0 when free; open addressing
  size_t mask;
  mlx_text_t spelled;  // tokens that tokenizer.json spells otherwise than GGUF
} mlx_gguf_vocabulary_t;

// Spells a token as tokenizer.json does.
typedef void (*mlx_gguf_spell_t)(mlx_gguf_token_t token, uint8_t type, mlx_text_t *out);

// Reads tokens and token_type; |spell| may be NULL. Release with mlx_gguf_vocabulary_clear, also after a
// failure.
mlx_status_t mlx_gguf_vocabulary_read(const mlx_gguf_t *gguf, mlx_gguf_spell_t spell,
                                      mlx_gguf_vocabulary_t *out) MLX_MUST_USE;
void mlx_gguf_vocabulary_clear(mlx_gguf_vocabulary_t *vocabulary);
// The id of the token that is |head| followed by |tail|, or -1.
int64_t mlx_gguf_vocabulary_find(const mlx_gguf_vocabulary_t *vocabulary, mlx_gguf_token_t head,
                                 mlx_gguf_token_t tail);

// The file up to and with the post-processor, which adds BOS and EOS (|bos_key|, |eos_key|) as the flags or
// |add_bos| and |add_eos| say.
typedef struct mlx_gguf_frame {
  const char *normalizer, *pre_tokenizer;  // JSON
  const char *bos_key, *eos_key;
  bool add_bos, add_eos;  // when the file does not say
} mlx_gguf_frame_t;
mlx_status_t mlx_gguf_write_frame(const mlx_gguf_t *gguf, const mlx_gguf_vocabulary_t *vocabulary,
                                  const mlx_gguf_frame_t *frame, mlx_text_t *text) MLX_MUST_USE;
void mlx_gguf_write_token(const mlx_gguf_vocabulary_t *vocabulary, size_t id, mlx_text_t *text);
void mlx_gguf_write_vocabulary(const mlx_gguf_vocabulary_t *vocabulary,
                               mlx_text_t *text);  // {"token": id, ...}

// gguf_wordlike.c: the whole file for tokenizer.ggml.model "llama", "t5" and "bert".
mlx_status_t mlx_gguf_write_sentencepiece(const mlx_gguf_t *gguf, mlx_gguf_vocabulary_t *vocabulary,
                                          mlx_text_t *text) MLX_MUST_USE;
mlx_status_t mlx_gguf_write_unigram(const mlx_gguf_t *gguf, mlx_gguf_vocabulary_t *vocabulary,
                                    mlx_text_t *text) MLX_MUST_USE;
mlx_status_t mlx_gguf_write_wordpiece(const mlx_gguf_t *gguf, mlx_gguf_vocabulary_t *vocabulary,
                                      mlx_text_t *text) MLX_MUST_USE;

#endif  // MLXCEL_MODELS_IMPORT_GGUF_TOKENIZER_H_
