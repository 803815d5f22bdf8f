// The vocabulary: tokens by id, and ids by text.
#ifndef MLXCEL_TOKENIZER_VOCAB_H_
#define MLXCEL_TOKENIZER_VOCAB_H_

#include <stdint.h>

#include "base/status.h"

// All tables below are part of an image (image.h): they hold offsets and indices, not pointers.
enum {
  MLX_TOKEN_IS_USED = 1,   // a token has this id
  MLX_TOKEN_IN_MODEL = 2,  // in model.vocab: the model may produce it; else it only matches as an added token
  MLX_TOKEN_IS_ADDED = 4,  // in added_tokens, and possibly in model.vocab too
  MLX_TOKEN_IS_SPECIAL = 8,
  MLX_TOKEN_IS_SKIPPED = 16,  // decoding with skip_special leaves it out
};

typedef struct mlx_token {
  uint32_t text, text_length;   // in the arena: as tokenizer.json spells it, UTF-8
  uint32_t bytes, byte_length;  // in the arena: the decoded token; may be an incomplete UTF-8 character
  uint32_t flags;               // MLX_TOKEN_IS_USED and so on
} mlx_token_t;

typedef struct mlx_vocab {
  mlx_token_t *tokens;  // [size], by id
  size_t size;          // the largest id plus one
  size_t longest_text;  // bytes; of the tokens in the model
  char *arena;          // the text and bytes of all tokens, and the texts that added tokens match
  size_t arena_size;
  int32_t *slots;  // open-addressing table of ids by text; -1 marks an empty slot
  size_t slot_mask;
  uint64_t seed;
  int32_t byte_ids[256];  // the token of each single byte, or -1
} mlx_vocab_t;

static inline bool mlx_vocab_has(const mlx_vocab_t *vocab, int32_t id, uint32_t flag) {
  return id >= 0 && (size_t)id < vocab->size && vocab->tokens[id].flags & flag;
}

// Allocates the table of ids by text.
mlx_status_t mlx_vocab_create_index(mlx_vocab_t *vocab, size_t capacity) MLX_MUST_USE;
// Adds |id| to the index. Its token's text must be set. An equal text added later replaces this one.
void mlx_vocab_index(mlx_vocab_t *vocab, int32_t id);
// The id of the token spelled |text|, or -1.
int32_t mlx_vocab_find(const mlx_vocab_t *vocab, const char *text, size_t length);
// The same, for tokens in the model only.
int32_t mlx_vocab_find_in_model(const mlx_vocab_t *vocab, const char *text, size_t length);
void mlx_vocab_free(mlx_vocab_t *vocab);
// Checks tables from an image: true if every offset and every id is in range and every lookup ends.
bool mlx_vocab_is_valid(const mlx_vocab_t *vocab);

// A growing list of token ids. Zero-initialize to start; the owner frees |items|.
typedef struct mlx_ids {
  int32_t *items;
  size_t count, capacity;
} mlx_ids_t;
mlx_status_t mlx_ids_append(mlx_ids_t *ids, int32_t id) MLX_MUST_USE;
// Byte fallback: appends the token of each byte of |text|. *out_done is false, and nothing is appended, if a
// byte has no token.
mlx_status_t mlx_ids_append_bytes(mlx_ids_t *ids, const mlx_vocab_t *vocab, const char *text, size_t length,
                                  bool *out_done) MLX_MUST_USE;

#endif  // MLXCEL_TOKENIZER_VOCAB_H_
