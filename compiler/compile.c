#include "compiler/compile.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "artifact/manifest.h"
#include "base/cpu.h"
#include "base/file.h"
#include "base/memory.h"
#include "compiler/driver.h"
#include "compiler/graph.h"
#include "compiler/target.h"
#include "compiler/weights.h"

#define DEFAULT_CONTEXT 2048  // where the model allows more: memory for the KV cache is taken whether it is used or not

// One compilation: everything both cache entries and the manifest are made from.
typedef struct job {
  const mlx_compile_options_t *options;
  mlx_cache_t *cache;
  mlx_model_t *model;
  mlx_target_t target;
  mlx_graph_options_t graph;
  mlx_iree_compiler_t compiler;
  mlx_nvrtc_t *nvrtc;      // NULL: no kernels
  mlx_kernels_t kernels;
  char *mlir;
  size_t mlir_length;
  size_t modules;          // made before this one, for other levels
  char source_stamp[MLX_DIGEST_HEX];  // of the source's files when it was opened
  char title[192];
} job_t;

bool mlx_compiler_is_here(void) { return true; }

// ---------------------------------------------------------------------------------------------------------------------
// The source must stay what it is while we work: it is mapped, and its digest is taken by path

static mlx_status_t stamp_source(const mlx_source_t *source, char out_hex[MLX_DIGEST_HEX]) {
  mlx_digest_t digest;
  mlx_digest_begin(&digest);
  const char *path;
  for (size_t i = 0; (path = mlx_source_file(source, i)); ++i) {
    mlx_file_stamp_t stamp = {0};
    MLX_TRY(mlx_file_stamp(path, &stamp));
    stamp.changed_ns = 0;  // a new name or new permissions are not a new content
    mlx_digest_field(&digest, path, &stamp, sizeof stamp);
  }
  mlx_digest_end(&digest, out_hex);
  return NULL;
}

// Stamped before it is opened for good, so that a change at any later moment is seen.
static mlx_status_t open_model(job_t *job, const char *path) {
  mlx_source_t *first_look;
  MLX_TRY(mlx_source_open(path, &first_look));
  mlx_status_t status = stamp_source(first_look, job->source_stamp);
  mlx_source_close(first_look);
  return status ? status : mlx_model_open(path, &job->model);
}

static mlx_status_t check_source_unchanged(const job_t *job) {
  char now[MLX_DIGEST_HEX];
  MLX_TRY(stamp_source(job->model->source, now));
  if (!strcmp(now, job->source_stamp)) return NULL;
  return mlx_status_hint(mlx_error(MLX_IO, "'%s' changed while it was being compiled", mlx_source_path(job->model->source)),
                         "run the command again when the file is complete");
}

// ---------------------------------------------------------------------------------------------------------------------
// The graph

// A longrope has one set of frequencies for texts up to a length and another for longer ones. A compiled model has one of them, so
// what nobody asked to be longer is short: exact for every text that fits.
static mlx_status_t choose_context(const mlx_config_t *config, int64_t wanted, int64_t *out_context) {
  const int64_t most = config->local_context && config->local_context < config->context ? config->local_context : config->context;
  *out_context = wanted;
  if (wanted == 0) *out_context = most < DEFAULT_CONTEXT ? most : DEFAULT_CONTEXT;
  if (wanted == MLX_CONTEXT_OF_MODEL) *out_context = config->context;
  if (*out_context >= 1 && *out_context <= config->context) return NULL;
  return mlx_status_hint(mlx_error(MLX_USAGE, "a context of %lld was asked for; the model was made for %lld positions",
                                   (long long)wanted, (long long)config->context),
                         "use a context of %lld or less (-c, --ctx)", (long long)config->context);
}

// Bytes of |positions| positions' keys and values, all layers; false when no size_t holds that.
static bool kv_bytes(const job_t *job, int64_t positions, size_t *out_bytes) {
  const mlx_config_t *config = &job->model->config;
  const int64_t factors[] = {positions, config->layers, 2, config->kv_heads, config->head_dim};
  bool fits = true;
  *out_bytes = mlx_dtype_info(job->graph.dtype)->block_bytes;
  for (size_t i = 0; i < sizeof factors / sizeof *factors; ++i) fits = fits && mlx_mul(*out_bytes, (size_t)factors[i], out_bytes);
  return fits;
}

static int64_t pool_positions(const mlx_graph_options_t *graph) { return mlx_graph_pool_pages(graph) * graph->page_size; }

