// A tensor of a model file: its type, shape and bytes, which are borrowed from the mapped file.
#ifndef MLXCEL_MODELS_TENSOR_H_
#define MLXCEL_MODELS_TENSOR_H_

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "graph/dtype.h"

#define MLX_MAX_RANK 5  // vision encoders, which are skipped, have convolutions over time

typedef struct mlx_tensor {
  const char *name;  // borrowed from the owner of the tensor
  mlx_dtype_t dtype;
  int rank;
  int64_t dims[MLX_MAX_RANK];  // outermost first: a matrix is [out, in], as Hugging Face stores it
  const uint8_t *data;         // borrowed from the mapped file; any alignment
  size_t size;                 // bytes; the readers check that it matches dtype and dims and fits in the file
} mlx_tensor_t;

// Compares names. For qsort and bsearch over const mlx_tensor_t *.
static inline int mlx_tensor_compare(const void *a, const void *b) {
  return strcmp((*(const mlx_tensor_t *const *)a)->name, (*(const mlx_tensor_t *const *)b)->name);
}

// Searches |count| tensors that are sorted by name. NULL if none is called |name|.
static inline const mlx_tensor_t *mlx_tensor_find(const mlx_tensor_t *const *sorted, size_t count,
                                                  const char *name) {
  mlx_tensor_t wanted = {.name = name};
  const mlx_tensor_t *key = &wanted;
  if (!count) return NULL;
  const mlx_tensor_t *const *found = bsearch(&key, sorted, count, sizeof *sorted, mlx_tensor_compare);
  return found ? *found : NULL;
}

#endif  // MLXCEL_MODELS_TENSOR_H_
