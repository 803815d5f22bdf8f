// Functions shared by the files of cache/. Private to cache/.
#ifndef MLXCEL_CACHE_INTERNAL_H_
#define MLXCEL_CACHE_INTERNAL_H_

#include "base/file.h"
#include "cache/cache.h"

struct mlx_cache {
  char *folder;  // absolute, links resolved
};

// CACHE/part/name. Release with mlx_free.
mlx_status_t mlx_cache_path(const mlx_cache_t *cache, const char *part, const char *name,
                            char **out_path) MLX_MUST_USE;
// A path below tmp/ that no process has used before: a tool that outlives its killed parent can never write
// into it.
mlx_status_t mlx_cache_fresh_path(const mlx_cache_t *cache, const char *id, char **out_path) MLX_MUST_USE;
// Removes everything named |id|.SUFFIX in folder |part| (tmp or logs). Adds the freed bytes to *|bytes|,
// unless |bytes| is NULL. The caller holds the lock of the id. Files that cannot be removed stay.
mlx_status_t mlx_cache_remove_leftovers(const mlx_cache_t *cache, const char *part, const char *id,
                                        uint64_t *bytes) MLX_MUST_USE;
uint64_t mlx_cache_tree_bytes(const char *path);

#define MLX_CACHE_ID (32 + 1 + MLX_DIGEST_HEX)  // bytes of "KIND-KEY" with its NUL
// Splits "KIND-KEY" at its dash into |kind| (33 bytes) and the key inside |id|. False if it is not a valid
// id.
bool mlx_cache_split_id(const char *id, char *kind, const char **out_key);
// The id of ID or ID.SUFFIX, a name in locks/, tmp/ or logs/. False for other names.
bool mlx_cache_id_of(const char *name, char out_id[MLX_CACHE_ID]);

// Fails if another user (except root) owns a folder or file below the cache folder or may write to it, with a
// hint that repairs the whole cache. check_folders checks the folders directly below the cache folder.
// check_tree checks |path|, every folder between it and the cache folder, and everything below it. A missing
// path is fine.
mlx_status_t mlx_cache_check_folders(const mlx_cache_t *cache) MLX_MUST_USE;
bool mlx_cache_is_private(const char *path);  // the same for one regular file, without an error
// Stores the digest of a file for mlx_cache_digest_file. Errors are ignored: the file is then hashed again.
void mlx_cache_store_digest(const mlx_cache_t *cache, const char *real_path, const mlx_file_stamp_t *stamp,
                            const char digest[MLX_DIGEST_HEX]);
// The same for the tree digest of the whole file and mlx_cache_tree_digest_part.
void mlx_cache_store_tree_digest(const mlx_cache_t *cache, const char *real_path,
                                 const mlx_file_stamp_t *stamp, const char tree[MLX_DIGEST_HEX]);

#endif  // MLXCEL_CACHE_INTERNAL_H_