// A context that can never fit is refused here, with the number, and not by an allocation in the middle of a run. Only what is
// compiled for a machine we know can be held against its memory.
static mlx_status_t check_kv_fits(const job_t *job) {
  const uint64_t memory = job->options->memory ? job->options->memory : job->target.cpu[0] ? mlx_physical_memory() : UINT64_MAX;
  const mlx_graph_options_t *graph = &job->graph;
  size_t bytes;
  bool fits = kv_bytes(job, pool_positions(graph), &bytes);
  if (fits && bytes <= memory) return NULL;
  return mlx_status_hint(mlx_error(MLX_OUT_OF_MEMORY, "the KV cache of a context of %lld needs %.1f GiB; there are %.1f GiB",
                                   (long long)graph->context, fits ? (double)bytes / (1 << 30) : 1e9, (double)memory / (1 << 30)),
                         "ask for a smaller context (-c, --ctx)");
}

static mlx_status_t make_graph(const mlx_model_t *model, const mlx_compile_options_t *options, mlx_form_t form,
                               mlx_graph_options_t *out_graph) {
  int64_t context;
  MLX_TRY(choose_context(&model->config, options->context, &context));
  if (model->config.local_context && context > model->config.local_context) {
    mlx_report_note(options->report,
                    "a context of more than %lld: positions turn as for long texts from the first on; a text that ends sooner may "
                    "differ from Hugging Face's",
                    (long long)model->config.local_context);
  }
  if (options->rows < 0 || options->rows > MLX_MAX_ROWS) {
    return mlx_error(MLX_USAGE, "%lld rows were asked for; 1 to %d are possible", (long long)options->rows, MLX_MAX_ROWS);
  }
  if (!mlx_dtype_info(options->dtype)->from_f32) {
    return mlx_error(MLX_USAGE, "weights cannot be stored as %s", mlx_dtype_info(options->dtype)->name);
  }
  mlx_graph_options_initialize(context, out_graph);
  out_graph->form = form;
  out_graph->dtype = options->dtype;
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

mlx_status_t mlx_compile_chat(const char *model_path, char **out_json, size_t *out_length) {
  mlx_source_t *source;
  *out_json = NULL;
  MLX_TRY(mlx_source_open(model_path, &source));
  mlx_status_t status = mlx_source_chat_json(source, out_json, out_length);
  mlx_source_close(source);
  return status;
}

// Errors about a tokenizer name the file that it is in.
static mlx_status_t name_tokenizer(const mlx_source_t *source, char **out_name) {
  const char *path = mlx_source_path(source);
  return mlx_source_is_gguf(source) ? mlx_copy_text(path, strlen(path), out_name) : mlx_join_path(path, MLX_BUNDLE_TOKENIZER, out_name);
}

mlx_status_t mlx_compile_tokenizer(const char *model_path, char **out_name, char **out_json, size_t *out_length) {
  mlx_source_t *source;
  *out_name = *out_json = NULL;
  MLX_TRY(mlx_source_open(model_path, &source));
  mlx_status_t status = name_tokenizer(source, out_name);
  if (!status) status = mlx_source_tokenizer_json(source, out_json, out_length);
  mlx_source_close(source);
  return status;
}

// ---------------------------------------------------------------------------------------------------------------------
// Titles, which the cache keeps for people

static void write_title(const mlx_title_t *title, char *out, size_t size) {
  snprintf(out, size, "%.64s as %s for %s, context %lld", title->model, title->dtype, title->target, (long long)title->context);
}

// From the end: a model may be called "x as y for z".
bool mlx_compiled_title(const char *text, mlx_title_t *out) {
  const char *as = NULL, *next = text;
  while ((next = strstr(next, " as "))) as = next++;
  *out = (mlx_title_t){0};
  if (!as || sscanf(as, " as %15s for %63[^,], context %" SCNd64, out->dtype, out->target, &out->context) != 3) return false;
  snprintf(out->model, sizeof out->model, "%.*s", (int)(as - text < 127 ? as - text : 127), text);
  return true;
}

// ---------------------------------------------------------------------------------------------------------------------
// Our own kernels

mlx_status_t mlx_kernel_choice_parse(const char *text, mlx_kernel_choice_t *out_choice) {
  static const char *const names[] = {[MLX_KERNELS_AUTO] = "auto", [MLX_KERNELS_REQUIRED] = "required", [MLX_KERNELS_OFF] = "off"};
  for (int i = 0; i < 3; ++i) {
    if (strcmp(text, names[i])) continue;
    *out_choice = (mlx_kernel_choice_t)i;
    return NULL;
  }
  return mlx_error(MLX_USAGE, "--kernels wants auto, required or off, not '%s'", text);
}

mlx_status_t mlx_weights_choice_parse(const char *text, mlx_weights_choice_t *out_choice, mlx_dtype_t *out_dtype) {
  const bool automatic = !strcmp(text, "auto"), packed = !strcmp(text, "packed");
  *out_choice = automatic ? MLX_WEIGHTS_AUTO : packed ? MLX_WEIGHTS_PACKED : MLX_WEIGHTS_WIDE;
  *out_dtype = MLX_F32;
  if (automatic || packed) return NULL;
  mlx_status_t status = mlx_dtype_parse(text, out_dtype);
  if (!status) return NULL;
  mlx_status_free(status);
  return mlx_status_hint(mlx_error(MLX_USAGE, "unknown dtype '%s'", text), "dtypes: auto, packed, f32, f16, bf16");
}

// Whether there are weights to be kept packed in |layout|, and they may be.
static bool has_packed(const job_t *job, mlx_layout_t layout) {
  const mlx_storage_t storage = {.dtype = MLX_F32, .layout = layout, .quantize = job->options->quantize};
  return job->options->weights != MLX_WEIGHTS_WIDE &&
         (mlx_weights_count(job->model, storage, MLX_STORED_CODES) || mlx_weights_count(job->model, storage, MLX_STORED_QUANTISED));
}

static bool stays_packed(const job_t *job) { return job->graph.layout == MLX_LAYOUT_PACKED || job->graph.layout == MLX_LAYOUT_TILES; }

// Why there can be none for this model and target, whatever is installed; NULL when there can.
static const char *why_no_kernels(const job_t *job) {
  if (!job->target.gpu) return mlx_kernels_cpu_level(job->target.cpu_level) ? NULL : "this mlxcel was built without any for that CPU";
  if (!job->target.gpu->kernel_sm) return "they need a GPU from sm_80 on";
  if (job->graph.dtype == MLX_F32 && !has_packed(job, MLX_LAYOUT_TILES)) return "they compute with packed or 16-bit weights (--dtype bf16 or f16)";
  return NULL;
}

// What is so for every level is said for the first.
static const mlx_report_t *notes_of(const job_t *job) { return job->modules ? NULL : job->options->report; }

static mlx_status_t no_kernels(const job_t *job, const char *why) {
  if (job->options->kernels != MLX_KERNELS_REQUIRED) {
    mlx_report_note(notes_of(job), "no linked kernels, the plain lowering is used: %s", why);
    return NULL;
  }
  return mlx_status_hint(mlx_error(MLX_UNSUPPORTED, "no linked kernels for this model: %s", why), "use --kernels=auto");
}

// The first matrix that is packed in its file and stored as numbers; NULL when there is none.
static const mlx_weight_t *first_widened(const job_t *job) {
  for (size_t i = 0; i < job->model->weight_count; ++i) {
    const mlx_weight_t *weight = &job->model->weights[i];
    const bool packed = weight->packing.kind || mlx_dtype_info(weight->tensor.dtype)->block_elements > 1;
    if (packed && weight->tensor.rank == 2 && mlx_weight_stored(weight, mlx_graph_storage(&job->graph)).kind == MLX_STORED_NUMBERS) return weight;
  }
  return NULL;
}

static void note_widened(const job_t *job) {
  const mlx_weight_t *widened = stays_packed(job) ? first_widened(job) : NULL;
  if (!widened) return;
  mlx_report_note(notes_of(job), "some packed weights, of which '%s' is the first, are widened to %s: no packed layout has their groups",
                  widened->name, mlx_dtype_info(job->graph.dtype)->mlir);
}

static mlx_status_t use_cpu_kernels(job_t *job) {
  if (has_packed(job, MLX_LAYOUT_PACKED)) job->graph.layout = MLX_LAYOUT_PACKED;
  job->graph.quantize = job->options->quantize;
  job->kernels = (mlx_kernels_t){.cpu_level = mlx_kernels_cpu_level(job->target.cpu_level), .dtype = job->graph.dtype};
  MLX_TRY(mlx_graph_use_kernels(job->model, &job->kernels, &job->graph));
  if (!job->graph.kernels) {
    job->graph.layout = MLX_LAYOUT_ROWS;
    return no_kernels(job, "its network is not of a kind they know");
  }
  note_widened(job);
  return NULL;
}

// Without a kernel there are no packed weights: the plain lowering computes with plain numbers.
static mlx_status_t check_packed(const job_t *job) {
  if (stays_packed(job)) return NULL;
  if (job->options->weights != MLX_WEIGHTS_PACKED && job->options->quantize == MLX_QUANTIZE_NONE) return NULL;
  const char *why = job->graph.kernels  ? "its file has none that they know"
                                          : "they need our kernels, which are not linked here";
  return mlx_status_hint(mlx_error(MLX_UNSUPPORTED, "no packed weights for this model: %s", why), "use --dtype auto, f32 or bf16%s",
                         job->options->quantize ? ", without --quantize" : "");
}

// A model that is as narrow already is refused: who asks for it twice expects something that does not happen.
static mlx_status_t check_quantize(const job_t *job) {
  const mlx_quantize_t kind = job->options->quantize;
  if (kind == MLX_QUANTIZE_NONE) return NULL;
  if (job->options->weights == MLX_WEIGHTS_WIDE) {
    return mlx_status_hint(mlx_error(MLX_USAGE, "--quantize makes packed weights; --dtype asks for others"), "give one of the two");
  }
  const mlx_storage_t storage = {.dtype = MLX_F32, .layout = MLX_LAYOUT_PACKED, .quantize = kind};
  if (mlx_weights_count(job->model, storage, MLX_STORED_QUANTISED)) return NULL;
  return mlx_status_hint(mlx_error(MLX_UNSUPPORTED, "'%s' has no matrix to be quantised to %s: none is wider, with columns a multiple of 32",
                                   mlx_source_path(job->model->source), mlx_quantize_name(kind)),
                         "leave --quantize out: packed weights are used as they are");
}

static const char *storage_name(const job_t *job) {
  if (!stays_packed(job)) return mlx_dtype_info(job->graph.dtype)->mlir;
  return job->graph.quantize ? mlx_quantize_name(job->graph.quantize) : "packed";
}

static mlx_status_t choose_kernels(job_t *job) {
  const char *why = why_no_kernels(job);
  if (job->options->kernels == MLX_KERNELS_OFF) return NULL;
  if (why && job->options->kernels == MLX_KERNELS_AUTO && job->target.gpu) return NULL;
  if (why) return no_kernels(job, why);
  if (!job->target.gpu) return use_cpu_kernels(job);
  mlx_status_t status = mlx_nvrtc_open(NULL, &job->nvrtc);
  if (mlx_status_code(status) == MLX_UNAVAILABLE && job->options->kernels == MLX_KERNELS_AUTO) {
    mlx_report_note(job->options->report, "no linked kernels, the plain lowering is used: %s", mlx_status_message(status));
    mlx_status_free(status);
    return NULL;
  }
  if (status) return status;
  if (has_packed(job, MLX_LAYOUT_TILES)) job->graph.layout = MLX_LAYOUT_TILES;
  job->graph.quantize = job->options->quantize;
  job->kernels = (mlx_kernels_t){.gpu = job->target.gpu, .dtype = job->graph.dtype};
  MLX_TRY(mlx_graph_use_kernels(job->model, &job->kernels, &job->graph));
  note_widened(job);
  if (job->graph.kernels) return NULL;
  job->graph.layout = MLX_LAYOUT_ROWS;
  return no_kernels(job, "its attention is not of a kind they know");
}

// ---------------------------------------------------------------------------------------------------------------------
// The vmfb

// The MLIR lies beside the log, so that the command line in the log can be run again after a failure.
static mlx_status_t fill_vmfb(void *user, const char *folder, const char *log_path) {
  job_t *job = user;
  char *mlir_path = NULL, *vmfb_path = NULL, *object_folder = NULL;
  mlx_status_t status = mlx_format(&mlir_path, "%s.mlir", log_path);
  if (!status) status = mlx_format(&object_folder, "%s.kernels", log_path);
  if (!status) status = mlx_join_path(folder, MLX_BUNDLE_VMFB, &vmfb_path);
  if (!status) status = mlx_write_file(mlir_path, job->mlir, job->mlir_length);
  if (!status && job->kernels.count) status = mlx_kernels_compile(&job->kernels, job->nvrtc, object_folder, job->options->report);
  mlx_process_result_t result;
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
    mlx_status_free(mlx_remove_tree(mlir_path));
    mlx_status_free(mlx_remove_tree(object_folder));
    mlx_report_note(job->options->report, "compiled %s in %.1f s (iree-compile's peak memory: %llu MiB)", job->title,
                    result.elapsed_seconds, (unsigned long long)(result.peak_bytes >> 20));
  }
  mlx_free(mlir_path);
  mlx_free(vmfb_path);
  mlx_free(object_folder);
  return status;
}

