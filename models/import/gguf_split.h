// A GGUF model on disk: one file, or all parts of a split model.
//
// Threads: immutable after open, so any number of threads may read.
#ifndef MLXCEL_MODELS_IMPORT_GGUF_SPLIT_H_
#define MLXCEL_MODELS_IMPORT_GGUF_SPLIT_H_

#include "base/file.h"
#include "models/import/gguf.h"

typedef struct mlx_gguf_part {
  char *path;        // owned
  mlx_map_t map;     // owned
  mlx_gguf_t *file;  // owned
} mlx_gguf_part_t;

typedef struct mlx_gguf_model {
  mlx_gguf_part_t *parts;  // owned, in order; the first part has the metadata
  size_t part_count;
  const mlx_tensor_t **tensors;  // owned array: the tensors of all parts, sorted by name; borrowed from parts
  size_t tensor_count;
} mlx_gguf_model_t;

// Opens the model in |path|. If the file is one part of a split model, opens the other parts beside it too.
// Takes ownership of *|inout_map|, the mapped bytes of |path|. Release with mlx_gguf_model_close.
mlx_status_t mlx_gguf_model_open(const char *path, mlx_map_t *inout_map,
                                 mlx_gguf_model_t **out_model) MLX_MUST_USE;
void mlx_gguf_model_close(mlx_gguf_model_t *model);  // NULL is fine

// The step of opening that needs no files: checks that the parsed parts belong together and fills the tensor
// list. Public for fuzzing.
mlx_status_t mlx_gguf_model_join(mlx_gguf_model_t *model) MLX_MUST_USE;

#endif  // MLXCEL_MODELS_IMPORT_GGUF_SPLIT_H_
