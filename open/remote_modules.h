// Remote modules: the cache of modules that MLXCEL_REMOTE_CACHE names, for compilations.
#ifndef MLXCEL_OPEN_REMOTE_MODULES_H_
#define MLXCEL_OPEN_REMOTE_MODULES_H_

#include "compiler/compile.h"
#include "transfer/remote_cache.h"

// Opens the cache of $MLXCEL_REMOTE_CACHE and makes |options| use it; without the variable, *|out_remote| is
// NULL. Release with mlx_remote_cache_close, after the compilation.
mlx_status_t mlx_remote_modules_open(mlx_compile_options_t *options,
                                     mlx_remote_cache_t **out_remote) MLX_MUST_USE;

// Uploads the module in |folder|, an entry of the local cache. *|out_added| is as for mlx_remote_cache_put.
// Does nothing for a module that has no record, because an older mlxcel made it.
mlx_status_t mlx_remote_modules_put(mlx_remote_cache_t *remote, const char *folder,
                                    const mlx_secret_key_t *key, bool *out_added) MLX_MUST_USE;

#endif  // MLXCEL_OPEN_REMOTE_MODULES_H_
