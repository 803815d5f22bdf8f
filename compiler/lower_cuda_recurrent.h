// Launches of kernels/cuda/recurrent.cu: ops with a recurrent state, which they update in |kv|.
#ifndef MLXCEL_COMPILER_LOWER_CUDA_RECURRENT_H_
#define MLXCEL_COMPILER_LOWER_CUDA_RECURRENT_H_

#include "compiler/function.h"

// The causal convolution that node |id| is. |bias| may be MLX_NO_VALUE.
mlx_built_t mlx_cuda_convolve(mlx_function_t *g, int id, mlx_built_t x, mlx_built_t weight, mlx_built_t bias);
// The gated delta rule that node |id| is, of all its operands.
mlx_built_t mlx_cuda_delta(mlx_function_t *g, int id, const mlx_built_t operands[5]);

// The selective scan that node |id| is, of all its operands.
mlx_built_t mlx_cuda_scan(mlx_function_t *g, int id, const mlx_built_t operands[5]);

#endif  // MLXCEL_COMPILER_LOWER_CUDA_RECURRENT_H_
