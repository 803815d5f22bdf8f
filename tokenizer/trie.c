// The edges of all nodes are one hash map, so a node costs no table of 256 children.
#include "tokenizer/trie.h"

#include "base/memory.h"

mlx_status_t mlx_trie_create(size_t bytes, uint64_t seed, mlx_trie_t *out_trie) {
  MLX_TRY(mlx_pair_map_create(bytes, seed, &out_trie->edges));
  MLX_TRY(mlx_alloc(bytes + 1, sizeof *out_trie->ends, &out_trie->ends));
  out_trie->ends[0] = -1;
  out_trie->nodes = 1;
  return NULL;
}

size_t mlx_trie_memory(size_t bytes) { return mlx_pair_map_memory(bytes) + (bytes + 1) * sizeof(int32_t); }

void mlx_trie_extend(mlx_trie_t *trie, uint32_t *inout_node, char byte) {
  if (mlx_trie_step(trie, inout_node, byte)) return;
  const size_t node = trie->nodes++;
  trie->ends[node] = -1;
  mlx_pair_map_put(&trie->edges, mlx_pair(*inout_node, (uint8_t)byte), node);
  *inout_node = (uint32_t)node;
}

void mlx_trie_add(mlx_trie_t *trie, const char *text, size_t length, int32_t end) {
  uint32_t node = 0;
  for (size_t i = 0; i < length; ++i) mlx_trie_extend(trie, &node, text[i]);
  trie->ends[node] = end;
}

mlx_status_t mlx_trie_shrink(mlx_trie_t *trie) {
  MLX_TRY(mlx_pair_map_resize(&trie->edges, trie->nodes));
  return mlx_resize(trie->nodes, sizeof *trie->ends, &trie->ends);
}

bool mlx_trie_step(const mlx_trie_t *trie, uint32_t *inout_node, char byte) {
  uint64_t node;
  if (!mlx_pair_map_get(&trie->edges, mlx_pair(*inout_node, (uint8_t)byte), &node)) return false;
  *inout_node = (uint32_t)node;
  return true;
}

void mlx_trie_free(mlx_trie_t *trie) {
  mlx_pair_map_free(&trie->edges);
  mlx_free(trie->ends);
  *trie = (mlx_trie_t){0};
}

bool mlx_trie_is_valid(const mlx_trie_t *trie, size_t limit) {
  bool valid = trie->nodes && mlx_pair_map_is_valid(&trie->edges, trie->nodes);
  for (size_t i = 0; i < trie->nodes && valid; ++i) valid = trie->ends[i] < (int64_t)limit;
  return valid;
}
