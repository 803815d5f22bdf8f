// GPU properties from NVIDIA's driver, queried before a device is opened.
#include "base/library.h"
#include "shim/cuda.h"

#define ATTRIBUTE_MAJOR 75
#define ATTRIBUTE_MINOR 76

static mlx_status_t query(const mlx_cuda_calls_t *calls, mlx_gpu_info_t *out) {
  int devices = 0, major = 0, minor = 0;
  if (calls->driver_version(&out->driver) || calls->device_count(&devices) || !devices) {
    return mlx_status_hint(mlx_error(MLX_UNAVAILABLE, "no usable NVIDIA GPU: the driver reports no GPU"),
                           "check that `nvidia-smi` lists a GPU, or use --device cpu");
  }
  if (calls->device_name(out->name, sizeof out->name, 0) ||
      calls->device_attribute(&major, ATTRIBUTE_MAJOR, 0) ||
      calls->device_attribute(&minor, ATTRIBUTE_MINOR, 0) || calls->device_memory(&out->memory, 0)) {
    return mlx_status_hint(
        mlx_error(MLX_UNAVAILABLE, "no usable NVIDIA GPU: the driver does not report its properties"),
        "check that `nvidia-smi` works, or use --device cpu");
  }
  out->sm = major * 10 + minor;
  return NULL;
}

mlx_status_t mlx_gpu_query(mlx_gpu_info_t *out_info) {
  *out_info = (mlx_gpu_info_t){0};
  mlx_cuda_calls_t calls;
  void *library;
  MLX_TRY(mlx_cuda_load(&calls, &library));
  mlx_status_t status = query(&calls, out_info);
  if (status) mlx_library_close(library);  // on success keep it open: the device opens it again
  return status;
}
