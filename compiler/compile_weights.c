// The weight archive: writes it, or takes an earlier one from the cache. A second thread does this while
// NVRTC and iree-compile make the module: hashing and writing take about as long as a module.
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "artifact/bundle.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/memory.h"
#include "compiler/compile_job.h"
#include "compiler/weights.h"

void mlx_compiled_file_clear(mlx_compiled_file_t *file) {
  mlx_free(file->path);
  mlx_cache_release(&file->entry);
  *file = (mlx_compiled_file_t){0};
}

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
  mlx_status_t status =
      mlx_weights_write_hashed(job->model, mlx_module_storage(&job->module), path, job->options->report,
                               &fill->hashed.size, &fill->hashed.digests);
  if (!status) status = mlx_job_check_source(job);
  mlx_free(path);
  return status;
}

static mlx_status_t find_weights(mlx_compile_job_t *job, mlx_cache_entry_t *out_entry) {
  const double start = mlx_seconds();
  if (!job->digests.all[0]) {
    MLX_TRY(mlx_source_digest(job->cache, job->model->source, job->options->report, &job->digests));
  }
  const double hashed = mlx_seconds();
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
  mlx_digest_field(&digest, "source", job->digests.weights, strlen(job->digests.weights));
  mlx_digest_end(&digest, key);
  char title[160];
  snprintf(title, sizeof title, "weights of %.64s as %s",
           mlx_file_name(mlx_source_path(job->model->source)).text, dtype);
  weights_fill_t fill = {.job = job, .hashed = {.name = MLX_BUNDLE_WEIGHTS}};
  const mlx_cache_request_t request = {.kind = MLX_WEIGHTS_KIND,
                                       .key = key,
                                       .title = title,
                                       .fill = fill_weights,
                                       .user = &fill,
                                       .hashed = &fill.hashed};
  MLX_TRY(mlx_cache_get(job->cache, &request, job->options->report, out_entry));
  if (job->options->verbose && !out_entry->hit)
    mlx_report_note(job->options->report, "weights: source files hashed in %.1f s, archive written in %.1f s",
                    hashed - start, mlx_seconds() - hashed);
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// The thread

struct mlx_weights_thread {
  pthread_t thread;
  mlx_compile_options_t options;  // with |report| below
  mlx_compile_job_t job;          // a copy; the model, graph and cache are the caller's
  mlx_report_t report;
  mlx_cache_entry_t entry;
  mlx_status_t status;
  pthread_mutex_t mutex;  // guards the rest
  pthread_cond_t changed;
  bool done, has_progress, has_note;
  char progress[256], note[256];  // the last ones that were not yet relayed
};

static void keep_report(void *user, mlx_report_kind_t kind, const char *text) {
  mlx_weights_thread_t *thread = user;
  pthread_mutex_lock(&thread->mutex);
  if (kind == MLX_REPORT_NOTE) {
    snprintf(thread->note, sizeof thread->note, "%s", text);
    thread->has_note = true;
  } else {
    snprintf(thread->progress, sizeof thread->progress, "%s", text);
    thread->has_progress = true;
  }
  pthread_cond_signal(&thread->changed);
  pthread_mutex_unlock(&thread->mutex);
}

static void *run_thread(void *user) {
  mlx_weights_thread_t *thread = user;
  thread->status = find_weights(&thread->job, &thread->entry);
  pthread_mutex_lock(&thread->mutex);
  thread->done = true;
  pthread_cond_signal(&thread->changed);
  pthread_mutex_unlock(&thread->mutex);
  return NULL;
}

static void free_thread(mlx_weights_thread_t *thread) {
  pthread_mutex_destroy(&thread->mutex);
  pthread_cond_destroy(&thread->changed);
  mlx_free(thread);
}

mlx_status_t mlx_job_start_weights(mlx_compile_job_t *job) {
  mlx_weights_thread_t *thread;
  MLX_TRY(mlx_alloc(1, sizeof *thread, &thread));
  pthread_mutex_init(&thread->mutex, NULL);
  pthread_cond_init(&thread->changed, NULL);
  thread->report = (mlx_report_t){.emit = keep_report, .user = thread};
  thread->options = *job->options;
  thread->options.report = &thread->report;
  thread->job = *job;
  thread->job.options = &thread->options;
  if (pthread_create(&thread->thread, NULL, run_thread, thread))
    free_thread(thread);
  else
    job->weights = thread;
  return NULL;
}

// Reports what the thread reports, on the calling thread, until it is done.
static void relay_reports(mlx_weights_thread_t *thread, const mlx_report_t *report) {
  for (bool done = false; !done;) {
    char progress[sizeof thread->progress] = "", note[sizeof thread->note] = "";
    pthread_mutex_lock(&thread->mutex);
    while (!thread->done && !thread->has_progress && !thread->has_note)
      pthread_cond_wait(&thread->changed, &thread->mutex);
    if (thread->has_progress) memcpy(progress, thread->progress, sizeof progress);
    if (thread->has_note) memcpy(note, thread->note, sizeof note);
    thread->has_progress = thread->has_note = false;
    done = thread->done;
    pthread_mutex_unlock(&thread->mutex);
    if (note[0]) mlx_report_note(report, "%s", note);
    if (progress[0]) mlx_report_progress(report, "%s", progress);
  }
  mlx_report_done(report);
}

static mlx_status_t join_weights(mlx_compile_job_t *job, mlx_cache_entry_t *out_entry) {
  mlx_weights_thread_t *thread = job->weights;
  relay_reports(thread, job->options->report);
  pthread_join(thread->thread, NULL);
  job->weights = NULL;
  job->digests = thread->job.digests;
  *out_entry = thread->entry;
  mlx_status_t status = thread->status;
  free_thread(thread);
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
  memcpy(job->manifest.source_digest, job->digests.all, sizeof job->manifest.source_digest);
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
