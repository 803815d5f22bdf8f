// What NVIDIA's driver says about the GPU, asked directly: libcuda is opened at run time and only for these questions.
#include <dlfcn.h>
#include <string.h>

#include "shim/shim.h"

typedef int (*cu_init_t)(unsigned flags);
typedef int (*cu_version_t)(int *version);
typedef int (*cu_count_t)(int *count);
typedef int (*cu_name_t)(char *name, int length, int device);
typedef int (*cu_attribute_t)(int *value, int attribute, int device);
typedef int (*cu_memory_t)(size_t *bytes, int device);

#define ATTRIBUTE_MAJOR 75
#define ATTRIBUTE_MINOR 76

static mlx_status_t unavailable(const char *why, const char *hint) {
  return mlx_status_hint(mlx_error(MLX_UNAVAILABLE, "no usable NVIDIA GPU: %s", why), "%s", hint);
}

// The symbol as a function pointer; C has no cast from an object pointer to one.
static bool look_up(void *library, const char *name, void *out_function) {
  void *symbol = dlsym(library, name);
  memcpy(out_function, &symbol, sizeof symbol);
  return symbol != NULL;
}

static mlx_status_t ask(void *library, mlx_gpu_info_t *out) {
  cu_init_t init;
  cu_version_t version;
  cu_count_t count;
  cu_name_t name;
  cu_attribute_t attribute;
  cu_memory_t memory;
  if (!look_up(library, "cuInit", &init) || !look_up(library, "cuDriverGetVersion", &version) ||
      !look_up(library, "cuDeviceGetCount", &count) || !look_up(library, "cuDeviceGetName", &name) ||
      !look_up(library, "cuDeviceGetAttribute", &attribute) || !look_up(library, "cuDeviceTotalMem_v2", &memory)) {
    return unavailable("libcuda lacks functions that mlxcel needs", "update NVIDIA's driver, or use --device cpu");
  }
  int code = init(0), devices = 0, major = 0, minor = 0;
  if (code) {
    mlx_status_t status = mlx_error(MLX_UNAVAILABLE, "no usable NVIDIA GPU: the driver does not start (cuInit says %d)", code);
    return mlx_status_hint(status, "check that `nvidia-smi` lists a GPU, or use --device cpu");
  }
  if (version(&out->driver) || count(&devices) || !devices) {
    return unavailable("the driver sees none", "check that `nvidia-smi` lists a GPU, or use --device cpu");
  }
  if (name(out->name, sizeof out->name, 0) || attribute(&major, ATTRIBUTE_MAJOR, 0) || attribute(&minor, ATTRIBUTE_MINOR, 0) ||
      memory(&out->memory, 0)) {
    return unavailable("the driver does not answer", "check that `nvidia-smi` works, or use --device cpu");
  }
  out->sm = major * 10 + minor;
  return NULL;
}

mlx_status_t mlx_gpu_query(mlx_gpu_info_t *out_info) {
  *out_info = (mlx_gpu_info_t){0};
  void *library = dlopen("libcuda.so", RTLD_NOW | RTLD_LOCAL);  // the name that IREE opens, too
  if (!library) {
    const char *reason = dlerror();
    if (reason && !strstr(reason, "No such file")) return unavailable(reason, "repair NVIDIA's driver, or use --device cpu");
    library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) return unavailable("libcuda.so is not installed", "install NVIDIA's driver, or use --device cpu");
    dlclose(library);
    return unavailable("libcuda.so.1 is installed, but not under the name libcuda.so, which IREE opens",
                       "make a link beside it: ln -s libcuda.so.1 libcuda.so");
  }
  mlx_status_t status = ask(library, out_info);
  if (status) dlclose(library);  // otherwise it stays: IREE opens it next
  return status;
}