static mlx_status_t get_vmfb(job_t *job, mlx_cache_entry_t *out_entry) {
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
  mlx_kernels_free_objects(&job->kernels, objects);
  const mlx_cache_request_t request = {.kind = "vmfb", .key = key, .title = job->title, .fill = fill_vmfb, .user = job};
  return mlx_cache_get(job->cache, &request, job->options->report, out_entry);
}

static const char smoke_module[] =
    "module @mlxcel {\n"
    "  func.func @smoke(%x: tensor<4xi32>) -> tensor<4xi32> {\n"
    "    %twice = stablehlo.add %x, %x : tensor<4xi32>\n"
    "    return %twice : tensor<4xi32>\n"
    "  }\n"
    "}\n";

mlx_status_t mlx_compile_smoke(mlx_cache_t *cache, const char *target, const mlx_report_t *report,
                               mlx_cache_entry_t *out_entry, char **out_path) {
  const mlx_compile_options_t options = {.report = report};
  job_t job = {.options = &options, .cache = cache, .mlir = (char *)(uintptr_t)smoke_module, .mlir_length = strlen(smoke_module)};
  *out_path = NULL;
  snprintf(job.title, sizeof job.title, "a small module for %.40s", target);
  MLX_TRY(mlx_target_parse(target, &job.target));
  MLX_TRY(mlx_iree_compiler_find(cache, NULL, report, &job.compiler));
  mlx_status_t status = get_vmfb(&job, out_entry);
  mlx_iree_compiler_release(&job.compiler);
  return status ? status : mlx_join_path(out_entry->folder, MLX_BUNDLE_VMFB, out_path);
}

