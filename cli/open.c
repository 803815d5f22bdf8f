// Opening a model for a verb that runs one: a compiled one as it is, any other compiled first.
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "cli/cli.h"
#include "compiler/compile.h"

#define QUICK_LOAD 0.3  // seconds of loading that nobody needs to hear of

typedef struct opening {
  const mlx_open_options_t *options;
  char target[64];    // to compile a source model for
  mlx_dtype_t dtype;  // and what to store it as
  mlx_weights_choice_t weights;
  uint64_t memory;    // of the GPU, if that is one
  mlx_kernel_choice_t kernels;
  mlx_open_times_t *times;
} opening_t;

static mlx_status_t parse_device(const char *text, mlx_device_choice_t *out) {
  static const char *const names[] = {[MLX_USE_CPU] = "cpu", [MLX_USE_CUDA] = "cuda", [MLX_USE_AUTO] = "auto"};
  for (int i = 0; i < 3; ++i) {
    if (strcmp(text, names[i])) continue;
    *out = (mlx_device_choice_t)i;
    return NULL;
  }
  return mlx_error(MLX_USAGE, "--device wants cpu, cuda or auto, not '%s'", text);
}

static mlx_status_t accept_prompt(void *user, const mlx_compiled_t *compiled, int64_t context, int64_t vocab) {
  const opening_t *opening = user;
  return mlx_engine_check_prompt(compiled->tokenizer_name, compiled->tokenizer, compiled->tokenizer_length,
                                 opening->options->prompt, opening->options->prompt_length, opening->options->prompt_is_chat,
                                 context, vocab);
}

static void show_loading(void *user, uint64_t done, uint64_t total) {
  double *start = user;
  if (!done) *start = mlx_seconds();
  if (done == total) {
    mlx_report_done(mlx_terminal_report());
  } else if (mlx_seconds() - *start >= QUICK_LOAD) {
    mlx_report_progress(mlx_terminal_report(), "loading weights: %.0f%%", 100.0 * (double)done / (double)total);
  }
}

static mlx_status_t compile_and_open(opening_t *opening, const mlx_engine_options_t *options, mlx_engine_t **out) {
  const char *model = opening->options->model;
  const mlx_compile_options_t compile = {.target = opening->target,
                                         .dtype = opening->dtype,
                                         .weights = opening->weights,
                                         .kernels = opening->kernels,
                                         .context = mlx_context_option(opening->options->context),
                                         .memory = opening->memory,
                                         .report = mlx_terminal_report(),
                                         .accept = accept_prompt,
                                         .user = opening};
  mlx_cache_t *cache;
  mlx_compiled_t compiled;
  double start = mlx_seconds();
  MLX_TRY(mlx_cache_open(NULL, &cache));
  mlx_status_t status = mlx_compile(model, &compile, cache, &compiled);
  opening->times->compile_seconds = mlx_seconds() - start;
  if (!status) {
    const mlx_model_parts_t parts = {.name = model,
                                     .manifest_name = model,
                                     .tokenizer_name = compiled.tokenizer_name,
                                     .manifest = compiled.manifest,
                                     .manifest_length = compiled.manifest_length,
                                     .tokenizer = compiled.tokenizer,
                                     .tokenizer_length = compiled.tokenizer_length,
                                     .chat = compiled.chat,
                                     .chat_length = compiled.chat_length,
                                     .vmfb_path = compiled.vmfb_path,
                                     .weights_path = compiled.weights_path};
    status = mlx_engine_open(&parts, options, out);
  }
  mlx_compiled_release(&compiled);
  mlx_cache_close(cache);
  return status;
}

