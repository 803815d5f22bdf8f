// burst and step_1 as one launch of the CUDA decode kernel (kernels/cuda/decode.cu).
#ifndef MLXCEL_COMPILER_EMIT_CUDA_H_
#define MLXCEL_COMPILER_EMIT_CUDA_H_

#include "compiler/function.h"
#include "compiler/plan.h"

// Declares the scratch memory of the decode kernel, before the first function.
void mlx_cuda_declare_scratch(mlx_function_t *g, const mlx_decode_plan_t *plan);
// Emits burst and step_1 for the network that |plan| describes.
mlx_status_t mlx_cuda_emit_burst(mlx_function_t *g, const mlx_decode_plan_t *plan) MLX_MUST_USE;
// Defines a field of type Weight (kernels/cuda/decode_config.cuh) for each weight of the network.
void mlx_cuda_define_weights(mlx_text_t *definitions, const mlx_decode_plan_t *plan);

#endif  // MLXCEL_COMPILER_EMIT_CUDA_H_
