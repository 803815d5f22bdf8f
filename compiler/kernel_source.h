// Kernel sources: the text of every kernels/cuda/*.cu and *.cuh and the objects made of kernels/cpu travel
// inside the binary, so that `mlxcel compile` needs no files beside it. The build writes the table
// (kernels/embed.cmake).
#ifndef MLXCEL_COMPILER_KERNEL_SOURCE_H_
#define MLXCEL_COMPILER_KERNEL_SOURCE_H_

#include <stddef.h>

typedef struct mlx_kernel_source {
  const char *name;  // of the file: "smoke.cu", "network.x86-64-v3.o"
  const char *text;  // NUL-terminated; or an object's bytes
  size_t length;     // without the NUL
} mlx_kernel_source_t;

const mlx_kernel_source_t *mlx_kernel_source_find(
    const char *name);  // NULL for a name that is not in the table
// The |nth| of those that others may include ("decode_ring.cuh"), NULL after the last.
const mlx_kernel_source_t *mlx_kernel_source_header(size_t nth);

#endif  // MLXCEL_COMPILER_KERNEL_SOURCE_H_
