// Lower: emits the launches of a network (compiler/launches.h) into the function being built.
#ifndef MLXCEL_COMPILER_LOWER_H_
#define MLXCEL_COMPILER_LOWER_H_

#include "compiler/function.h"

// Computes the logits of the wanted tokens and stores them, and the input of the output head, in the
// arguments of the function. mlx_function_place_tokens was called.
mlx_status_t mlx_lower_network(mlx_function_t *f) MLX_MUST_USE;
// The error of a module without kernels for its recurrent layers.
mlx_status_t mlx_lower_recurrent_error(void) MLX_MUST_USE;

#endif  // MLXCEL_COMPILER_LOWER_H_
