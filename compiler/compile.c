// Runs the steps of a compilation in order. The files compile_*.c implement the steps.
#include "compiler/compile.h"

#include <stdio.h>
#include <string.h>

#include "artifact/bundle.h"
#include "base/clock.h"
#include "base/cpu.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/meter.h"
#include "compiler/compile_job.h"
#include "compiler/emit.h"
#include "compiler/weights.h"

bool mlx_compiler_available(void) { return true; }
const char *mlx_compiler_hint(void) { return NULL; }

static mlx_status_t read_texts(const mlx_compile_job_t *job, mlx_compiled_t *out) {
  mlx_source_t *source = job->model->source;
  MLX_TRY(mlx_source_chat_json(source, &out->chat, &out->chat_length));
  if (!job->options->for_engine)
    MLX_TRY(mlx_source_tokenizer_json(source, &out->tokenizer, &out->tokenizer_length));
  if (!job->options->accept) return NULL;
  mlx_model_tokenizer_t tokenizer;
  MLX_TRY(mlx_job_find_tokenizer(source, job->cache, &tokenizer));
  mlx_status_t status = job->options->accept(job->options->user, &tokenizer, mlx_job_longest_text(job),
                                             job->model->config.context, job->model->config.vocab);
  mlx_model_tokenizer_close(&tokenizer);
  return status;
}

// Reports the size of the weight archive before it is written.
static void note_weight_size(const mlx_compile_job_t *job) {
  uint64_t bytes = 0;
  for (size_t i = 0; i < job->model->weight_count; ++i)
    bytes += mlx_weight_stored_bytes(&job->model->weights[i], mlx_module_storage(&job->module));
  mlx_report_note(mlx_job_notes(job), "weights: %s in all", mlx_bytes_show(bytes).text);
}

static bool writes_archive(const mlx_compile_job_t *job) {
  return !job->options->module_only && !mlx_job_makes_weights_at_load(job);
}

static mlx_status_t compile_module(mlx_compile_job_t *job, const char *model_path, const char *level,
                                   mlx_compiled_t *out) {
  mlx_compiled_file_t *module = &out->modules[out->module_count];
  MLX_TRY(mlx_job_choose_kernels(job));
  MLX_TRY(mlx_job_check_quantized(job));
  MLX_TRY(mlx_job_check_kv_format(job));
  if (!job->options->module_only && !job->levels_done) MLX_TRY(mlx_job_check_size(job));
  if (job->options->verbose) {
    mlx_weights_explain(job->model, mlx_module_storage(&job->module), mlx_job_notes(job));
    note_weight_size(job);
    MLX_TRY(mlx_job_explain_ops(job));
  }
  mlx_title_t title = {.context = job->module.context};
  snprintf(title.model, sizeof title.model, "%.64s", mlx_file_name(model_path).text);
  snprintf(title.dtype, sizeof title.dtype, "%s", mlx_job_storage_name(job));
  snprintf(title.target, sizeof title.target, "%s", job->target.name);
  mlx_job_write_title(&title, job->title, sizeof job->title);
  const int64_t state_bytes = job->facts.state_bytes;
  MLX_TRY(mlx_module_emit_sized(job->model, job->graph, &job->module, &job->mlir, &job->mlir_length,
                                &job->facts));
  if (state_bytes > job->facts.state_bytes) job->facts.state_bytes = state_bytes;
  // The levels of cpu:portable share one archive, which depends on all of them.
  if (!level && writes_archive(job)) MLX_TRY(mlx_job_start_weights(job));
  MLX_TRY(mlx_job_get_compiler(job));
  MLX_TRY(mlx_job_get_module(job, &module->entry));
  out->module_count++;
  module->level = level;
  snprintf(module->name, sizeof module->name, "%s",
           mlx_bundle_module(level              ? level
                             : job->only_target ? NULL
                                                : job->target.name)
               .text);
  MLX_TRY(mlx_join_path(module->entry.folder, MLX_BUNDLE_VMFB, &module->path));
  out->vmfb_path = out->modules[0].path;
  return NULL;
}

