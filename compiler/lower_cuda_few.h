// Functions of up to MLX_FEW_SEQUENCES tokens: launches of kernels/cuda/few.cu (mlx_few_plan_t).
#ifndef MLXCEL_COMPILER_LOWER_CUDA_FEW_H_
#define MLXCEL_COMPILER_LOWER_CUDA_FEW_H_

#include "compiler/function.h"

// Whether the kernel applies RoPE to the operands of this attention and stores its keys and values, so that
// attention follows at once.
bool mlx_cuda_few_appends(const mlx_function_t *f, const mlx_node_t *attention);
// Lowers node |id| if the kernel computes it, alone or with others. Returns false if it does not: RoPE,
// attention, and what is outside of the layers.
bool mlx_cuda_few_lower(mlx_function_t *f, int id, const mlx_node_t *node);
// The logits of |x|, written where f->into says.
mlx_value_t mlx_cuda_few_head(mlx_function_t *f, mlx_value_t x);

#endif  // MLXCEL_COMPILER_LOWER_CUDA_FEW_H_
