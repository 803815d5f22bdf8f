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

// Memory that a buffer uses (shim/memory.c). IREE releases it after the last use.
typedef struct mlx_memory {
  mlx_device_t *device;  // borrowed
  uint8_t *host;         // of a CPU, or page-locked; NULL: only the GPU accesses it
  bool is_borrowed;      // |host| belongs to another memory
  mlx_cuda_pointer_t pointer;
  size_t size;       // reserved bytes
  size_t committed;  // of them, the first ones
  size_t end;        // GPU: the bytes from here on are committed too; 0: none are
  bool is_range;     // GPU: an address range into which memory is mapped,
  size_t step;       // so many bytes at once
} mlx_memory_t;
// All memory is aligned to 64 bytes. |size| is at least 1. Release with mlx_memory_free.
mlx_status_t mlx_memory_reserve(mlx_device_t *device, size_t size, mlx_memory_t **out_memory) MLX_MUST_USE;
mlx_status_t mlx_memory_share(mlx_device_t *device, size_t size, mlx_memory_t **out_memory) MLX_MUST_USE;
// CPU: memory of another one.
mlx_status_t mlx_memory_borrow(mlx_device_t *device, void *host, size_t size,
                               mlx_memory_t **out_memory) MLX_MUST_USE;
mlx_status_t mlx_memory_commit(mlx_memory_t *memory, size_t bytes) MLX_MUST_USE;
// Commits the bytes from |from| on. Once, before the rest.
mlx_status_t mlx_memory_commit_from(mlx_memory_t *memory, size_t from) MLX_MUST_USE;
void mlx_memory_discard(mlx_memory_t *memory);  // CPU: mlx_buffer_discard
void mlx_memory_free(mlx_memory_t *memory);     // NULL is fine

struct mlx_buffer {
  mlx_device_t *device;  // borrowed
  iree_hal_buffer_view_t *view;
  mlx_memory_t *memory;  // borrowed from the view's buffer; NULL for an input of the pool
};

// Makes the CUDA context current. Every function that may touch GPU memory calls it first.
void mlx_device_enter(const mlx_device_t *device);

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
