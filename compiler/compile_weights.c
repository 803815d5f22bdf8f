// The weight archive: writes it, or takes an earlier one from the cache. A second thread does this while
// NVRTC and iree-compile make the module: hashing and writing take about as long as a module.
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "artifact/bundle.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/leftover.h"
#include "base/memory.h"
#include "base/text.h"
#include "compiler/compile_job.h"
#include "compiler/weights.h"

void mlx_compiled_file_clear(mlx_compiled_file_t *file) {
  mlx_free(file->path);
  mlx_cache_release(&file->entry);
  *file = (mlx_compiled_file_t){0};
}

// An archive that was written before its key was known. Hashing the source files and packing the weights take
// equally long, and the key needs the digest of the source, so the first compilation of a model does both at
// the same time.
typedef struct early {
  char *path;  // owned; NULL if nothing was written
  mlx_cache_hashed_file_t hashed;
  double seconds;
} early_t;

typedef struct weights_fill {
  mlx_compile_job_t *job;
  early_t *early;
  mlx_cache_hashed_file_t hashed;
} weights_fill_t;

static mlx_status_t write_archive(mlx_compile_job_t *job, const char *path, const mlx_report_t *report,
                                  mlx_cache_hashed_file_t *out) {
  snprintf(out->name, sizeof out->name, "%s", MLX_BUNDLE_WEIGHTS);
  MLX_TRY(mlx_weights_write_hashed(job->model, mlx_module_storage(&job->module), path, report, &out->size,
                                   &out->digests));
  return mlx_job_check_source(job);
}

// Another process may have cleared the cache and the early archive with it: it is then written again.
static bool take_early(early_t *early, const char *path, mlx_cache_hashed_file_t *out) {
  if (!early->path) return false;
  mlx_status_t status = mlx_rename(early->path, path);
  const bool taken = !status;
  mlx_status_free(status);
  if (taken) *out = early->hashed;
  return taken;
}

