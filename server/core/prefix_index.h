// Prefix index: which prefixes an engine is likely to have in its KV cache, for the placement of requests
// (server/core/servings.h). It holds the prompts and answers that the engine computed, as chained hashes of
// whole pages, and drops the least recently used ones when there are more than the engine has pages.
//
// It is an estimate: the engine's pool (runtime/pool.h) decides alone what it keeps. A wrong entry costs the
// time to compute a prefix again, and changes no token.
//
// Threads: one thread at a time.
#ifndef MLXCEL_SERVER_CORE_PREFIX_INDEX_H_
#define MLXCEL_SERVER_CORE_PREFIX_INDEX_H_

#include <stdint.h>

#include "base/status.h"

typedef struct mlx_prefix_index mlx_prefix_index_t;

// Holds at most |pages| pages; 0: it holds none. Release with mlx_prefix_index_free.
mlx_status_t mlx_prefix_index_create(size_t pages, mlx_prefix_index_t **out_index) MLX_MUST_USE;
void mlx_prefix_index_free(mlx_prefix_index_t *index);  // NULL is fine

// How many of the first pages the index holds. |hashes| [count] are those of whole pages (mlx_page_hash).
size_t mlx_prefix_index_find(const mlx_prefix_index_t *index, const uint64_t *hashes, size_t count);
// Adds pages. They are now the most recently used ones; of them, the last page is dropped first.
void mlx_prefix_index_add(mlx_prefix_index_t *index, const uint64_t *hashes, size_t count);
void mlx_prefix_index_clear(mlx_prefix_index_t *index);

#endif  // MLXCEL_SERVER_CORE_PREFIX_INDEX_H_