// ---------------------------------------------------------------------------------------------------------------------
// The weights

static mlx_status_t fill_weights(void *user, const char *folder, const char *log_path) {
  (void)log_path;
  job_t *job = user;
  char *path;
  MLX_TRY(mlx_join_path(folder, MLX_BUNDLE_WEIGHTS, &path));
  mlx_status_t status = mlx_weights_write(job->model, mlx_graph_storage(&job->graph), path, job->options->report);
  if (!status) status = check_source_unchanged(job);
  mlx_free(path);
  return status;
}

static mlx_status_t get_weights(job_t *job, mlx_cache_entry_t *out_entry) {
  char key[MLX_DIGEST_HEX], hex[MLX_DIGEST_HEX];
  mlx_digest_t digest;
  mlx_digest_begin(&digest);
  const char *path, *dtype = storage_name(job);
  static const char *const layouts[] = {[MLX_LAYOUT_ROWS] = MLX_WEIGHTS_LAYOUT, [MLX_LAYOUT_PANELS] = MLX_PANELS_LAYOUT,
                                        [MLX_LAYOUT_PACKED] = MLX_PANELS_LAYOUT, [MLX_LAYOUT_TILES] = MLX_TILES_LAYOUT};
  mlx_digest_field(&digest, "layout", layouts[job->graph.layout], strlen(layouts[job->graph.layout]));
  mlx_digest_field(&digest, "dtype", dtype, strlen(dtype));
  for (size_t i = 0; job->kernels.tiles && i < job->model->weight_count; ++i) {  // which may follow from more than the files
    char tiles[64];
    snprintf(tiles, sizeof tiles, MLX_TILES_FORMAT, MLX_TILES_ARGUMENTS(job->kernels.tiles[i]));
    mlx_digest_field(&digest, "tiles", tiles, strlen(tiles));
  }
  for (size_t i = 0; (path = mlx_source_file(job->model->source, i)); ++i) {
    mlx_report_progress(job->options->report, "reading %s", path);
    MLX_TRY(mlx_cache_digest_file(job->cache, path, hex));
    mlx_digest_field(&digest, mlx_file_name(path).text, hex, strlen(hex));
  }
  mlx_report_done(job->options->report);
  mlx_digest_end(&digest, key);
  char title[160];
  snprintf(title, sizeof title, "weights of %.64s as %s", mlx_file_name(mlx_source_path(job->model->source)).text, dtype);
  const mlx_cache_request_t request = {.kind = "weights", .key = key, .title = title, .fill = fill_weights, .user = job};
  return mlx_cache_get(job->cache, &request, job->options->report, out_entry);
}

