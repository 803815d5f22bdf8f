#include "compiler/compile.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "artifact/bundle.h"
#include "base/cpu.h"
#include "base/file.h"
#include "base/memory.h"
#include "compiler/driver.h"
#include "compiler/graph.h"
#include "compiler/source_digest.h"
#include "compiler/target.h"
#include "compiler/weights.h"

#define DEFAULT_CONTEXT \
  2048  // where the model allows more: memory for the KV cache is taken whether it is used or not

// One compilation: everything both cache entries and the manifest are made from.
typedef struct job {
  const mlx_compile_options_t *options;
  mlx_cache_t *cache;
  mlx_model_t *model;
  mlx_target_t target;
  mlx_graph_options_t graph;
  mlx_iree_compiler_t compiler;
  mlx_nvrtc_t *nvrtc;  // NULL: no kernels
  mlx_kernels_t kernels;
  char kernels_digest[MLX_DIGEST_HEX];
  char *mlir;
  size_t mlir_length;
  size_t modules;                       // made before this one, for other levels of the same target
  bool alone;                           // this is the only target
  bool ran_compiler;                    // a module was not in the cache
  mlx_manifest_t manifest;              // grows with each target
  char source_stamp[MLX_DIGEST_HEX];    // of the source's files when it was opened
  char weights_digest[MLX_DIGEST_HEX];  // of those that the weights come from
  char title[192];
} job_t;

bool mlx_compiler_is_here(void) { return true; }
const char *mlx_compiler_elsewhere(void) { return NULL; }

// ----------------------------------------------------------------------------------------------------------
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
  return mlx_status_hint(
      mlx_error(MLX_IO, "'%s' changed while it was being compiled", mlx_source_path(job->model->source)),
      "run the command again when the file is complete");
}

// ----------------------------------------------------------------------------------------------------------
// The graph

// A longrope has one set of frequencies for texts up to a length and another for longer ones. A compiled
// model has one of them, so what nobody asked to be longer is short: exact for every text that fits.
static mlx_status_t choose_context(const mlx_config_t *config, int64_t wanted, int64_t *out_context) {
  const int64_t most = config->local_context && config->local_context < config->context
                           ? config->local_context
                           : config->context;
  *out_context = wanted;
  if (wanted == 0) *out_context = most < DEFAULT_CONTEXT ? most : DEFAULT_CONTEXT;
  if (wanted == MLX_CONTEXT_OF_MODEL) *out_context = config->context;
  if (*out_context >= 1 && *out_context <= config->context) return NULL;
  return mlx_status_hint(
      mlx_error(MLX_USAGE, "a context of %lld was asked for; the model was made for %lld positions",
                (long long)wanted, (long long)config->context),
      "use a context of %lld or less (-c, --ctx)", (long long)config->context);
}

// Bytes of |positions| positions' keys and values, all layers; false when no size_t holds that.
static bool kv_bytes(const job_t *job, int64_t positions, size_t *out_bytes) {
  const mlx_config_t *config = &job->model->config;
  const int64_t factors[] = {positions, config->layers, 2, config->kv_heads, config->head_dim};
  bool fits = true;
  *out_bytes = mlx_dtype_info(job->graph.dtype)->block_bytes;
  for (size_t i = 0; i < sizeof factors / sizeof *factors; ++i)
    fits = fits && mlx_mul(*out_bytes, (size_t)factors[i], out_bytes);
  return fits;
}

static int64_t pool_positions(const mlx_graph_options_t *graph) {
  return mlx_graph_pool_pages(graph) * graph->page_size;
}

// A context that can never fit is refused here, with the number, and not by an allocation in the middle of a
// run. Only what is compiled for a machine we know can be held against its memory.
static mlx_status_t check_kv_fits(const job_t *job) {
  const uint64_t memory = job->options->memory ? job->options->memory
                          : job->target.cpu[0] ? mlx_physical_memory()
                                               : UINT64_MAX;
  const mlx_graph_options_t *graph = &job->graph;
  size_t bytes;
  bool fits = kv_bytes(job, pool_positions(graph), &bytes);
  if (fits && bytes <= memory) return NULL;
  return mlx_status_hint(
      mlx_error(MLX_OUT_OF_MEMORY, "the KV cache of a context of %lld needs %.1f GiB; there are %.1f GiB",
                (long long)graph->context, fits ? (double)bytes / (1 << 30) : 1e9,
                (double)memory / (1 << 30)),
      "ask for a smaller context (-c, --ctx)");
}

