// The module that links the CPU kernel (kernels/cpu).
#ifndef MLXCEL_COMPILER_EMIT_CPU_H_
#define MLXCEL_COMPILER_EMIT_CPU_H_

#include "compiler/function.h"

// Emits step_512 and burst, each as one call of the CPU kernel, and fills g->facts.
mlx_status_t mlx_cpu_emit(mlx_function_t *g) MLX_MUST_USE;

#endif  // MLXCEL_COMPILER_EMIT_CPU_H_
