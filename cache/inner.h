// What the files of this room share. Nobody outside cache/ includes it.
#ifndef MLXCEL_CACHE_INNER_H_
#define MLXCEL_CACHE_INNER_H_

#include "base/file.h"
#include "cache/cache.h"

struct mlx_cache {
  char *folder;  // absolute, links resolved
};

// CACHE/part/name. Release with mlx_free.
mlx_status_t mlx_cache_path(const mlx_cache_t *cache, const char *part, const char *name,
                            char **out_path) MLX_MUST_USE;
// A path below tmp/ that no process has ever used: a tool that outlived its killed parent can never write
// into it.
mlx_status_t mlx_cache_fresh_path(const mlx_cache_t *cache, const char *id, char **out_path) MLX_MUST_USE;
// Removes all that is named |id| and a dot in |part| (tmp/: what killed processes left; logs/), and adds its
// length to *bytes (may be NULL). The caller holds the id's lock. What cannot be removed is left for the next
// time.
mlx_status_t mlx_cache_remove_leftovers(const mlx_cache_t *cache, const char *part, const char *id,
                                        uint64_t *bytes) MLX_MUST_USE;
uint64_t mlx_cache_tree_bytes(const char *path);

// Remembers the digest of a file, for mlx_cache_digest_file. Never fails: without a memo the file is hashed
// again.
void mlx_cache_remember(const mlx_cache_t *cache, const char *real_path, const mlx_file_stamp_t *stamp,
                        const char sha256[MLX_DIGEST_HEX]);

#endif  // MLXCEL_CACHE_INNER_H_
