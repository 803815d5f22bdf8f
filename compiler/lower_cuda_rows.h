// Launches of kernels/cuda/rows.cu: embedding rows, norms and tables of RoPE. They replace dispatches
// that IREE would compile for each step.
#ifndef MLXCEL_COMPILER_LOWER_CUDA_ROWS_H_
#define MLXCEL_COMPILER_LOWER_CUDA_ROWS_H_

#include "compiler/function.h"

// |factor| times the rows of a 16-bit |table|.
mlx_value_t mlx_cuda_embed(mlx_function_t *g, const char *name, mlx_value_t table, mlx_value_t tokens,
                           double factor);
// The RMS norm of each |width| numbers of |x| [M, a multiple of width], plus |addend| if it has an id.
mlx_value_t mlx_cuda_rmsnorm(mlx_function_t *g, const char *name, mlx_value_t x, int64_t width,
                             mlx_value_t gain, double eps, mlx_value_t addend);
// The layer norm of each |width| numbers of |x| [M, a multiple of width]. |gain| is [width], or has a row for
// each |width| numbers of a row of x; |gain| and |bias| may be MLX_NONE.
mlx_value_t mlx_cuda_layernorm(mlx_function_t *g, const char *name, mlx_value_t x, int64_t width,
                               mlx_value_t gain, mlx_value_t bias, double eps);
mlx_rope_table_t mlx_cuda_rope_table(mlx_function_t *g, const mlx_rope_t *rope);

#endif  // MLXCEL_COMPILER_LOWER_CUDA_ROWS_H_
