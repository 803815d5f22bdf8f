// Environment: what the variables that people set for other CUDA software mean to mlxcel.
#ifndef MLXCEL_CLI_ENVIRONMENT_H_
#define MLXCEL_CLI_ENVIRONMENT_H_

#include <stddef.h>

#include "base/status.h"
#include "base/text.h"

const char *mlx_cuda_variable_at(size_t index);  // its name; NULL past the last
// Appends what the variable's value does here; nothing when it is not set. Fails when it is set to something
// that cannot be meant.
mlx_status_t mlx_cuda_variable_explain(const char *name, mlx_text_t *out_text) MLX_MUST_USE;

#endif  // MLXCEL_CLI_ENVIRONMENT_H_
