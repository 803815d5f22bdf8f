// NVRTC: compiles our CUDA kernels inside this process, so that neither nvcc nor a host compiler is needed,
// nor a GPU.
//
// NVIDIA's library is opened at run time and never linked. What comes out is one image that the driver loads:
// machine code (a cubin) for the GPU that was named, and PTX for those that come after it. It does not know
// what it compiles: sources and definitions come from the rest of compiler/.
//
// Threads: an open library is read-only, and may be shared; NVRTC itself lets several threads compile.
#ifndef MLXCEL_COMPILER_NVRTC_H_
#define MLXCEL_COMPILER_NVRTC_H_

#include <stdint.h>

#include "base/digest.h"
#include "base/status.h"

typedef struct mlx_nvrtc mlx_nvrtc_t;

// The folder or file of libnvrtc that this build was configured with, "" for none. Only tests change it.
extern const char *mlx_nvrtc_built_in;

// Looks at |explicit_path| (may be NULL), then $MLXCEL_NVRTC, then what this build was configured with, then
// beside our own binary and in ../lib, then where the loader looks, then in a toolkit that $CUDA_PATH or
// $CUDA_HOME names. Each is a file, or a folder that holds libnvrtc.so.13 or .12; a name without a slash is
// the loader's to find. The first two must work when they are given: MLX_NOT_FOUND when they do not.
// MLX_UNAVAILABLE when there is none anywhere, which is no error to somebody who can do without our kernels.
// Close with mlx_nvrtc_close; the process keeps the library.
mlx_status_t mlx_nvrtc_open(const char *explicit_path, mlx_nvrtc_t **out_nvrtc) MLX_MUST_USE;
void mlx_nvrtc_close(mlx_nvrtc_t *nvrtc);  // NULL is fine

const char *mlx_nvrtc_path(const mlx_nvrtc_t *nvrtc);     // absolute; valid until closed, as is the version
const char *mlx_nvrtc_version(const mlx_nvrtc_t *nvrtc);  // "13.0"
int mlx_nvrtc_major(const mlx_nvrtc_t *nvrtc);
int mlx_nvrtc_minor(const mlx_nvrtc_t *nvrtc);
// Whether images hold PTX too: that takes libnvfatbin, beside libnvrtc or where the loader looks.
bool mlx_nvrtc_makes_ptx(const mlx_nvrtc_t *nvrtc);
// For keys: tells apart libraries whose images may differ. Nothing is read: libnvrtc has 100 MB.
void mlx_nvrtc_identity(const mlx_nvrtc_t *nvrtc, char out_hex[MLX_DIGEST_HEX]);

typedef struct mlx_nvrtc_job {
  const char *name;                 // of the source, as errors name it: "smoke.cu"
  const char *source;               // CUDA C++ text
  const char *const *header_names;  // what it may include, and the texts; nothing else is there
  const char *const *headers;
  size_t header_count;
  int sm;              // 90
  bool arch_specific;  // the cubin for sm_90a, which knows more and runs on nothing else; from sm_90 on
  const char *const *definitions;  // "NAME=VALUE" each; may be NULL when definition_count is 0
  size_t definition_count;
  const char *log_path;  // the options, then all that NVRTC says; also after a success
} mlx_nvrtc_job_t;

// What the driver loads. Release with mlx_kernel_image_release.
typedef struct mlx_kernel_image {
  char *bytes;  // owned; a fatbin with a cubin and PTX, or a bare cubin
  size_t length;
  bool has_ptx;
  char *log;  // owned; what is in the log file: registers, shared memory and spills of every kernel
} mlx_kernel_image_t;

// Fails with MLX_UNSUPPORTED when this NVRTC does not know the GPU, and with MLX_TOOL_FAILED when the source
// does not compile, naming the first error line and the log.
mlx_status_t mlx_nvrtc_compile(const mlx_nvrtc_t *nvrtc, const mlx_nvrtc_job_t *job,
                               mlx_kernel_image_t *out_image) MLX_MUST_USE;
void mlx_kernel_image_release(mlx_kernel_image_t *image);

#endif  // MLXCEL_COMPILER_NVRTC_H_
