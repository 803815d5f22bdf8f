// The module: runs iree-compile, or takes an earlier result from the cache.
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "artifact/bundle.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/memory.h"
#include "compiler/background.h"
#include "compiler/compile_job.h"

void mlx_job_write_title(const mlx_title_t *title, char *out, size_t size) {
  snprintf(out, size, "%.64s as %s for %s, context %lld", title->model, title->dtype, title->target,
           (long long)title->context);
}

// Searches from the end, because a model may be named "x as y for z".
bool mlx_compiled_title(const char *text, mlx_title_t *out) {
  const char *as = NULL, *next = text;
  while ((next = strstr(next, " as "))) as = next++;
  *out = (mlx_title_t){0};
  if (!as ||
      sscanf(as, " as %15s for %63[^,], context %" SCNd64, out->dtype, out->target, &out->context) != 3)
    return false;
  snprintf(out->model, sizeof out->model, "%.*s", (int)(as - text < 127 ? as - text : 127), text);
  return true;
}

static mlx_status_t make_kernels(mlx_compile_job_t *job, const char *folder) {
  const double start = mlx_seconds();
  const double spent = job->nvrtc_seconds;
  job->kernels.cache = job->cache;
  mlx_image_counts_t counts = {0};
  job->kernels.cpu_seconds = &job->nvrtc_seconds;
  job->kernels.counts = &counts;
  mlx_status_t status = mlx_kernels_compile(&job->kernels, job->nvrtc, folder, job->options->report);
  job->kernels.counts = NULL;
  if (status || !job->options->verbose) return status;
  mlx_report_note(mlx_job_notes(job), "kernels: %zu images in %.1f s, %.1f s of CPU time", job->kernels.count,
                  mlx_seconds() - start, job->nvrtc_seconds - spent);
  if (job->kernels.gpu)
    mlx_report_note(mlx_job_notes(job),
                    "kernels: %zu of %zu images from the installed store, %zu from the cache, "
                    "%zu compiled by NVRTC",
                    counts.stored, job->kernels.count, counts.cached, counts.compiled);
  return NULL;
}

// The files of one compilation, all owned. Those beside the log stay there after a failure, so that a user
// can run the logged command line again.
typedef struct module_files {
  char *mlir, *bytecode, *objects, *first_log, *vmfb;
} module_files_t;

static mlx_status_t name_files(const char *folder, const char *log_path, module_files_t *files) {
  MLX_TRY(mlx_format(&files->mlir, "%s.mlir", log_path));
  MLX_TRY(mlx_format(&files->bytecode, "%s.mlirbc", log_path));
  MLX_TRY(mlx_format(&files->objects, "%s.kernels", log_path));
  MLX_TRY(mlx_format(&files->first_log, "%s.first", log_path));
  return mlx_join_path(folder, MLX_BUNDLE_VMFB, &files->vmfb);
}

static void remove_files(const module_files_t *files) {
  const char *const paths[] = {files->mlir, files->bytecode, files->objects, files->first_log};
  for (size_t i = 0; i < sizeof paths / sizeof *paths; ++i) mlx_status_free(mlx_remove_tree(paths[i]));
}

static void free_files(module_files_t *files) {
  mlx_free(files->mlir);
  mlx_free(files->bytecode);
  mlx_free(files->objects);
  mlx_free(files->first_log);
  mlx_free(files->vmfb);
}

// The first half of iree-compile, on a thread of its own.
typedef struct first_half {
  const mlx_compile_job_t *job;
  mlx_iree_job_t compilation;
  atomic_bool cancelled;
  mlx_process_result_t result;
  mlx_status_t status;
} first_half_t;

static void *run_first_half(void *user) {
  first_half_t *half = user;
  half->status = mlx_iree_compile(&half->job->compiler, &half->compilation, NULL, &half->result);
  return NULL;
}

