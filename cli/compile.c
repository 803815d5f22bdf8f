// mlxcel compile: compiles a model to a bundle, to StableHLO text or to a single IREE module.
#include "compiler/compile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "artifact/bundle.h"
#include "base/file.h"
#include "base/gpu.h"
#include "base/leftover.h"
#include "base/memory.h"
#include "base/text.h"
#include "cli/open.h"
#include "cli/parse.h"
#include "cli/secret_key.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "open/locate.h"
#include "open/remote_modules.h"
#include "runtime/rooms.h"
#include "transfer/hub.h"
#include "transfer/pull_gguf.h"
#include "transfer/short_names.h"

typedef struct flags {
  const char *out, *target, *emit, *iree_compile, *dtype, *kv, *kernels, *quantize;
  int64_t context, timeout;
  const char *secret_key;
  bool verbose, quiet, single_file, no_weights, publish;
} flags_t;

// The model's name with |suffix| instead of .gguf, in the working directory. In a hub reference or a short
// name, @ and : become -. The query of a URL is left out.
static mlx_status_t default_out(const char *model, const char *suffix, char **out_path) {
  char *path;
  MLX_TRY(mlx_named_path(model, &path));
  mlx_file_name_t name = mlx_file_name(path);
  mlx_free(path);
  const bool is_reference = mlx_is_hub_ref(model) || mlx_short_name_find(model);
  for (char *sign = name.text; is_reference && (sign = strpbrk(sign, "@:"));) *sign = '-';
  if (is_reference || mlx_is_gguf_url(model)) name.text[strcspn(name.text, "?#")] = 0;
  size_t length = strlen(name.text);
  if (length > 5 && !strcmp(name.text + length - 5, ".gguf")) length -= 5;
  return mlx_format(out_path, "%.*s%s", (int)length, name.text, suffix);
}

// Writes to the file |out|, or to stdout if it is "-".
static mlx_status_t write_out(const char *out, const char *bytes, size_t length) {
  if (strcmp(out, "-")) {
    mlx_leftover_remove(out);
    return mlx_write_file(out, bytes, length);
  }
  return fwrite(bytes, 1, length, stdout) == length && !fflush(stdout) ? NULL : mlx_stdout_error();
}

static mlx_status_t emit_stablehlo(const char *model, const mlx_compile_options_t *options, const char *out) {
  char *text;
  size_t length;
  MLX_TRY(mlx_compile_stablehlo(model, options, &text, &length));
  mlx_status_t status = write_out(out, text, length);
  mlx_free(text);
  return status;
}

static mlx_status_t write_vmfb(const mlx_compiled_t *compiled, const char *out) {
  char *bytes;
  size_t length;
  MLX_TRY(mlx_read_file(compiled->vmfb_path, SIZE_MAX, &bytes, &length));
  mlx_status_t status = write_out(out, bytes, length);
  mlx_free(bytes);
  return status;
}

static mlx_status_t print_kernels(const mlx_compiled_t *compiled) {
  mlx_manifest_t manifest;
  MLX_TRY(mlx_manifest_read(MLX_BUNDLE_MANIFEST, compiled->manifest, compiled->manifest_length, &manifest));
  for (size_t i = 0; i < manifest.variant_count; ++i) {
    const mlx_variant_t *variant = &manifest.variants[i];
    fprintf(stderr, "target: %s\nkernels: %s\n", variant->target, mlx_variant_kernels_text(variant).text);
    if (variant->level_count) fprintf(stderr, "levels: %s\n", mlx_variant_levels_text(variant).text);
  }
  return NULL;
}

// --publish: adds the modules to the remote cache.
static mlx_status_t publish(const mlx_compiled_t *compiled, mlx_remote_cache_t *remote,
                            const mlx_secret_key_t *key) {
  for (size_t i = 0; i < compiled->module_count; ++i) {
    bool added;
    MLX_TRY(mlx_remote_modules_put(remote, compiled->modules[i].entry.folder, key, &added));
    mlx_terminal_note("%s the remote cache\n", added ? "published in" : "there already: the module is in");
  }
  return NULL;
}

static mlx_status_t write_compiled(const mlx_compiled_t *compiled, const mlx_compile_options_t *options,
                                   const char *out, const flags_t *f) {
  const mlx_write_options_t write = {
      .single_file = f->single_file, .no_weights = f->no_weights, .report = options->report};
  MLX_TRY(options->module_only ? write_vmfb(compiled, out) : mlx_compiled_write(compiled, out, &write));
  return f->verbose ? print_kernels(compiled) : NULL;
}

