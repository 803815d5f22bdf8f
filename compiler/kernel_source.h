// Kernel sources: the text of every kernels/*.h, kernels/cuda/*.cu and *.cuh, and the objects compiled from
// kernels/cpu, one per source and CPU level. The build embeds them in the binary (kernels/embed.cmake), so
// that `mlxcel compile` needs no other files.
#ifndef MLXCEL_COMPILER_KERNEL_SOURCE_H_
#define MLXCEL_COMPILER_KERNEL_SOURCE_H_

#include <stddef.h>

typedef struct mlx_kernel_source {
  const char *name;  // file name: "smoke.cu", "attention.x86-64-v3.o"
  const char *text;  // NUL-terminated text, or the bytes of an object
  size_t length;     // without the NUL
} mlx_kernel_source_t;

// NULL if the binary has no file of that name.
const mlx_kernel_source_t *mlx_kernel_source_find(const char *name);
// The |nth| header that sources may include ("decode_ring.cuh", "step.h"); NULL after the last.
const mlx_kernel_source_t *mlx_kernel_source_header(size_t nth);
// The |nth| object of a CPU level; NULL after the last. A module links all of them.
const mlx_kernel_source_t *mlx_kernel_source_object(const char *level, size_t nth);

#endif  // MLXCEL_COMPILER_KERNEL_SOURCE_H_
