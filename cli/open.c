// Opens models: pulls references, compiles source models through the cache and loads engines.
#include "cli/open.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "artifact/bundle.h"
#include "base/clock.h"
#include "base/cpu.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/meter.h"
#include "base/text.h"
#include "cli/stored_models.h"
#include "cli/terminal.h"
#include "compiler/compile.h"
#include "transfer/hub.h"
#include "transfer/pull_gguf.h"
#include "transfer/pull_hub.h"
#include "transfer/pull_oci.h"
#include "transfer/short_names.h"
#include "transfer/url.h"

#define MAX_TEMPLATE ((size_t)4 << 20)  // bytes

// The state of one open_model call: its options, converted to the types of the compiler and the engine.
typedef struct opening {
  const mlx_open_options_t *options;
  char target[64];  // compile target of a source model
  mlx_dtype_t dtype, kv;
  mlx_weights_choice_t weights;
  mlx_quantize_t quantize;
  mlx_kernel_choice_t kernels;
  uint64_t gpu_memory;  // of the GPU that is the target
  mlx_open_times_t *times;
} opening_t;

// ----------------------------------------------------------------------------------------------------------
// Local models

static mlx_status_t local_oci_model(const char *model, char **out_path) {
  MLX_TRY(mlx_pull_oci_find(model, out_path));
  if (*out_path) return NULL;
  mlx_pull_oci_options_t options;
  mlx_pull_oci_options_initialize(&options);
  options.report = mlx_terminal_report();
  options.rank = mlx_engine_rank_target;
  options.to_cache = true;
  return mlx_pull_oci(model, &options, out_path);
}

static mlx_status_t local_hub_model(const char *model, char **out_path) {
  MLX_TRY(mlx_pull_hub_find(model, out_path));
  if (*out_path) return NULL;
  mlx_pull_options_t options;
  mlx_pull_options_initialize(&options);
  options.report = mlx_terminal_report();
  return mlx_pull_hub(model, &options, out_path);
}

static mlx_status_t local_gguf_model(const char *model, char **out_path) {
  MLX_TRY(mlx_pull_gguf_find(model, out_path));
  if (*out_path) return NULL;
  mlx_pull_options_t options;
  mlx_pull_options_initialize(&options);
  options.report = mlx_terminal_report();
  return mlx_pull_gguf(model, &options, out_path);
}

static bool is_url(const char *text) { return !strncmp(text, "http://", 7) || !strncmp(text, "https://", 8); }

// "ORG/NAME" or "ORG/NAME:QUANT": users of other tools type a hub's names like this.
static bool is_hub_name(const char *text) {
  char *ref = NULL;
  mlx_hub_ref_t parsed;
  mlx_status_t status = mlx_format(&ref, MLX_HUB_PREFIX "%s", text);
  if (!status) status = mlx_hub_ref_parse(ref, &parsed);
  const bool is = !status;
  mlx_status_free(status);
  mlx_free(ref);
  return is;
}

// A missing file with one of these names gets its error from the code that opens it.
static bool is_path(const char *text) {
  static const char *const endings[] = {".gguf", ".mlxb", ".safetensors", ".json"};
  for (size_t i = 0; i < sizeof endings / sizeof *endings; ++i) {
    if (mlx_ends_with(text, endings[i])) return true;
  }
  return (strpbrk(text, "/\\") && !is_hub_name(text)) || text[0] == '.' || text[0] == '~' || !text[0];
}

static mlx_status_t unknown_model(const char *model) {
  if (is_url(model)) {
    const mlx_display_url_t url = mlx_display_url(model);  // without a password
    return mlx_status_hint(
        mlx_error(MLX_USAGE, "cannot run '%s': only GGUF files are run from a URL", url.text),
        "for a bundle: mlxcel pull %s, then run the file", url.text);
  }
  mlx_status_t status =
      mlx_error(MLX_NOT_FOUND, "no model '%s': it is neither a file, a pulled model nor a short name", model);
  if (is_hub_name(model))
    return mlx_status_hint(status, "to get it from the hub, name it " MLX_HUB_PREFIX "%s", model);
  const mlx_short_names_text_t nearest = mlx_short_name_nearest(model);
  return mlx_status_hint(status, "%s%s%s`mlxcel list --available` shows all short names",
                         nearest.text[0] ? "did you mean " : "", nearest.text, nearest.text[0] ? "? " : "");
}

