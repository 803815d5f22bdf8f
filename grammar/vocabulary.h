// Vocabulary: the bytes of all tokens as one trie, laid out so that asking something of every token is one
// walk through memory.
//
// Ownership: a vocabulary belongs to whoever created it and keeps nothing of the tokenizer.
// Threads: it never changes after create; any number may use it at the same time.
#ifndef MLXCEL_GRAMMAR_VOCABULARY_H_
#define MLXCEL_GRAMMAR_VOCABULARY_H_

#include <stdint.h>

#include "base/status.h"
#include "tokenizer/tokenizer.h"

typedef struct mlx_vocabulary_node {
  uint32_t skip;   // the node after all that begin with this one
  int32_t token;   // one that ends here, or -1; others with the same bytes follow in |same|
  uint16_t depth;  // bytes before this one
  uint8_t byte;
} mlx_vocabulary_node_t;

typedef struct mlx_vocabulary {
  mlx_vocabulary_node_t *nodes;  // in the order of their bytes, a beginning before what goes on from it
  size_t count;
  int32_t *same;   // [size] the next token with the same bytes, or -1
  size_t size;     // ids from 0 on
  size_t longest;  // bytes
} mlx_vocabulary_t;

#define MLX_LONGEST_PIECE 1024  // a longer token has no place in the trie: a grammar never allows it

// The tokens below |size| that give text; special ones do not. |first|: as they are at the beginning of a
// text. Release with mlx_vocabulary_free.
mlx_status_t mlx_vocabulary_create(const mlx_tokenizer_t *tokenizer, size_t size, bool first,
                                   mlx_vocabulary_t **out_vocabulary) MLX_MUST_USE;
void mlx_vocabulary_free(mlx_vocabulary_t *vocabulary);

#endif  // MLXCEL_GRAMMAR_VOCABULARY_H_
