// Lower: emits the nodes of a network into the function being built.
#ifndef MLXCEL_COMPILER_LOWER_H_
#define MLXCEL_COMPILER_LOWER_H_

#include "compiler/function.h"

// |tokens|: the token ids [M]. |wanted|: the rows whose logits are wanted, i32 [W, 1]; MLX_NONE: all rows.
// Returns the logits [W, vocab].
mlx_value_t mlx_lower_network(mlx_function_t *f, mlx_value_t tokens, mlx_value_t wanted);

#endif  // MLXCEL_COMPILER_LOWER_H_