mlx_status_t mlx_cli_local_model(const char *model, char **out_path) {
  struct stat info;
  *out_path = NULL;
  if (mlx_is_oci_ref(model)) return local_oci_model(model, out_path);
  if (mlx_is_hub_ref(model)) return local_hub_model(model, out_path);
  if (mlx_is_gguf_url(model)) return local_gguf_model(model, out_path);
  if (is_url(model)) return unknown_model(model);
  if (!stat(model, &info)) return mlx_copy_text(model, strlen(model), out_path);
  const mlx_short_name_t *known = mlx_short_name_find(model);
  if (known) return mlx_status_annotate(local_hub_model(known->ref, out_path), "%s (%s)", model, known->ref);
  if (model[0] != '/' && model[0] != '.') MLX_TRY(mlx_stored_models_find(model, out_path));
  if (*out_path) return NULL;
  return is_path(model) ? mlx_copy_text(model, strlen(model), out_path) : unknown_model(model);
}

// ----------------------------------------------------------------------------------------------------------
// Engines

int64_t mlx_context_option(int64_t flag) { return flag < 0 ? 0 : flag == 0 ? MLX_CONTEXT_OF_MODEL : flag; }

static mlx_status_t parse_device(const char *text, mlx_device_choice_t *out) {
  static const char *const names[] = {
      [MLX_USE_CPU] = "cpu", [MLX_USE_CUDA] = "cuda", [MLX_USE_AUTO] = "auto"};
  for (int i = 0; i < 3; ++i) {
    if (strcmp(text, names[i])) continue;
    *out = (mlx_device_choice_t)i;
    return NULL;
  }
  return mlx_error(MLX_USAGE, "option --device expects cpu, cuda or auto, not '%s'", text);
}

mlx_status_t mlx_size_parse(const char *text, const char *option, uint64_t *out_bytes) {
  static const char units[] = "KMGT";
  *out_bytes = 0;
  if (!text) return NULL;
  char *end;
  errno = 0;
  const unsigned long long number = strtoull(text, &end, 10);
  const char *unit = *end ? strchr(units, *end >= 'a' ? *end - 'a' + 'A' : *end) : NULL;
  const int shift = unit ? 10 * (int)(unit - units + 1) : 0;
  if (*text >= '0' && *text <= '9' && !errno && number && number <= UINT64_MAX >> shift &&
      !end[unit ? 1 : 0]) {
    *out_bytes = (uint64_t)number << shift;
    return NULL;
  }
  return mlx_error(MLX_USAGE, "option %s expects a size such as 512M or 8G, not '%s'", option, text);
}

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

static mlx_status_t accept_prompt(void *user, const mlx_compiled_t *compiled, int64_t context,
                                  int64_t vocab) {
  const opening_t *opening = user;
  return mlx_engine_check_prompt(compiled->tokenizer_name, compiled->tokenizer, compiled->tokenizer_length,
                                 opening->options->prompt, opening->options->prompt_length,
                                 opening->options->prompt_is_chat, context, vocab);
}

typedef struct load_meters {
  mlx_meter_t verify, load;
} load_meters_t;

static void show_bytes(mlx_meter_t *meter, const char *title, uint64_t done, uint64_t total) {
  const bool is_new = !meter->title || total != meter->total || done < meter->last;
  if (is_new) mlx_meter_begin(meter, mlx_terminal_report(), title, total);
  mlx_meter_show(meter, done);
  if (done >= total) mlx_meter_end(meter);
}

static void show_loading(void *user, uint64_t done, uint64_t total) {
  show_bytes(&((load_meters_t *)user)->load, "loading weights", done, total);
}

static void show_verifying(void *user, uint64_t done, uint64_t total) {
  show_bytes(&((load_meters_t *)user)->verify, "checking weights (at first use)", done, total);
}

static mlx_status_t read_source(void *source, int worker, uint64_t offset, size_t length, void *out) {
  return mlx_source_weights_read(source, worker, offset, length, out);
}

static uint64_t source_size_of(void *source, const char *name) {
  return mlx_source_weights_size_of(source, name);
}

