// Needed: the weights in the cache that bundles of the user need, because they were compiled with
// --no-weights. `cache clear` and `rm` keep them.
#ifndef MLXCEL_CLI_NEEDED_H_
#define MLXCEL_CLI_NEEDED_H_

#include "cache/cache.h"

typedef struct mlx_needed {
  char (*digests)[MLX_DIGEST_HEX];  // owned
  size_t count, capacity;
  char *bundle;  // one of the bundles, for a message; owned
} mlx_needed_t;

mlx_status_t mlx_needed_read(mlx_needed_t *out_needed) MLX_MUST_USE;  // release with mlx_needed_clear
void mlx_needed_clear(mlx_needed_t *needed);
mlx_cache_keep_t mlx_needed_keep(const mlx_needed_t *needed);  // valid until |needed| is cleared

#endif  // MLXCEL_CLI_NEEDED_H_
