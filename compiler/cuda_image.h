// CUDA image: requests a compiled kernel source of kernels/cuda with its macro definitions.
#ifndef MLXCEL_COMPILER_CUDA_IMAGE_H_
#define MLXCEL_COMPILER_CUDA_IMAGE_H_

#include "compiler/function.h"

typedef struct mlx_definition {
  const char *name;
  int64_t value;
} mlx_definition_t;

// Appends "NAME=VALUE" lines: MLX_DEFINE(&text, {"M", m}, {"N", n}).
void mlx_cuda_define(mlx_text_t *text, const mlx_definition_t *definitions, size_t count);
#define MLX_DEFINE(text, ...)                                    \
  mlx_cuda_define(text, (const mlx_definition_t[]){__VA_ARGS__}, \
                  sizeof((const mlx_definition_t[]){__VA_ARGS__}) / sizeof(mlx_definition_t))

// Defines DTYPE_BF16 or DTYPE_F16, the dtype of weights.
void mlx_cuda_define_dtype(mlx_text_t *text, mlx_dtype_t dtype);
// Defines KV_F32, KV_BF16, KV_F16 or KV_Q8.
void mlx_cuda_define_kv(mlx_text_t *text, mlx_dtype_t kv);

// Defines |name|, such as NORM_EPS, as the f32 number that the kernel gets: 1e-5 of a config.json and the f32
// of a GGUF file give the same image.
void mlx_cuda_define_float(mlx_text_t *text, const char *name, double value);
// The bits of |value| as an f32, for a kernel that has it as an integer parameter.
int32_t mlx_cuda_float_bits(double value);

// File name of the image of |kind| with |definitions|, which it clears. NULL after an error, which the
// builder keeps.
const char *mlx_cuda_image(mlx_function_t *g, mlx_kernel_kind_t kind, mlx_text_t *definitions);

// Calls a product kernel, whose result is its last parameter. It is written to g->into if that is set, which
// |kernel| then gets as an operand. Empty if |kernel| has no file.
mlx_value_t mlx_cuda_call(mlx_function_t *g, const char *name, mlx_extern_t *kernel);
// Calls a kernel that multiplies |m| tokens with |count| matrices, 2 or 3. |kernel| has 1 + |count| operands:
// the tokens and the matrices, in the form that it reads. |weights| have the sizes; |out| gets the products.
void mlx_cuda_call_group(mlx_function_t *g, const char *name, mlx_extern_t *kernel, int64_t m,
                         const mlx_value_t *weights, int count, mlx_value_t *out);

// A vector that kernels read as f32. MLX_NONE stays so.
mlx_value_t mlx_cuda_f32(mlx_function_t *g, const char *name, mlx_value_t vector);

bool mlx_cuda_is_hopper(const mlx_function_t *g);

#endif  // MLXCEL_COMPILER_CUDA_IMAGE_H_
