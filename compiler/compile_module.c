// The module: runs iree-compile, or takes an earlier result from the cache.
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "artifact/bundle.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/memory.h"
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
  job->kernels.cpu_seconds = &job->nvrtc_seconds;
  MLX_TRY(mlx_kernels_compile(&job->kernels, job->nvrtc, folder, job->options->report));
  if (job->options->verbose)
    mlx_report_note(mlx_job_notes(job), "kernels: %zu images in %.1f s, %.1f s of CPU time",
                    job->kernels.count, mlx_seconds() - start, job->nvrtc_seconds - spent);
  return NULL;
}

// Writes the MLIR beside the log, so that a user can run the logged command line again after a failure.
static mlx_status_t fill_vmfb(void *user, const char *folder, const char *log_path) {
  mlx_compile_job_t *job = user;
  char *mlir_path = NULL, *vmfb_path = NULL, *object_folder = NULL;
  mlx_status_t status = mlx_format(&mlir_path, "%s.mlir", log_path);
  if (!status) status = mlx_format(&object_folder, "%s.kernels", log_path);
  if (!status) status = mlx_join_path(folder, MLX_BUNDLE_VMFB, &vmfb_path);
  if (!status) status = mlx_write_file(mlir_path, job->mlir, job->mlir_length);
  if (!status && job->kernels.count) status = make_kernels(job, object_folder);
  mlx_process_result_t result;
  job->ran_compiler = true;
  if (job->model)
    mlx_report_note(mlx_job_notes(job), "compiling %s for %s: happens once, then cached",
                    mlx_file_name(mlx_source_path(job->model->source)).text,
                    strcmp(job->target.name, "cpu:host") ? job->target.name : "cpu");
  if (!status) {
    const mlx_iree_job_t compilation = {.name = job->title,
                                        .mlir_path = mlir_path,
                                        .out_path = vmfb_path,
                                        .flags = job->target.flags,
                                        .flag_count = job->target.flag_count,
                                        .object_folder = job->kernels.count ? object_folder : NULL,
                                        .log_path = log_path,
                                        .time_limit_seconds = job->options->time_limit_seconds};
    status = mlx_iree_compile(&job->compiler, &compilation, job->options->report, &result);
  }
  if (!status) {
    job->iree_seconds += result.cpu_seconds;
    mlx_status_free(mlx_remove_tree(mlir_path));
    mlx_status_free(mlx_remove_tree(object_folder));
    mlx_report_note(job->options->report, "compiled %s in %.1f s (peak memory of iree-compile: %llu MiB)",
                    job->title, result.elapsed_seconds, (unsigned long long)(result.peak_bytes >> 20));
  }
  mlx_free(mlir_path);
  mlx_free(vmfb_path);
  mlx_free(object_folder);
  return status;
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
  mlx_iree_key(&job->compiler, &input, key);
  digest_kernels(objects, job->kernels.count, job->kernels_digest);
  mlx_kernels_free_objects(&job->kernels, objects);
  const mlx_cache_request_t request = {
      .kind = "vmfb", .key = key, .title = job->title, .fill = fill_vmfb, .user = job};
  return mlx_cache_get(job->cache, &request, job->options->report, out_entry);
}

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