// iree-compile needs the images of the kernels only in its second half, so the first one runs beside NVRTC.
static mlx_status_t make_halves(mlx_compile_job_t *job, const mlx_iree_job_t *whole,
                                const module_files_t *files, mlx_process_result_t *out_result) {
  first_half_t first = {.job = job, .compilation = *whole};
  first.compilation.half = MLX_IREE_FIRST_HALF;
  first.compilation.out_path = files->bytecode;
  first.compilation.log_path = files->first_log;
  first.compilation.cancelled = &first.cancelled;
  pthread_t thread;
  const bool started = !pthread_create(&thread, NULL, run_first_half, &first);
  mlx_status_t status = make_kernels(job, files->objects);
  if (status) atomic_store(&first.cancelled, true);
  if (started)
    pthread_join(thread, NULL);
  else if (!status)
    run_first_half(&first);
  if (status) {
    mlx_status_free(first.status);
    return status;
  }
  if (first.status) return first.status;
  mlx_iree_job_t second = *whole;
  second.half = MLX_IREE_SECOND_HALF;
  second.mlir_path = files->bytecode;
  MLX_TRY(mlx_iree_compile(&job->compiler, &second, job->options->report, out_result));
  out_result->cpu_seconds += first.result.cpu_seconds;
  out_result->elapsed_seconds += first.result.elapsed_seconds;
  if (out_result->peak_bytes < first.result.peak_bytes) out_result->peak_bytes = first.result.peak_bytes;
  return NULL;
}

static mlx_status_t make_module(mlx_compile_job_t *job, const module_files_t *files, const char *log_path,
                                mlx_process_result_t *out_result) {
  const mlx_iree_job_t compilation = {.name = job->title,
                                      .mlir_path = files->mlir,
                                      .out_path = files->vmfb,
                                      .flags = job->target.flags,
                                      .flag_count = job->target.flag_count,
                                      .object_folder = job->kernels.count ? files->objects : NULL,
                                      .log_path = log_path,
                                      .time_limit_seconds = job->options->time_limit_seconds};
  MLX_TRY(mlx_write_file(files->mlir, job->mlir, job->mlir_length));
  if (job->kernels.count && job->kernels.gpu) return make_halves(job, &compilation, files, out_result);
  if (job->kernels.count) MLX_TRY(make_kernels(job, files->objects));  // copies prebuilt objects
  return mlx_iree_compile(&job->compiler, &compilation, job->options->report, out_result);
}

// ----------------------------------------------------------------------------------------------------------
// The cache entry: the module and its record

// Takes the module from a remote cache. *|out_found| is false if it has to be compiled.
static mlx_status_t fetch_module(mlx_compile_job_t *job, const module_files_t *files,
                                 mlx_module_record_t *out_record, bool *out_found) {
  const bool absent = job->no_compiler != NULL;
  mlx_module_wanted_t wanted = {.compiler = absent ? mlx_iree_needed_version : job->compiler.version,
                                .compiler_digest = absent ? "" : job->compiler.digest};
  char *fetched;
  *out_found = false;
  if (!job->options->fetch) return NULL;
  memcpy(wanted.key, job->module_key, sizeof wanted.key);
  // In a folder of its own, because an incomplete download has other files beside it.
  MLX_TRY(mlx_make_dirs(files->objects, 0700));
  mlx_status_t status = mlx_join_path(files->objects, MLX_BUNDLE_VMFB, &fetched);
  if (!status) status = job->options->fetch(job->options->remote, &wanted, fetched, out_record);
  if (!status) status = mlx_rename(fetched, files->vmfb);
  mlx_free(fetched);
  mlx_status_free(mlx_remove_tree(files->objects));
  const mlx_code_t code = mlx_status_code(status);
  *out_found = !status;
  if (code == MLX_CANCELLED || code == MLX_OUT_OF_MEMORY) return status;
  if (status && (code != MLX_NOT_FOUND || job->options->verbose || absent))
    mlx_report_note(mlx_job_notes(job), "the remote cache is not used for %s: %s", job->title,
                    mlx_status_message(status));
  else if (!status)
    mlx_report_note(mlx_job_notes(job), "took %s from the remote cache", job->title);
  mlx_status_free(status);
  return NULL;
}

