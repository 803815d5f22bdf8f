// Kernel plan: decides whether a module links our kernels, and chooses the options that go with them.
#ifndef MLXCEL_COMPILER_KERNEL_PLAN_H_
#define MLXCEL_COMPILER_KERNEL_PLAN_H_

#include "compiler/module_options.h"

// If our kernels support the model, sets |options->kernels|, prefill sizes, decode steps and weight layout.
// Otherwise leaves |options->kernels| NULL and sets *|out_missing| to a static text that names the first
// unsupported feature. |kernels| names its GPU and dtype, or its CPU level.
mlx_status_t mlx_module_use_kernels(const mlx_model_t *model, mlx_kernels_t *kernels,
                                    mlx_module_options_t *options, const char **out_missing) MLX_MUST_USE;

#endif  // MLXCEL_COMPILER_KERNEL_PLAN_H_
