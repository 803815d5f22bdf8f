// GPU properties from NVIDIA's driver, queried before a device is opened.
#include <stdio.h>

#include "base/library.h"
#include "base/text.h"
#include "shim/cuda.h"

#define ATTRIBUTE_MAJOR 75
#define ATTRIBUTE_MINOR 76

// The error for a number that no GPU has: it names the GPUs that there are.
static mlx_status_t missing(const mlx_cuda_calls_t *calls, int gpu, int count) {
  mlx_text_t list = {0};
  char name[128];
  for (int i = 0; i < count; ++i) {
    if (calls->device_name(name, sizeof name, i)) snprintf(name, sizeof name, "unknown");
    mlx_text_printf(&list, "%s%d (%s)", i ? ", " : "", i, name);
  }
  mlx_status_t status =
      mlx_status_hint(mlx_error(MLX_USAGE, "there is no GPU %d: the driver reports %d GPU%s", gpu, count,
                                count == 1 ? "" : "s"),
                      "the GPUs are: %s", list.data ? list.data : "");
  mlx_text_clear(&list);
  return status;
}

static mlx_status_t query(const mlx_cuda_calls_t *calls, int gpu, mlx_gpu_info_t *out) {
  int major = 0, minor = 0;
  if (calls->driver_version(&out->driver) || calls->device_count(&out->count) || !out->count) {
    return mlx_status_hint(mlx_error(MLX_UNAVAILABLE, "no usable NVIDIA GPU: the driver reports no GPU"),
                           "check that `nvidia-smi` lists a GPU, or use --device cpu");
  }
  if (gpu < 0 || gpu >= out->count) return missing(calls, gpu, out->count);
  if (calls->device_name(out->name, sizeof out->name, gpu) ||
      calls->device_attribute(&major, ATTRIBUTE_MAJOR, gpu) ||
      calls->device_attribute(&minor, ATTRIBUTE_MINOR, gpu) || calls->device_memory(&out->memory, gpu)) {
    return mlx_status_hint(
        mlx_error(MLX_UNAVAILABLE, "no usable NVIDIA GPU: the driver does not report its properties"),
        "check that `nvidia-smi` works, or use --device cpu");
  }
  out->sm = major * 10 + minor;
  return NULL;
}

mlx_status_t mlx_gpu_query(int gpu, mlx_gpu_info_t *out_info) {
  *out_info = (mlx_gpu_info_t){0};
  mlx_cuda_calls_t calls;
  void *library;
  MLX_TRY(mlx_cuda_load(&calls, &library));
  mlx_status_t status = query(&calls, gpu, out_info);
  if (status) mlx_library_close(library);  // on success keep it open: the device opens it again
  return status;
}
