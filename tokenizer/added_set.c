// Builds and runs the Aho-Corasick automaton of a set of added tokens.
#include "tokenizer/added_set.h"

#include "base/memory.h"

static const mlx_added_match_t no_match = {.index = -1};

mlx_status_t mlx_added_set_create(size_t bytes, uint64_t seed, mlx_added_set_t *out_set) {
  *out_set = (mlx_added_set_t){0};
  MLX_TRY(mlx_trie_create(bytes, seed, &out_set->trie));
  MLX_TRY(mlx_alloc(bytes + 1, sizeof *out_set->parents, &out_set->parents));
  MLX_TRY(mlx_alloc(bytes + 1, sizeof *out_set->depths, &out_set->depths));
  return mlx_alloc(bytes + 1, sizeof *out_set->bytes, &out_set->bytes);
}

bool mlx_added_set_add(mlx_added_set_t *set, const char *text, size_t length, int32_t index) {
  uint32_t node = 0;
  for (size_t i = length; i-- > 0;) {
    const uint32_t parent = node;
    mlx_trie_extend(&set->trie, &node, text[i]);
    set->parents[node] = parent;
    set->depths[node] = set->depths[parent] + 1;
    set->bytes[node] = (uint8_t)text[i];
  }
  if (set->trie.ends[node] >= 0) return false;
  set->trie.ends[node] = index;
  set->last_bytes[(uint8_t)text[length - 1]] = 1;
  if (length > set->longest) set->longest = length;
  ++set->count;
  return true;
}

// The longest suffix of a node's string, with |byte| added, that is a node.
static uint32_t follow(const mlx_added_set_t *set, uint32_t node, char byte) {
  while (!mlx_trie_step(&set->trie, &node, byte)) {
    if (!node) return 0;
    node = set->fail[node];
  }
  return node;
}

// Sorts the nodes by depth: the failure link of a node leads to a node that is less deep.
static mlx_status_t sort_by_depth(const mlx_added_set_t *set, uint32_t **out_nodes) {
  size_t *starts;
  const size_t nodes = set->trie.nodes;
  MLX_TRY(mlx_alloc(nodes, sizeof **out_nodes, out_nodes));
  MLX_TRY(mlx_alloc(set->longest + 2, sizeof *starts, &starts));
  for (size_t i = 0; i < nodes; ++i) ++starts[set->depths[i] + 1];
  for (size_t i = 1; i < set->longest + 2; ++i) starts[i] += starts[i - 1];
  for (size_t i = 0; i < nodes; ++i) (*out_nodes)[starts[set->depths[i]]++] = (uint32_t)i;
  mlx_free(starts);
  return NULL;
}

static void link_nodes(mlx_added_set_t *set, const uint32_t *sorted) {
  set->matches[0] = no_match;
  for (size_t i = 1; i < set->trie.nodes; ++i) {  // sorted[0] is the root
    const uint32_t node = sorted[i], parent = set->parents[node];
    set->fail[node] = parent ? follow(set, set->fail[parent], (char)set->bytes[node]) : 0;
    set->matches[node] = set->matches[set->fail[node]];
    if (set->trie.ends[node] >= 0)
      set->matches[node] = (mlx_added_match_t){set->trie.ends[node], set->depths[node]};
  }
}

static void free_building(mlx_added_set_t *set) {
  mlx_free(set->parents);
  mlx_free(set->bytes);
  set->parents = NULL;
  set->bytes = NULL;
}

mlx_status_t mlx_added_set_finish(mlx_added_set_t *set) {
  uint32_t *sorted = NULL;
  MLX_TRY(mlx_trie_shrink(&set->trie));
  MLX_TRY(mlx_resize(set->trie.nodes, sizeof *set->depths, &set->depths));
  MLX_TRY(mlx_alloc(set->trie.nodes, sizeof *set->fail, &set->fail));
  MLX_TRY(mlx_alloc(set->trie.nodes, sizeof *set->matches, &set->matches));
  mlx_status_t status = sort_by_depth(set, &sorted);
  if (!status) link_nodes(set, sorted);
  mlx_free(sorted);
  free_building(set);
  return status;
}

void mlx_added_set_free(mlx_added_set_t *set) {
  free_building(set);
  mlx_trie_free(&set->trie);
  mlx_free(set->depths);
  mlx_free(set->fail);
  mlx_free(set->matches);
  *set = (mlx_added_set_t){0};
}

// An edge adds one to the depth and a failure link reduces it. So a search ends, and the depth of its node is
// at most the number of bytes it has read.
bool mlx_added_set_is_valid(const mlx_added_set_t *set, size_t tokens) {
  const size_t nodes = set->trie.nodes;
  bool valid =
      nodes && mlx_pair_map_is_valid(&set->trie.edges, nodes) && !set->depths[0] && set->matches[0].index < 0;
  for (size_t i = 1; i < nodes && valid; ++i) {
    const mlx_added_match_t match = set->matches[i];
    valid = set->fail[i] < nodes && set->depths[set->fail[i]] < set->depths[i];
    valid = valid && match.index < (int64_t)tokens;
    valid = valid && (match.index < 0 || (match.length && match.length <= set->depths[i]));
  }
  for (size_t i = 0; i <= set->trie.edges.mask && valid; ++i) {
    const mlx_pair_slot_t edge = set->trie.edges.slots[i];
    if (edge.key == MLX_NO_PAIR) continue;
    const size_t from = (size_t)(edge.key >> 32), to = (uint32_t)edge.value;
    valid = from < nodes && set->depths[to] == (uint64_t)set->depths[from] + 1;
  }
  return valid;
}

// A token that begins in the block may end after it, by at most its length.
mlx_status_t mlx_added_set_search(const mlx_added_set_t *set, const char *text, size_t length, size_t begin,
                                  mlx_added_block_t *block) {
  const size_t end = length - begin < MLX_ADDED_BLOCK ? length : begin + MLX_ADDED_BLOCK;
  const size_t from = length - end < set->longest ? length : end + set->longest;
  MLX_TRY(mlx_reserve(end - begin, sizeof *block->matches, &block->capacity, &block->matches));
  block->begin = begin;
  block->end = end;
  uint32_t node = 0;
  for (size_t at = from; at-- > begin;) {
    node = node || set->last_bytes[(uint8_t)text[at]] ? follow(set, node, text[at]) : 0;
    if (at < end) block->matches[at - begin] = set->matches[node];
  }
  return NULL;
}

void mlx_added_block_free(mlx_added_block_t *block) {
  mlx_free(block->matches);
  *block = (mlx_added_block_t){0};
}