static mlx_status_t make_graph(const mlx_model_t *model, const mlx_compile_options_t *options,
                               mlx_form_t form, mlx_graph_options_t *out_graph) {
  int64_t context;
  MLX_TRY(choose_context(&model->config, options->context, &context));
  if (model->config.local_context && context > model->config.local_context) {
    mlx_report_note(options->report,
                    "a context of more than %lld: positions turn as for long texts from the first on; a text "
                    "that ends sooner may "
                    "differ from Hugging Face's",
                    (long long)model->config.local_context);
  }
  if (options->sequences < 0 || options->sequences > MLX_MAX_SEQUENCES) {
    return mlx_error(MLX_USAGE, "%lld rows were asked for; 1 to %d are possible",
                     (long long)options->sequences, MLX_MAX_SEQUENCES);
  }
  if (!mlx_dtype_info(options->dtype)->from_f32) {
    return mlx_error(MLX_USAGE, "weights cannot be stored as %s", mlx_dtype_info(options->dtype)->name);
  }
  mlx_graph_options_initialize(context, out_graph);
  out_graph->form = form;
  out_graph->dtype = options->dtype;
  if (options->sequences) out_graph->sequences = options->sequences;
  return NULL;
}

mlx_status_t mlx_compile_stablehlo(const char *model_path, const mlx_compile_options_t *options,
                                   char **out_text, size_t *out_length) {
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
  return mlx_source_is_gguf(source) ? mlx_copy_text(path, strlen(path), out_name)
                                    : mlx_join_path(path, MLX_BUNDLE_TOKENIZER, out_name);
}