static mlx_status_t compile_and_write(const char *model, mlx_compile_options_t *options, const char *out,
                                      const flags_t *f) {
  mlx_cache_t *cache = NULL;
  mlx_remote_cache_t *remote;
  mlx_compiled_t compiled = {0};
  mlx_secret_key_t key = {0};
  if (!options->module_only) MLX_TRY(mlx_compiled_check_path(out));
  MLX_TRY(mlx_remote_modules_open(options, &remote));
  mlx_status_t status = f->publish ? mlx_cli_publish_key(f->secret_key, &key) : NULL;
  if (!status) status = mlx_cache_open(NULL, &cache);
  if (!status) status = mlx_compile(model, options, cache, &compiled);
  if (!status) status = write_compiled(&compiled, options, out, f);
  if (!status && f->publish) status = publish(&compiled, remote, &key);
  mlx_secret_key_clear(&key);
  mlx_compiled_release(&compiled);
  mlx_cache_close(cache);
  mlx_remote_cache_close(remote);
  return status;
}

// The target for "cuda" without an architecture: this machine's GPU, else CUDA_COMPUTE_CAP, else sm_80.
// *out_memory is the memory of this machine's GPU; 0 if it has none.
static mlx_status_t default_gpu(char out_target[64], uint64_t *out_memory) {
  mlx_status_t no_gpu = mlx_engine_gpu_target(0, out_target, 64, out_memory);
  if (!no_gpu) return NULL;
  *out_memory = 0;
  mlx_status_free(no_gpu);
  const char *capability = getenv("CUDA_COMPUTE_CAP");
  const mlx_gpu_kind_t *kind = mlx_gpu_kind_parse_capability(capability && *capability ? capability : "80");
  if (!kind) {
    return mlx_status_hint(
        mlx_error(MLX_USAGE, "CUDA_COMPUTE_CAP is '%s', which is not a GPU architecture that mlxcel supports",
                  capability),
        "set it to a compute capability such as 90 or 9.0, unset it, or give --target cuda:sm_90");
  }
  snprintf(out_target, 64, "cuda:sm_%d", kind->sm);
  return NULL;
}

// Copies |targets| and replaces every "cuda" by the target of default_gpu. *out_memory is that of its GPU; 0:
// no target is this machine's GPU.
static mlx_status_t resolve_targets(const char *targets, char **out_targets, uint64_t *out_memory) {
  mlx_text_t out = {0};
  mlx_status_t status = NULL;
  char gpu[64] = "";
  for (const char *cursor = targets; cursor && !status;) {
    const size_t length = strcspn(cursor, ",");
    const bool is_cuda = length == 4 && !strncmp(cursor, "cuda", 4);
    if (is_cuda) status = default_gpu(gpu, out_memory);
    mlx_text_printf(&out, "%s%.*s", out.length ? "," : "", is_cuda ? (int)strlen(gpu) : (int)length,
                    is_cuda ? gpu : cursor);
    cursor = cursor[length] ? cursor + length + 1 : NULL;
  }
  if (!status) status = mlx_text_take(&out, out_targets, NULL);
  mlx_text_clear(&out);
  return status;
}

static bool emits(const flags_t *f, const char *what) { return f->emit && !strcmp(f->emit, what); }

static mlx_status_t check_flags(const flags_t *f) {
  const bool several = strchr(f->target, ',');
  if (!f->emit && f->out && !strcmp(f->out, "-"))
    return mlx_error(MLX_USAGE, "cannot write a bundle to stdout");
  if (emits(f, "stablehlo") && f->quantize) {
    return mlx_error(MLX_USAGE,
                     "--quantize cannot be used with --emit stablehlo, whose weights are not quantized");
  }
  if (emits(f, "vmfb") && (several || !strcmp(f->target, MLX_TARGET_PORTABLE))) {
    return mlx_status_hint(mlx_error(MLX_USAGE, "--emit vmfb writes one module; %s several",
                                     several ? "these targets need" : "cpu:portable needs"),
                           "give one target: --target cpu:LEVEL");
  }
  if ((f->single_file || f->no_weights) && f->emit)
    return mlx_error(MLX_USAGE,
                     "--single-file and --no-weights cannot be used with --emit, which writes no bundle");
  return NULL;
}

static mlx_status_t choose_out(const char *model, const flags_t *f, char **out_path) {
  MLX_TRY(f->out ? mlx_copy_text(f->out, strlen(f->out), out_path)
                 : default_out(model,
                               emits(f, "stablehlo") ? ".mlir"
                               : emits(f, "vmfb")    ? ".vmfb"
                                                     : ".mlxb",
                               out_path));
  for (size_t n = strlen(*out_path); n > 1 && (*out_path)[n - 1] == '/'; --n) (*out_path)[n - 1] = 0;
  return NULL;
}

static mlx_status_t refuse_bundle(const char *path) {
  char *text;
  size_t length;
  if (!mlx_is_bundle(path)) return NULL;
  MLX_TRY(mlx_bundle_read_manifest(path, &text, &length));
  const mlx_manifest_origin_t origin = mlx_manifest_origin(text, length);
  mlx_free(text);
  return mlx_status_hint(mlx_error(MLX_USAGE, "'%s' is compiled already", path),
                         "run it, or compile its source model: mlxcel compile %s",
                         origin.source[0] ? origin.source : "MODEL");
}

