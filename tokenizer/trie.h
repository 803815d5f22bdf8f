// A trie over bytes: finds every token that starts at a position of a text.
#ifndef MLXCEL_TOKENIZER_TRIE_H_
#define MLXCEL_TOKENIZER_TRIE_H_

#include "tokenizer/pair_map.h"

// Node 0 is the root. Zero-initialize before mlx_trie_create.
typedef struct mlx_trie {
  mlx_pair_map_t edges;  // (node, byte) -> node
  int32_t *ends;         // [nodes] the value of the key that ends at a node, or -1
  size_t nodes;
} mlx_trie_t;

// |bytes| bounds the total length of all keys. Release with mlx_trie_free, also after a failure.
mlx_status_t mlx_trie_create(size_t bytes, uint64_t seed, mlx_trie_t *out_trie) MLX_MUST_USE;
size_t mlx_trie_memory(size_t bytes);  // the most bytes that a trie of |bytes| takes while it is built
// Follows the edge |byte|, and adds it if it is new.
void mlx_trie_extend(mlx_trie_t *trie, uint32_t *inout_node, char byte);
// |end| is the value of the key |text|, at least 0. It replaces an earlier value.
void mlx_trie_add(mlx_trie_t *trie, const char *text, size_t length, int32_t end);
// Frees unused capacity: keys with common prefixes share nodes, so |bytes| was an overestimate.
mlx_status_t mlx_trie_shrink(mlx_trie_t *trie) MLX_MUST_USE;
// Follows the edge |byte|. Returns false, and leaves the node unchanged, if there is none.
bool mlx_trie_step(const mlx_trie_t *trie, uint32_t *inout_node, char byte);
void mlx_trie_free(mlx_trie_t *trie);
// Checks a trie from an image: true if every node is in range and every key's value is below |limit|.
bool mlx_trie_is_valid(const mlx_trie_t *trie, size_t limit);

#endif  // MLXCEL_TOKENIZER_TRIE_H_