static mlx_status_t compile_entry(mlx_compile_job_t *job, const module_files_t *files, const char *log_path,
                                  mlx_module_record_t *out_record) {
  mlx_process_result_t result = {0};
  mlx_file_stamp_t stamp;
  if (job->no_compiler) {
    mlx_status_t status = job->no_compiler;
    job->no_compiler = NULL;
    return status;
  }
  job->ran_compiler = true;
  if (job->model)
    mlx_report_note(mlx_job_notes(job), "compiling %s for %s: happens once, then cached",
                    mlx_file_name(mlx_source_path(job->model->source)).text,
                    strcmp(job->target.name, "cpu:host") ? job->target.name : "cpu");
  MLX_TRY(make_module(job, files, log_path, &result));
  job->iree_seconds += result.cpu_seconds;
  job->iree_elapsed += result.elapsed_seconds;
  if (result.peak_bytes > job->iree_peak) job->iree_peak = result.peak_bytes;
  remove_files(files);
  *out_record = (mlx_module_record_t){0};
  memcpy(out_record->key, job->module_key, sizeof out_record->key);
  memcpy(out_record->compiler_digest, job->compiler.digest, sizeof out_record->compiler_digest);
  snprintf(out_record->compiler, sizeof out_record->compiler, "%s", job->compiler.version);
  snprintf(out_record->title, sizeof out_record->title, "%s", job->title);
  MLX_TRY(mlx_file_stamp(files->vmfb, &stamp));
  out_record->size = stamp.size;
  return mlx_digest_file(files->vmfb, NULL, out_record->sha256);
}

static mlx_status_t write_record(const mlx_module_record_t *record, const char *folder) {
  mlx_text_t text = {0};
  char *path = NULL;
  mlx_status_t status = mlx_module_record_write(record, &text);
  if (!status) status = mlx_join_path(folder, MLX_MODULE_RECORD, &path);
  if (!status) status = mlx_write_file(path, text.data, text.length);
  mlx_free(path);
  mlx_text_clear(&text);
  return status;
}

static mlx_status_t fill_vmfb(void *user, const char *folder, const char *log_path) {
  mlx_compile_job_t *job = user;
  module_files_t files = {0};
  mlx_module_record_t record;
  bool found = false;
  mlx_status_t status = name_files(folder, log_path, &files);
  if (!status) status = fetch_module(job, &files, &record, &found);
  if (!status && !found) status = compile_entry(job, &files, log_path, &record);
  if (!status) status = write_record(&record, folder);
  free_files(&files);
  return status;
}

// The compiler of a module that was not made here, for the manifest.
static mlx_status_t read_compiler(mlx_compile_job_t *job, const char *folder) {
  mlx_module_record_t record;
  char *path, *text = NULL;
  size_t length;
  MLX_TRY(mlx_join_path(folder, MLX_MODULE_RECORD, &path));
  mlx_status_t status = mlx_read_file(path, MLX_MAX_MODULE_RECORD, &text, &length);
  if (!status) status = mlx_module_record_read(path, text, length, &record);
  mlx_free(text);
  mlx_free(path);
  if (status) return status;
  mlx_free(job->compiler.version);
  memcpy(job->compiler.digest, record.compiler_digest, sizeof job->compiler.digest);
  return mlx_copy_text(record.compiler, strlen(record.compiler), &job->compiler.version);
}

// Identifies the version of our kernels in a module. A portable model records the digest of its last module:
// all come from the same mlxcel.
static void digest_kernels(const mlx_iree_object_t *objects, size_t count, char out_hex[MLX_DIGEST_HEX]) {
  mlx_digest_t digest;
  out_hex[0] = 0;
  if (!count) return;
  mlx_digest_begin(&digest);
  for (size_t i = 0; i < count; ++i)
    mlx_digest_field(&digest, objects[i].name, objects[i].bytes, objects[i].length);
  mlx_digest_end(&digest, out_hex);
}

