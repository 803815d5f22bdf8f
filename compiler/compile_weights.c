// The weight archive: writes it, or takes an earlier one from the cache.
#include <stdio.h>
#include <string.h>

#include "artifact/bundle.h"
#include "base/file.h"
#include "base/memory.h"
#include "compiler/compile_job.h"
#include "compiler/weights.h"

void mlx_compiled_file_clear(mlx_compiled_file_t *file) {
  mlx_free(file->path);
  mlx_cache_release(&file->entry);
  *file = (mlx_compiled_file_t){0};
}

static mlx_status_t fill_weights(void *user, const char *folder, const char *log_path) {
  (void)log_path;
  mlx_compile_job_t *job = user;
  char *path;
  MLX_TRY(mlx_join_path(folder, MLX_BUNDLE_WEIGHTS, &path));
  mlx_status_t status =
      mlx_weights_write(job->model, mlx_module_storage(&job->module), path, job->options->report);
  if (!status) status = mlx_job_check_source(job);
  mlx_free(path);
  return status;
}

static mlx_status_t find_weights(mlx_compile_job_t *job, mlx_cache_entry_t *out_entry) {
  char key[MLX_DIGEST_HEX];
  mlx_digest_t digest;
  mlx_digest_begin(&digest);
  const char *dtype = mlx_job_storage_name(job);
  static const char *const layouts[] = {[MLX_LAYOUT_ROWS] = MLX_WEIGHTS_LAYOUT,
                                        [MLX_LAYOUT_PANELS] = MLX_PANELS_LAYOUT,
                                        [MLX_LAYOUT_QUANTIZED_PANELS] = MLX_PANELS_LAYOUT,
                                        [MLX_LAYOUT_TILES] = MLX_TILES_LAYOUT};
  mlx_digest_field(&digest, "layout", layouts[job->module.layout], strlen(layouts[job->module.layout]));
  // How a weight is stored depends on more than the source files: on the options, and mlx_module_use_kernels
  // unifies tile formats across layers.
  for (size_t i = 0; i < job->model->weight_count; ++i) {
    const mlx_stored_t stored = mlx_weight_stored(&job->model->weights[i], mlx_module_storage(&job->module));
    char text[96];
    snprintf(text, sizeof text, "%d %s %d " MLX_TILES_FORMAT, (int)stored.kind,
             mlx_dtype_info(stored.dtype)->name, (int)stored.format, MLX_TILES_ARGUMENTS(stored.tiles));
    mlx_digest_field(&digest, "stored", text, strlen(text));
  }
  mlx_digest_field(&digest, "source", job->weights_digest, strlen(job->weights_digest));
  mlx_digest_end(&digest, key);
  char title[160];
  snprintf(title, sizeof title, "weights of %.64s as %s",
           mlx_file_name(mlx_source_path(job->model->source)).text, dtype);
  const mlx_cache_request_t request = {
      .kind = MLX_WEIGHTS_KIND, .key = key, .title = title, .fill = fill_weights, .user = job};
  return mlx_cache_get(job->cache, &request, job->options->report, out_entry);
}

// Targets that store the weights identically share an archive.
mlx_status_t mlx_job_get_weights(mlx_compile_job_t *job, mlx_compiled_t *out,
                                 const mlx_compiled_file_t **out_archive) {
  mlx_compiled_file_t *archive = &out->weights[out->weights_count];
  MLX_TRY(find_weights(job, &archive->entry));
  ++out->weights_count;
  MLX_TRY(mlx_join_path(archive->entry.folder, MLX_BUNDLE_WEIGHTS, &archive->path));
  snprintf(archive->name, sizeof archive->name, "%s", mlx_bundle_weights(out->weights_count - 1).text);
  for (size_t i = 0; i + 1 < out->weights_count; ++i) {
    if (strcmp(out->weights[i].path, archive->path)) continue;
    mlx_compiled_file_clear(archive);
    --out->weights_count;
    archive = &out->weights[i];
    break;
  }
  out->weights_path = out->weights[0].path;
  *out_archive = archive;
  return NULL;
}
