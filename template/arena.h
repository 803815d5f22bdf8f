// Arena: memory that is released all at once. A template has one for its nodes, and a render has one for its
// values.
#ifndef MLXCEL_TEMPLATE_ARENA_H_
#define MLXCEL_TEMPLATE_ARENA_H_

#include <stddef.h>

#include "base/status.h"

typedef struct mlx_arena {
  struct mlx_arena_block *blocks;  // owned; the newest first
  size_t used, limit;              // bytes
  const char *name;                // borrowed: the template's name, for errors
  const int *line;                 // borrowed: the current line, for errors; NULL: line 1
} mlx_arena_t;

// Stores a pointer to |count| zeroed elements of |size| bytes in *|out_ptr|. Fails with MLX_UNSUPPORTED once
// the arena's limit is reached.
mlx_status_t mlx_arena_take(mlx_arena_t *arena, size_t count, size_t size, void *out_ptr) MLX_MUST_USE;
void mlx_arena_clear(mlx_arena_t *arena);

#endif  // MLXCEL_TEMPLATE_ARENA_H_