static void clear_module(mlx_compile_job_t *job) {
  mlx_kernels_clear(&job->kernels);
  mlx_free(job->mlir);
  job->mlir = NULL;
}

// Compiles one module for each CPU level that this mlxcel has a kernel for. All levels read the same panels,
// so they share one weight archive.
static mlx_status_t compile_levels(mlx_compile_job_t *job, const char *model_path, mlx_compiled_t *out) {
  const mlx_module_options_t module = job->module;
  const mlx_target_t portable = job->target;
  const mlx_cpu_level_t *level;
  char target[32];
  for (size_t i = 0; (level = mlx_cpu_level(i)) && job->levels_done < MLX_MAX_LEVELS; ++i) {
    if (!mlx_kernels_have_level(level->name)) {
      if (!mlx_kernels_cpu_level(level->name)) {  // no lower level has a kernel either
        mlx_report_note(job->options->report, "skipping %s: this mlxcel was built without a kernel for it",
                        level->name);
      }
      continue;
    }
    snprintf(target, sizeof target, "cpu:%s", level->name);
    clear_module(job);
    job->module = module;
    MLX_TRY(mlx_target_parse(target, &job->target));
    MLX_TRY(compile_module(job, model_path, level->name, out));
    ++job->levels_done;
  }
  job->target = portable;
  return job->levels_done
             ? NULL
             : mlx_error(MLX_UNSUPPORTED,
                         "cannot compile for cpu:portable: this mlxcel was built without CPU kernels");
}

static mlx_status_t compile_target(mlx_compile_job_t *job, const char *model_path, mlx_compiled_t *out) {
  const size_t first = out->module_count;
  const mlx_compiled_file_t *weights = NULL;
  clear_module(job);
  job->levels_done = 0;
  job->facts = (mlx_module_facts_t){0};
  MLX_TRY(mlx_job_module_options(job->model, job->options, MLX_FORM_IREE, &job->module));
  MLX_TRY(job->target.portable ? compile_levels(job, model_path, out)
                               : compile_module(job, model_path, NULL, out));
  // While another thread packs the weights.
  if (writes_archive(job) && !job->options->for_engine && !job->manifest.source_digest[0])
    MLX_TRY(
        mlx_source_digest(job->cache, job->model->source, job->options->report, job->manifest.source_digest));
  if (writes_archive(job)) MLX_TRY(mlx_job_get_weights(job, out, &weights));
  return mlx_job_describe_target(job, &out->modules[first], out->module_count - first, weights);
}

// The next target of a list like "cuda:sm_90,cpu:portable"; NULL after the last. Advances |cursor|.
static const char *next_target(const char **cursor, char *out, size_t size) {
  if (!*cursor) return NULL;
  const size_t length = strcspn(*cursor, ",");
  snprintf(out, size, "%.*s", (int)(length < size ? length : size - 1), *cursor);
  *cursor = (*cursor)[length] ? *cursor + length + 1 : NULL;
  return out;
}

// Checks all targets before the first one is compiled.
static mlx_status_t check_targets(const char *targets, size_t *out_count) {
  mlx_target_t seen[MLX_MAX_TARGETS];
  char text[64];
  *out_count = 0;
  for (const char *cursor = targets; next_target(&cursor, text, sizeof text); ++*out_count) {
    if (*out_count == MLX_MAX_TARGETS)
      return mlx_error(MLX_USAGE, "too many targets: at most %d are supported", MLX_MAX_TARGETS);
    MLX_TRY(mlx_target_parse(text, &seen[*out_count]));
    for (size_t i = 0; i < *out_count; ++i) {
      if (!strcmp(seen[i].name, seen[*out_count].name))
        return mlx_error(MLX_USAGE, "target %s is given twice", seen[i].name);
    }
  }
  return NULL;
}

// Replaces the network and the weights by those of a rank.
static mlx_status_t take_rank(mlx_compile_job_t *job) {
  const mlx_compile_options_t *o = job->options;
  mlx_graph_t *part;
  if (!o->rank.count) return NULL;
  if (job->target.gpu)
    return mlx_error(MLX_UNSUPPORTED, "a model is divided over ranks on a CPU only, not for %s",
                     job->target.name);
  MLX_TRY(mlx_ranks_divide(job->model, job->graph, &o->rank, &part));
  mlx_graph_free(job->graph);
  job->graph = part;
  return NULL;
}