mlx_status_t mlx_job_get_module(mlx_compile_job_t *job, mlx_cache_entry_t *out_entry) {
  char key[MLX_DIGEST_HEX], target[sizeof job->target.name + MLX_DIGEST_HEX + 1];
  snprintf(target, sizeof target, "%s %s", job->target.name, job->target.cpu);
  mlx_iree_object_t *objects = NULL;
  if (job->kernels.count) MLX_TRY(mlx_kernels_objects(&job->kernels, job->nvrtc, &objects));
  const mlx_iree_input_t input = {.mlir = job->mlir,
                                  .mlir_length = job->mlir_length,
                                  .flags = job->target.flags,
                                  .flag_count = job->target.flag_count,
                                  .target = target,
                                  .objects = objects,
                                  .object_count = job->kernels.count};
  mlx_iree_key(NULL, &input, job->module_key);
  mlx_iree_key(job->no_compiler ? NULL : &job->compiler, &input, key);
  digest_kernels(objects, job->kernels.count, job->kernels_digest);
  mlx_kernels_free_objects(&job->kernels, objects);
  const mlx_cache_request_t request = {
      .kind = "vmfb", .key = key, .title = job->title, .fill = fill_vmfb, .user = job};
  const bool absent = job->no_compiler != NULL;
  MLX_TRY(mlx_cache_get(job->cache, &request, job->options->report, out_entry));
  return absent ? read_compiler(job, out_entry->folder) : NULL;
}

// ----------------------------------------------------------------------------------------------------------
// The compiler

struct mlx_compiler_thread {
  mlx_background_t *background;
  mlx_cache_t *cache;
  const char *path;  // options->iree_compile
  mlx_iree_compiler_t compiler;
};

static mlx_status_t find_compiler(void *user, const mlx_report_t *report) {
  mlx_compiler_thread_t *thread = user;
  return mlx_iree_compiler_find(thread->cache, thread->path, report, &thread->compiler);
}

mlx_status_t mlx_job_start_compiler(mlx_compile_job_t *job) {
  mlx_compiler_thread_t *thread;
  MLX_TRY(mlx_alloc(1, sizeof *thread, &thread));
  thread->cache = job->cache;
  thread->path = job->options->iree_compile;
  mlx_status_t status =
      mlx_background_start(find_compiler, thread, job->options->report, &thread->background);
  if (thread->background)
    job->compiler_thread = thread;
  else
    mlx_free(thread);
  return status;
}

static mlx_status_t take_compiler(mlx_compile_job_t *job) {
  mlx_compiler_thread_t *thread = job->compiler_thread;
  if (!thread)
    return mlx_iree_compiler_find(job->cache, job->options->iree_compile, job->options->report,
                                  &job->compiler);
  mlx_status_t status = mlx_background_join(thread->background);
  job->compiler = thread->compiler;
  job->compiler_thread = NULL;
  mlx_free(thread);
  return status;
}

mlx_status_t mlx_job_get_compiler(mlx_compile_job_t *job) {
  if (job->compiler.path || job->no_compiler) return NULL;
  mlx_status_t status = take_compiler(job);
  if (mlx_status_code(status) != MLX_NOT_FOUND) return status;
  job->no_compiler = status;
  return NULL;
}

void mlx_job_stop_compiler(mlx_compile_job_t *job) {
  if (job->compiler_thread) mlx_status_free(mlx_job_get_compiler(job));
}

// ----------------------------------------------------------------------------------------------------------
// A test module

static const char smoke_module[] =
    "module @mlxcel {\n"
    "  func.func @smoke(%x: tensor<4xi32> {iree.abi.output = 0 : index}) -> tensor<4xi32> {\n"
    "    %twice = stablehlo.add %x, %x : tensor<4xi32>\n"
    "    return %twice : tensor<4xi32>\n"
    "  }\n"
    "}\n";

mlx_status_t mlx_compile_smoke(mlx_cache_t *cache, const char *target, const mlx_report_t *report,
                               mlx_cache_entry_t *out_entry, char **out_path) {
  const mlx_compile_options_t options = {.report = report};
  mlx_compile_job_t job = {.options = &options,
                           .cache = cache,
                           .mlir = (char *)(uintptr_t)smoke_module,
                           .mlir_length = strlen(smoke_module)};
  *out_path = NULL;
  snprintf(job.title, sizeof job.title, "test module for %.40s", target);
  MLX_TRY(mlx_target_parse(target, &job.target));
  MLX_TRY(mlx_iree_compiler_find(cache, NULL, report, &job.compiler));
  mlx_status_t status = mlx_job_get_module(&job, out_entry);
  mlx_iree_compiler_release(&job.compiler);
  return status ? status : mlx_join_path(out_entry->folder, MLX_BUNDLE_VMFB, out_path);
}
