// Kernels: our own code that is linked into one module. While the graph is written, ops ask for images and
// get the name of a file for the MLIR; before iree-compile runs, those files are made. For a GPU NVRTC
// compiles a source of kernels/cuda with its definitions; for a CPU the object is in this binary already
// (kernels/cpu, compiled when mlxcel was built).
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
  MLX_KERNEL_NETWORK,
  MLX_KERNEL_KINDS
} mlx_kernel_kind_t;
const char *mlx_kernel_kind_name(mlx_kernel_kind_t kind);  // "decode", "linear", "attention" ...: sources
                                                           // NAME.cu; "network": object NAME.LEVEL.o

typedef struct mlx_kernel_image_request {
  mlx_kernel_kind_t kind;
  char file[32];      // what the MLIR calls it
  char *definitions;  // owned; "NAME=VALUE" lines
} mlx_kernel_image_request_t;

typedef struct mlx_kernels {
  const mlx_gpu_kind_t *gpu;  // what they are compiled for; NULL: for a CPU
  const char *cpu_level;      // then of this level
  mlx_dtype_t dtype;  // of weights and KV pool; f16 or bf16 for a GPU, or f32 where it computes with tiles
  const mlx_weight_t *weights;  // of the model, and the tiles of each (owned); NULL: there are none
  mlx_tiles_t *tiles;
  mlx_kernel_image_request_t *images;
  size_t count, capacity;
} mlx_kernels_t;

// The level whose object a CPU of |level| runs ("host": this machine); NULL when there is none.
const char *mlx_kernels_cpu_level(const char *level);

// True when this mlxcel has an object for that very level.
bool mlx_kernels_have_level(const char *level);

void mlx_kernels_clear(mlx_kernels_t *kernels);

// The file of the image of |kind| with these definitions ("NAME=VALUE" lines, the dtype's is added); the same
// ones give the same file. Borrowed until the next image is asked for.
mlx_status_t mlx_kernels_image(mlx_kernels_t *kernels, mlx_kernel_kind_t kind, const char *definitions,
                               const char **out_file) MLX_MUST_USE;

bool mlx_kernels_use(const mlx_kernels_t *kernels,
                     mlx_kernel_kind_t kind);  // whether an image of it was asked for

// What the images depend on, for the module's cache key: each one's source, definitions, GPU and NVRTC, or
// the object itself. Release the array with mlx_kernels_free_objects. |nvrtc| is NULL for a CPU, here and
// below.
mlx_status_t mlx_kernels_objects(const mlx_kernels_t *kernels, const mlx_nvrtc_t *nvrtc,
                                 mlx_iree_object_t **out_objects) MLX_MUST_USE;
void mlx_kernels_free_objects(const mlx_kernels_t *kernels, mlx_iree_object_t *objects);

// Compiles every image into |folder|, which is made. Logs go there too.
mlx_status_t mlx_kernels_compile(const mlx_kernels_t *kernels, const mlx_nvrtc_t *nvrtc, const char *folder,
                                 const mlx_report_t *report) MLX_MUST_USE;

#endif  // MLXCEL_COMPILER_KERNELS_H_
