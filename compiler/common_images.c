// Finds the images that all models share, and writes them to a store.
#include "compiler/common_images.h"

#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "cache/image_store.h"
#include "compiler/compile_job.h"
#include "compiler/emit.h"

#define MAX_IMAGE ((size_t)256 << 20)  // bytes

// ----------------------------------------------------------------------------------------------------------
// The rule

// Definitions that say how a kernel computes, not for which model. Everything else is a size or a constant
// of a model: rows, columns, layers, heads, vocabulary, experts, RoPE frequencies, attention scale.
static const char *const general[] = {
    // Which kernel.
    "NAME", "ELEMENTS", "EMBED", "EPILOGUE", "FEW", "GAIN", "LAYERNORM", "MATRICES", "MIXTURE", "NORM",
    "ordered", "PARTIALS", "PERMUTE", "PLACE", "PRODUCT", "SPLIT_INPUT", "whole_runs", "y_parts",
    // Format of the weights.
    "dtype", "bits", "numbers", "offset", "halves", "center",
    // Tile of a launch.
    "bm", "bn", "SPLIT", "stages", "warps", "groups", "tall", "along", "depth",
    // Experts: the order of their rows, and the function between the products.
    "sorted", "BIAS", "act", "limit", "slope",
    // Attention: its kernel and parameters, size of a head, numbers of the KV pool, form of RoPE, scale of
    // the scores, and its tile.
    "APPEND", "HEAD_NORM", "TURN", "SINKS", "head_dim", "kv", "rotary", "adjacent", "scale", "softcap",
    "long_tiles", "wq", "wk", "keys", "queries", "step", "threads", "warpgroups", "out_16",
    // Tiles of attention: queries of a tile, and query heads that share a KV head.
    "short_queries", "short_share", "long_queries", "long_share",
    // Epsilon of a norm: 1e-5 or 1e-6 in nearly all models.
    "norm_eps", "head_norm_eps"};

static bool is_general(const char *name, size_t length) {
  for (size_t i = 0; i < sizeof general / sizeof *general; ++i) {
    if (strlen(general[i]) == length && !memcmp(general[i], name, length)) return true;
  }
  return false;
}

bool mlx_kernel_image_is_common(const mlx_kernel_image_request_t *image) {
  const char *line = image->definitions;
  while (*line) {
    if (!is_general(line, strcspn(line, "=\n"))) return false;
    line += strcspn(line, "\n");
    line += *line == '\n';
  }
  return true;
}

// ----------------------------------------------------------------------------------------------------------
// The requests of a compilation

static mlx_status_t request_images(mlx_compile_job_t *job, const char *model_path) {
  MLX_TRY(mlx_target_parse(job->options->target, &job->target));
  MLX_TRY(mlx_job_open_model(job, model_path));
  MLX_TRY(mlx_job_module_options(job->model, job->options, MLX_FORM_IREE, &job->module));
  MLX_TRY(mlx_model_build_graph(job->model, job->module.context, &job->graph));
  MLX_TRY(mlx_job_choose_kernels(job));
  return mlx_module_emit_sized(job->model, job->graph, &job->module, &job->mlir, &job->mlir_length,
                               &job->facts);
}

mlx_status_t mlx_common_images_add(const char *model_path, const mlx_compile_options_t *options,
                                   mlx_kernels_t *common) {
  mlx_compile_job_t job = {.options = options};
  const char *file;
  mlx_status_t status = request_images(&job, model_path);
  for (size_t i = 0; !status && i < job.kernels.count; ++i) {
    const mlx_kernel_image_request_t *image = &job.kernels.images[i];
    if (mlx_kernel_image_is_common(image))
      status = mlx_kernels_image(common, image->kind, image->definitions, image->build, &file);
  }
  mlx_kernels_clear(&job.kernels);
  mlx_nvrtc_close(job.nvrtc);
  mlx_free(job.mlir);
  mlx_graph_free(job.graph);
  mlx_model_close(job.model);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Writing

static mlx_status_t read_images(const mlx_kernels_t *common, const mlx_nvrtc_t *nvrtc, const char *folder,
                                mlx_stored_image_t *images) {
  for (size_t i = 0; i < common->count; ++i) {
    char *path;
    MLX_TRY(mlx_kernels_key(common, nvrtc, &common->images[i], images[i].key));
    MLX_TRY(mlx_join_path(folder, common->images[i].file, &path));
    mlx_status_t status = mlx_read_file(path, MAX_IMAGE, &images[i].bytes, &images[i].length);
    mlx_free(path);
    if (status) return status;
  }
  return NULL;
}

mlx_status_t mlx_common_images_write(const mlx_kernels_t *common, const mlx_nvrtc_t *nvrtc,
                                     const char *folder, const mlx_report_t *report, const char *path) {
  mlx_stored_image_t *images;
  MLX_TRY(mlx_kernels_compile(common, nvrtc, folder, report));
  MLX_TRY(mlx_alloc(common->count, sizeof *images, &images));
  mlx_status_t status = read_images(common, nvrtc, folder, images);
  if (!status) status = mlx_image_store_write(path, images, common->count);
  for (size_t i = 0; i < common->count; ++i) mlx_free(images[i].bytes);
  mlx_free(images);
  return status;
}

// Every module has the sampling kernel, which has no definitions.
mlx_status_t mlx_common_images_check(const mlx_gpu_kind_t *gpu, const mlx_nvrtc_t *nvrtc, size_t *out_count,
                                     bool *out_usable) {
  char definitions[] = "", key[MLX_DIGEST_HEX], *path;
  const mlx_kernels_t kernels = {.gpu = gpu};
  const mlx_kernel_image_request_t sample = {.kind = MLX_KERNEL_SAMPLE, .definitions = definitions};
  mlx_image_store_t store = {0};
  const void *bytes = NULL;
  size_t length;
  *out_count = 0;
  *out_usable = false;
  MLX_TRY(mlx_image_store_path(gpu->kernel_sm, &path));
  if (!path) return NULL;
  mlx_status_t status = mlx_image_store_open(path, &store);
  if (!status) status = mlx_kernels_key(&kernels, nvrtc, &sample, key);
  if (!status) status = mlx_image_store_find(&store, key, &bytes, &length);
  *out_count = store.count;
  *out_usable = bytes != NULL;
  mlx_image_store_close(&store);
  mlx_free(path);
  return status;
}