// ---------------------------------------------------------------------------------------------------------------------
// The manifest

static mlx_bundle_file_t *add_file(mlx_manifest_t *m, const char *name) {
  mlx_bundle_file_t *file = &m->files[m->file_count++];
  snprintf(file->name, sizeof file->name, "%s", name);
  return file;
}

static void add_text_file(mlx_manifest_t *m, const char *name, const char *text, size_t length) {
  mlx_bundle_file_t *file = add_file(m, name);
  mlx_digest_t digest;
  mlx_digest_begin(&digest);
  mlx_digest_add(&digest, text, length);
  mlx_digest_end(&digest, file->sha256);
  file->size = (int64_t)length;
}

// The cache knows the digests of what it holds: nothing is read for this.
static mlx_status_t add_cached_file(const job_t *job, mlx_manifest_t *m, const char *name, const char *path) {
  mlx_bundle_file_t *file = add_file(m, name);
  mlx_file_stamp_t stamp;
  MLX_TRY(mlx_file_stamp(path, &stamp));
  file->size = (int64_t)stamp.size;
  return mlx_cache_digest_file(job->cache, path, file->sha256);
}

// What a bundle of this will hold, so that whoever brings it elsewhere can check it.
static mlx_status_t add_files(const job_t *job, const mlx_compiled_t *out, mlx_manifest_t *m) {
  if (!out->weights_path) return NULL;
  add_text_file(m, MLX_BUNDLE_TOKENIZER, out->tokenizer, out->tokenizer_length);
  if (out->chat) add_text_file(m, MLX_BUNDLE_CHAT, out->chat, out->chat_length);
  for (size_t i = 0; i < out->module_count; ++i) {
    MLX_TRY(add_cached_file(job, m, mlx_bundle_module(out->modules[i].level).text, out->modules[i].path));
  }
  return add_cached_file(job, m, MLX_BUNDLE_WEIGHTS, out->weights_path);
}

