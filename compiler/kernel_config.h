// Kernel configuration: what an image request says about a kernel of kernels/cuda, as the header that its
// source includes.
//
// A request has one "name=value" line per fact, in the order of the fields of struct Config, which the kernel
// declares in NAME_config.cuh with a default for each. A line is one of three:
//
//   hidden=576                    a field
//   windowed_layers:u8=1,0        a table in constant memory (kernels/cuda/config_types.cuh)
//   NAME=mlx_rows_norm            a macro, because its name begins with a capital letter. For what C++ has no
//                                 constants for, such as the name of an entry point
#ifndef MLXCEL_COMPILER_KERNEL_CONFIG_H_
#define MLXCEL_COMPILER_KERNEL_CONFIG_H_

#include "base/status.h"

// The name under which sources include it.
#define MLX_KERNEL_CONFIG "config.cuh"

// Whether the line is a macro.
static inline bool mlx_kernel_line_is_macro(const char *line) { return *line >= 'A' && *line <= 'Z'; }

// The text of config.cuh for an image of |kernel| ("decode") with these lines. The caller frees it.
mlx_status_t mlx_kernel_config_header(const char *kernel, const char *lines, char **out_text) MLX_MUST_USE;

#endif  // MLXCEL_COMPILER_KERNEL_CONFIG_H_
