// decode_K as one launch of the CUDA decode kernel (kernels/cuda/decode.cu).
#ifndef MLXCEL_COMPILER_EMIT_CUDA_H_
#define MLXCEL_COMPILER_EMIT_CUDA_H_

#include "compiler/function.h"
#include "compiler/plan.h"

// Emits decode_K with K = |steps| for the network that |plan| describes.
void mlx_cuda_emit_decode(mlx_function_t *g, const mlx_decode_plan_t *plan, int64_t steps);

#endif  // MLXCEL_COMPILER_EMIT_CUDA_H_
