// Loads bundles, and compiles other models before they are loaded. See open.h.
#include "open/open.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/memory.h"
#include "base/report.h"
#include "base/text.h"
#include "compiler/compile.h"
#include "open/locate.h"
#include "open/remote_modules.h"
#include "open/replacement.h"
#include "open/texts.h"
#include "runtime/rooms.h"
#include "tokenizer/tokenizer.h"

// ----------------------------------------------------------------------------------------------------------
// Options

// Checks --cpu-level. The engine checks which levels a bundle contains.
static mlx_status_t check_level(const char *level, mlx_device_choice_t device, bool is_bundle) {
  mlx_text_t known = {0};
  if (!level) return NULL;
  if (device == MLX_USE_CUDA) return mlx_error(MLX_USAGE, "--cpu-level cannot be used with --device cuda");
  if (mlx_cpu_level_find(level)) {
    if (is_bundle || mlx_cpu_has_level(level)) return NULL;
    return mlx_status_hint(mlx_error(MLX_UNAVAILABLE, "this CPU (%s) cannot run code for CPU level %s",
                                     mlx_cpu_level_here()->name, level),
                           "to compile for another machine: mlxcel compile MODEL --target cpu:%s", level);
  }
  for (size_t i = 0; mlx_cpu_level(i); ++i)
    mlx_text_printf(&known, "%s%s", i ? ", " : "", mlx_cpu_level(i)->name);
  mlx_status_t status = mlx_status_hint(mlx_error(MLX_USAGE, "unknown CPU level '%s'", level), "levels: %s",
                                        known.data ? known.data : "");
  mlx_text_clear(&known);
  return status;
}

static mlx_status_t check_ranks(const mlx_engine_options_t *o, bool is_bundle) {
  const mlx_rank_t rank = {.count = o->ranks, .slices = o->ranks};
  if (!o->ranks) return NULL;
  if (o->device == MLX_USE_CUDA || is_bundle)
    return mlx_status_hint(mlx_error(MLX_UNSUPPORTED, "%s cannot be divided over ranks",
                                     is_bundle ? "a bundle" : "a model on a GPU"),
                           is_bundle ? "give the source model" : "use --device cpu");
  return mlx_rank_check(&rank);
}

// Checks the options that the compiler applies, also those of a bundle.
static mlx_status_t read_formats(const mlx_engine_options_t *o, mlx_compile_options_t *out) {
  MLX_TRY(mlx_weights_choice_parse(o->dtype ? o->dtype : "auto", &out->weights, &out->dtype));
  if (o->kv) MLX_TRY(mlx_kv_parse(o->kv, &out->kv));
  out->kv_given = o->kv != NULL;
  MLX_TRY(mlx_quantize_parse(o->quantize, &out->quantize));
  return mlx_kernel_choice_parse(o->kernels ? o->kernels : "auto", &out->kernels);
}

// ----------------------------------------------------------------------------------------------------------
// Source models

// A source model that is opened. The tokenizer and the tokens of the prompt come from the compiler's callback
// and go to the engine.
typedef struct source {
  const char *path;
  const mlx_engine_options_t *options;  // of the caller
  const mlx_secret_key_t *publish;      // NULL: modules are not published
  mlx_remote_cache_t *remote;           // NULL: none
  mlx_cache_t *cache;
  mlx_tokenizer_t *tokenizer;
  int32_t *prompt;
  size_t prompt_count;
} source_t;

static mlx_status_t accept_prompt(void *user, const mlx_model_tokenizer_t *tokenizer, int64_t context,
                                  int64_t model_context, int64_t vocab) {
  source_t *source = user;
  MLX_TRY(mlx_open_model_tokenizer(tokenizer, source->cache, source->options->report, &source->tokenizer));
  return mlx_engine_check_prompt(source->tokenizer, source->options, context, model_context, vocab,
                                 &source->prompt, &source->prompt_count);
}

// Opens the engine of a compiled model. A GPU gets the weights from the files of the model; a CPU uses them
// from the cache in place.
static mlx_model_parts_t parts_of(const source_t *source, const mlx_compiled_t *compiled) {
  return (mlx_model_parts_t){.name = source->path,
                             .manifest_name = source->path,
                             .manifest = compiled->manifest,
                             .manifest_length = compiled->manifest_length,
                             .vmfb_path = compiled->vmfb_path,
                             .weights_path = compiled->weights_path,
                             .weights = compiled->reader};
}

