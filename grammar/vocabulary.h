// Vocabulary: the bytes of all tokens as one trie in an array, so that one pass over memory visits every
// token.
//
// Ownership: the caller owns the vocabulary, which does not refer to the tokenizer after it is created.
// Threads: it does not change after it is created; any number of threads may use it at once.
#ifndef MLXCEL_GRAMMAR_VOCABULARY_H_
#define MLXCEL_GRAMMAR_VOCABULARY_H_

#include <stdint.h>

#include "base/status.h"
#include "tokenizer/tokenizer.h"

typedef struct mlx_vocabulary_node {
  uint32_t skip;   // index of the first node after this one's subtree
  int32_t token;   // a token that ends here, or -1; |same| links the other tokens with the same bytes
  uint16_t depth;  // number of bytes before this one
  uint8_t byte;
} mlx_vocabulary_node_t;

typedef struct mlx_vocabulary {
  mlx_vocabulary_node_t *nodes;  // in preorder, siblings sorted by byte
  size_t count;
  int32_t *same;   // [size] the next token with the same bytes, or -1
  size_t size;     // number of tokens
  size_t longest;  // bytes of the longest token
} mlx_vocabulary_t;

#define MLX_LONGEST_PIECE 1024  // bytes; the trie has no longer token, so a grammar never allows one

// Builds the trie of the tokens below |size| that have text; special tokens have none. |first| selects the
// text that a token has at the beginning of an output. Release with mlx_vocabulary_free.
mlx_status_t mlx_vocabulary_create(const mlx_tokenizer_t *tokenizer, size_t size, bool first,
                                   mlx_vocabulary_t **out_vocabulary) MLX_MUST_USE;
void mlx_vocabulary_free(mlx_vocabulary_t *vocabulary);

#endif  // MLXCEL_GRAMMAR_VOCABULARY_H_
