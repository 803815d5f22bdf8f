// Finds added tokens in a text, in time linear in the text.
//
// The set is an Aho-Corasick automaton over the reversed tokens, and a search reads the text backwards. At
// each position the automaton's node is the longest string that begins there and ends a token, so the node
// knows the longest token that begins at the position. A walk down a trie from every position would take the
// length of the longest token for each byte of a hostile text.
#ifndef MLXCEL_TOKENIZER_ADDED_SET_H_
#define MLXCEL_TOKENIZER_ADDED_SET_H_

#include "tokenizer/trie.h"

typedef struct mlx_added_match {
  int32_t index;    // into tokenizer->added; -1 for no token
  uint32_t length;  // of the token, in bytes
} mlx_added_match_t;

// Zero-initialize before mlx_added_set_create.
typedef struct mlx_added_set {
  mlx_trie_t trie;             // of the reversed tokens; its ends are indices into tokenizer->added
  uint32_t *parents;           // [nodes] only while the set is built
  uint8_t *bytes;              // [nodes] the last byte of a node's string; only while the set is built
  uint32_t *depths;            // [nodes] the length of a node's string
  uint32_t *fail;              // [nodes] the node of the longest proper suffix of the node's string
  mlx_added_match_t *matches;  // [nodes] the longest token that is a suffix of the node's string
  uint8_t last_bytes[256];     // 1 for the last byte of a token; lets the search skip most of a text
  size_t count;                // of tokens
  size_t longest;              // bytes of the longest token
} mlx_added_set_t;

// |bytes| bounds the total length of all tokens. Release with mlx_added_set_free, also after a failure.
mlx_status_t mlx_added_set_create(size_t bytes, uint64_t seed, mlx_added_set_t *out_set) MLX_MUST_USE;
// Adds a token that is not empty. False if the set already has that text.
bool mlx_added_set_add(mlx_added_set_t *set, const char *text, size_t length, int32_t index);
// Builds the automaton. Call it once, after the last token.
mlx_status_t mlx_added_set_finish(mlx_added_set_t *set) MLX_MUST_USE;
void mlx_added_set_free(mlx_added_set_t *set);
// Checks a set from an image: true if every search ends, and finds tokens of |tokens| that lie inside the
// text.
bool mlx_added_set_is_valid(const mlx_added_set_t *set, size_t tokens);

#define MLX_ADDED_BLOCK 65536  // positions that one search covers

// The longest token at each position of a part of a text. Zero-initialize to start; reused between texts.
typedef struct mlx_added_block {
  mlx_added_match_t *matches;  // owned: of the positions [begin, end)
  size_t capacity, begin, end;
} mlx_added_block_t;
// Searches a block that begins at |begin|.
mlx_status_t mlx_added_set_search(const mlx_added_set_t *set, const char *text, size_t length, size_t begin,
                                  mlx_added_block_t *block) MLX_MUST_USE;
void mlx_added_block_free(mlx_added_block_t *block);

#endif  // MLXCEL_TOKENIZER_ADDED_SET_H_
