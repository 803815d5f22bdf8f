// CUDA: NVIDIA's driver API, as far as IREE's does not reach: questions about the GPU, and bytes to and from
// it without IREE's queue in between. libcuda is opened at run time; CUDA's headers are not needed. For the
// shim's own files only.
#ifndef MLXCEL_SHIM_CUDA_H_
#define MLXCEL_SHIM_CUDA_H_

#include <stdint.h>

#include "shim/shim.h"

typedef unsigned long long mlx_cuda_pointer_t;  // CUdeviceptr: a place in the GPU's memory

// The driver's functions. Each returns 0 or one of its error codes; contexts, streams and events are opaque.
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

// Opens libcuda, finds every function and starts the driver. MLX_UNAVAILABLE, with the reason, when that
// cannot be. Release the library with dlclose.
mlx_status_t mlx_cuda_load(mlx_cuda_calls_t *out_calls, void **out_library) MLX_MUST_USE;

// The first GPU, opened: its primary context, which is the one IREE uses, and a stream of our own.
typedef struct mlx_cuda {
  mlx_cuda_calls_t calls;
  void *library, *context, *stream;
} mlx_cuda_t;
// Release with mlx_cuda_close, which an mlx_cuda_t of zeros survives.
mlx_status_t mlx_cuda_open(mlx_cuda_t *out_cuda) MLX_MUST_USE;
void mlx_cuda_close(mlx_cuda_t *cuda);

// Makes the context current on the calling thread, which every call about memory needs. Should that fail,
// those say so.
void mlx_cuda_enter(const mlx_cuda_t *cuda);

// NULL for 0; else an error that says what was being done and what the driver calls it.
mlx_status_t mlx_cuda_status(const mlx_cuda_t *cuda, int code, const char *doing) MLX_MUST_USE;

// Copies and waits until the bytes are there, whatever stream looks at them next.
mlx_status_t mlx_cuda_write(const mlx_cuda_t *cuda, mlx_cuda_pointer_t target, const void *source,
                            size_t size) MLX_MUST_USE;
mlx_status_t mlx_cuda_read(const mlx_cuda_t *cuda, void *target, mlx_cuda_pointer_t source,
                           size_t size) MLX_MUST_USE;

// Copies a mapped file's bytes, many at a time (shim/upload.c). |on_load| may be NULL; it is called on this
// thread.
mlx_status_t mlx_cuda_upload(const mlx_cuda_t *cuda, mlx_cuda_pointer_t target, const void *source,
                             size_t size, mlx_load_fn_t on_load, void *user) MLX_MUST_USE;

#endif  // MLXCEL_SHIM_CUDA_H_
