// Scratch: assigns places in one tensor to values that live at different times.
#ifndef MLXCEL_COMPILER_SCRATCH_H_
#define MLXCEL_COMPILER_SCRATCH_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct mlx_region {
  int64_t at, words;
  bool used;
} mlx_region_t;

typedef struct mlx_scratch {
  mlx_region_t *regions;  // owned; sorted by place, without gaps
  size_t count, capacity;
  int64_t words;  // size of the tensor so far
  size_t *freed;  // owned: regions to free at the next mlx_scratch_collect, as word offsets
  size_t freed_count, freed_capacity;
} mlx_scratch_t;

// The first |words| words are reserved.
mlx_status_t mlx_scratch_start(mlx_scratch_t *scratch, int64_t words) MLX_MUST_USE;
void mlx_scratch_clear(mlx_scratch_t *scratch);

// Takes the first free place of |words| words, aligned to 64 bytes.
mlx_status_t mlx_scratch_take(mlx_scratch_t *scratch, int64_t words, int64_t *out_at) MLX_MUST_USE;
// Marks the place at |at| as no longer needed. It can be taken again after the next mlx_scratch_collect.
mlx_status_t mlx_scratch_release(mlx_scratch_t *scratch, int64_t at) MLX_MUST_USE;
void mlx_scratch_collect(mlx_scratch_t *scratch);

#endif  // MLXCEL_COMPILER_SCRATCH_H_
