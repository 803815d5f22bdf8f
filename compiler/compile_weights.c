// The weight archive: writes it, or takes an earlier one from the cache. A second thread does this while
// NVRTC and iree-compile make the module: hashing and writing take about as long as a module.
#include <stdio.h>
#include <string.h>

#include "artifact/bundle.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/memory.h"
#include "compiler/background.h"
#include "compiler/compile_job.h"
#include "compiler/weights.h"

void mlx_compiled_file_clear(mlx_compiled_file_t *file) {
  mlx_free(file->path);
  mlx_cache_release(&file->entry);
  *file = (mlx_compiled_file_t){0};
}

// ----------------------------------------------------------------------------------------------------------
// The cache entry

typedef struct weights_fill {
  mlx_compile_job_t *job;
  mlx_cache_hashed_file_t hashed;
} weights_fill_t;

static mlx_status_t fill_weights(void *user, const char *folder, const char *log_path) {
  (void)log_path;
  weights_fill_t *fill = user;
  mlx_compile_job_t *job = fill->job;
  char *path;
  MLX_TRY(mlx_join_path(folder, MLX_BUNDLE_WEIGHTS, &path));
  snprintf(fill->hashed.name, sizeof fill->hashed.name, "%s", MLX_BUNDLE_WEIGHTS);
  mlx_status_t status =
      mlx_weights_write_hashed(job->model, mlx_module_storage(&job->module), path, !job->options->for_engine,
                               job->options->report, &fill->hashed);
  mlx_free(path);
  return status ? status : mlx_job_check_source(job);
}

static void weights_key(const mlx_compile_job_t *job, char out_hex[MLX_DIGEST_HEX]) {
  mlx_digest_t digest;
  mlx_digest_begin(&digest);
  static const char *const layouts[] = {[MLX_LAYOUT_ROWS] = MLX_WEIGHTS_LAYOUT,
                                        [MLX_LAYOUT_PANELS] = MLX_PANELS_LAYOUT,
                                        [MLX_LAYOUT_QUANTIZED_PANELS] = MLX_PANELS_LAYOUT,
                                        [MLX_LAYOUT_TILES] = MLX_TILES_LAYOUT};
  mlx_digest_field(&digest, "layout", layouts[job->module.layout], strlen(layouts[job->module.layout]));
  // How a weight is stored depends on more than the source files: on the options, and mlx_module_use_kernels
  // unifies tile formats across layers.
  for (size_t i = 0; i < job->model->weight_count; ++i) {
    const mlx_stored_t stored = mlx_weight_stored(&job->model->weights[i], mlx_module_storage(&job->module));
    const mlx_weight_t *weight = &job->model->weights[i];
    char text[256], part[96] = "";
    if (weight->first_row || weight->stored_columns)
      snprintf(part, sizeof part, " from row %lld, column %lld of %lld", (long long)weight->first_row,
               (long long)weight->first_column, (long long)weight->stored_columns);
    snprintf(text, sizeof text, "%d %s %d " MLX_TILES_FORMAT "%s%s%s", (int)stored.kind,
             mlx_dtype_info(stored.dtype)->name, (int)stored.format, MLX_TILES_ARGUMENTS(stored.tiles),
             weight->packing.order ? " sorted columns" : "", weight->row_order ? " sorted rows" : "", part);
    mlx_digest_field(&digest, "stored", text, strlen(text));
    if (part[0]) mlx_digest_field(&digest, "rows", weight->tensor.dims, sizeof weight->tensor.dims);
  }
  mlx_digest_field(&digest, "source", job->source_tree, strlen(job->source_tree));
  mlx_digest_end(&digest, out_hex);
}

// Hashing the source files takes a fraction of the time of packing them, so the key is computed first.
static mlx_status_t find_weights(mlx_compile_job_t *job, mlx_cache_entry_t *out_entry) {
  const mlx_report_t *report = job->options->report;
  const double start = mlx_seconds();
  if (!job->source_tree[0])
    MLX_TRY(mlx_source_tree_digest(job->cache, job->model->source, report, job->source_tree));
  const double hashed = mlx_seconds();
  char key[MLX_DIGEST_HEX], title[160];
  weights_key(job, key);
  snprintf(title, sizeof title, "weights of %.64s as %s",
           mlx_file_name(mlx_source_path(job->model->source)).text, mlx_job_storage_name(job));
  weights_fill_t fill = {.job = job};
  const mlx_cache_request_t request = {.kind = MLX_WEIGHTS_KIND,
                                       .key = key,
                                       .title = title,
                                       .fill = fill_weights,
                                       .user = &fill,
                                       .hashed = &fill.hashed};
  MLX_TRY(mlx_cache_get(job->cache, &request, report, out_entry));
  if (job->options->verbose && !out_entry->hit)
    mlx_report_note(report, "weights: source files hashed in %.1f s, archive written in %.1f s",
                    hashed - start, mlx_seconds() - hashed);
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// The thread

struct mlx_weights_thread {
  mlx_background_t *background;
  mlx_compile_options_t options;
  mlx_compile_job_t job;  // a copy; the model, graph and cache are the caller's
  mlx_cache_entry_t entry;
};

static mlx_status_t run_thread(void *user, const mlx_report_t *report) {
  mlx_weights_thread_t *thread = user;
  thread->options.report = report;
  return find_weights(&thread->job, &thread->entry);
}

mlx_status_t mlx_job_start_weights(mlx_compile_job_t *job) {
  mlx_weights_thread_t *thread;
  MLX_TRY(mlx_alloc(1, sizeof *thread, &thread));
  thread->options = *job->options;
  thread->job = *job;
  thread->job.options = &thread->options;
  mlx_status_t status = mlx_background_start(run_thread, thread, job->options->report, &thread->background);
  if (thread->background)
    job->weights = thread;
  else
    mlx_free(thread);
  return status;
}

static mlx_status_t join_weights(mlx_compile_job_t *job, mlx_cache_entry_t *out_entry) {
  mlx_weights_thread_t *thread = job->weights;
  mlx_status_t status = mlx_background_join(thread->background);
  job->weights = NULL;
  memcpy(job->source_tree, thread->job.source_tree, sizeof job->source_tree);
  *out_entry = thread->entry;
  mlx_free(thread);
  return status;
}

void mlx_job_stop_weights(mlx_compile_job_t *job) {
  mlx_cache_entry_t entry = {0};
  if (!job->weights) return;
  mlx_status_free(join_weights(job, &entry));
  mlx_cache_release(&entry);
}

// Targets that store the weights identically share an archive.
mlx_status_t mlx_job_get_weights(mlx_compile_job_t *job, mlx_compiled_t *out,
                                 const mlx_compiled_file_t **out_archive) {
  mlx_compiled_file_t *archive = &out->weights[out->weights_count];
  MLX_TRY(job->weights ? join_weights(job, &archive->entry) : find_weights(job, &archive->entry));
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
