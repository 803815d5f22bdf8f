// Finds numbers that are not finite among a model's weights. One such number makes every output of the model
// NaN, so the compiler refuses it.
#ifndef MLXCEL_COMPILER_FINITE_H_
#define MLXCEL_COMPILER_FINITE_H_

#include "graph/dtype.h"

// Fails if one of |count| numbers of type f32, bf16 or f16 is infinite or NaN; numbers of other types pass.
// |name| is the tensor's, |first| the index of the first number in it.
mlx_status_t mlx_check_finite(const char *name, mlx_dtype_t dtype, const void *numbers, size_t count,
                              uint64_t first) MLX_MUST_USE;

#endif  // MLXCEL_COMPILER_FINITE_H_
