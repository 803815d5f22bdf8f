// GPUs: one table from a compute capability to what the rest of the tree asks about it.
#ifndef MLXCEL_BASE_GPU_H_
#define MLXCEL_BASE_GPU_H_

#include <stddef.h>

typedef struct mlx_gpu_kind {
  int sm;  // compute capability without its dot: 90 is Hopper
  const char *family;
  const char *iree_target;  // what iree-compile knows that its code runs on; PTX runs on later GPUs too
  int iree_sm;              // the same as a number
  int min_driver;    // CUDA version the driver must have to read that PTX: 12040 is 12.4. The GPU may need a
                     // newer one
  int kernel_sm;     // what our own kernels are compiled for; 0: they need more than this GPU has
  int blocks;        // multiprocessors of the largest such GPU: a grid that fills any
  int shared_bytes;  // shared memory that one block may have
} mlx_gpu_kind_t;

const mlx_gpu_kind_t *mlx_gpu_kind_at(size_t index);  // NULL past the last
const mlx_gpu_kind_t *mlx_gpu_kind_find(int sm);      // NULL for one that is not in the table
// From "sm_90"; NULL when it is not in the table.
const mlx_gpu_kind_t *mlx_gpu_kind_parse(const char *text);
// The same from a capability as people write it into CUDA_COMPUTE_CAP: "90" or "9.0".
const mlx_gpu_kind_t *mlx_gpu_kind_parse_capability(const char *text);

#endif  // MLXCEL_BASE_GPU_H_