// Opens the engine of a compiled model. A GPU gets the weights from the files of the model; a CPU uses them
// from the cache in place.
static mlx_status_t open_compiled(const char *model, const mlx_compiled_t *compiled,
                                  const mlx_engine_options_t *options, mlx_engine_t **out) {
  mlx_made_weights_t made = {.workers = MLX_SOURCE_WORKERS,
                             .read = read_source,
                             .size_of = source_size_of,
                             .user = compiled->source};
  const mlx_model_parts_t parts = {.name = model,
                                   .manifest_name = model,
                                   .tokenizer_name = compiled->tokenizer_name,
                                   .manifest = compiled->manifest,
                                   .manifest_length = compiled->manifest_length,
                                   .tokenizer = compiled->tokenizer,
                                   .tokenizer_length = compiled->tokenizer_length,
                                   .chat = compiled->chat,
                                   .chat_length = compiled->chat_length,
                                   .vmfb_path = compiled->vmfb_path,
                                   .weights_path = compiled->weights_path,
                                   .weights = compiled->source ? &made : NULL};
  if (!compiled->source) return mlx_engine_open(&parts, options, out);
  made.size = mlx_source_weights_size(compiled->source);
  mlx_status_t status = mlx_engine_open(&parts, options, out);
  mlx_status_t changed = mlx_source_weights_check(compiled->source);
  if (!changed) return status;
  mlx_status_free(status);  // the change may be its cause
  mlx_engine_close(*out);
  *out = NULL;
  return changed;
}

static mlx_status_t compile_and_open(opening_t *opening, const mlx_engine_options_t *options,
                                     mlx_engine_t **out) {
  const char *model = opening->options->model;
  const mlx_compile_options_t compile = {.target = opening->target,
                                         .dtype = opening->dtype,
                                         .kv = opening->kv,
                                         .kv_given = opening->options->kv != NULL,
                                         .weights = opening->weights,
                                         .quantize = opening->quantize,
                                         .verbose = opening->options->verbose,
                                         .kernels = opening->kernels,
                                         .context = mlx_context_option(opening->options->context),
                                         .report = mlx_terminal_report(),
                                         .weights_at_load = true,
                                         .gpu_memory = opening->gpu_memory,
                                         .accept = accept_prompt,
                                         .user = opening};
  mlx_cache_t *cache;
  mlx_compiled_t compiled;
  double start = mlx_seconds();
  MLX_TRY(mlx_cache_open(NULL, &cache));
  mlx_status_t status = mlx_compile(model, &compile, cache, &compiled);
  opening->times->compile_seconds = mlx_seconds() - start;
  opening->times->was_compiled = !status && !compiled.from_cache;
  if (!status) status = open_compiled(model, &compiled, options, out);
  mlx_compiled_release(&compiled);
  mlx_cache_close(cache);
  return status;
}

static mlx_status_t open_model(const mlx_open_options_t *o, mlx_engine_t **out, mlx_open_times_t *out_times);

// Finds the source model that |origin| names beside the bundle. *|out_path| is NULL if there is none or its
// digest differs. Release with mlx_free.
static mlx_status_t find_source(const char *bundle, const mlx_manifest_origin_t *origin, char **out_path) {
  char *folder = NULL, digest[MLX_DIGEST_HEX] = "";
  *out_path = NULL;
  if (!mlx_is_safe_path(origin->source) || strchr(origin->source, '/') || !origin->source_digest[0])
    return NULL;
  mlx_status_t status = mlx_folder_of(bundle, &folder);
  if (!status) status = mlx_join_path(folder, origin->source, out_path);
  if (!status && (mlx_is_file(*out_path) || mlx_is_dir(*out_path)) && !mlx_is_bundle(*out_path))
    status = mlx_compile_source_digest(*out_path, mlx_terminal_report(), digest);
  if (status || strcmp(digest, origin->source_digest)) {
    mlx_free(*out_path);
    *out_path = NULL;
  }
  mlx_free(folder);
  return status;
}

// Returns |status|, the result of opening a bundle. If the bundle is for another contract or IREE version and
// its source model is beside it, *|out_source| is that model, to compile again; else NULL. Release with
// mlx_free.
// The manifest names the source, so it must pass the trust check first. An unsigned manifest is not followed:
// the user gets |status|. A signature that does not match is a worse error and replaces |status|.
static mlx_status_t find_replacement(const char *bundle, bool allow_unsigned, mlx_status_t status,
                                     char **out_source) {
  mlx_manifest_origin_t origin;
  *out_source = NULL;
  if (mlx_status_code(status) != MLX_UNSUPPORTED || !mlx_engine_needs_recompile(bundle)) return status;
  mlx_status_t untrusted = mlx_bundle_trusted_origin(bundle, allow_unsigned, &origin);
  if (untrusted && mlx_status_code(untrusted) != MLX_NOT_FOUND) {
    mlx_status_free(status);
    return untrusted;
  }
  if (mlx_compiler_hint()) {
    mlx_status_free(untrusted);
    return mlx_status_rehint(status, "%s", mlx_compiler_hint());
  }
  // If find_source fails, |status| is the error to report.
  if (!untrusted) mlx_status_free(find_source(bundle, &origin, out_source));
  mlx_status_free(untrusted);
  return status;
}

