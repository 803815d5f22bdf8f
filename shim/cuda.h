// CUDA: the parts of NVIDIA's driver API that IREE does not expose: queries about the GPU, and copies that
// bypass IREE's queue. libcuda is opened at run time, and CUDA headers are not needed. Private to shim/.
#ifndef MLXCEL_SHIM_CUDA_H_
#define MLXCEL_SHIM_CUDA_H_

#include <stdint.h>

#include "shim/shim.h"

typedef unsigned long long mlx_cuda_pointer_t;  // CUdeviceptr: an address in GPU memory

// Functions of the driver. Each returns 0 or a CUresult error code. Contexts, streams and events are opaque.
typedef struct mlx_cuda_calls {
  int (*init)(unsigned flags);
  int (*driver_version)(int *out_version);
  int (*error_name)(int code, const char **out_name);
  int (*device_count)(int *out_count);
  int (*device_name)(char *out_name, int size, int device);
  int (*device_attribute)(int *out_value, int attribute, int device);
  int (*device_memory)(size_t *out_bytes, int device);
  int (*context_retain)(void **out_context, int device);
  int (*context_release)(int device);
  int (*context_set)(void *context);  // for the calling thread
  int (*memory_info)(size_t *out_free, size_t *out_total);
  // Virtual memory: |allocation| and |access| are the driver's structs (shim/memory.c).
  int (*memory_granularity)(size_t *out_bytes, const void *allocation, int kind);
  int (*memory_reserve)(mlx_cuda_pointer_t *out_start, size_t size, size_t alignment, mlx_cuda_pointer_t at,
                        unsigned long long flags);
  int (*memory_unreserve)(mlx_cuda_pointer_t start, size_t size);
  int (*memory_create)(unsigned long long *out_handle, size_t size, const void *allocation,
                       unsigned long long flags);
  int (*memory_release)(unsigned long long handle);
  int (*memory_map)(mlx_cuda_pointer_t start, size_t size, size_t offset, unsigned long long handle,
                    unsigned long long flags);
  int (*memory_unmap)(mlx_cuda_pointer_t start, size_t size);
  int (*memory_access)(mlx_cuda_pointer_t start, size_t size, const void *access, size_t count);
  int (*memory_alloc)(mlx_cuda_pointer_t *out_start, size_t size);
  int (*memory_free)(mlx_cuda_pointer_t start);
  int (*memory_set)(mlx_cuda_pointer_t start, unsigned char value, size_t size, void *stream);
  int (*host_alloc)(void **out_bytes, size_t size, unsigned flags);
  int (*host_free)(void *bytes);
  int (*stream_create)(void **out_stream, unsigned flags);
  int (*stream_wait)(void *stream);
  int (*stream_destroy)(void *stream);
  int (*event_create)(void **out_event, unsigned flags);
  int (*event_record)(void *event, void *stream);
  int (*event_wait)(void *event);
  int (*event_destroy)(void *event);
  int (*write)(mlx_cuda_pointer_t target, const void *source, size_t size, void *stream);
  int (*read)(void *target, mlx_cuda_pointer_t source, size_t size, void *stream);
} mlx_cuda_calls_t;

// Opens libcuda, resolves every function and initializes the driver. MLX_UNAVAILABLE, with the reason, if
// that fails. Release the library with mlx_library_close.
mlx_status_t mlx_cuda_load(mlx_cuda_calls_t *out_calls, void **out_library) MLX_MUST_USE;

// A GPU: its primary context, which IREE uses too, and our own stream.
typedef struct mlx_cuda {
  mlx_cuda_calls_t calls;
  void *library, *context, *stream;
  int gpu;  // from 0, in the driver's order
} mlx_cuda_t;
// Release with mlx_cuda_close, which accepts a zeroed mlx_cuda_t.
mlx_status_t mlx_cuda_open(int gpu, mlx_cuda_t *out_cuda) MLX_MUST_USE;
void mlx_cuda_close(mlx_cuda_t *cuda);

// Makes the context current on the calling thread, which memory calls require. If this fails, those calls
// report the error.
void mlx_cuda_enter(const mlx_cuda_t *cuda);

// NULL for code 0; otherwise an error with the operation |doing| and the driver's name of the code.
mlx_status_t mlx_cuda_status(const mlx_cuda_t *cuda, int code, const char *doing) MLX_MUST_USE;

// Copies synchronously: afterwards every stream sees the bytes.
mlx_status_t mlx_cuda_write(const mlx_cuda_t *cuda, mlx_cuda_pointer_t target, const void *source,
                            size_t size) MLX_MUST_USE;
mlx_status_t mlx_cuda_read(const mlx_cuda_t *cuda, void *target, mlx_cuda_pointer_t source,
                           size_t size) MLX_MUST_USE;

// Copies |weights| with several threads (shim/upload.c).
mlx_status_t mlx_cuda_upload(const mlx_cuda_t *cuda, mlx_cuda_pointer_t target,
                             const mlx_weights_t *weights) MLX_MUST_USE;

#endif  // MLXCEL_SHIM_CUDA_H_
