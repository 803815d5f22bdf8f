#include "compiler/compile.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "artifact/manifest.h"
#include "base/file.h"
#include "base/memory.h"
#include "compiler/driver.h"
#include "compiler/graph.h"
#include "compiler/target.h"
#include "compiler/weights.h"

// One compilation: everything both cache entries and the manifest are made from.
typedef struct job {
  const mlx_compile_options_t *options;
  mlx_cache_t *cache;
  mlx_model_t *model;
  mlx_target_t target;
  mlx_graph_options_t graph;
  mlx_iree_compiler_t compiler;
  char *mlir;
  size_t mlir_length;
  char title[192];
} job_t;

static const char *file_name(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash && slash[1] ? slash + 1 : path;
}

// ---------------------------------------------------------------------------------------------------------------------
// The graph

static mlx_status_t make_graph(const mlx_model_t *model, const mlx_compile_options_t *options, mlx_form_t form,
                               mlx_graph_options_t *out_graph) {
  if (options->context < 0 || options->context > model->config.context) {
    return mlx_status_hint(mlx_error(MLX_USAGE, "a context of %lld was asked for; the model was made for %lld positions",
                                     (long long)options->context, (long long)model->config.context),
                           "use --ctx %lld or less", (long long)model->config.context);
  }
  mlx_graph_options_initialize(model, options->context, out_graph);
  out_graph->form = form;
  if (options->rows) out_graph->rows = options->rows;
  return NULL;
}

mlx_status_t mlx_compile_stablehlo(const char *model_path, const mlx_compile_options_t *options, char **out_text,
                                   size_t *out_length) {
  *out_text = NULL;
  mlx_model_t *model;
  mlx_graph_options_t graph;
  MLX_TRY(mlx_model_open(model_path, &model));
  mlx_status_t status = make_graph(model, options, MLX_FORM_PURE, &graph);
  if (!status) status = mlx_graph_emit(model, &graph, out_text, out_length);
  mlx_model_close(model);
  return status;
}

// ---------------------------------------------------------------------------------------------------------------------
// The vmfb

static mlx_status_t fill_vmfb(void *user, const char *folder, const char *log_path) {
  job_t *job = user;
  char *mlir_path = NULL, *vmfb_path = NULL;
  mlx_status_t status = mlx_join_path(folder, "model.mlir", &mlir_path);
  if (!status) status = mlx_join_path(folder, MLX_BUNDLE_VMFB, &vmfb_path);
  if (!status) status = mlx_write_file(mlir_path, job->mlir, job->mlir_length);
  mlx_process_result_t result;
  if (!status) {
    const mlx_iree_job_t compilation = {.name = job->title,
                                        .mlir_path = mlir_path,
                                        .out_path = vmfb_path,
                                        .flags = job->target.flags,
                                        .flag_count = job->target.flag_count,
                                        .log_path = log_path,
                                        .time_limit_seconds = job->options->time_limit_seconds};
    status = mlx_iree_compile(&job->compiler, &compilation, job->options->report, &result);
  }
  if (!status) {
    mlx_report_note(job->options->report, "compiled %s in %.1f s (iree-compile's peak memory: %llu MiB)", job->title,
                    result.elapsed_seconds, (unsigned long long)(result.peak_bytes >> 20));
  }
  mlx_free(mlir_path);
  mlx_free(vmfb_path);
  return status;
}

static mlx_status_t get_vmfb(job_t *job, mlx_cache_entry_t *out_entry) {
  char key[MLX_DIGEST_HEX], target[sizeof job->target.name + MLX_DIGEST_HEX + 1];
  snprintf(target, sizeof target, "%s %s", job->target.name, job->target.cpu);
  const mlx_iree_input_t input = {.mlir = job->mlir,
                                  .mlir_length = job->mlir_length,
                                  .flags = job->target.flags,
                                  .flag_count = job->target.flag_count,
                                  .target = target};
  mlx_iree_key(&job->compiler, &input, key);
  const mlx_cache_request_t request = {.kind = "vmfb", .key = key, .title = job->title, .fill = fill_vmfb, .user = job};
  return mlx_cache_get(job->cache, &request, job->options->report, out_entry);
}

