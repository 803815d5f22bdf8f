// Kernel plan: decides whether a module links our kernels, and chooses the options that go with them.
#ifndef MLXCEL_COMPILER_KERNEL_PLAN_H_
#define MLXCEL_COMPILER_KERNEL_PLAN_H_

#include "compiler/module_options.h"

// If our kernels support the network (CPU) or at least one node of it (GPU), sets |options->kernels|, step
// sizes and weight layout. Otherwise leaves |options->kernels| NULL. *|out_missing|: static text that names
// the first unsupported feature; NULL if the kernels support every product, attention and mixture of experts.
// |kernels| names its GPU and dtype, or its CPU level.
mlx_status_t mlx_module_use_kernels(const mlx_model_t *model, const mlx_graph_t *graph,
                                    mlx_kernels_t *kernels, mlx_module_options_t *options,
                                    const char **out_missing) MLX_MUST_USE;

#endif  // MLXCEL_COMPILER_KERNEL_PLAN_H_
