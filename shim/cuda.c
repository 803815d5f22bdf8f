// The CUDA driver API, opened at run time.
#include "shim/cuda.h"

#include <stdio.h>
#include <string.h>

#include "base/library.h"

#define ERROR_OUT_OF_MEMORY 2
#define STREAM_NON_BLOCKING 1  // no implicit order with the default stream

// ----------------------------------------------------------------------------------------------------------
// The library

#define CALL(field, symbol) {offsetof(mlx_cuda_calls_t, field), symbol}
static const struct call {
  size_t offset;
  const char *symbol;
} calls[] = {
    CALL(init, "cuInit"),
    CALL(driver_version, "cuDriverGetVersion"),
    CALL(error_name, "cuGetErrorName"),
    CALL(device_count, "cuDeviceGetCount"),
    CALL(device_name, "cuDeviceGetName"),
    CALL(device_attribute, "cuDeviceGetAttribute"),
    CALL(device_memory, "cuDeviceTotalMem_v2"),
    CALL(context_retain, "cuDevicePrimaryCtxRetain"),
    CALL(context_release, "cuDevicePrimaryCtxRelease_v2"),
    CALL(context_set, "cuCtxSetCurrent"),
    CALL(memory_info, "cuMemGetInfo_v2"),
    CALL(memory_granularity, "cuMemGetAllocationGranularity"),
    CALL(memory_reserve, "cuMemAddressReserve"),
    CALL(memory_unreserve, "cuMemAddressFree"),
    CALL(memory_create, "cuMemCreate"),
    CALL(memory_release, "cuMemRelease"),
    CALL(memory_map, "cuMemMap"),
    CALL(memory_unmap, "cuMemUnmap"),
    CALL(memory_access, "cuMemSetAccess"),
    CALL(memory_alloc, "cuMemAlloc_v2"),
    CALL(memory_free, "cuMemFree_v2"),
    CALL(memory_set, "cuMemsetD8Async"),
    CALL(host_alloc, "cuMemHostAlloc"),
    CALL(host_free, "cuMemFreeHost"),
    CALL(stream_create, "cuStreamCreate"),
    CALL(stream_wait, "cuStreamSynchronize"),
    CALL(stream_destroy, "cuStreamDestroy_v2"),
    CALL(event_create, "cuEventCreate"),
    CALL(event_record, "cuEventRecord"),
    CALL(event_wait, "cuEventSynchronize"),
    CALL(event_destroy, "cuEventDestroy_v2"),
    CALL(write, "cuMemcpyHtoDAsync_v2"),
    CALL(read, "cuMemcpyDtoHAsync_v2"),
};
_Static_assert(sizeof calls / sizeof *calls * sizeof(void *) == sizeof(mlx_cuda_calls_t),
               "every function needs its symbol");

static mlx_status_t unavailable(const char *why, const char *hint) {
  return mlx_status_hint(mlx_error(MLX_UNAVAILABLE, "no usable NVIDIA GPU: %s", why), "%s", hint);
}

// IREE tries the same names (third_party/iree.patch adds the last one).
#ifdef _WIN32
static const char *const names[] = {"nvcuda.dll"};
#else
static const char *const names[] = {"libcuda.so", "libcuda.so.1"};
#endif

static mlx_status_t open_library(void **out_library) {
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
    mlx_status_t status = mlx_library_open(names[i], out_library);
    if (!status) return NULL;
    mlx_status_t error =
        mlx_status_code(status) == MLX_NOT_FOUND
            ? NULL
            : unavailable(mlx_status_message(status), "repair NVIDIA's driver, or use --device cpu");
    mlx_status_free(status);
    if (error) return error;
  }
  char why[64];
  snprintf(why, sizeof why, "%s is not installed", names[0]);
  return unavailable(why, "install NVIDIA's driver, or use --device cpu");
}

static mlx_status_t start(void *library, mlx_cuda_calls_t *out_calls) {
  for (size_t i = 0; i < sizeof calls / sizeof *calls; ++i) {
    void *symbol = mlx_library_symbol(library, calls[i].symbol);
    if (!symbol)
      return unavailable("libcuda lacks functions that mlxcel needs",
                         "update NVIDIA's driver, or use --device cpu");
    // C has no cast from an object pointer to a function pointer.
    memcpy((char *)out_calls + calls[i].offset, &symbol, sizeof symbol);
  }
  int code = out_calls->init(0);
  if (!code) return NULL;
  return mlx_status_hint(
      mlx_error(MLX_UNAVAILABLE, "no usable NVIDIA GPU: the driver does not start (cuInit returned %d)",
                code),
      "check that `nvidia-smi` lists a GPU, or use --device cpu");
}

mlx_status_t mlx_cuda_load(mlx_cuda_calls_t *out_calls, void **out_library) {
  MLX_TRY(open_library(out_library));
  mlx_status_t status = start(*out_library, out_calls);
  if (!status) return NULL;
  mlx_library_close(*out_library);
  *out_library = NULL;
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// The GPU

mlx_status_t mlx_cuda_open(int gpu, mlx_cuda_t *out_cuda) {
  *out_cuda = (mlx_cuda_t){.gpu = gpu};
  MLX_TRY(mlx_cuda_load(&out_cuda->calls, &out_cuda->library));
  mlx_status_t status =
      mlx_cuda_status(out_cuda, out_cuda->calls.context_retain(&out_cuda->context, gpu), "opening the GPU");
  if (!status) {
    mlx_cuda_enter(out_cuda);
    status = mlx_cuda_status(out_cuda, out_cuda->calls.stream_create(&out_cuda->stream, STREAM_NON_BLOCKING),
                             "opening the GPU");
  }
  if (status) mlx_cuda_close(out_cuda);
  return status;
}

void mlx_cuda_close(mlx_cuda_t *cuda) {
  if (cuda->stream) cuda->calls.stream_destroy(cuda->stream);
  if (cuda->context) cuda->calls.context_release(cuda->gpu);
  if (cuda->library) mlx_library_close(cuda->library);
  *cuda = (mlx_cuda_t){0};
}

void mlx_cuda_enter(const mlx_cuda_t *cuda) { cuda->calls.context_set(cuda->context); }

mlx_status_t mlx_cuda_status(const mlx_cuda_t *cuda, int code, const char *doing) {
  if (!code) return NULL;
  const char *name = NULL;
  if (cuda->calls.error_name(code, &name) || !name) name = "an unknown error";
  if (code == ERROR_OUT_OF_MEMORY)
    return mlx_error(MLX_OUT_OF_MEMORY, "%s failed: the CUDA driver returned %s (%d)", doing, name, code);
  return mlx_status_hint(
      mlx_error(MLX_UNAVAILABLE, "%s failed: the CUDA driver returned %s (%d)", doing, name, code),
      "check with `nvidia-smi` that the GPU works, or use --device cpu");
}

mlx_status_t mlx_cuda_write(const mlx_cuda_t *cuda, mlx_cuda_pointer_t target, const void *source,
                            size_t size) {
  int code = cuda->calls.write(target, source, size, cuda->stream);
  return mlx_cuda_status(cuda, code ? code : cuda->calls.stream_wait(cuda->stream), "writing to the GPU");
}

mlx_status_t mlx_cuda_read(const mlx_cuda_t *cuda, void *target, mlx_cuda_pointer_t source, size_t size) {
  int code = cuda->calls.read(target, source, size, cuda->stream);
  return mlx_cuda_status(cuda, code ? code : cuda->calls.stream_wait(cuda->stream), "reading from the GPU");
}