static mlx_status_t open_bundle(opening_t *opening, mlx_engine_options_t *options, mlx_engine_t **out) {
  const char *bundle = opening->options->model;
  char *source;
  mlx_status_t status = find_replacement(bundle, options->allow_unsigned,
                                         mlx_engine_open_bundle(bundle, options, out), &source);
  if (source) {
    mlx_report_note(mlx_terminal_report(), "%s; compiling it again from %s with the options of this command",
                    mlx_status_message(status), source);
    mlx_status_free(status);
    mlx_open_options_t again = *opening->options;
    again.model = source;
    status = open_model(&again, out, opening->times);
  }
  mlx_free(source);
  return status;
}

static mlx_status_t open_model(const mlx_open_options_t *o, mlx_engine_t **out, mlx_open_times_t *out_times) {
  const bool is_bundle = mlx_engine_is_bundle(o->model);
  mlx_engine_options_t options;
  mlx_engine_options_initialize(&options);
  MLX_TRY(parse_device(o->device, &options.device));
  MLX_TRY(check_level(o->cpu_level, options.device, is_bundle));
  MLX_TRY(mlx_size_parse(o->memory, "--memory", &options.memory));
  options.threads = (int)o->threads;
  options.context = mlx_context_option(o->context);
  options.sequences = o->parallel;
  options.cpu_level = is_bundle ? o->cpu_level : NULL;
  options.allow_unsigned = o->allow_unsigned;
  load_meters_t meters = {0};
  options.on_load = show_loading;
  options.on_verify = show_verifying;
  options.user = &meters;
  if (is_bundle) {  // for a source model, accept_prompt checks the prompt before compiling
    options.prompt = o->prompt;
    options.prompt_length = o->prompt_length;
    options.prompt_is_chat = o->prompt_is_chat;
  }
  opening_t opening = {.options = o, .target = "cpu", .times = out_times};
  const bool any = !o->dtype || !strcmp(o->dtype, "auto");
  MLX_TRY(mlx_weights_choice_parse(any ? "auto" : o->dtype, &opening.weights, &opening.dtype));
  if (is_bundle && !any) options.dtype = o->dtype;
  if (o->kv) MLX_TRY(mlx_kv_parse(o->kv, &opening.kv));
  if (is_bundle) options.kv = o->kv;
  MLX_TRY(mlx_quantize_parse(o->quantize, &opening.quantize));
  if (is_bundle && o->quantize) {
    return mlx_status_hint(
        mlx_error(MLX_USAGE, "'%s' is compiled already: --quantize needs the source model", o->model),
        "mlxcel compile MODEL --quantize %s", o->quantize);
  }
  MLX_TRY(mlx_kernel_choice_parse(o->kernels, &opening.kernels));
  if (o->cpu_level && !is_bundle) snprintf(opening.target, sizeof opening.target, "cpu:%s", o->cpu_level);
  const bool needs_gpu_target =
      !is_bundle && (options.device == MLX_USE_CUDA || (options.device == MLX_USE_AUTO && !o->cpu_level));
  mlx_status_t no_gpu =
      needs_gpu_target ? mlx_engine_gpu_target(opening.target, sizeof opening.target, &opening.gpu_memory)
                       : NULL;
  if (options.device == MLX_USE_CUDA && no_gpu) return no_gpu;
  if (options.device == MLX_USE_AUTO && !is_bundle && !o->cpu_level)
    options.reason = no_gpu ? mlx_status_message(no_gpu) : "there is a GPU";
  mlx_status_t status =
      is_bundle ? open_bundle(&opening, &options, out) : compile_and_open(&opening, &options, out);
  mlx_status_free(no_gpu);
  return status;
}