// The parts with the tokenizer, the prompt and the chat template.
static mlx_model_parts_t whole_parts_of(const source_t *source, const mlx_compiled_t *compiled) {
  mlx_model_parts_t parts = parts_of(source, compiled);
  parts.tokenizer = source->tokenizer;
  parts.prompt = source->prompt;
  parts.prompt_count = source->prompt_count;
  parts.chat = compiled->chat;
  parts.chat_length = compiled->chat_length;
  return parts;
}

static mlx_status_t open_compiled(source_t *source, const mlx_compiled_t *compiled,
                                  const mlx_engine_options_t *options, mlx_engine_t **out) {
  const mlx_model_parts_t parts = whole_parts_of(source, compiled);
  source->tokenizer = NULL;  // the engine takes both
  source->prompt = NULL;
  mlx_status_t status = mlx_engine_open(&parts, options, out);
  mlx_status_t changed = compiled->source ? mlx_source_weights_check(compiled->source) : NULL;
  if (!changed) return status;
  mlx_status_free(status);  // the change may be its cause
  mlx_engine_close(*out);
  *out = NULL;
  return changed;
}

// Adds the modules to the remote cache, if that is wanted. The model runs also without it, so a failure is a
// note.
static void publish(const source_t *source, const mlx_compiled_t *compiled) {
  const mlx_report_t *report = source->options->report;
  mlx_status_t status = NULL;
  if (!source->remote || !source->publish) return;
  for (size_t i = 0; i < compiled->module_count && !status; ++i) {
    bool added;
    status =
        mlx_remote_modules_put(source->remote, compiled->modules[i].entry.folder, source->publish, &added);
    if (!status && added) mlx_report_note(report, "published in the remote cache");
  }
  if (status) mlx_report_note(report, "not published in the remote cache: %s", mlx_status_message(status));
  mlx_status_free(status);
}

// Compiles the parts of all ranks. The first one makes the tokenizer.
static mlx_status_t compile_ranks(source_t *source, mlx_compile_options_t *compile, int ranks,
                                  mlx_compiled_t *out, mlx_open_times_t *times) {
  for (int i = 0; i < ranks; ++i) {
    compile->rank = (mlx_rank_t){.number = i, .count = ranks, .slices = ranks};
    if (i) compile->accept = NULL;
    MLX_TRY(mlx_compile(source->path, compile, source->cache, &out[i]));
    publish(source, &out[i]);
    times->compile_seconds += out[i].seconds;
    times->was_compiled |= !out[i].from_cache;
    MLX_TRY(mlx_report_check(source->options->report));
  }
  return NULL;
}

// Opens a model that is divided over ranks.
static mlx_status_t open_ranks(source_t *source, mlx_compile_options_t *compile,
                               const mlx_engine_options_t *options, mlx_engine_t **out,
                               mlx_open_times_t *times) {
  mlx_compiled_t compiled[MLX_MOST_RANKS] = {0};
  mlx_model_parts_t parts[MLX_MOST_RANKS];
  mlx_engine_options_t each = *options;
  const int threads = (each.threads ? each.threads : mlx_cpu_count()) / options->ranks;
  each.threads = threads ? threads : 1;
  mlx_status_t status = compile_ranks(source, compile, options->ranks, compiled, times);
  for (int i = 0; i < options->ranks && !status; ++i)
    parts[i] = i ? parts_of(source, &compiled[i]) : whole_parts_of(source, &compiled[0]);
  if (!status) {
    source->tokenizer = NULL;  // the engine takes both
    source->prompt = NULL;
    status = mlx_engine_open_ranks(parts, (size_t)options->ranks, &each, out);
  }
  for (int i = 0; i < options->ranks; ++i) mlx_compiled_release(&compiled[i]);
  return status;
}

static mlx_status_t compile_whole(source_t *source, mlx_compile_options_t *compile,
                                  const mlx_engine_options_t *options, mlx_engine_t **out,
                                  mlx_open_times_t *times) {
  mlx_compiled_t compiled;
  mlx_status_t status = mlx_compile(source->path, compile, source->cache, &compiled);
  times->compile_seconds = compiled.seconds;
  times->was_compiled = !status && !compiled.from_cache;
  if (!status) publish(source, &compiled);
  if (!status) status = mlx_report_check(options->report);
  if (!status) status = open_compiled(source, &compiled, options, out);
  mlx_compiled_release(&compiled);
  return status;
}

