// mlxcel compile: the offline step.
#include "compiler/compile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "artifact/bundle.h"
#include "base/file.h"
#include "base/gpu.h"
#include "base/memory.h"
#include "base/text.h"
#include "cli/cli.h"
#include "transfer/hub.h"

typedef struct flags {
  const char *out, *target, *emit, *iree_compile, *dtype, *kernels, *quantize;
  int64_t context, timeout;
  bool verbose, single_file, no_weights;
} flags_t;

// Model files end in a suffix that says nothing about what was compiled from them; a name on a hub may hold
// signs that a file's should not.
static mlx_status_t default_out(const char *model, const char *suffix, char **out_path) {
  char *path;
  MLX_TRY(mlx_named_path(model, &path));
  mlx_file_name_t name = mlx_file_name(path);
  mlx_free(path);
  for (char *sign = name.text; mlx_is_hub_ref(model) && (sign = strpbrk(sign, "@:"));) *sign = '-';
  size_t length = strlen(name.text);
  if (length > 5 && !strcmp(name.text + length - 5, ".gguf")) length -= 5;
  return mlx_format(out_path, "%.*s%s", (int)length, name.text, suffix);
}

// To a file, or to stdout when it is called "-".
static mlx_status_t write_out(const char *out, const char *bytes, size_t length) {
  if (strcmp(out, "-")) return mlx_write_file(out, bytes, length);
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

static mlx_status_t compile_and_write(const char *model, const mlx_compile_options_t *options,
                                      const char *out, const flags_t *f) {
  const mlx_write_options_t write = {
      .single_file = f->single_file, .no_weights = f->no_weights, .report = options->report};
  mlx_cache_t *cache;
  mlx_compiled_t compiled;
  if (!options->module_only) MLX_TRY(mlx_compiled_check_path(out));
  MLX_TRY(mlx_cache_open(NULL, &cache));
  mlx_status_t status = mlx_compile(model, options, cache, &compiled);
  if (!status)
    status = options->module_only ? write_vmfb(&compiled, out) : mlx_compiled_write(&compiled, out, &write);
  if (!status && f->verbose) status = print_kernels(&compiled);
  mlx_compiled_release(&compiled);
  mlx_cache_close(cache);
  return status;
}

// What "cuda" alone means: this machine's GPU; without one what CUDA_COMPUTE_CAP names; else the oldest that
// most people have.
static mlx_status_t default_gpu(char out_target[64]) {
  uint64_t memory;
  mlx_status_t no_gpu = mlx_engine_gpu_target(out_target, 64, &memory);
  if (!no_gpu) return NULL;
  mlx_status_free(no_gpu);
  const char *capability = getenv("CUDA_COMPUTE_CAP");
  const mlx_gpu_kind_t *kind = mlx_gpu_kind_parse_capability(capability && *capability ? capability : "80");
  if (!kind) {
    return mlx_status_hint(
        mlx_error(MLX_USAGE, "CUDA_COMPUTE_CAP is '%s', which is no GPU that mlxcel compiles for",
                  capability),
        "set it to a capability such as 90 or 9.0, unset it, or name the target: --target cuda:sm_90");
  }
  snprintf(out_target, 64, "cuda:sm_%d", kind->sm);
  return NULL;
}

// With every "cuda" named.
static mlx_status_t name_gpu(const char *targets, char **out_targets) {
  mlx_text_t out = {0};
  mlx_status_t status = NULL;
  char gpu[64] = "";
  for (const char *cursor = targets; cursor && !status;) {
    const size_t length = strcspn(cursor, ",");
    const bool is_cuda = length == 4 && !strncmp(cursor, "cuda", 4);
    if (is_cuda) status = default_gpu(gpu);
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
    return mlx_error(MLX_USAGE, "a compiled model cannot go to stdout");
  if (emits(f, "stablehlo") && f->quantize) {
    return mlx_error(MLX_USAGE,
                     "pure StableHLO has plain weights: --quantize and --emit stablehlo do not go together");
  }
  if (emits(f, "vmfb") && (several || !strcmp(f->target, MLX_TARGET_PORTABLE))) {
    return mlx_status_hint(mlx_error(MLX_USAGE, "%s has several modules; --emit vmfb writes one",
                                     several ? "a model for several targets" : "a portable model"),
                           "use --target cpu:LEVEL");
  }
  if ((f->single_file || f->no_weights) && f->emit)
    return mlx_error(MLX_USAGE, "--emit writes no bundle: --single-file and --no-weights are for one");
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

static mlx_status_t refuse_compiled(const char *path) {
  char *text;
  size_t length;
  if (!mlx_is_bundle(path)) return NULL;
  MLX_TRY(mlx_bundle_read_manifest(path, &text, &length));
  const mlx_manifest_origin_t origin = mlx_manifest_origin(text, length);
  mlx_free(text);
  return mlx_status_hint(mlx_error(MLX_USAGE, "'%s' is compiled already", path),
                         "run it, or compile the model that it was made from: mlxcel compile %s",
                         origin.source[0] ? origin.source : "MODEL");
}

static mlx_status_t compile(const char *model, const flags_t *f, mlx_compile_options_t *options) {
  char *targets = NULL, *out = NULL, *path = NULL;
  mlx_status_t status = name_gpu(f->target, &targets);
  options->target = targets;
  if (!status) status = choose_out(model, f, &out);
  if (!status) status = mlx_cli_local_model(model, &path);
  if (!status) status = refuse_compiled(path);
  if (!status)
    status =
        emits(f, "stablehlo") ? emit_stablehlo(path, options, out) : compile_and_write(path, options, out, f);
  if (!status && strcmp(out, "-")) fprintf(stderr, "wrote %s\n", out);
  mlx_free(path);
  mlx_free(out);
  mlx_free(targets);
  return status;
}

mlx_status_t mlx_cli_compile(int argc, char **argv) {
  flags_t f = {.target = "cpu", .dtype = "auto", .kernels = "auto", .context = -1};
  const mlx_flag_t table[] = {
      {"-o, --output", MLX_FLAG_TEXT, "OUT", "where to write (default: MODEL's name + .mlxb, .vmfb or .mlir)",
       &f.out, 0, 0},
      {"--target", MLX_FLAG_TEXT, "cpu|cpu:LEVEL|cpu:portable|cuda|cuda:sm_XX",
       "what to compile for, with commas between several (default: cpu, this machine; cuda: this GPU, else "
       "$CUDA_COMPUTE_CAP, else sm_80)",
       &f.target, 0, 0},
      {"--single-file", MLX_FLAG_SWITCH, NULL, "write one file instead of a folder", &f.single_file, 0, 0},
      {"--no-weights", MLX_FLAG_SWITCH, NULL, "leave the weights out: they are found by their digest",
       &f.no_weights, 0, 0},
      {"--kernels", MLX_FLAG_TEXT, "auto|required|off", "link our own kernels (default: auto)", &f.kernels, 0,
       0},
      {"--dtype", MLX_FLAG_TEXT, "auto|packed|f32|bf16|f16",
       "how weights are stored (default: auto, the fastest exact way)", &f.dtype, 0, 0},
      {"--quantize", MLX_FLAG_TEXT, "q4|q8|q4_0|q4_1|q8_0", "make packed weights of wider ones", &f.quantize,
       0, 0},
      {"-c, --ctx, --ctx-size", MLX_FLAG_INT, "N",
       "context to make room for (default: the model's, up to 2048; 0: the model's)", &f.context, 0, 1 << 30},
      {"--emit", MLX_FLAG_TEXT, "stablehlo|vmfb", "write pure StableHLO text, or IREE's module alone",
       &f.emit, 0, 0},
      {"--iree-compile", MLX_FLAG_TEXT, "FILE",
       "the compiler to use (default: $MLXCEL_IREE_COMPILE, else the built-in one)", &f.iree_compile, 0, 0},
      {"--timeout", MLX_FLAG_INT, "SECONDS", "give iree-compile at most this long (default: 1800)",
       &f.timeout, 1, 1 << 24},
      {"-v, --verbose", MLX_FLAG_SWITCH, NULL,
       "say on stderr which kernels were linked, and what became of the weights", &f.verbose, 0, 0},
      {0}};
  const char *model = NULL;
  size_t words;
  bool help;
  MLX_TRY(
      mlx_flags_parse("usage: mlxcel compile MODEL [options]\n\n"
                      "MODEL is a GGUF file or a Hugging Face directory. The result is a bundle (.mlxb), "
                      "which `mlxcel run -m` opens.\n\n"
                      "examples:\n"
                      "  mlxcel compile model.gguf -o model.mlxb\n"
                      "  mlxcel compile model.gguf --target cuda:sm_90 --dtype bf16 -c 8192\n"
                      "  mlxcel compile model.gguf --target cuda:sm_90,cpu:portable --single-file",
                      table, argc, argv, &model, 1, &words, &help));
  if (help) return NULL;
  if (!words)
    return mlx_status_hint(mlx_error(MLX_USAGE, "no model was given"), "mlxcel compile MODEL [-o OUT]");
  MLX_TRY(check_flags(&f));
  mlx_compile_options_t options = {.verbose = f.verbose,
                                   .context = mlx_context_option(f.context),
                                   .module_only = emits(&f, "vmfb"),
                                   .iree_compile = f.iree_compile,
                                   .time_limit_seconds = (double)f.timeout,
                                   .report = mlx_terminal_report()};
  MLX_TRY(mlx_quantize_parse(f.quantize, &options.quantize));
  MLX_TRY(mlx_weights_choice_parse(f.dtype, &options.weights, &options.dtype));
  MLX_TRY(mlx_kernel_choice_parse(f.kernels, &options.kernels));
  return compile(model, &f, &options);
}
