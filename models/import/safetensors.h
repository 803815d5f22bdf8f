// Reads the tensor table of one safetensors file from bytes in memory.
//
// As strict as the format's reference reader. The header starts with '{' and has at most 100 MB, and no key
// occurs twice. The tensors cover the data without gaps or overlaps, so the file has no hidden bytes.
// Tensor bytes are not read.
//
// Threads: immutable after parse, so any number of threads may read.
#ifndef MLXCEL_MODELS_IMPORT_SAFETENSORS_H_
#define MLXCEL_MODELS_IMPORT_SAFETENSORS_H_

#include <stdint.h>

#include "base/json.h"
#include "base/status.h"
#include "models/tensor.h"

typedef struct mlx_safetensors {
  char *name;             // owned: the file's path, for messages
  mlx_json_t header;      // owned; holds the tensors' names
  mlx_tensor_t *tensors;  // owned; sorted by name
  size_t tensor_count;
} mlx_safetensors_t;

// Parses |bytes|, which must outlive the result. |name| is the file's path and is copied. Release with
// mlx_safetensors_close.
mlx_status_t mlx_safetensors_parse(const char *name, const uint8_t *bytes, size_t size,
                                   mlx_safetensors_t **out_file) MLX_MUST_USE;
void mlx_safetensors_close(mlx_safetensors_t *file);  // NULL is fine

// NULL if the file has no tensor of that name.
const mlx_tensor_t *mlx_safetensors_tensor(const mlx_safetensors_t *file, const char *name);

#endif  // MLXCEL_MODELS_IMPORT_SAFETENSORS_H_
