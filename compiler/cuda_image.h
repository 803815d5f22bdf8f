// CUDA image: requests a compiled kernel source of kernels/cuda with its configuration, lines of
// compiler/kernel_config.h.
#ifndef MLXCEL_COMPILER_CUDA_IMAGE_H_
#define MLXCEL_COMPILER_CUDA_IMAGE_H_

#include "compiler/function.h"

typedef struct mlx_definition {
  const char *name;
  int64_t value;
} mlx_definition_t;

// Appends "name=value" lines: MLX_DEFINE(&text, {"rows", m}, {"columns", n}).
void mlx_cuda_define(mlx_text_t *text, const mlx_definition_t *definitions, size_t count);
#define MLX_DEFINE(text, ...)                                    \
  mlx_cuda_define(text, (const mlx_definition_t[]){__VA_ARGS__}, \
                  sizeof((const mlx_definition_t[]){__VA_ARGS__}) / sizeof(mlx_definition_t))

// The field |name| is a Dtype or an Activation of kernels/cuda/config_types.cuh.
void mlx_cuda_define_type(mlx_text_t *text, const char *name, mlx_dtype_t dtype);
void mlx_cuda_define_activation(mlx_text_t *text, const char *name, mlx_act_t act);
// Appends a table of |count| numbers, each an element of |type| ("u8").
void mlx_cuda_define_table(mlx_text_t *text, const char *name, const char *type, const int64_t *values,
                           int64_t count);

// Defines |name|, such as norm_eps, as the f32 number that the kernel gets: 1e-5 of a config.json and the f32
// of a GGUF file give the same image.
void mlx_cuda_define_float(mlx_text_t *text, const char *name, double value);
// The bits of |value| as an f32, for a kernel that has it as an integer parameter.
int32_t mlx_cuda_float_bits(double value);

// File name of the image of |kind| with |definitions|, which it clears. NULL after an error, which the
// builder keeps.
const char *mlx_cuda_image(mlx_function_t *g, mlx_kernel_kind_t kind, mlx_text_t *definitions);
// The same for an image that is not compiled like others of its kind.
const char *mlx_cuda_build_image(mlx_function_t *g, mlx_kernel_kind_t kind, mlx_text_t *definitions,
                                 mlx_kernel_build_t build);
// How a product is compiled whose tiles have |bm| tokens. |pair|: gate and up.
mlx_kernel_build_t mlx_cuda_tiled_build(int64_t bm, bool pair);

// Calls a kernel whose result is its last parameter. Empty if |kernel| has no file.
mlx_built_t mlx_cuda_call(mlx_function_t *g, const char *name, const mlx_extern_t *kernel);
// The same; the result is written to |into|, which |kernel| then gets as an operand, unless it is
// MLX_NO_VALUE.
mlx_built_t mlx_cuda_call_into(mlx_function_t *g, const char *name, mlx_extern_t *kernel, mlx_built_t into);
// Calls a kernel that multiplies |m| tokens with |count| matrices, 2 or 3. |kernel| has 1 + |count| operands:
// the tokens and the matrices, in the form that it reads. |weights| have the sizes; |out| gets the products.
void mlx_cuda_call_group(mlx_function_t *g, const char *name, mlx_extern_t *kernel, int64_t m,
                         const mlx_built_t *weights, int count, mlx_built_t *out);

// A vector that kernels read as f32. MLX_NO_VALUE stays so.
mlx_built_t mlx_cuda_f32(mlx_function_t *g, const char *name, mlx_built_t vector);

bool mlx_cuda_is_hopper(const mlx_function_t *g);

#endif  // MLXCEL_COMPILER_CUDA_IMAGE_H_