static mlx_status_t write_manifest(const job_t *job, mlx_compiled_t *out) {
  size_t position = 0, pool = 0;
  if (!kv_bytes(job, 1, &position) || !kv_bytes(job, pool_positions(&job->graph), &pool)) position = pool = 0;  // not known
  mlx_manifest_t m = {.contract = MLX_CONTRACT_VERSION,
                      .vocab = job->model->config.vocab,
                      .context = job->graph.context,
                      .rows = job->graph.rows,
                      .page_size = job->graph.page_size,
                      .row_pages = mlx_graph_row_pages(&job->graph),
                      .pool_pages = mlx_graph_pool_pages(&job->graph),
                      .prefill_count = job->graph.bucket_count,
                      .decode_count = job->graph.step_count,
                      .driver = job->nvrtc && job->kernels.count ? 1000 * mlx_nvrtc_major(job->nvrtc) + 10 * mlx_nvrtc_minor(job->nvrtc) : 0,
                      .state_bytes = (int64_t)pool,
                      .kv_bytes = (int64_t)position};
  snprintf(m.architecture, sizeof m.architecture, "%s", mlx_source_architecture(job->model->source));
  snprintf(m.source, sizeof m.source, "%s", mlx_file_name(mlx_source_path(job->model->source)).text);
  snprintf(m.dtype, sizeof m.dtype, "%s", storage_name(job));
  snprintf(m.target, sizeof m.target, "%s", job->target.name);
  snprintf(m.cpu, sizeof m.cpu, "%s", job->target.cpu);
  snprintf(m.compiler, sizeof m.compiler, "%s", job->compiler.version);
  snprintf(m.compiler_digest, sizeof m.compiler_digest, "%s", job->compiler.digest);
  memcpy(m.prefill, job->graph.buckets, sizeof m.prefill);
  memcpy(m.decode, job->graph.steps, sizeof m.decode);
  for (int kind = 0; kind < MLX_KERNEL_KINDS; ++kind) {
    if (!mlx_kernels_use(&job->kernels, (mlx_kernel_kind_t)kind)) continue;
    snprintf(m.kernels[m.kernel_count++], sizeof m.kernels[0], "%s", mlx_kernel_kind_name((mlx_kernel_kind_t)kind));
  }
  for (size_t i = 0; job->target.portable && i < out->module_count; ++i) {
    snprintf(m.levels[m.level_count++], sizeof m.levels[0], "%s", out->modules[i].level);
  }
  MLX_TRY(mlx_source_eos_ids(job->model->source, m.eos, MLX_MAX_EOS, &m.eos_count));
  MLX_TRY(add_files(job, out, &m));
  return mlx_manifest_write(&m, &out->manifest, &out->manifest_length);
}

// ---------------------------------------------------------------------------------------------------------------------
// All of it

static mlx_status_t read_tokenizer(const mlx_source_t *source, mlx_compiled_t *out) {
  MLX_TRY(name_tokenizer(source, &out->tokenizer_name));
  MLX_TRY(mlx_source_chat_json(source, &out->chat, &out->chat_length));
  return mlx_source_tokenizer_json(source, &out->tokenizer, &out->tokenizer_length);
}

static mlx_status_t compile_module(job_t *job, const char *model_path, mlx_compiled_t *out) {
  mlx_compiled_module_t *module = &out->modules[out->module_count];
  MLX_TRY(choose_kernels(job));
  MLX_TRY(check_packed(job));
  if (job->options->verbose) mlx_weights_explain(job->model, mlx_graph_storage(&job->graph), notes_of(job));
  mlx_title_t title = {.context = job->graph.context};
  snprintf(title.model, sizeof title.model, "%.64s", mlx_file_name(model_path).text);
  snprintf(title.dtype, sizeof title.dtype, "%s", storage_name(job));
  snprintf(title.target, sizeof title.target, "%s", job->target.name);
  write_title(&title, job->title, sizeof job->title);
  MLX_TRY(mlx_graph_emit(job->model, &job->graph, &job->mlir, &job->mlir_length));
  if (!job->modules) MLX_TRY(mlx_iree_compiler_find(job->cache, job->options->iree_compile, job->options->report, &job->compiler));
  MLX_TRY(get_vmfb(job, &module->entry));
  out->module_count++;
  MLX_TRY(mlx_join_path(module->entry.folder, MLX_BUNDLE_VMFB, &module->path));
  out->vmfb_path = out->modules[0].path;
  return NULL;
}

