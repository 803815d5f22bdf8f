// Explains variables such as CUDA_HOME, for `mlxcel doctor`. It does not change them.
#include "cli/environment.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/gpu.h"

static mlx_status_t explain_toolkit(const char *name, const char *value, mlx_text_t *out) {
  if (!mlx_is_dir(value)) {
    return mlx_status_hint(mlx_error(MLX_NOT_FOUND, "'%s' is not a folder", value),
                           "unset %s: mlxcel needs no CUDA toolkit", name);
  }
  mlx_text_printf(out, "%s: mlxcel needs no toolkit; it searches this folder for NVRTC last", value);
  return NULL;
}

static mlx_status_t explain_capability(const char *name, const char *value, mlx_text_t *out) {
  const mlx_gpu_kind_t *kind = mlx_gpu_kind_parse_capability(value);
  if (!kind) {
    return mlx_status_hint(
        mlx_error(MLX_INVALID_INPUT, "'%s' is not a GPU architecture that mlxcel supports", value),
        "set %s to a compute capability such as 90 or 9.0, or unset it", name);
  }
  mlx_text_printf(out, "%s: without a GPU, `compile --target cuda` means cuda:sm_%d (%s)", value, kind->sm,
                  kind->family);
  return NULL;
}

static mlx_status_t explain_host_compiler(const char *name, const char *value, mlx_text_t *out) {
  (void)name;
  mlx_text_printf(out, "%s: not used; mlxcel runs neither nvcc nor a host compiler", value);
  return NULL;
}

static const struct {
  const char *name;
  mlx_status_t (*explain)(const char *name, const char *value, mlx_text_t *out);
} variables[] = {
    {"CUDA_PATH", explain_toolkit},
    {"CUDA_HOME", explain_toolkit},
    {"NVCC_CCBIN", explain_host_compiler},
    {"CUDA_COMPUTE_CAP", explain_capability},
};
#define VARIABLE_COUNT (sizeof variables / sizeof *variables)

const char *mlx_cuda_variable_at(size_t index) {
  return index < VARIABLE_COUNT ? variables[index].name : NULL;
}

mlx_status_t mlx_cuda_variable_explain(const char *name, mlx_text_t *out) {
  const char *value = getenv(name);
  for (size_t i = 0; value && *value && i < VARIABLE_COUNT; ++i) {
    if (strcmp(variables[i].name, name)) continue;
    MLX_TRY(variables[i].explain(name, value, out));
    return mlx_text_finish(out);
  }
  return NULL;
}
