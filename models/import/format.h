// Format: the names of the formats of weights.
#ifndef MLXCEL_MODELS_IMPORT_FORMAT_H_
#define MLXCEL_MODELS_IMPORT_FORMAT_H_

#include <stdint.h>

#include "models/model.h"

#define MLX_FORMAT_NAME 16  // bytes, with the NUL

typedef struct mlx_format {
  char name[MLX_FORMAT_NAME];
  uint64_t bytes;  // of all weights that have it
} mlx_format_t;

// The formats of several weights. Starts as {0}.
typedef struct mlx_format_list {
  mlx_format_t items[16];  // more than a file mixes; further ones are left out
  size_t count;
} mlx_format_list_t;

// The format of a weight in its file: "Q4_1", "GPTQ 4-bit".
void mlx_weight_format(const mlx_weight_t *weight, char out[MLX_FORMAT_NAME]);
void mlx_format_list_add(mlx_format_list_t *list, const char *name, uint64_t bytes);
// Puts the format with the most bytes first.
void mlx_format_list_sort(mlx_format_list_t *list);

#endif  // MLXCEL_MODELS_IMPORT_FORMAT_H_
