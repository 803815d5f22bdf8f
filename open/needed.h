// Needed: the weights in the cache that bundles of the user need, because they were compiled with
// --no-weights. `cache clear` and `rm` keep them, also if such a bundle is not where `compile` wrote it: it
// may have been moved.
#ifndef MLXCEL_OPEN_NEEDED_H_
#define MLXCEL_OPEN_NEEDED_H_

#include "cache/cache.h"

typedef struct mlx_needed_file {
  char tree[MLX_DIGEST_HEX];  // tree digest
  bool missing;               // its bundle is not at the recorded path
  size_t bundle;
} mlx_needed_file_t;

typedef struct mlx_needed {
  mlx_needed_file_t *files;  // owned
  size_t count, capacity;
  char **bundles;  // paths; owned
  size_t bundle_count, bundle_capacity;
  bool drop_missing;         // set by the caller: do not keep weights of missing bundles
  const char *kept;          // a bundle whose weights were kept
  const char *kept_missing;  // the same, of a missing bundle
  const char *dropped;       // a missing bundle whose weights were not kept
} mlx_needed_t;

mlx_status_t mlx_needed_read(mlx_needed_t *out_needed) MLX_MUST_USE;  // release with mlx_needed_clear
void mlx_needed_clear(mlx_needed_t *needed);
// Valid until |needed| is cleared. Sets kept, kept_missing and dropped.
mlx_cache_keep_t mlx_needed_keep(mlx_needed_t *needed);

#endif  // MLXCEL_OPEN_NEEDED_H_
