// Functions of up to MLX_FEW_SEQUENCES tokens: launches of kernels/cuda/few.cu (mlx_few_plan_t).
#ifndef MLXCEL_COMPILER_LOWER_CUDA_FEW_H_
#define MLXCEL_COMPILER_LOWER_CUDA_FEW_H_

#include "compiler/function.h"

// The rest of layer |layer| - 1, and q, k and v of |layer|. The first layer has no rest before it. |appends|:
// the kernel applies RoPE and stores keys and values, so that attention follows at once.
void mlx_cuda_few_qkv(mlx_function_t *f, int64_t layer, bool appends);
// The rest of the last layer.
mlx_built_t mlx_cuda_few_last(mlx_function_t *f);
// The logits of |x|, written to |into|.
mlx_built_t mlx_cuda_few_head(mlx_function_t *f, mlx_built_t x, mlx_built_t into);

#endif  // MLXCEL_COMPILER_LOWER_CUDA_FEW_H_
