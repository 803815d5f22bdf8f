// GPUs: one table from compute capability to compiler target, driver version and launch limits.
#ifndef MLXCEL_BASE_GPU_H_
#define MLXCEL_BASE_GPU_H_

#include <stddef.h>

typedef struct mlx_gpu_kind {
  int sm;  // compute capability without the dot: 90 is Hopper
  const char *family;
  const char *iree_target;  // iree-compile target whose code runs on this GPU; its PTX runs on later GPUs too
  int iree_sm;              // the same as a number
  // Minimum CUDA version of the driver for that PTX: 12040 is 12.4. The GPU itself may need a newer driver.
  int min_driver;
  int kernel_sm;  // target of our own kernels; 0 if the GPU cannot run them
  int blocks;     // multiprocessors of the largest GPU of this kind: a grid of this size fills every such GPU
  int shared_bytes;  // maximum shared memory of a block
  int bandwidth;     // of the memory in GB/s, of a slow GPU of this kind
} mlx_gpu_kind_t;

const mlx_gpu_kind_t *mlx_gpu_kind_at(size_t index);  // NULL past the last
const mlx_gpu_kind_t *mlx_gpu_kind_find(int sm);      // NULL if it is not in the table
// From "sm_90"; NULL if it is not in the table.
const mlx_gpu_kind_t *mlx_gpu_kind_parse(const char *text);
// The same from a CUDA_COMPUTE_CAP value: "90" or "9.0".
const mlx_gpu_kind_t *mlx_gpu_kind_parse_capability(const char *text);

#endif  // MLXCEL_BASE_GPU_H_
