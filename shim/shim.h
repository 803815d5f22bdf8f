// Shim: the interface to IREE's runtime. Only shim/ includes IREE headers.
//
//   device   an open device: the CPU (driver local-task) or a GPU (driver cuda)
//   program  a compiled module loaded on a device, with its weights bound as parameters
//   buffer   a tensor in device memory
//
// Both drivers are registered explicitly; there are no static constructors and no global state. IREE statuses
// are converted here and nowhere else.
//
// Threads: a device may be shared. A program and its buffers belong to one thread at a time.
#ifndef MLXCEL_SHIM_SHIM_H_
#define MLXCEL_SHIM_SHIM_H_

#include <stdint.h>

#include "base/status.h"

typedef struct mlx_device mlx_device_t;
typedef struct mlx_program mlx_program_t;
typedef struct mlx_buffer mlx_buffer_t;

typedef enum mlx_device_kind { MLX_DEVICE_CPU, MLX_DEVICE_CUDA } mlx_device_kind_t;

// Opens a device. |threads| is the number of CPU workers, at least 1; ignored for CUDA.
// Release with mlx_device_close.
mlx_status_t mlx_device_open(mlx_device_kind_t kind, int threads, mlx_device_t **out_device) MLX_MUST_USE;
void mlx_device_close(mlx_device_t *device);
mlx_device_kind_t mlx_device_kind(const mlx_device_t *device);
int mlx_device_threads(const mlx_device_t *device);  // 0 for a GPU
// GPU only: free and total bytes of its memory.
mlx_status_t mlx_device_memory(mlx_device_t *device, size_t *out_free, size_t *out_total) MLX_MUST_USE;

typedef struct mlx_gpu_info {
  char name[128];
  int sm;         // compute capability: 90 is Hopper
  int driver;     // CUDA version of the driver: 13000 is 13.0
  size_t memory;  // bytes
} mlx_gpu_info_t;
// The first GPU. MLX_UNAVAILABLE, with the reason, if there is no usable GPU.
mlx_status_t mlx_gpu_query(mlx_gpu_info_t *out_info) MLX_MUST_USE;

// One weight. Name and bytes are borrowed as long as the program lives.
typedef struct mlx_parameter {
  const char *name;
  const void *data;
  size_t size;
} mlx_parameter_t;

// Load progress in bytes, from 0 to |total|; called on the thread that loads.
typedef void (*mlx_load_fn_t)(void *user, uint64_t done, uint64_t total);

// The weights of a program: parts of one mapped archive. A CPU uses them in place if they are aligned to 64
// bytes. A GPU gets the range from the first byte of the first weight to the end of the last one in one
// allocation. There each weight must start at a multiple of 64 bytes from the start of the range.
typedef struct mlx_weights {
  const mlx_parameter_t *parameters;  // borrowed for the call
  size_t count;
  const char *whole;      // parameter name of the whole range as bytes; NULL if the module does not use it
  mlx_load_fn_t on_load;  // may be NULL; not called if weights are used in place
  void *user;
} mlx_weights_t;

// Loads |vmfb| (borrowed until the program is freed). |weights| may be NULL. Release with mlx_program_free.
mlx_status_t mlx_program_load(mlx_device_t *device, const void *vmfb, size_t vmfb_size,
                              const mlx_weights_t *weights, mlx_program_t **out_program) MLX_MUST_USE;
void mlx_program_free(mlx_program_t *program);

// Calls the exported function |function| and waits for it. The caller keeps the inputs. Each output is a new
// buffer; release it with mlx_buffer_free. |output_count| must be the number of results of the function.
mlx_status_t mlx_program_call(mlx_program_t *program, const char *function, mlx_buffer_t *const *inputs,
                              size_t input_count, mlx_buffer_t **out_outputs,
                              size_t output_count) MLX_MUST_USE;
bool mlx_program_has(const mlx_program_t *program, const char *function);

// An i32 tensor on the device, copied from |values| (as many as the product of |dims|). GPU memory for inputs
// is pooled, because allocating small inputs for every call costs microseconds. Free all buffers before
// closing their device.
mlx_status_t mlx_buffer_from_i32(mlx_device_t *device, int rank, const int64_t *dims, const int32_t *values,
                                 mlx_buffer_t **out_buffer) MLX_MUST_USE;
void mlx_buffer_free(mlx_buffer_t *buffer);
size_t mlx_buffer_size(const mlx_buffer_t *buffer);  // bytes
// Copies the whole tensor to |out_bytes|; |size| must be its size. Results are complete, because calls wait.
mlx_status_t mlx_buffer_read(mlx_device_t *device, const mlx_buffer_t *buffer, void *out_bytes,
                             size_t size) MLX_MUST_USE;

#endif  // MLXCEL_SHIM_SHIM_H_
