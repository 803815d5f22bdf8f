// Shared by the files of shim/. Private to shim/.
#ifndef MLXCEL_SHIM_SHIM_INTERNAL_H_
#define MLXCEL_SHIM_SHIM_INTERNAL_H_

#include <pthread.h>

#include "iree/hal/api.h"
#include "iree/vm/api.h"
#include "shim/cuda.h"
#include "shim/shim.h"

#define MLX_POOLED_INPUTS 32

struct mlx_device {
  mlx_device_kind_t kind;
  int threads;
  iree_hal_driver_registry_t *registry;
  iree_hal_device_t *hal;
  mlx_cuda_t cuda;                               // zeroed on the CPU
  pthread_mutex_t lock;                          // guards |inputs|
  iree_hal_buffer_t *inputs[MLX_POOLED_INPUTS];  // GPU memory for inputs (shim/buffer.c); NULL past the last
};

struct mlx_buffer {
  mlx_device_t *device;  // borrowed
  iree_hal_buffer_view_t *view;
};

// Makes the CUDA context current. Every function that may touch GPU memory calls it first.
void mlx_device_enter(const mlx_device_t *device);

// Wraps |view| and takes ownership of it, also on failure.
mlx_status_t mlx_buffer_wrap(mlx_device_t *device, iree_hal_buffer_view_t *view,
                             mlx_buffer_t **out_buffer) MLX_MUST_USE;

// Creates the module that supplies |weights| to the module loaded after it. The weights are on the device
// when this returns.
mlx_status_t mlx_parameters_create(mlx_device_t *device, iree_vm_instance_t *instance,
                                   const mlx_weights_t *weights, iree_vm_module_t **out_module) MLX_MUST_USE;

// Converts and consumes |status|; NULL for OK.
mlx_status_t mlx_status_from_iree(iree_status_t status) MLX_MUST_USE;
#define MLX_TRY_IREE(expr) MLX_TRY(mlx_status_from_iree(expr))

// Fails if the system cannot start |count| threads with stacks of this size at the same time.
mlx_status_t mlx_threads_check(int count, size_t stack_bytes) MLX_MUST_USE;

#endif  // MLXCEL_SHIM_SHIM_INTERNAL_H_
