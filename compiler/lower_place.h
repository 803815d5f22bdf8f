// The launches at the start and the end of a step on the CUDA kernel path: token IDs and tiles of attention
// (kernels/cuda/place.cu), rows of the wanted tokens, and sampling (kernels/cuda/sample.cu).
#ifndef MLXCEL_COMPILER_LOWER_PLACE_H_
#define MLXCEL_COMPILER_LOWER_PLACE_H_

#include "compiler/function.h"

// What mlx_function_place_tokens does, by the kernel mlx_place. Sets g->placed also.
void mlx_cuda_place_tokens(mlx_function_t *g);
// The rows of |x| [N, hidden] of the wanted tokens: [W, hidden]. They are stored in |hidden| also.
mlx_built_t mlx_cuda_pick(mlx_function_t *g, mlx_built_t x);
// Whether the module samples on the device: the vocabulary fits kernels/cuda/sample.cu.
bool mlx_cuda_samples(const mlx_function_t *g);
// Samples a token for each wanted token.
void mlx_cuda_sample(mlx_function_t *g);

#endif  // MLXCEL_COMPILER_LOWER_PLACE_H_
