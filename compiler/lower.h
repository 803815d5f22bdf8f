// Lower: emits the nodes of a network into the function being built.
#ifndef MLXCEL_COMPILER_LOWER_H_
#define MLXCEL_COMPILER_LOWER_H_

#include "compiler/function.h"

// Computes the logits of the wanted tokens and stores them, and the input of the output head, in the
// arguments of the function. mlx_function_place_tokens was called.
void mlx_lower_network(mlx_function_t *f);

#endif  // MLXCEL_COMPILER_LOWER_H_