static mlx_status_t compile_job(mlx_compile_job_t *job, const char *model_path, mlx_compiled_t *out) {
  const char *targets = job->options->target ? job->options->target : "cpu";
  char text[64];
  size_t count;
  MLX_TRY(check_targets(targets, &count));
  job->only_target = count == 1;
  const char *cursor = targets;
  MLX_TRY(mlx_target_parse(next_target(&cursor, text, sizeof text), &job->target));
  MLX_TRY(mlx_job_open_model(job, model_path));
  MLX_TRY(mlx_job_module_options(job->model, job->options, MLX_FORM_IREE, &job->module));
  MLX_TRY(mlx_model_build_graph(job->model, job->module.context, &job->graph));
  MLX_TRY(take_rank(job));
  MLX_TRY(mlx_job_start_compiler(job));  // while this thread builds the tokenizer
  MLX_TRY(read_texts(job, out));
  MLX_TRY(mlx_job_check_quantize(job));
  MLX_TRY(mlx_job_describe_model(job));
  MLX_TRY(mlx_job_find_licences(job, out));
  MLX_TRY(compile_target(job, model_path, out));
  while (next_target(&cursor, text, sizeof text)) {
    MLX_TRY(mlx_target_parse(text, &job->target));
    MLX_TRY(compile_target(job, model_path, out));
  }
  MLX_TRY(mlx_job_write_manifest(job, out));
  MLX_TRY(mlx_job_check_source(job));
  return mlx_job_makes_weights_at_load(job) ? mlx_job_keep_source(job, out) : NULL;
}

mlx_status_t mlx_compile(const char *model_path, const mlx_compile_options_t *options, mlx_cache_t *cache,
                         mlx_compiled_t *out_compiled) {
  const double before = mlx_process_cpu_seconds(), start = mlx_seconds();
  *out_compiled = (mlx_compiled_t){.cache = cache};
  mlx_compile_job_t job = {.options = options, .cache = cache};
  mlx_status_t status = compile_job(&job, model_path, out_compiled);
  mlx_job_stop_weights(&job);
  mlx_job_stop_compiler(&job);
  out_compiled->from_cache = !job.ran_compiler;
  out_compiled->seconds = mlx_seconds() - start;
  if (!status && job.ran_compiler)
    mlx_report_note(options->report, "compiled %s in %.1f s (iree-compile: %.1f s, %llu MiB)", job.title,
                    out_compiled->seconds, job.iree_elapsed, (unsigned long long)(job.iree_peak >> 20));
  if (!status && options->verbose)
    mlx_report_note(
        options->report, "CPU time: NVRTC %.1f s, iree-compile %.1f s, weights and the rest %.1f s",
        job.nvrtc_seconds, job.iree_seconds, mlx_process_cpu_seconds() - before - job.nvrtc_seconds);
  mlx_kernels_clear(&job.kernels);
  mlx_nvrtc_close(job.nvrtc);
  mlx_free(job.mlir);
  mlx_iree_compiler_release(&job.compiler);
  mlx_status_free(job.no_compiler);
  mlx_graph_free(job.graph);
  mlx_model_close(job.model);
  if (status) mlx_compiled_release(out_compiled);
  return status;
}

void mlx_compiled_release(mlx_compiled_t *compiled) {
  mlx_free(compiled->manifest);
  mlx_free(compiled->tokenizer);
  mlx_free(compiled->chat);
  for (size_t i = 0; i < compiled->module_count; ++i) mlx_compiled_file_clear(&compiled->modules[i]);
  for (size_t i = 0; i < compiled->weights_count; ++i) mlx_compiled_file_clear(&compiled->weights[i]);
  for (size_t i = 0; i < compiled->licence_count; ++i) mlx_compiled_file_clear(&compiled->licences[i]);
  mlx_source_weights_free(compiled->source);
  *compiled = (mlx_compiled_t){0};
}