// A module for each level that this mlxcel has a kernel for. Panels lie the same way for all: they share the weights.
static mlx_status_t compile_levels(job_t *job, const char *model_path, mlx_compiled_t *out) {
  const mlx_graph_options_t graph = job->graph;
  const mlx_target_t portable = job->target;
  const mlx_cpu_level_t *level;
  char target[32];
  for (size_t i = 0; (level = mlx_cpu_level(i)) && out->module_count < MLX_MAX_LEVELS; ++i) {
    if (!mlx_kernels_have_level(level->name)) {
      if (!mlx_kernels_cpu_level(level->name)) {  // and none below it
        mlx_report_note(job->options->report, "no code for %s: this mlxcel was built without a kernel for it", level->name);
      }
      continue;
    }
    snprintf(target, sizeof target, "cpu:%s", level->name);
    mlx_kernels_clear(&job->kernels);
    mlx_free(job->mlir);
    job->mlir = NULL;
    job->graph = graph;
    job->modules = out->module_count;
    MLX_TRY(mlx_target_parse(target, &job->target));
    out->modules[out->module_count].level = level->name;
    MLX_TRY(compile_module(job, model_path, out));
  }
  job->target = portable;
  return out->module_count ? NULL : mlx_error(MLX_UNSUPPORTED, "this mlxcel was built without CPU kernels, of which a portable model is made");
}

static mlx_status_t compile_job(job_t *job, const char *model_path, mlx_compiled_t *out) {
  MLX_TRY(mlx_target_parse(job->options->target ? job->options->target : "cpu", &job->target));
  MLX_TRY(open_model(job, model_path));
  MLX_TRY(make_graph(job->model, job->options, MLX_FORM_IREE, &job->graph));
  MLX_TRY(check_kv_fits(job));
  MLX_TRY(read_tokenizer(job->model->source, out));
  if (job->options->accept) {
    MLX_TRY(job->options->accept(job->options->user, out, job->graph.context, job->model->config.vocab));
  }
  MLX_TRY(check_quantize(job));
  MLX_TRY(job->target.portable ? compile_levels(job, model_path, out) : compile_module(job, model_path, out));
  if (!job->options->module_only) {
    MLX_TRY(get_weights(job, &out->weights));
    MLX_TRY(mlx_join_path(out->weights.folder, MLX_BUNDLE_WEIGHTS, &out->weights_path));
  }
  MLX_TRY(write_manifest(job, out));
  return check_source_unchanged(job);
}

mlx_status_t mlx_compile(const char *model_path, const mlx_compile_options_t *options, mlx_cache_t *cache,
                         mlx_compiled_t *out_compiled) {
  *out_compiled = (mlx_compiled_t){0};
  job_t job = {.options = options, .cache = cache};
  mlx_status_t status = compile_job(&job, model_path, out_compiled);
  mlx_kernels_clear(&job.kernels);
  mlx_nvrtc_close(job.nvrtc);
  mlx_free(job.mlir);
  mlx_iree_compiler_release(&job.compiler);
  mlx_model_close(job.model);
  if (status) mlx_compiled_release(out_compiled);
  return status;
}

void mlx_compiled_release(mlx_compiled_t *compiled) {
  mlx_free(compiled->manifest);
  mlx_free(compiled->tokenizer);
  mlx_free(compiled->tokenizer_name);
  mlx_free(compiled->chat);
  for (size_t i = 0; i < compiled->module_count; ++i) {
    mlx_free(compiled->modules[i].path);
    mlx_cache_release(&compiled->modules[i].entry);
  }
  mlx_free(compiled->weights_path);
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
  MLX_TRY(mlx_make_dirs(folder, 0777));
  MLX_TRY(put_text(folder, MLX_BUNDLE_MANIFEST, compiled->manifest, compiled->manifest_length));
  MLX_TRY(put_text(folder, MLX_BUNDLE_TOKENIZER, compiled->tokenizer, compiled->tokenizer_length));
  if (compiled->chat) MLX_TRY(put_text(folder, MLX_BUNDLE_CHAT, compiled->chat, compiled->chat_length));
  for (size_t i = 0; i < compiled->module_count; ++i) {
    MLX_TRY(put_copy(folder, mlx_bundle_module(compiled->modules[i].level).text, compiled->modules[i].path));
  }
  return put_copy(folder, MLX_BUNDLE_WEIGHTS, compiled->weights_path);
}