mlx_status_t mlx_cli_open(const mlx_open_options_t *options, mlx_engine_t **out_engine,
                          mlx_open_times_t *out_times) {
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

// ----------------------------------------------------------------------------------------------------------
// Chat templates

static mlx_status_t no_format(const char *name) {
  mlx_text_t names = {0};
  for (const char *const *known = mlx_chat_format_names(); *known; ++known)
    mlx_text_printf(&names, "%s%s", names.length ? ", " : "", *known);
  mlx_status_t status = mlx_text_finish(&names);
  if (!status) {
    status = mlx_status_hint(mlx_error(MLX_NOT_FOUND, "'%s' is neither a chat format nor a file", name),
                             "known formats: %s; or give a file with a Jinja template", names.data);
  }
  mlx_text_clear(&names);
  return status;
}

// |chat_template| is the name of a known format, or a file.
static mlx_status_t read_template(const char *chat_template, const char *json, size_t length,
                                  mlx_chat_t **out_chat) {
  const char *format = mlx_chat_format(chat_template);
  char *source;
  size_t source_length;
  if (format)
    return mlx_chat_create_from_source(chat_template, format, strlen(format), json, length, out_chat);
  if (!mlx_is_file(chat_template)) return no_format(chat_template);
  MLX_TRY(mlx_read_file(chat_template, MAX_TEMPLATE, &source, &source_length));
  mlx_status_t status =
      mlx_chat_create_from_source(chat_template, source, source_length, json, length, out_chat);
  mlx_free(source);
  return status;
}

// If the bundle will be compiled again, reads the template of its source model.
static mlx_status_t read_bundle_chat(const char *bundle, bool allow_unsigned, char **out_json,
                                     size_t *out_length) {
  char *source;
  mlx_status_t status =
      find_replacement(bundle, allow_unsigned, mlx_chat_read_bundle(bundle, out_json, out_length), &source);
  if (source) {
    mlx_status_free(status);
    status = mlx_compile_chat(source, out_json, out_length);
  }
  mlx_free(source);
  return status;
}

static mlx_status_t find_chat(const char *model, bool allow_unsigned, const char *chat_template,
                              mlx_chat_t **out_chat) {
  char *json;
  size_t length;
  MLX_TRY(mlx_engine_is_bundle(model) ? read_bundle_chat(model, allow_unsigned, &json, &length)
                                      : mlx_compile_chat(model, &json, &length));
  mlx_status_t status = chat_template ? read_template(chat_template, json, length, out_chat)
                        : json        ? mlx_chat_create(model, json, length, out_chat)
                                      : NULL;
  mlx_free(json);
  return status;
}

mlx_status_t mlx_cli_find_chat(const char *model, bool allow_unsigned, const char *chat_template,
                               mlx_chat_t **out_chat) {
  char *path;
  *out_chat = NULL;
  MLX_TRY(mlx_cli_local_model(model, &path));
  mlx_status_t status = find_chat(path, allow_unsigned, chat_template, out_chat);
  mlx_free(path);
  return status;
}

mlx_status_t mlx_cli_open_chat(const char *model, bool allow_unsigned, const char *chat_template,
                               mlx_chat_t **out_chat) {
  MLX_TRY(mlx_cli_find_chat(model, allow_unsigned, chat_template, out_chat));
  return *out_chat ? NULL : mlx_chat_missing_error(model);
}

// ----------------------------------------------------------------------------------------------------------
// The device line

mlx_device_text_t mlx_cli_device_text(const mlx_engine_info_t *info) {
  mlx_device_text_t out;
  if (info->gpu[0]) {
    snprintf(out.text, sizeof out.text, "%s, %s", info->device, info->gpu);
  } else {
    snprintf(out.text, sizeof out.text, "%s, %d thread%s", info->device, info->threads,
             info->threads == 1 ? "" : "s");
  }
  return out;
}

void mlx_cli_print_device(const mlx_engine_info_t *info, bool verbose) {
  mlx_terminal_note("device: %s, %s", mlx_cli_device_text(info).text, info->dtype);
  if (strcmp(info->kv, info->activations)) mlx_terminal_note(", KV cache %s", info->kv);
  if (verbose && info->device_reason[0]) mlx_terminal_note(" (auto: %s)", info->device_reason);
  mlx_terminal_note("\n");
  if (info->is_unsigned)
    mlx_terminal_note("unsigned: this bundle was neither compiled here nor signed by a trusted key\n");
  if (!verbose) return;
  mlx_terminal_note("target: %s\nkernels: %s\n", info->target, info->kernels);
  mlx_terminal_note("activations: %s\nKV cache: %s\n", info->activations, info->kv);
  if (info->cpu_level[0]) mlx_terminal_note("cpu level: %s (of %s)\n", info->cpu_level, info->levels);
}