// ---------------------------------------------------------------------------------------------------------------------
// The weights

static mlx_status_t fill_weights(void *user, const char *folder, const char *log_path) {
  (void)log_path;
  job_t *job = user;
  char *path;
  MLX_TRY(mlx_join_path(folder, MLX_BUNDLE_WEIGHTS, &path));
  mlx_status_t status = mlx_weights_write(job->model, path, job->options->report);
  mlx_free(path);
  return status;
}

static mlx_status_t get_weights(job_t *job, mlx_cache_entry_t *out_entry) {
  char key[MLX_DIGEST_HEX], hex[MLX_DIGEST_HEX];
  mlx_digest_t digest;
  mlx_digest_begin(&digest);
  mlx_digest_field(&digest, "layout", MLX_WEIGHTS_LAYOUT, strlen(MLX_WEIGHTS_LAYOUT));
  const char *path;
  for (size_t i = 0; (path = mlx_source_file(job->model->source, i)); ++i) {
    MLX_TRY(mlx_cache_digest_file(job->cache, path, hex));
    mlx_digest_field(&digest, file_name(path), hex, strlen(hex));
  }
  mlx_digest_end(&digest, key);
  char title[160];
  snprintf(title, sizeof title, "weights of %s as f32", file_name(mlx_source_path(job->model->source)));
  const mlx_cache_request_t request = {.kind = "weights", .key = key, .title = title, .fill = fill_weights, .user = job};
  return mlx_cache_get(job->cache, &request, job->options->report, out_entry);
}

// ---------------------------------------------------------------------------------------------------------------------
// The manifest

static mlx_status_t write_manifest(const job_t *job, mlx_compiled_t *out) {
  mlx_manifest_t m = {.contract = MLX_CONTRACT_VERSION,
                      .vocab = job->model->config.vocab,
                      .context = job->graph.context,
                      .rows = job->graph.rows,
                      .page_size = job->graph.page_size,
                      .pool_pages = mlx_graph_pool_pages(&job->graph),
                      .prefill_count = job->graph.bucket_count};
  snprintf(m.architecture, sizeof m.architecture, "%s", mlx_source_architecture(job->model->source));
  snprintf(m.source, sizeof m.source, "%s", file_name(mlx_source_path(job->model->source)));
  snprintf(m.target, sizeof m.target, "%s", job->target.name);
  snprintf(m.cpu, sizeof m.cpu, "%s", job->target.cpu);
  snprintf(m.compiler, sizeof m.compiler, "%s", job->compiler.version);
  snprintf(m.compiler_digest, sizeof m.compiler_digest, "%s", job->compiler.digest);
  memcpy(m.prefill, job->graph.buckets, sizeof m.prefill);
  MLX_TRY(mlx_source_eos_ids(job->model->source, m.eos, MLX_MAX_EOS, &m.eos_count));
  return mlx_manifest_write(&m, &out->manifest, &out->manifest_length);
}

// ---------------------------------------------------------------------------------------------------------------------
// All of it

static mlx_status_t compile_job(job_t *job, const char *model_path, mlx_compiled_t *out) {
  MLX_TRY(mlx_target_parse(job->options->target ? job->options->target : "cpu", &job->target));
  MLX_TRY(mlx_model_open(model_path, &job->model));
  MLX_TRY(make_graph(job->model, job->options, MLX_FORM_IREE, &job->graph));
  snprintf(job->title, sizeof job->title, "%.64s for %s, context %lld", file_name(model_path), job->target.name,
           (long long)job->graph.context);
  MLX_TRY(mlx_source_tokenizer_json(job->model->source, &out->tokenizer, &out->tokenizer_length));
  if (job->options->accept) {
    MLX_TRY(job->options->accept(job->options->user, out->tokenizer, out->tokenizer_length, job->graph.context));
  }
  MLX_TRY(mlx_graph_emit(job->model, &job->graph, &job->mlir, &job->mlir_length));
  MLX_TRY(mlx_iree_compiler_find(job->cache, job->options->iree_compile, job->options->report, &job->compiler));
  MLX_TRY(get_vmfb(job, &out->vmfb));
  MLX_TRY(get_weights(job, &out->weights));
  MLX_TRY(mlx_join_path(out->vmfb.folder, MLX_BUNDLE_VMFB, &out->vmfb_path));
  MLX_TRY(mlx_join_path(out->weights.folder, MLX_BUNDLE_WEIGHTS, &out->weights_path));
  return write_manifest(job, out);
}