static mlx_status_t open_model(const mlx_open_options_t *o, mlx_engine_t **out, mlx_open_times_t *out_times) {
  mlx_engine_options_t options;
  mlx_engine_options_initialize(&options);
  MLX_TRY(parse_device(o->device, &options.device));
  options.threads = (int)o->threads;
  double load_start = 0;
  options.on_load = show_loading;
  options.user = &load_start;
  bool is_bundle = mlx_engine_is_bundle(o->model);
  if (is_bundle) {  // a source model's prompt is checked before it is compiled
    options.prompt = o->prompt;
    options.prompt_length = o->prompt_length;
    options.prompt_is_chat = o->prompt_is_chat;
  }
  opening_t opening = {.options = o, .target = "cpu", .times = out_times};
  const bool any = !o->dtype || !strcmp(o->dtype, "auto");
  MLX_TRY(mlx_weights_choice_parse(any ? "auto" : o->dtype, &opening.weights, &opening.dtype));
  if (is_bundle && !any) options.dtype = o->dtype;  // a compiled model has one already
  MLX_TRY(mlx_kernel_choice_parse(o->kernels, &opening.kernels));
  bool ask_for_gpu = options.device == MLX_USE_CUDA || (options.device == MLX_USE_AUTO && !is_bundle);
  mlx_status_t no_gpu = ask_for_gpu ? mlx_engine_gpu_target(opening.target, sizeof opening.target, &opening.memory) : NULL;
  if (options.device == MLX_USE_CUDA && no_gpu) return no_gpu;
  if (options.device == MLX_USE_AUTO && !is_bundle) options.reason = no_gpu ? mlx_status_message(no_gpu) : "there is a GPU";
  if (is_bundle && o->context > 0) options.context = o->context;
  mlx_status_t status =
      is_bundle ? mlx_engine_open_bundle(o->model, &options, out) : compile_and_open(&opening, &options, out);
  mlx_status_free(no_gpu);
  return status;
}

mlx_status_t mlx_cli_open(const mlx_open_options_t *options, mlx_engine_t **out_engine, mlx_open_times_t *out_times) {
  *out_engine = NULL;
  *out_times = (mlx_open_times_t){0};
  mlx_open_options_t local = *options;
  char *path;
  MLX_TRY(mlx_cli_local_model(options->model, &path));
  local.model = path;
  double start = mlx_seconds();
  mlx_status_t status = open_model(&local, out_engine, out_times);
  mlx_free(path);
  out_times->load_seconds = mlx_seconds() - start - out_times->compile_seconds;
  return status;
}

static mlx_status_t open_chat(const char *model, mlx_chat_t **out_chat) {
  char *json;
  size_t length;
  if (mlx_engine_is_bundle(model)) return mlx_chat_open_bundle(model, out_chat);
  MLX_TRY(mlx_compile_chat(model, &json, &length));
  mlx_status_t status = json ? mlx_chat_create(model, json, length, out_chat) : mlx_chat_missing(model);
  mlx_free(json);
  return status;
}

mlx_status_t mlx_cli_open_chat(const char *model, mlx_chat_t **out_chat) {
  char *path;
  *out_chat = NULL;
  MLX_TRY(mlx_cli_local_model(model, &path));
  mlx_status_t status = open_chat(path, out_chat);
  mlx_free(path);
  return status;
}

// ---------------------------------------------------------------------------------------------------------------------
// Saying what was opened

mlx_device_text_t mlx_cli_device_text(const mlx_engine_info_t *info) {
  mlx_device_text_t out;
  if (info->gpu[0]) {
    snprintf(out.text, sizeof out.text, "%s, %s", info->device, info->gpu);
  } else {
    snprintf(out.text, sizeof out.text, "%s, %d thread%s", info->device, info->threads, info->threads == 1 ? "" : "s");
  }
  return out;
}

void mlx_cli_print_device(const mlx_engine_info_t *info, bool with_kernels) {
  fprintf(stderr, "device: %s, %s%s%s%s\n", mlx_cli_device_text(info).text, info->dtype, info->device_reason[0] ? " (auto: " : "",
          info->device_reason, info->device_reason[0] ? ")" : "");
  if (with_kernels) fprintf(stderr, "kernels: %s\n", info->kernels);
}
