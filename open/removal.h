// Removal: removes one stored model (open/stored_models.h) and what was compiled from it.
#ifndef MLXCEL_OPEN_REMOVAL_H_
#define MLXCEL_OPEN_REMOVAL_H_

#include "cache/cache.h"

#define MLX_REMOVAL_NAME 64  // bytes of a file name in the title of a cache entry

typedef struct mlx_removal_entry {
  char kind[33], key[MLX_DIGEST_HEX];
} mlx_removal_entry_t;

typedef struct mlx_removal {
  mlx_cache_t *cache;  // borrowed
  char *models;        // the folder of stored models
  char *path;          // of the model
  char *repository;    // models/ORG/NAME: its folder may go too; NULL for a model directly below models/
  char name[MLX_REMOVAL_NAME + 1];  // the model's name in titles of cache entries
  char label[256];                  // the model's name as `mlxcel list` prints it
  size_t same_name;                 // stored models with that name
  size_t other_files;               // GGUF files in the model's folder, which are models of their own
  mlx_removal_entry_t *entries;     // compiled from the model
  size_t count, capacity;
  uint64_t model_bytes, entry_bytes;
} mlx_removal_t;

// Finds what belongs to the stored model at |path|; removes nothing. Release with mlx_removal_clear.
mlx_status_t mlx_removal_plan(mlx_cache_t *cache, const char *path, mlx_removal_t *out_removal) MLX_MUST_USE;
// Fails with MLX_UNAVAILABLE while another process pulls to the model's repository.
mlx_status_t mlx_removal_run(mlx_removal_t *removal, mlx_cache_cleared_t *out_cleared) MLX_MUST_USE;
void mlx_removal_clear(mlx_removal_t *removal);

#endif  // MLXCEL_OPEN_REMOVAL_H_
