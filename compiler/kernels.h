// Kernels: our own code that is linked into one module. While a module is emitted, ops request images and get
// a file name for the MLIR. The files are made before iree-compile runs. For a GPU, NVRTC compiles a source
// of kernels/cuda with the requested configuration (compiler/kernel_config.h). For a CPU, an image is one
// object of MLX_KERNEL_NETWORK, which is already in this binary (kernels/cpu, compiled when mlxcel was
// built).
#ifndef MLXCEL_COMPILER_KERNELS_H_
#define MLXCEL_COMPILER_KERNELS_H_

#include "base/gpu.h"
#include "base/report.h"
#include "base/text.h"
#include "compiler/driver.h"
#include "compiler/nvrtc.h"
#include "compiler/tiles.h"
#include "models/model.h"

typedef enum mlx_kernel_kind {
  MLX_KERNEL_DECODE,
  MLX_KERNEL_LINEAR,
  MLX_KERNEL_ATTENTION,
  MLX_KERNEL_PACKED,
  MLX_KERNEL_ATTENTION_F32,
  MLX_KERNEL_PLACE,
  MLX_KERNEL_SAMPLE,
  MLX_KERNEL_ROWS,
  MLX_KERNEL_EXPERTS,
  MLX_KERNEL_FEW,
  MLX_KERNEL_RECURRENT,
  MLX_KERNEL_NETWORK,
  MLX_KERNEL_KINDS
} mlx_kernel_kind_t;
// "decode", "linear", ...: the source is NAME.cu. "network": the objects of kernels/cpu.
const char *mlx_kernel_kind_name(mlx_kernel_kind_t kind);

// How an image is compiled. It follows from the definitions.
typedef struct mlx_kernel_build {
  int cost;    // mlx_kernel_image_cost; 0: that of its kind
  bool wgmma;  // it has a variant for wgmma, which needs sm_90a
} mlx_kernel_build_t;

typedef struct mlx_kernel_image_request {
  mlx_kernel_kind_t kind;
  char *file;         // owned: its name in the MLIR
  char *definitions;  // owned; lines of compiler/kernel_config.h; for a CPU the object (kernel_source.h)
  mlx_kernel_build_t build;
} mlx_kernel_image_request_t;

// Where the images of a module came from.
typedef struct mlx_image_counts {
  size_t stored;    // from the store that the package ships (cache/image_store.h)
  size_t cached;    // from the cache
  size_t compiled;  // by NVRTC
} mlx_image_counts_t;

typedef struct mlx_kernels {
  const mlx_gpu_kind_t *gpu;    // the GPU they are compiled for; NULL for a CPU
  const char *cpu_level;        // for a CPU
  const mlx_weight_t *weights;  // the model's; NULL if it has no tiles
  mlx_tiles_t *tiles;           // owned: tile format of each weight; may be NULL
  mlx_kernel_image_request_t *images;
  size_t count, capacity;
  mlx_cache_t *cache;          // of compiled images; NULL for none
  double *cpu_seconds;         // mlx_kernels_compile adds its CPU time; may be NULL
  mlx_image_counts_t *counts;  // mlx_kernels_compile adds its images; may be NULL
} mlx_kernels_t;

// The highest level with an object that a CPU of |level| ("host": this machine) can run; NULL if there is
// none.
const char *mlx_kernels_cpu_level(const char *level);

// Whether this mlxcel has an object for exactly that level.
bool mlx_kernels_have_level(const char *level);

void mlx_kernels_clear(mlx_kernels_t *kernels);

// Requests an image of |kind| with these definitions: lines of compiler/kernel_config.h, or for a CPU the
// name of an object, which is also its file. Equal requests share a file. *|out_file| is valid until
// mlx_kernels_clear.
mlx_status_t mlx_kernels_image(mlx_kernels_t *kernels, mlx_kernel_kind_t kind, const char *definitions,
                               mlx_kernel_build_t build, const char **out_file) MLX_MUST_USE;

// Whether an image of |kind| was requested.
bool mlx_kernels_use(const mlx_kernels_t *kernels, mlx_kernel_kind_t kind);

// Everything that the images depend on, for the module's cache key: source, definitions, GPU and NVRTC of
// each, or the object itself. Release with mlx_kernels_free_objects. |nvrtc| is NULL for a CPU, here and
// below.
mlx_status_t mlx_kernels_objects(const mlx_kernels_t *kernels, const mlx_nvrtc_t *nvrtc,
                                 mlx_iree_object_t **out_objects) MLX_MUST_USE;
void mlx_kernels_free_objects(const mlx_kernels_t *kernels, mlx_iree_object_t *objects);

// The estimated time that NVRTC takes for an image, in about 10 ms.
int mlx_kernel_image_cost(const mlx_kernel_image_request_t *image);
// The order in which images are compiled: the longest first, and of equal ones the last request, which is
// for the most tokens. Fills |out_order| with indexes of images.
void mlx_kernels_order(const mlx_kernels_t *kernels, size_t *out_order);

// Key of an image in the cache and in the store: everything that its bytes depend on.
mlx_status_t mlx_kernels_key(const mlx_kernels_t *kernels, const mlx_nvrtc_t *nvrtc,
                             const mlx_kernel_image_request_t *image,
                             char out_hex[MLX_DIGEST_HEX]) MLX_MUST_USE;

// Creates |folder| and writes every image there. For a GPU, one thread per CPU takes the image from the store
// or from |kernels->cache|, or runs NVRTC; |report| is called on the calling thread only. The log of an image
// is beside it, or in the cache. A damaged store is reported and not used.
mlx_status_t mlx_kernels_compile(const mlx_kernels_t *kernels, const mlx_nvrtc_t *nvrtc, const char *folder,
                                 const mlx_report_t *report) MLX_MUST_USE;

#endif  // MLXCEL_COMPILER_KERNELS_H_
