// Shim: the only room that includes IREE's headers, and everything the rest of the tree may ask of IREE's
// runtime.
//
//   device    one opened device: the CPU (driver local-task) or a GPU (driver cuda; libcuda is opened at run
//   time) program   a compiled module loaded on a device, its weights bound as parameters buffer    a tensor
//   in the device's memory
//
// Both drivers are registered explicitly; nothing is looked up by static constructors, and no global state is
// kept. IREE's statuses become ours here and nowhere else. Threads: a device may be shared; a program and its
// buffers belong to one thread at a time.
#ifndef MLXCEL_SHIM_SHIM_H_
#define MLXCEL_SHIM_SHIM_H_

#include <stdint.h>

#include "base/status.h"

typedef struct mlx_device mlx_device_t;
typedef struct mlx_program mlx_program_t;
typedef struct mlx_buffer mlx_buffer_t;

typedef enum mlx_device_kind { MLX_DEVICE_CPU, MLX_DEVICE_CUDA } mlx_device_kind_t;

// Opens a device. |threads|: workers on the CPU, at least 1; ignored for CUDA.
// Release with mlx_device_close.
mlx_status_t mlx_device_open(mlx_device_kind_t kind, int threads, mlx_device_t **out_device) MLX_MUST_USE;
void mlx_device_close(mlx_device_t *device);
mlx_device_kind_t mlx_device_kind(const mlx_device_t *device);
int mlx_device_threads(const mlx_device_t *device);  // 0 for a GPU
// Of a GPU: bytes of its memory, and those of them that nobody uses now.
mlx_status_t mlx_device_memory(mlx_device_t *device, size_t *out_free, size_t *out_total) MLX_MUST_USE;

typedef struct mlx_gpu_info {
  char name[128];
  int sm;         // compute capability: 90 is Hopper
  int driver;     // CUDA version of the driver: 13000 is 13.0
  size_t memory;  // bytes
} mlx_gpu_info_t;
// The first GPU, as the driver describes it. MLX_UNAVAILABLE, with the reason, when there is none to use.
mlx_status_t mlx_gpu_query(mlx_gpu_info_t *out_info) MLX_MUST_USE;

// One weight: a name and bytes, both borrowed as long as the program lives.
typedef struct mlx_parameter {
  const char *name;
  const void *data;
  size_t size;
} mlx_parameter_t;

// Called with 0, as weights get to the device, and with all of them; on the thread that loads.
typedef void (*mlx_load_fn_t)(void *user, uint64_t done, uint64_t total);

// A program's weights: pieces of one mapped archive. A CPU uses them in place when they are aligned to 64. A
// GPU gets the whole stretch from the first one's first byte to the last one's end in one allocation, once,
// and needs them at multiples of 64 from its start.
typedef struct mlx_weights {
  const mlx_parameter_t *parameters;  // borrowed for the call
  size_t count;
  const char *whole;  // the name under which a module finds that whole stretch, as bytes; NULL: it does not
  mlx_load_fn_t on_load;  // may be NULL; not called where weights are used in place
  void *user;
} mlx_weights_t;

// Loads |vmfb| (borrowed until the program is freed). |weights| may be NULL. Release with mlx_program_free.
mlx_status_t mlx_program_load(mlx_device_t *device, const void *vmfb, size_t vmfb_size,
                              const mlx_weights_t *weights, mlx_program_t **out_program) MLX_MUST_USE;
void mlx_program_free(mlx_program_t *program);

// Calls the exported function of that name and waits for it. Inputs stay the caller's; each output is a fresh
// buffer to be released with mlx_buffer_free. The number of outputs must be what the function returns.
mlx_status_t mlx_program_call(mlx_program_t *program, const char *function, mlx_buffer_t *const *inputs,
                              size_t input_count, mlx_buffer_t **out_outputs,
                              size_t output_count) MLX_MUST_USE;
bool mlx_program_has(const mlx_program_t *program, const char *function);

// A tensor of i32 on the device, copied from |values| (as many as the product of |dims|). A GPU's memory for
// it is kept and used again: making small inputs for every call costs microseconds. Buffers are freed before
// their device is closed.
mlx_status_t mlx_buffer_from_i32(mlx_device_t *device, int rank, const int64_t *dims, const int32_t *values,
                                 mlx_buffer_t **out_buffer) MLX_MUST_USE;
void mlx_buffer_free(mlx_buffer_t *buffer);
size_t mlx_buffer_size(const mlx_buffer_t *buffer);  // bytes
// Copies the whole tensor to |out_bytes|; |size| must be its size. A tensor that a call gave is complete:
// calls wait.
mlx_status_t mlx_buffer_read(mlx_device_t *device, const mlx_buffer_t *buffer, void *out_bytes,
                             size_t size) MLX_MUST_USE;

#endif  // MLXCEL_SHIM_SHIM_H_