static mlx_status_t refuse_foreign_name(void *user, const char *name) {
  if (mlx_is_bundle_file(name)) return NULL;
  return mlx_error(MLX_USAGE, "'%s' holds '%s', which is not part of a compiled model", (const char *)user, name);
}

mlx_status_t mlx_compiled_check_path(const char *path) {
  mlx_status_t status = NULL;
  if (mlx_is_dir(path)) {
    status = mlx_is_bundle(path) ? mlx_list_dir(path, refuse_foreign_name, (void *)(uintptr_t)path)
                                 : mlx_error(MLX_USAGE, "'%s' is a folder, but not a compiled model", path);
  } else if (!access(path, F_OK)) {
    status = mlx_error(MLX_USAGE, "'%s' is a file; a compiled model is a folder", path);
  }
  return mlx_status_hint(status, "give -o a name that is free");
}

// Only one process at a time writes bundles into a folder: then every temporary bundle in it is a dead process's. Where the
// file system has no locks, -1.
static int lock_folder(const char *folder) {
  int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return -1;
  while (flock(fd, LOCK_EX)) {
    if (errno == EINTR) continue;
    close(fd);
    return -1;
  }
  return fd;
}

typedef struct sweep {
  const char *folder, *name;
} sweep_t;

// The same for a bundle that was being written: a file of it may still have the name it was written under.
static mlx_status_t refuse_foreign_part(void *user, const char *name) {
  const char *temporary = strstr(name, ".tmp.");
  char file[256];
  snprintf(file, sizeof file, "%.*s", (int)(temporary ? (size_t)(temporary - name) : strlen(name)), name);
  return refuse_foreign_name(user, file);
}

// Removes "NAME.tmp.PID.TIME-N" beside the bundle NAME, a name only we make, if nothing but a bundle's files is in it.
static mlx_status_t sweep_name(void *user, const char *name) {
  const sweep_t *sweep = user;
  size_t length = strlen(sweep->name);
  long pid;
  unsigned long long when;
  unsigned number;
  int end = 0;
  char *path;
  if (strncmp(name, sweep->name, length)) return NULL;
  if (sscanf(name + length, ".tmp.%ld.%llx-%x%n", &pid, &when, &number, &end) != 3 || name[length + (size_t)end]) return NULL;
  MLX_TRY(mlx_join_path(sweep->folder, name, &path));
  mlx_status_t status = mlx_is_dir(path) ? mlx_list_dir(path, refuse_foreign_part, path) : NULL;
  if (!status) status = mlx_remove_tree(path);
  mlx_free(path);
  return status;
}

static void sweep_leftovers(const char *folder, const char *path) {
  mlx_file_name_t name = mlx_file_name(path);
  sweep_t sweep = {.folder = folder, .name = name.text};
  mlx_status_free(mlx_list_dir(folder, sweep_name, &sweep));  // what cannot be removed is no reason to fail
}

static mlx_status_t fill_and_publish(const mlx_compiled_t *compiled, const char *path) {
  char *temporary;
  MLX_TRY(mlx_temporary_path(path, &temporary));
  mlx_status_t status = fill_bundle(compiled, temporary);
  if (!status) status = mlx_is_dir(path) ? mlx_exchange(temporary, path) : mlx_rename(temporary, path);
  mlx_status_free(mlx_remove_tree(temporary));  // what is left of it, or the older bundle
  mlx_free(temporary);
  return status;
}

static mlx_status_t write_bundle(const mlx_compiled_t *compiled, const char *path) {
  char *folder;
  MLX_TRY(mlx_folder_of(path, &folder));
  mlx_status_t status = mlx_make_dirs(folder, 0777);
  if (!status) {
    int lock = lock_folder(folder);
    if (lock >= 0) sweep_leftovers(folder, path);
    status = fill_and_publish(compiled, path);
    if (lock >= 0) close(lock);
  }
  mlx_free(folder);
  return status;
}

mlx_status_t mlx_compiled_write(const mlx_compiled_t *compiled, const char *path, const mlx_report_t *report) {
  char *target;
  MLX_TRY(mlx_compiled_check_path(path));
  MLX_TRY(mlx_is_dir(path) ? mlx_real_path(path, &target) : mlx_copy_text(path, strlen(path), &target));  // a link stays
  mlx_report_progress(report, "writing %s", path);
  mlx_status_t status = write_bundle(compiled, target);
  mlx_report_done(report);
  mlx_free(target);
  return status;
}
