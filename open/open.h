// Open: a model on disk becomes an engine. A bundle is loaded; any other model is compiled through the cache
// first. mlx_open of runtime/mlxcel.h is the public form, which also takes names (open/locate.h).
#ifndef MLXCEL_OPEN_OPEN_H_
#define MLXCEL_OPEN_OPEN_H_

#include "artifact/minisign.h"
#include "runtime/mlxcel.h"

typedef struct mlx_open_times {
  double compile_seconds;  // until the compiled model was ready: compiling, or finding it in the cache
  double load_seconds;
  bool was_compiled;  // false for a bundle and for a model that was in the cache
} mlx_open_times_t;

// Opens the model at |path|, which mlx_locate returned. If |publish_key| is not NULL, the modules of a model
// that is not a bundle are signed with this key and added to the cache at $MLXCEL_REMOTE_CACHE, unless they
// are there; if that fails, a note says so. Release with mlx_engine_close.
mlx_status_t mlx_open_located(const char *path, const mlx_engine_options_t *options,
                              const mlx_secret_key_t *publish_key, mlx_engine_t **out_engine,
                              mlx_open_times_t *out_times) MLX_MUST_USE;

#endif  // MLXCEL_OPEN_OPEN_H_
