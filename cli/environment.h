// Environment: explains the effect on mlxcel of variables that are set for other CUDA software.
#ifndef MLXCEL_CLI_ENVIRONMENT_H_
#define MLXCEL_CLI_ENVIRONMENT_H_

#include <stddef.h>

#include "base/status.h"
#include "base/text.h"

const char *mlx_cuda_variable_at(size_t index);  // the name; NULL after the last
// Appends the effect of the variable's value; nothing if it is not set. Fails if the value is invalid.
mlx_status_t mlx_cuda_variable_explain(const char *name, mlx_text_t *out_text) MLX_MUST_USE;

#endif  // MLXCEL_CLI_ENVIRONMENT_H_
