// CPU nodes: translates one node of a graph into instructions of the CPU kernel. Internal to compiler/.
#ifndef MLXCEL_COMPILER_CPU_NODES_H_
#define MLXCEL_COMPILER_CPU_NODES_H_

#include "compiler/cpu_writer.h"

// Appends the instructions of node |id|. Nodes must be written in the order of the graph. A node that the
// kernel does not support sets w->program->unsupported.
mlx_status_t mlx_cpu_write_node(mlx_cpu_writer_t *w, int id) MLX_MUST_USE;

#endif  // MLXCEL_COMPILER_CPU_NODES_H_