static mlx_status_t compile(const char *model, const flags_t *f, mlx_compile_options_t *options) {
  char *targets = NULL, *out = NULL, *path = NULL;
  mlx_status_t status = resolve_targets(f->target, &targets, &options->gpu_memory);
  options->target = targets;
  if (!status) status = choose_out(model, f, &out);
  if (!status) status = mlx_locate(model, mlx_terminal_report(), &path);
  if (!status) status = refuse_bundle(path);
  if (!status)
    status =
        emits(f, "stablehlo") ? emit_stablehlo(path, options, out) : compile_and_write(path, options, out, f);
  if (!status && strcmp(out, "-")) mlx_terminal_note("wrote %s\n", out);
  mlx_free(path);
  mlx_free(out);
  mlx_free(targets);
  return status;
}

static void initialize(void *options) {
  *(flags_t *)options = (flags_t){.target = "cpu", .dtype = "auto", .kernels = "auto", .context = -1};
}

static mlx_status_t run(const mlx_command_line_t *line) {
  flags_t f;
  const char *model = NULL;
  size_t words;
  bool help;
  MLX_TRY(mlx_command_line_parse(line, &f, &model, 1, &words, &help));
  if (help) return NULL;
  MLX_TRY(mlx_terminal_set_quiet(f.quiet, f.verbose));
  if (!words)
    return mlx_status_hint(mlx_error(MLX_USAGE, "no model was given"), "mlxcel compile MODEL [-o OUT]");
  MLX_TRY(check_flags(&f));
  mlx_compile_options_t options = {.verbose = f.verbose,
                                   .context = mlx_context_option(f.context),
                                   .module_only = emits(&f, "vmfb"),
                                   .show_size = true,
                                   .iree_compile = f.iree_compile,
                                   .time_limit_seconds = (double)f.timeout,
                                   .report = mlx_terminal_report()};
  MLX_TRY(mlx_quantize_parse(f.quantize, &options.quantize));
  MLX_TRY(mlx_weights_choice_parse(f.dtype, &options.weights, &options.dtype));
  if (f.kv) MLX_TRY(mlx_kv_parse(f.kv, &options.kv));
  options.kv_given = f.kv != NULL;
  MLX_TRY(mlx_kernel_choice_parse(f.kernels, &options.kernels));
  return compile(model, &f, &options);
}

// clang-format off
static const mlx_flag_t flags[] = {
    MLX_TEXT_FLAG(flags_t, out, "-o, --output", "OUT",
                  "output path (default: the model's name with .mlxb, .vmfb or .mlir)"),
    MLX_TEXT_FLAG(flags_t, target, "--target", "cpu|cpu:LEVEL|cpu:portable|cuda|cuda:sm_XX",
                  "devices to compile for, separated by commas (default: cpu: this machine; cuda: this GPU, "
                  "else $CUDA_COMPUTE_CAP, else sm_80)"),
    MLX_SWITCH_FLAG(flags_t, single_file, "--single-file",
                    "write the bundle as one file instead of a folder"),
    MLX_SWITCH_FLAG(flags_t, no_weights, "--no-weights",
                    "write a bundle without weights; run finds them by their digest"),
    MLX_KERNELS_FLAG(flags_t, kernels),
    MLX_DTYPE_FLAG(flags_t, dtype),
    MLX_KV_FLAG(flags_t, kv),
    MLX_QUANTIZE_FLAG(flags_t, quantize),
    MLX_CONTEXT_FLAG(flags_t, context,
                     "LongRoPE models: longest text; above the original context it selects the frequencies for long texts",
                     0, 1 << 30),
    MLX_TEXT_FLAG(flags_t, emit, "--emit", "stablehlo|vmfb",
                  "write StableHLO text, or only the IREE module, instead of a bundle"),
    MLX_TEXT_FLAG(flags_t, iree_compile, "--iree-compile", "FILE",
                  "path of iree-compile (default: $MLXCEL_IREE_COMPILE, else the built-in one)"),
    MLX_INT_FLAG(flags_t, timeout, "--timeout", "SECONDS",
                 "time limit of iree-compile (default: 1800)", 1, 1 << 24),
    MLX_PUBLISH_FLAG(flags_t, publish),
    MLX_SECRET_KEY_FLAG(flags_t, secret_key, "--secret-key"),
    MLX_QUIET_FLAG(flags_t, quiet),
    MLX_VERBOSE_FLAG(flags_t, verbose),
    {0},
};
// clang-format on

const mlx_verb_t mlx_verb_compile = {
    .name = "compile",
    .summary = "compile a model ahead of time",
    .usage =
        "usage: mlxcel compile MODEL [options]\n\n"
        "MODEL is a GGUF file or a Hugging Face directory. The result is a bundle (.mlxb), which `mlxcel "
        "run -m` opens.\n\n"
        "examples:\n"
        "  mlxcel compile model.gguf -o model.mlxb\n"
        "  mlxcel compile model.gguf --target cuda:sm_90 --dtype bf16 -c 8192\n"
        "  mlxcel compile model.gguf --target cuda:sm_90,cpu:portable --single-file",
    .flags = flags,
    .options_size = sizeof(flags_t),
    .initialize = initialize,
    .run = run,
};
