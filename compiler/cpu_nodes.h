// CPU nodes: translates one launch into instructions of the CPU kernel. Internal to compiler/.
#ifndef MLXCEL_COMPILER_CPU_NODES_H_
#define MLXCEL_COMPILER_CPU_NODES_H_

#include "compiler/cpu_writer.h"

// Appends the instructions of |launch|, one of w->launches, in their order. A launch that the kernel does not
// support sets w->program->unsupported.
// Writes what an encoder computes of each text to the argument |hidden|.
mlx_status_t mlx_cpu_write_result(mlx_cpu_writer_t *w) MLX_MUST_USE;
mlx_status_t mlx_cpu_write_launch(mlx_cpu_writer_t *w, const mlx_launch_t *launch) MLX_MUST_USE;

#endif  // MLXCEL_COMPILER_CPU_NODES_H_
