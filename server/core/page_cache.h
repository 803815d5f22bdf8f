// Page cache: keeps the files of a model in memory while it is not loaded, so that it is loaded without a
// disk.
//
// Threads: one at a time.
#ifndef MLXCEL_SERVER_CORE_PAGE_CACHE_H_
#define MLXCEL_SERVER_CORE_PAGE_CACHE_H_

#include "base/file.h"

typedef struct mlx_page_cache {  // zero-initialize
  mlx_map_t *maps;               // owned
  size_t count, capacity;
} mlx_page_cache_t;

// Maps the file |path|, or the files of the folder, and reads them. A file that cannot be read is left out:
// loading the model will say why.
void mlx_page_cache_hold(const char *path, mlx_page_cache_t *cache);
void mlx_page_cache_release(mlx_page_cache_t *cache);

#endif  // MLXCEL_SERVER_CORE_PAGE_CACHE_H_
