// Side file: a JSON file beside config.json that describes how a model is used (modules.json, ...).
#ifndef MLXCEL_MODELS_IMPORT_SIDE_FILE_H_
#define MLXCEL_MODELS_IMPORT_SIDE_FILE_H_

#include "base/json.h"
#include "models/import/source.h"

// A parsed file of the folder. Its root is NULL if there is no such file.
typedef struct mlx_side_file {
  char *path;  // owned
  mlx_json_t json;
} mlx_side_file_t;

// Reads |name| in the folder |folder| of the model; "": the model's own. Release with mlx_side_file_close,
// also after a failure.
mlx_status_t mlx_side_file_read(const mlx_source_t *source, const char *folder, const char *name,
                                mlx_side_file_t *out) MLX_MUST_USE;
void mlx_side_file_close(mlx_side_file_t *file);

#endif  // MLXCEL_MODELS_IMPORT_SIDE_FILE_H_
