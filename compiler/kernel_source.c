// Finds kernel sources and objects in the table that the build generates.
#include "compiler/kernel_source.h"

#include <string.h>

extern const mlx_kernel_source_t mlx_kernel_sources[];  // generated; ends with an empty entry

const mlx_kernel_source_t *mlx_kernel_source_find(const char *name) {
  for (const mlx_kernel_source_t *source = mlx_kernel_sources; source->name; ++source) {
    if (!strcmp(source->name, name)) return source;
  }
  return NULL;
}

const mlx_kernel_source_t *mlx_kernel_source_object(const char *level, size_t nth) {
  const size_t length = strlen(level);
  for (const mlx_kernel_source_t *source = mlx_kernel_sources; source->name; ++source) {
    const char *dot = strchr(source->name, '.');
    if (dot && !strncmp(dot + 1, level, length) && !strcmp(dot + 1 + length, ".o") && !nth--) return source;
  }
  return NULL;
}

const mlx_kernel_source_t *mlx_kernel_source_header(size_t nth) {
  for (const mlx_kernel_source_t *source = mlx_kernel_sources; source->name; ++source) {
    const char *ending = strrchr(source->name, '.');
    if (ending && (!strcmp(ending, ".cuh") || !strcmp(ending, ".h")) && !nth--) return source;
  }
  return NULL;
}
