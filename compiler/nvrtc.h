// NVRTC: compiles CUDA kernels inside this process. Needs no nvcc, no host compiler and no GPU.
//
// NVIDIA's library is opened at run time, never linked. The output is one image for the CUDA driver: machine
// code (a cubin) for the named GPU, and PTX for later GPUs. Sources and definitions come from the rest of
// compiler/.
//
// Threads: an open library is read-only and may be shared. NVRTC allows concurrent compilations.
#ifndef MLXCEL_COMPILER_NVRTC_H_
#define MLXCEL_COMPILER_NVRTC_H_

#include <stdint.h>

#include "base/digest.h"
#include "base/status.h"

typedef struct mlx_nvrtc mlx_nvrtc_t;

// The folder or file of libnvrtc that this build was configured with; "" for none. Only tests change it.
extern const char *mlx_nvrtc_built_in;
// An option that every compilation adds, or NULL. Images of each option have their own keys. Only tests
// change it (tests/support/quick_nvrtc.h).
extern const char *mlx_nvrtc_added_option;

// Searches |explicit_path| (may be NULL), $MLXCEL_NVRTC, the path this build was configured with, the folder
// of our own binary, ../lib, the paths of the dynamic loader, and the toolkits in $CUDA_PATH and $CUDA_HOME,
// in this order. Each is a file, or a folder with libnvrtc.so.13 or .12; the loader searches a name without a
// slash. Fails with MLX_NOT_FOUND if one of the first two is given and does not work, and with
// MLX_UNAVAILABLE if no library is found; the caller can then use the generic path. Close with
// mlx_nvrtc_close; the library stays loaded.
mlx_status_t mlx_nvrtc_open(const char *explicit_path, mlx_nvrtc_t **out_nvrtc) MLX_MUST_USE;
void mlx_nvrtc_close(mlx_nvrtc_t *nvrtc);  // |nvrtc| may be NULL

const char *mlx_nvrtc_path(const mlx_nvrtc_t *nvrtc);     // absolute; path and version are valid until closed
const char *mlx_nvrtc_version(const mlx_nvrtc_t *nvrtc);  // "13.0"
int mlx_nvrtc_major(const mlx_nvrtc_t *nvrtc);
int mlx_nvrtc_minor(const mlx_nvrtc_t *nvrtc);
// Whether images contain PTX. That needs libnvfatbin, beside libnvrtc or where the loader finds it.
bool mlx_nvrtc_makes_ptx(const mlx_nvrtc_t *nvrtc);
// For cache keys: differs between libraries whose images may differ. Does not read libnvrtc, a file of 100
// MB.
void mlx_nvrtc_identity(const mlx_nvrtc_t *nvrtc, char out_hex[MLX_DIGEST_HEX]);

typedef struct mlx_nvrtc_job {
  const char *name;                 // of the source, for errors: "smoke.cu"
  const char *source;               // CUDA C++ text
  const char *const *header_names;  // headers that the source may include, and their texts
  const char *const *headers;
  size_t header_count;
  int sm;              // compute capability: 90
  bool arch_specific;  // make the cubin for sm_90a: more instructions, runs on no other GPU; from sm_90 on
  const char *const *definitions;  // "NAME=VALUE" each; may be NULL if definition_count is 0
  size_t definition_count;
  const char *log_path;  // gets the options, then the output of NVRTC; also on success
} mlx_nvrtc_job_t;

// An image for the CUDA driver. Release with mlx_kernel_image_release.
typedef struct mlx_kernel_image {
  char *bytes;  // owned; a fatbin with a cubin and PTX, or a bare cubin
  size_t length;
  bool has_ptx;
  char *log;  // owned; content of the log file: registers, shared memory and spills of every kernel
} mlx_kernel_image_t;

// Fails with MLX_UNSUPPORTED if this NVRTC does not support the GPU, and with MLX_TOOL_FAILED if the source
// does not compile; the error names the first error line and the log.
mlx_status_t mlx_nvrtc_compile(const mlx_nvrtc_t *nvrtc, const mlx_nvrtc_job_t *job,
                               mlx_kernel_image_t *out_image) MLX_MUST_USE;
void mlx_kernel_image_release(mlx_kernel_image_t *image);

#endif  // MLXCEL_COMPILER_NVRTC_H_
