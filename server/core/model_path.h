// The path of a model: the names that come from it, its size and time.
#ifndef MLXCEL_SERVER_CORE_MODEL_PATH_H_
#define MLXCEL_SERVER_CORE_MODEL_PATH_H_

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

// The number of a GGUF file that is a part of a model: 2 of "NAME-00002-of-00003.gguf". 0: it is no part.
// *|out_start| is the length of NAME.
int mlx_model_part_number(const char *path, size_t *out_start);
// The last |parts| parts of a path, separated by '/', without ending. Release with mlx_free.
mlx_status_t mlx_model_end_of_path(const char *path, int parts, char **out_name) MLX_MUST_USE;
bool mlx_model_is_hub(const char *path);  // "hf:..."
// Size and time, if the path is a local file or folder; else they stay as they are.
void mlx_model_measure(const char *path, int64_t *out_created, uint64_t *out_size);

#endif  // MLXCEL_SERVER_CORE_MODEL_PATH_H_