mlx_status_t mlx_compile_tokenizer(const char *model_path, char **out_name, char **out_json,
                                   size_t *out_length) {
  mlx_source_t *source;
  *out_name = *out_json = NULL;
  MLX_TRY(mlx_source_open(model_path, &source));
  mlx_status_t status = name_tokenizer(source, out_name);
  if (!status) status = mlx_source_tokenizer_json(source, out_json, out_length);
  mlx_source_close(source);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Titles, which the cache keeps for people

static void write_title(const mlx_title_t *title, char *out, size_t size) {
  snprintf(out, size, "%.64s as %s for %s, context %lld", title->model, title->dtype, title->target,
           (long long)title->context);
}

// From the end: a model may be called "x as y for z".
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

// ----------------------------------------------------------------------------------------------------------
// Our own kernels

mlx_status_t mlx_kernel_choice_parse(const char *text, mlx_kernel_choice_t *out_choice) {
  static const char *const names[] = {
      [MLX_KERNELS_AUTO] = "auto", [MLX_KERNELS_REQUIRED] = "required", [MLX_KERNELS_OFF] = "off"};
  for (int i = 0; i < 3; ++i) {
    if (strcmp(text, names[i])) continue;
    *out_choice = (mlx_kernel_choice_t)i;
    return NULL;
  }
  return mlx_error(MLX_USAGE, "--kernels wants auto, required or off, not '%s'", text);
}

mlx_status_t mlx_weights_choice_parse(const char *text, mlx_weights_choice_t *out_choice,
                                      mlx_dtype_t *out_dtype) {
  const bool automatic = !strcmp(text, "auto"), packed = !strcmp(text, "packed");
  *out_choice = automatic ? MLX_WEIGHTS_AUTO : packed ? MLX_WEIGHTS_PACKED : MLX_WEIGHTS_WIDE;
  *out_dtype = MLX_F32;
  if (automatic || packed) return NULL;
  mlx_status_t status = mlx_dtype_parse(text, out_dtype);
  if (!status) return NULL;
  mlx_status_free(status);
  return mlx_status_hint(mlx_error(MLX_USAGE, "unknown dtype '%s'", text),
                         "dtypes: auto, packed, f32, f16, bf16");
}

// Whether there are weights to be kept packed in |layout|, and they may be.
static bool has_packed(const job_t *job, mlx_layout_t layout) {
  const mlx_storage_t storage = {.dtype = MLX_F32, .layout = layout, .quantize = job->options->quantize};
  return job->options->weights != MLX_WEIGHTS_WIDE &&
         (mlx_weights_count(job->model, storage, MLX_STORED_CODES) ||
          mlx_weights_count(job->model, storage, MLX_STORED_QUANTISED));
}

static bool stays_packed(const job_t *job) {
  return job->graph.layout == MLX_LAYOUT_PACKED || job->graph.layout == MLX_LAYOUT_TILES;
}

// Why there can be none for this model and target, whatever is installed; NULL when there can.
static const char *why_no_kernels(const job_t *job) {
  if (!job->target.gpu)
    return mlx_kernels_cpu_level(job->target.cpu_level) ? NULL
                                                        : "this mlxcel was built without any for that CPU";
  if (!job->target.gpu->kernel_sm) return "they need a GPU from sm_80 on";
  if (job->graph.dtype == MLX_F32 && !has_packed(job, MLX_LAYOUT_TILES))
    return "they compute with packed or 16-bit weights (--dtype bf16 or f16)";
  return NULL;
}

// What is so for every level is said for the first.
static const mlx_report_t *notes_of(const job_t *job) { return job->modules ? NULL : job->options->report; }

static mlx_status_t no_kernels(const job_t *job, const char *why) {
  if (job->options->kernels != MLX_KERNELS_REQUIRED) {
    mlx_report_note(notes_of(job), "no linked kernels, the plain lowering is used: %s", why);
    return NULL;
  }
  return mlx_status_hint(mlx_error(MLX_UNSUPPORTED, "no linked kernels for this model: %s", why),
                         "use --kernels=auto");
}

// The first matrix that is packed in its file and stored as numbers; NULL when there is none.
static const mlx_weight_t *first_widened(const job_t *job) {
  for (size_t i = 0; i < job->model->weight_count; ++i) {
    const mlx_weight_t *weight = &job->model->weights[i];
    const bool packed = weight->packing.kind || mlx_dtype_info(weight->tensor.dtype)->block_elements > 1;
    if (packed && weight->tensor.rank == 2 &&
        mlx_weight_stored(weight, mlx_graph_storage(&job->graph)).kind == MLX_STORED_NUMBERS)
      return weight;
  }
  return NULL;
}

static void note_widened(const job_t *job) {
  const mlx_weight_t *widened = stays_packed(job) ? first_widened(job) : NULL;
  if (!widened) return;
  mlx_report_note(
      notes_of(job),
      "some packed weights, of which '%s' is the first, are widened to %s: no packed layout has their groups",
      widened->name, mlx_dtype_info(job->graph.dtype)->mlir);
}

static mlx_status_t use_cpu_kernels(job_t *job) {
  if (has_packed(job, MLX_LAYOUT_PACKED)) job->graph.layout = MLX_LAYOUT_PACKED;
  job->graph.quantize = job->options->quantize;
  job->kernels =
      (mlx_kernels_t){.cpu_level = mlx_kernels_cpu_level(job->target.cpu_level), .dtype = job->graph.dtype};
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
  const char *why = job->graph.kernels ? "its file has none that they know"
                                       : "they need our kernels, which are not linked here";
  return mlx_status_hint(mlx_error(MLX_UNSUPPORTED, "no packed weights for this model: %s", why),
                         "use --dtype auto, f32 or bf16%s",
                         job->options->quantize ? ", without --quantize" : "");
}

// A model that is as narrow already is refused: who asks for it twice expects something that does not happen.
static mlx_status_t check_quantize(const job_t *job) {
  const mlx_quantize_t kind = job->options->quantize;
  if (kind == MLX_QUANTIZE_NONE) return NULL;
  if (job->options->weights == MLX_WEIGHTS_WIDE) {
    return mlx_status_hint(mlx_error(MLX_USAGE, "--quantize makes packed weights; --dtype asks for others"),
                           "give one of the two");
  }
  const mlx_storage_t storage = {.dtype = MLX_F32, .layout = MLX_LAYOUT_PACKED, .quantize = kind};
  if (mlx_weights_count(job->model, storage, MLX_STORED_QUANTISED)) return NULL;
  return mlx_status_hint(
      mlx_error(MLX_UNSUPPORTED,
                "'%s' has no matrix to be quantised to %s: none is wider, with columns a multiple of 32",
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
  mlx_status_t status = job->nvrtc ? NULL : mlx_nvrtc_open(NULL, &job->nvrtc);
  if (mlx_status_code(status) == MLX_UNAVAILABLE && job->options->kernels == MLX_KERNELS_AUTO) {
    mlx_report_note(job->options->report, "no linked kernels, the plain lowering is used: %s",
                    mlx_status_message(status));
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

// ----------------------------------------------------------------------------------------------------------
// The vmfb

// The MLIR lies beside the log, so that the command line in the log can be run again after a failure.
static mlx_status_t fill_vmfb(void *user, const char *folder, const char *log_path) {
  job_t *job = user;
  char *mlir_path = NULL, *vmfb_path = NULL, *object_folder = NULL;
  mlx_status_t status = mlx_format(&mlir_path, "%s.mlir", log_path);
  if (!status) status = mlx_format(&object_folder, "%s.kernels", log_path);
  if (!status) status = mlx_join_path(folder, MLX_BUNDLE_VMFB, &vmfb_path);
  if (!status) status = mlx_write_file(mlir_path, job->mlir, job->mlir_length);
  if (!status && job->kernels.count)
    status = mlx_kernels_compile(&job->kernels, job->nvrtc, object_folder, job->options->report);
  mlx_process_result_t result;
  job->ran_compiler = true;
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
    mlx_report_note(job->options->report, "compiled %s in %.1f s (iree-compile's peak memory: %llu MiB)",
                    job->title, result.elapsed_seconds, (unsigned long long)(result.peak_bytes >> 20));
  }
  mlx_free(mlir_path);
  mlx_free(vmfb_path);
  mlx_free(object_folder);
  return status;
}

// The version of our own code in a module. Of a portable model's modules the last one's: all are of one
// mlxcel.
static void digest_kernels(const mlx_iree_object_t *objects, size_t count, char out_hex[MLX_DIGEST_HEX]) {
  mlx_digest_t digest;
  out_hex[0] = 0;
  if (!count) return;
  mlx_digest_begin(&digest);
  for (size_t i = 0; i < count; ++i)
    mlx_digest_field(&digest, objects[i].name, objects[i].bytes, objects[i].length);
  mlx_digest_end(&digest, out_hex);
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
  digest_kernels(objects, job->kernels.count, job->kernels_digest);
  mlx_kernels_free_objects(&job->kernels, objects);
  const mlx_cache_request_t request = {
      .kind = "vmfb", .key = key, .title = job->title, .fill = fill_vmfb, .user = job};
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
  job_t job = {.options = &options,
               .cache = cache,
               .mlir = (char *)(uintptr_t)smoke_module,
               .mlir_length = strlen(smoke_module)};
  *out_path = NULL;
  snprintf(job.title, sizeof job.title, "a small module for %.40s", target);
  MLX_TRY(mlx_target_parse(target, &job.target));
  MLX_TRY(mlx_iree_compiler_find(cache, NULL, report, &job.compiler));
  mlx_status_t status = get_vmfb(&job, out_entry);
  mlx_iree_compiler_release(&job.compiler);
  return status ? status : mlx_join_path(out_entry->folder, MLX_BUNDLE_VMFB, out_path);
}

// ----------------------------------------------------------------------------------------------------------
// The weights

static void clear_file(mlx_compiled_file_t *file) {
  mlx_free(file->path);
  mlx_cache_release(&file->entry);
  *file = (mlx_compiled_file_t){0};
}

static mlx_status_t fill_weights(void *user, const char *folder, const char *log_path) {
  (void)log_path;
  job_t *job = user;
  char *path;
  MLX_TRY(mlx_join_path(folder, MLX_BUNDLE_WEIGHTS, &path));
  mlx_status_t status =
      mlx_weights_write(job->model, mlx_graph_storage(&job->graph), path, job->options->report);
  if (!status) status = check_source_unchanged(job);
  mlx_free(path);
  return status;
}

static mlx_status_t find_weights(job_t *job, mlx_cache_entry_t *out_entry) {
  char key[MLX_DIGEST_HEX];
  mlx_digest_t digest;
  mlx_digest_begin(&digest);
  const char *dtype = storage_name(job);
  static const char *const layouts[] = {[MLX_LAYOUT_ROWS] = MLX_WEIGHTS_LAYOUT,
                                        [MLX_LAYOUT_PANELS] = MLX_PANELS_LAYOUT,
                                        [MLX_LAYOUT_PACKED] = MLX_PANELS_LAYOUT,
                                        [MLX_LAYOUT_TILES] = MLX_TILES_LAYOUT};
  mlx_digest_field(&digest, "layout", layouts[job->graph.layout], strlen(layouts[job->graph.layout]));
  mlx_digest_field(&digest, "dtype", dtype, strlen(dtype));
  for (size_t i = 0; job->kernels.tiles && i < job->model->weight_count;
       ++i) {  // which may follow from more than the files
    char tiles[64];
    snprintf(tiles, sizeof tiles, MLX_TILES_FORMAT, MLX_TILES_ARGUMENTS(job->kernels.tiles[i]));
    mlx_digest_field(&digest, "tiles", tiles, strlen(tiles));
  }
  mlx_digest_field(&digest, "source", job->weights_digest, strlen(job->weights_digest));
  mlx_digest_end(&digest, key);
  char title[160];
  snprintf(title, sizeof title, "weights of %.64s as %s",
           mlx_file_name(mlx_source_path(job->model->source)).text, dtype);
  const mlx_cache_request_t request = {
      .kind = MLX_WEIGHTS_KIND, .key = key, .title = title, .fill = fill_weights, .user = job};
  return mlx_cache_get(job->cache, &request, job->options->report, out_entry);
}

// Targets that store the weights alike share an archive.
static mlx_status_t get_weights(job_t *job, mlx_compiled_t *out, const mlx_compiled_file_t **out_archive) {
  mlx_compiled_file_t *archive = &out->weights[out->weights_count];
  MLX_TRY(find_weights(job, &archive->entry));
  ++out->weights_count;
  MLX_TRY(mlx_join_path(archive->entry.folder, MLX_BUNDLE_WEIGHTS, &archive->path));
  snprintf(archive->name, sizeof archive->name, "%s", mlx_bundle_weights(out->weights_count - 1).text);
  for (size_t i = 0; i + 1 < out->weights_count; ++i) {
    if (strcmp(out->weights[i].path, archive->path)) continue;
    clear_file(archive);
    --out->weights_count;
    archive = &out->weights[i];
    break;
  }
  out->weights_path = out->weights[0].path;
  *out_archive = archive;
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// The manifest

static mlx_bundle_file_t *add_file(mlx_manifest_t *m, const char *name) {
  mlx_bundle_file_t *file = &m->files[m->file_count++];
  snprintf(file->name, sizeof file->name, "%s", name);
  return file;
}

static void add_text_file(mlx_manifest_t *m, const char *name, const char *text, size_t length) {
  mlx_bundle_file_t *file = add_file(m, name);
  mlx_digest_bytes(text, length, file->sha256);
  file->size = (int64_t)length;
}

// The cache knows the digests of what it holds: nothing is read for this.
static mlx_status_t add_cached_file(job_t *job, const mlx_compiled_file_t *from) {
  mlx_bundle_file_t *file = add_file(&job->manifest, from->name);
  mlx_file_stamp_t stamp;
  MLX_TRY(mlx_file_stamp(from->path, &stamp));
  file->size = (int64_t)stamp.size;
  return mlx_cache_digest_file(job->cache, from->path, file->sha256);
}

// What a bundle of this will hold, so that whoever brings it elsewhere can check it.
static mlx_status_t add_files(job_t *job, const mlx_compiled_t *out) {
  if (!out->weights_path) return NULL;
  add_text_file(&job->manifest, MLX_BUNDLE_TOKENIZER, out->tokenizer, out->tokenizer_length);
  if (out->chat) add_text_file(&job->manifest, MLX_BUNDLE_CHAT, out->chat, out->chat_length);
  for (size_t i = 0; i < out->licence_count; ++i) MLX_TRY(add_cached_file(job, &out->licences[i]));
  for (size_t i = 0; i < out->module_count; ++i) MLX_TRY(add_cached_file(job, &out->modules[i]));
  for (size_t i = 0; i < out->weights_count; ++i) MLX_TRY(add_cached_file(job, &out->weights[i]));
  return NULL;
}

// "3.13" of "3.13.0 @ ...": what the runtime must be of to run it.
static void short_version(const char *version, char *out, size_t size) {
  int major, minor;
  if (sscanf(version, "%d.%d", &major, &minor) == 2) snprintf(out, size, "%d.%d", major, minor);
}

static mlx_status_t describe_model(job_t *job) {
  mlx_manifest_t *m = &job->manifest;
  m->contract = MLX_CONTRACT_VERSION;
  m->vocab = job->model->config.vocab;
  snprintf(m->architecture, sizeof m->architecture, "%s", mlx_source_architecture(job->model->source));
  snprintf(m->source, sizeof m->source, "%s", mlx_file_name(mlx_source_path(job->model->source)).text);
  for (char *sign = m->source; *sign; ++sign) {  // it will be printed
    if ((unsigned char)*sign < ' ' || *sign == 0x7f) *sign = '?';
  }
  MLX_TRY(mlx_source_licence(job->model->source, m->license, sizeof m->license));
  if (!job->options->module_only) {
    mlx_source_digests_t digests;
    MLX_TRY(mlx_source_digest(job->cache, job->model->source, job->options->report, &digests));
    memcpy(m->source_digest, digests.all, sizeof m->source_digest);
    memcpy(job->weights_digest, digests.weights, sizeof job->weights_digest);
  }
  return mlx_source_eos_ids(job->model->source, m->eos, MLX_MAX_EOS, &m->eos_count);
}

// One target's part. |modules| are those that were made for it.
static void describe_variant(job_t *job, const mlx_compiled_file_t *modules, size_t module_count,
                             const mlx_compiled_file_t *weights) {
  size_t position = 0, pool = 0;
  if (!kv_bytes(job, 1, &position) || !kv_bytes(job, pool_positions(&job->graph), &pool))
    position = pool = 0;  // not known
  mlx_variant_t *v = &job->manifest.variants[job->manifest.variant_count++];
  *v = (mlx_variant_t){.context = job->graph.context,
                       .sequences = job->graph.sequences,
                       .page_size = job->graph.page_size,
                       .sequence_pages = mlx_graph_sequence_pages(&job->graph),
                       .pool_pages = mlx_graph_pool_pages(&job->graph),
                       .prefill_count = job->graph.bucket_count,
                       .decode_count = job->graph.step_count,
                       .driver = job->target.gpu && job->kernels.count
                                     ? 1000 * mlx_nvrtc_major(job->nvrtc) + 10 * mlx_nvrtc_minor(job->nvrtc)
                                     : 0,
                       .state_bytes = (int64_t)pool,
                       .kv_bytes = (int64_t)position};
  snprintf(v->target, sizeof v->target, "%s", job->target.name);
  snprintf(v->cpu, sizeof v->cpu, "%s", job->target.cpu);
  snprintf(v->dtype, sizeof v->dtype, "%s", storage_name(job));
  snprintf(v->module, sizeof v->module, "%s", modules[0].name);
  snprintf(v->weights, sizeof v->weights, "%s", weights ? weights->name : MLX_BUNDLE_WEIGHTS);
  snprintf(v->kernels_digest, sizeof v->kernels_digest, "%s", job->kernels_digest);
  memcpy(v->prefill, job->graph.buckets, sizeof v->prefill);
  memcpy(v->decode, job->graph.steps, sizeof v->decode);
  for (int kind = 0; kind < MLX_KERNEL_KINDS; ++kind) {
    if (!mlx_kernels_use(&job->kernels, (mlx_kernel_kind_t)kind)) continue;
    snprintf(v->kernels[v->kernel_count++], sizeof v->kernels[0], "%s",
             mlx_kernel_kind_name((mlx_kernel_kind_t)kind));
  }
  for (size_t i = 0; job->target.portable && i < module_count; ++i) {
    snprintf(v->levels[v->level_count++], sizeof v->levels[0], "%s", modules[i].level);
  }
}

static mlx_status_t write_manifest(job_t *job, mlx_compiled_t *out) {
  mlx_manifest_t *m = &job->manifest;
  snprintf(m->compiler, sizeof m->compiler, "%s", job->compiler.version);
  snprintf(m->compiler_digest, sizeof m->compiler_digest, "%s", job->compiler.digest);
  short_version(m->compiler, m->iree, sizeof m->iree);
  MLX_TRY(add_files(job, out));
  return mlx_manifest_write(m, &out->manifest, &out->manifest_length);
}

// ----------------------------------------------------------------------------------------------------------
// All of it

static mlx_status_t read_tokenizer(const mlx_source_t *source, mlx_compiled_t *out) {
  MLX_TRY(name_tokenizer(source, &out->tokenizer_name));
  MLX_TRY(mlx_source_chat_json(source, &out->chat, &out->chat_length));
  return mlx_source_tokenizer_json(source, &out->tokenizer, &out->tokenizer_length);
}

typedef struct licences {
  const char *folder;
  mlx_compiled_t *out;
} licences_t;

static mlx_status_t add_licence(void *user, const char *name) {
  const licences_t *licences = user;
  mlx_compiled_t *out = licences->out;
  if (!mlx_is_licence_file(name) || out->licence_count == MLX_MAX_LICENCES) return NULL;
  mlx_compiled_file_t *file = &out->licences[out->licence_count];
  MLX_TRY(mlx_join_path(licences->folder, name, &file->path));
  if (!mlx_is_file(file->path)) {  // a folder of them
    clear_file(file);
    return NULL;
  }
  snprintf(file->name, sizeof file->name, "%s", name);
  ++out->licence_count;
  return NULL;
}

// LICENSE and its like, which a directory has beside the weights.
static mlx_status_t find_licences(const job_t *job, mlx_compiled_t *out) {
  licences_t licences = {.folder = mlx_source_path(job->model->source), .out = out};
  return mlx_is_dir(licences.folder) ? mlx_list_dir(licences.folder, add_licence, &licences) : NULL;
}

static mlx_status_t compile_module(job_t *job, const char *model_path, const char *level,
                                   mlx_compiled_t *out) {
  mlx_compiled_file_t *module = &out->modules[out->module_count];
  MLX_TRY(choose_kernels(job));
  MLX_TRY(check_packed(job));
  if (job->options->verbose) mlx_weights_explain(job->model, mlx_graph_storage(&job->graph), notes_of(job));
  mlx_title_t title = {.context = job->graph.context};
  snprintf(title.model, sizeof title.model, "%.64s", mlx_file_name(model_path).text);
  snprintf(title.dtype, sizeof title.dtype, "%s", storage_name(job));
  snprintf(title.target, sizeof title.target, "%s", job->target.name);
  write_title(&title, job->title, sizeof job->title);
  MLX_TRY(mlx_graph_emit(job->model, &job->graph, &job->mlir, &job->mlir_length));
  if (!job->compiler.path)
    MLX_TRY(
        mlx_iree_compiler_find(job->cache, job->options->iree_compile, job->options->report, &job->compiler));
  MLX_TRY(get_vmfb(job, &module->entry));
  out->module_count++;
  module->level = level;
  snprintf(module->name, sizeof module->name, "%s",
           mlx_bundle_module(level        ? level
                             : job->alone ? NULL
                                          : job->target.name)
               .text);
  MLX_TRY(mlx_join_path(module->entry.folder, MLX_BUNDLE_VMFB, &module->path));
  out->vmfb_path = out->modules[0].path;
  return NULL;
}

static void forget_module(job_t *job) {
  mlx_kernels_clear(&job->kernels);
  mlx_free(job->mlir);
  job->mlir = NULL;
}

// A module for each level that this mlxcel has a kernel for. Panels lie the same way for all: they share the
// weights.
static mlx_status_t compile_levels(job_t *job, const char *model_path, mlx_compiled_t *out) {
  const mlx_graph_options_t graph = job->graph;
  const mlx_target_t portable = job->target;
  const mlx_cpu_level_t *level;
  char target[32];
  for (size_t i = 0; (level = mlx_cpu_level(i)) && job->modules < MLX_MAX_LEVELS; ++i) {
    if (!mlx_kernels_have_level(level->name)) {
      if (!mlx_kernels_cpu_level(level->name)) {  // and none below it
        mlx_report_note(job->options->report, "no code for %s: this mlxcel was built without a kernel for it",
                        level->name);
      }
      continue;
    }
    snprintf(target, sizeof target, "cpu:%s", level->name);
    forget_module(job);
    job->graph = graph;
    MLX_TRY(mlx_target_parse(target, &job->target));
    MLX_TRY(compile_module(job, model_path, level->name, out));
    ++job->modules;
  }
  job->target = portable;
  return job->modules
             ? NULL
             : mlx_error(MLX_UNSUPPORTED,
                         "this mlxcel was built without CPU kernels, of which a portable model is made");
}

static mlx_status_t compile_target(job_t *job, const char *model_path, mlx_compiled_t *out) {
  const size_t first = out->module_count;
  const mlx_compiled_file_t *weights = NULL;
  forget_module(job);
  job->modules = 0;
  MLX_TRY(make_graph(job->model, job->options, MLX_FORM_IREE, &job->graph));
  MLX_TRY(check_kv_fits(job));
  MLX_TRY(job->target.portable ? compile_levels(job, model_path, out)
                               : compile_module(job, model_path, NULL, out));
  if (!job->options->module_only) MLX_TRY(get_weights(job, out, &weights));
  describe_variant(job, &out->modules[first], out->module_count - first, weights);
  return NULL;
}

// The first of "cuda:sm_90,cpu:portable", of which the cursor then is at the rest; NULL after the last.
static const char *next_target(const char **cursor, char *out, size_t size) {
  if (!*cursor) return NULL;
  const size_t length = strcspn(*cursor, ",");
  snprintf(out, size, "%.*s", (int)(length < size ? length : size - 1), *cursor);
  *cursor = (*cursor)[length] ? *cursor + length + 1 : NULL;
  return out;
}

// All of them are read before the first is compiled.
static mlx_status_t check_targets(const char *targets, size_t *out_count) {
  mlx_target_t seen[MLX_MAX_TARGETS];
  char text[64];
  *out_count = 0;
  for (const char *cursor = targets; next_target(&cursor, text, sizeof text); ++*out_count) {
    if (*out_count == MLX_MAX_TARGETS)
      return mlx_error(MLX_USAGE, "more than %d targets were given", MLX_MAX_TARGETS);
    MLX_TRY(mlx_target_parse(text, &seen[*out_count]));
    for (size_t i = 0; i < *out_count; ++i) {
      if (!strcmp(seen[i].name, seen[*out_count].name))
        return mlx_error(MLX_USAGE, "the target %s was given twice", seen[i].name);
    }
  }
  return NULL;
}

static mlx_status_t compile_job(job_t *job, const char *model_path, mlx_compiled_t *out) {
  const char *targets = job->options->target ? job->options->target : "cpu";
  char text[64];
  size_t count;
  MLX_TRY(check_targets(targets, &count));
  job->alone = count == 1;
  const char *cursor = targets;
  MLX_TRY(mlx_target_parse(next_target(&cursor, text, sizeof text), &job->target));
  MLX_TRY(open_model(job, model_path));
  MLX_TRY(make_graph(job->model, job->options, MLX_FORM_IREE, &job->graph));
  MLX_TRY(check_kv_fits(job));
  MLX_TRY(read_tokenizer(job->model->source, out));
  if (job->options->accept) {
    MLX_TRY(job->options->accept(job->options->user, out, job->graph.context, job->model->config.vocab));
  }
  MLX_TRY(check_quantize(job));
  MLX_TRY(describe_model(job));
  MLX_TRY(find_licences(job, out));
  MLX_TRY(compile_target(job, model_path, out));
  while (next_target(&cursor, text, sizeof text)) {
    MLX_TRY(mlx_target_parse(text, &job->target));
    MLX_TRY(compile_target(job, model_path, out));
  }
  MLX_TRY(write_manifest(job, out));
  return check_source_unchanged(job);
}

mlx_status_t mlx_compile(const char *model_path, const mlx_compile_options_t *options, mlx_cache_t *cache,
                         mlx_compiled_t *out_compiled) {
  *out_compiled = (mlx_compiled_t){.cache = cache};
  job_t job = {.options = options, .cache = cache};
  mlx_status_t status = compile_job(&job, model_path, out_compiled);
  out_compiled->from_cache = !job.ran_compiler;
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
  for (size_t i = 0; i < compiled->module_count; ++i) clear_file(&compiled->modules[i]);
  for (size_t i = 0; i < compiled->weights_count; ++i) clear_file(&compiled->weights[i]);
  for (size_t i = 0; i < compiled->licence_count; ++i) clear_file(&compiled->licences[i]);
  *compiled = (mlx_compiled_t){0};
}
