// Common images: kernel images that do not depend on the sizes of a model, so that a package can ship them
// for all models (cache/image_store.h). release/make_images.c writes the stores.
#ifndef MLXCEL_COMPILER_COMMON_IMAGES_H_
#define MLXCEL_COMPILER_COMMON_IMAGES_H_

#include "compiler/compile.h"
#include "compiler/kernels.h"

// Whether all definitions of an image are general: the kernel, the weight format, the tile of a launch, the
// epsilon of a norm. A definition that this function does not know is taken for a size of a model.
bool mlx_kernel_image_is_common(const mlx_kernel_image_request_t *image);

// Adds to |common| the common images that a compilation of |model_path| for options->target requests, without
// compiling anything. |common| has the GPU of the target, and is empty or the result of earlier calls.
mlx_status_t mlx_common_images_add(const char *model_path, const mlx_compile_options_t *options,
                                   mlx_kernels_t *common) MLX_MUST_USE;

// Compiles the images of |common| into |folder|, or takes them from common->cache, and writes the store
// |path|.
mlx_status_t mlx_common_images_write(const mlx_kernels_t *common, const mlx_nvrtc_t *nvrtc,
                                     const char *folder, const mlx_report_t *report,
                                     const char *path) MLX_MUST_USE;

// Opens the installed store for a GPU. *|out_count| is its number of images, 0 if there is none.
// *|out_usable|: they were made by |nvrtc| from the kernel sources of this mlxcel.
mlx_status_t mlx_common_images_check(const mlx_gpu_kind_t *gpu, const mlx_nvrtc_t *nvrtc, size_t *out_count,
                                     bool *out_usable) MLX_MUST_USE;

#endif  // MLXCEL_COMPILER_COMMON_IMAGES_H_