mlx_status_t mlx_compile(const char *model_path, const mlx_compile_options_t *options, mlx_cache_t *cache,
                         mlx_compiled_t *out_compiled) {
  *out_compiled = (mlx_compiled_t){0};
  job_t job = {.options = options, .cache = cache};
  mlx_status_t status = compile_job(&job, model_path, out_compiled);
  mlx_free(job.mlir);
  mlx_iree_compiler_release(&job.compiler);
  mlx_model_close(job.model);
  if (status) mlx_compiled_release(out_compiled);
  return status;
}

void mlx_compiled_release(mlx_compiled_t *compiled) {
  mlx_free(compiled->manifest);
  mlx_free(compiled->tokenizer);
  mlx_free(compiled->vmfb_path);
  mlx_free(compiled->weights_path);
  mlx_cache_release(&compiled->vmfb);
  mlx_cache_release(&compiled->weights);
  *compiled = (mlx_compiled_t){0};
}

// ---------------------------------------------------------------------------------------------------------------------
// Bundles

static mlx_status_t put_text(const char *folder, const char *name, const char *text, size_t length) {
  char *path;
  MLX_TRY(mlx_join_path(folder, name, &path));
  mlx_status_t status = mlx_write_file(path, text, length);
  mlx_free(path);
  return status;
}

static mlx_status_t put_copy(const char *folder, const char *name, const char *from) {
  char *path;
  MLX_TRY(mlx_join_path(folder, name, &path));
  mlx_status_t status = mlx_copy_file(from, path);
  mlx_free(path);
  return status;
}

static mlx_status_t fill_bundle(const mlx_compiled_t *compiled, const char *folder) {
  MLX_TRY(mlx_make_dirs(folder));
  MLX_TRY(put_text(folder, MLX_BUNDLE_MANIFEST, compiled->manifest, compiled->manifest_length));
  MLX_TRY(put_text(folder, MLX_BUNDLE_TOKENIZER, compiled->tokenizer, compiled->tokenizer_length));
  MLX_TRY(put_copy(folder, MLX_BUNDLE_VMFB, compiled->vmfb_path));
  return put_copy(folder, MLX_BUNDLE_WEIGHTS, compiled->weights_path);
}

// Moves the finished folder into place. A rename cannot replace a folder with files in it, so an old bundle steps aside.
static mlx_status_t publish(const char *finished, const char *path) {
  char *manifest, *old;
  if (!mlx_is_dir(path)) return mlx_rename(finished, path);
  MLX_TRY(mlx_join_path(path, MLX_BUNDLE_MANIFEST, &manifest));
  bool is_bundle = mlx_is_file(manifest);
  mlx_free(manifest);
  if (!is_bundle) {
    return mlx_status_hint(mlx_error(MLX_USAGE, "'%s' is a folder, but not a compiled model", path),
                           "give -o a name that is free");
  }
  MLX_TRY(mlx_format(&old, "%s.old", finished));
  mlx_status_t status = mlx_rename(path, old);
  if (!status) status = mlx_rename(finished, path);
  if (!status) status = mlx_remove_tree(old);
  mlx_free(old);
  return status;
}

mlx_status_t mlx_compiled_write(const mlx_compiled_t *compiled, const char *path, const mlx_report_t *report) {
  char *temporary;
  if (mlx_is_file(path)) return mlx_error(MLX_USAGE, "'%s' is a file; a compiled model is a folder", path);
  mlx_report_progress(report, "writing %s", path);
  MLX_TRY(mlx_format(&temporary, "%s.tmp.%ld", path, (long)getpid()));
  mlx_status_t status = mlx_remove_tree(temporary);
  if (!status) status = fill_bundle(compiled, temporary);
  if (!status) status = publish(temporary, path);
  if (status) mlx_status_free(mlx_remove_tree(temporary));
  mlx_report_done(report);
  mlx_free(temporary);
  return status;
}
