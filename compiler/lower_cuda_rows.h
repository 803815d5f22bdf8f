// Launches of kernels/cuda/rows.cu: embedding rows, RMS norms, column orders and tables of RoPE. They replace
// dispatches that IREE would compile for each step.
#ifndef MLXCEL_COMPILER_LOWER_CUDA_ROWS_H_
#define MLXCEL_COMPILER_LOWER_CUDA_ROWS_H_

#include "compiler/function.h"

// |factor| times the rows of a 16-bit |table|.
mlx_value_t mlx_cuda_embed(mlx_function_t *g, const char *name, mlx_value_t table, mlx_value_t tokens,
                           double factor);
// The RMS norm of each |width| numbers of |x| [M, a multiple of width], plus |addend| if it has an id.
mlx_value_t mlx_cuda_rmsnorm(mlx_function_t *g, const char *name, mlx_value_t x, int64_t width,
                             mlx_value_t gain, double eps, mlx_value_t addend);
// The RMS norm of each row of |x|, with its columns in |order|.
mlx_value_t mlx_cuda_ordered_rmsnorm(mlx_function_t *g, const char *name, mlx_value_t x, mlx_value_t gain,
                                     double eps, mlx_value_t order);
// The columns of |x| in |order|.
mlx_value_t mlx_cuda_permute(mlx_function_t *g, const char *name, mlx_value_t x, mlx_value_t order);
mlx_rope_table_t mlx_cuda_rope_table(mlx_function_t *g, const mlx_rope_t *rope);

#endif  // MLXCEL_COMPILER_LOWER_CUDA_ROWS_H_