static mlx_status_t fill_weights(void *user, const char *folder, const char *log_path) {
  (void)log_path;
  weights_fill_t *fill = user;
  char *path;
  MLX_TRY(mlx_join_path(folder, MLX_BUNDLE_WEIGHTS, &path));
  mlx_status_t status = NULL;
  if (!take_early(fill->early, path, &fill->hashed))
    status = write_archive(fill->job, path, fill->job->options->report, &fill->hashed);
  mlx_free(path);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Hashing the source files, and writing the archive meanwhile

long mlx_early_archive_ns = 50000000;

// The thread that writes the archive. It reports nothing: the calling thread shows the progress of hashing.
typedef struct writer {
  mlx_compile_job_t *job;
  early_t *early;
  pthread_mutex_t mutex;  // guards the rest
  pthread_cond_t changed;
  bool hashed;  // the source files are hashed
} writer_t;

// Whether hashing ends so soon that writing meanwhile is not worth a file that may be in the cache already.
static bool is_hashed_soon(writer_t *writer) {
  struct timespec until;
  if (mlx_early_archive_ns < 0) return false;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_nsec += mlx_early_archive_ns;
  until.tv_sec += until.tv_nsec / 1000000000;
  until.tv_nsec %= 1000000000;
  pthread_mutex_lock(&writer->mutex);
  while (!writer->hashed && !pthread_cond_timedwait(&writer->changed, &writer->mutex, &until)) continue;
  const bool hashed = writer->hashed;
  pthread_mutex_unlock(&writer->mutex);
  return hashed;
}

// In the folder of the cache for entries that are being made, under a name that `mlxcel rm` knows: KIND-KEY.
static mlx_status_t name_early(const mlx_compile_job_t *job, char **out_path) {
  char *folder, *final = NULL;
  MLX_TRY(mlx_join_path(mlx_cache_folder(job->cache), "tmp", &folder));
  mlx_status_t status = mlx_make_dirs(folder, 0700);
  if (!status) status = mlx_format(&final, "%s/" MLX_WEIGHTS_KIND "-%s", folder, job->source_stamp);
  if (!status) {
    mlx_leftover_remove(final);
    status = mlx_temporary_path(final, out_path);
  }
  mlx_free(final);
  mlx_free(folder);
  return status;
}

// A failure is not reported: the archive is then written when its key is known, and that reports it.
static void write_early(mlx_compile_job_t *job, early_t *early) {
  const double start = mlx_seconds();
  mlx_status_t status = name_early(job, &early->path);
  if (!status) status = write_archive(job, early->path, NULL, &early->hashed);
  early->seconds = mlx_seconds() - start;
  if (status && early->path) {
    mlx_status_free(mlx_remove_tree(early->path));
    mlx_free(early->path);
    early->path = NULL;
  }
  mlx_status_free(status);
}

static void *run_writer(void *user) {
  writer_t *writer = user;
  if (!is_hashed_soon(writer)) write_early(writer->job, writer->early);
  return NULL;
}

// Sets the digests of the source files. *|out_seconds|: the time that hashing took. If no thread can be
// started, the archive is written afterwards.
static mlx_status_t digest_source(mlx_compile_job_t *job, early_t *early, double *out_seconds) {
  const mlx_report_t *report = job->options->report;
  writer_t writer = {.job = job, .early = early};
  mlx_source_digests_t digests;
  pthread_t thread;
  const double start = mlx_seconds();
  pthread_mutex_init(&writer.mutex, NULL);
  pthread_cond_init(&writer.changed, NULL);
  const bool started = !pthread_create(&thread, NULL, run_writer, &writer);
  mlx_status_t status = mlx_source_digest(job->cache, job->model->source, report, &digests);
  *out_seconds = mlx_seconds() - start;
  if (started) {
    pthread_mutex_lock(&writer.mutex);
    writer.hashed = true;
    pthread_cond_signal(&writer.changed);
    pthread_mutex_unlock(&writer.mutex);
    mlx_report_progress(report, "writing the weights");
    pthread_join(thread, NULL);
    mlx_report_done(report);
  }
  pthread_mutex_destroy(&writer.mutex);
  pthread_cond_destroy(&writer.changed);
  if (!status) job->digests = digests;
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// The cache entry

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
    char text[128];
    snprintf(text, sizeof text, "%d %s %d " MLX_TILES_FORMAT "%s%s", (int)stored.kind,
             mlx_dtype_info(stored.dtype)->name, (int)stored.format, MLX_TILES_ARGUMENTS(stored.tiles),
             weight->packing.order ? " sorted columns" : "", weight->row_order ? " sorted rows" : "");
    mlx_digest_field(&digest, "stored", text, strlen(text));
  }
  mlx_digest_field(&digest, "source", job->digests.weights, strlen(job->digests.weights));
  mlx_digest_end(&digest, out_hex);
}

static mlx_status_t get_archive(mlx_compile_job_t *job, early_t *early, mlx_cache_entry_t *out_entry) {
  const double start = mlx_seconds();
  double hash_seconds = 0;
  if (!job->digests.all[0]) MLX_TRY(digest_source(job, early, &hash_seconds));
  const double hashed = mlx_seconds();
  char key[MLX_DIGEST_HEX], title[160];
  weights_key(job, key);
  snprintf(title, sizeof title, "weights of %.64s as %s",
           mlx_file_name(mlx_source_path(job->model->source)).text, mlx_job_storage_name(job));
  weights_fill_t fill = {.job = job, .early = early};
  const mlx_cache_request_t request = {.kind = MLX_WEIGHTS_KIND,
                                       .key = key,
                                       .title = title,
                                       .fill = fill_weights,
                                       .user = &fill,
                                       .hashed = &fill.hashed};
  MLX_TRY(mlx_cache_get(job->cache, &request, job->options->report, out_entry));
  if (job->options->verbose && !out_entry->hit)
    mlx_report_note(job->options->report,
                    "weights: source files hashed in %.1f s, archive written in %.1f s, both in %.1f s",
                    hash_seconds, early->path ? early->seconds : mlx_seconds() - hashed,
                    mlx_seconds() - start);
  return NULL;
}

static mlx_status_t find_weights(mlx_compile_job_t *job, mlx_cache_entry_t *out_entry) {
  early_t early = {0};
  mlx_status_t status = get_archive(job, &early, out_entry);
  if (early.path) mlx_status_free(mlx_remove_tree(early.path));  // unless it is in the cache now
  mlx_free(early.path);
  return status;
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