static mlx_status_t compile_and_open(source_t *source, mlx_compile_options_t *compile,
                                     const mlx_engine_options_t *options, mlx_engine_t **out,
                                     mlx_open_times_t *times) {
  compile->verbose = options->verbose;
  compile->context = options->context;
  compile->report = options->report;
  compile->for_engine = true;
  compile->accept = accept_prompt;
  compile->user = source;
  MLX_TRY(mlx_remote_modules_open(compile, &source->remote));
  mlx_status_t status = mlx_cache_open(NULL, &source->cache);
  if (status) {
    mlx_remote_cache_close(source->remote);
    return status;
  }
  status = (options->ranks ? open_ranks : compile_whole)(source, compile, options, out, times);
  mlx_remote_cache_close(source->remote);
  mlx_tokenizer_free(source->tokenizer);
  mlx_free(source->prompt);
  mlx_cache_close(source->cache);
  return status;
}

static mlx_status_t open_source(const char *path, const mlx_engine_options_t *o,
                                const mlx_secret_key_t *publish_key, mlx_compile_options_t *compile,
                                mlx_engine_t **out, mlx_open_times_t *times) {
  char target[64] = "cpu";
  mlx_engine_options_t options = *o;
  options.dtype = options.kv = options.cpu_level = options.prompt = NULL;  // the compiler applies them
  mlx_status_t no_gpu = NULL;
  if (o->cpu_level) {
    snprintf(target, sizeof target, "cpu:%s", o->cpu_level);
  } else if (o->device != MLX_USE_CPU && !o->ranks) {
    no_gpu = mlx_engine_gpu_target(o->gpu, target, sizeof target, &compile->gpu_memory);
    if (no_gpu && o->device == MLX_USE_CUDA) return no_gpu;
    if (o->device == MLX_USE_AUTO) options.reason = no_gpu ? mlx_status_message(no_gpu) : "there is a GPU";
  }
  compile->target = target;
  source_t source = {.path = path, .options = o, .publish = publish_key};
  mlx_status_t status = compile_and_open(&source, compile, &options, out, times);
  mlx_status_free(no_gpu);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Bundles

static mlx_status_t open_model(const char *path, const mlx_engine_options_t *options,
                               const mlx_secret_key_t *publish_key, mlx_engine_t **out,
                               mlx_open_times_t *times);

static mlx_status_t open_bundle(const char *bundle, const mlx_engine_options_t *options,
                                const mlx_secret_key_t *publish_key, mlx_engine_t **out,
                                mlx_open_times_t *times) {
  char *source;
  if (options->quantize) {
    return mlx_status_hint(
        mlx_error(MLX_USAGE, "'%s' is compiled already: --quantize needs the source model", bundle),
        "mlxcel compile MODEL --quantize %s", options->quantize);
  }
  mlx_status_t status =
      mlx_find_replacement(bundle, options, mlx_engine_open_bundle(bundle, options, out), &source);
  if (source) {
    mlx_report_note(options->report, "%s; compiling it again from %s with the options of this command",
                    mlx_status_message(status), source);
    mlx_status_free(status);
    status = open_model(source, options, publish_key, out, times);
  }
  mlx_free(source);
  return status;
}

static mlx_status_t open_model(const char *path, const mlx_engine_options_t *options,
                               const mlx_secret_key_t *publish_key, mlx_engine_t **out,
                               mlx_open_times_t *times) {
  const bool is_bundle = mlx_engine_is_bundle(path);
  mlx_compile_options_t compile = {0};
  MLX_TRY(check_level(options->cpu_level, options->device, is_bundle));
  MLX_TRY(check_ranks(options, is_bundle));
  MLX_TRY(read_formats(options, &compile));
  return is_bundle ? open_bundle(path, options, publish_key, out, times)
                   : open_source(path, options, publish_key, &compile, out, times);
}

mlx_status_t mlx_open_located(const char *path, const mlx_engine_options_t *options,
                              const mlx_secret_key_t *publish_key, mlx_engine_t **out_engine,
                              mlx_open_times_t *out_times) {
  *out_engine = NULL;
  *out_times = (mlx_open_times_t){0};
  const double start = mlx_seconds();
  MLX_TRY(open_model(path, options, publish_key, out_engine, out_times));
  out_times->load_seconds = mlx_seconds() - start - out_times->compile_seconds;
  return NULL;
}

mlx_status_t mlx_open(const char *model, const mlx_engine_options_t *options, mlx_engine_t **out_engine) {
  char *path;
  mlx_open_times_t times;
  *out_engine = NULL;
  MLX_TRY(mlx_locate(model, options->report, &path));
  mlx_status_t status = mlx_open_located(path, options, NULL, out_engine, &times);
  mlx_free(path);
  return status;
}
