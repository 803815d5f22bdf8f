// Lists of tensors that are sorted by name.
#ifndef MLXCEL_MODELS_IMPORT_TENSORS_H_
#define MLXCEL_MODELS_IMPORT_TENSORS_H_

#include <stdlib.h>
#include <string.h>

#include "models/model.h"

// For qsort and bsearch over const mlx_tensor_t *.
static inline int mlx_tensor_compare(const void *a, const void *b) {
  return strcmp((*(const mlx_tensor_t *const *)a)->name, (*(const mlx_tensor_t *const *)b)->name);
}

// NULL when none of the |count| has that name.
static inline const mlx_tensor_t *mlx_tensor_find(const mlx_tensor_t *const *sorted, size_t count,
                                                  const char *name) {
  mlx_tensor_t wanted = {.name = name};
  const mlx_tensor_t *key = &wanted;
  if (!count) return NULL;
  const mlx_tensor_t *const *found = bsearch(&key, sorted, count, sizeof *sorted, mlx_tensor_compare);
  return found ? *found : NULL;
}

#endif  // MLXCEL_MODELS_IMPORT_TENSORS_H_
