// Engine: opens a compiled model on a device, and reports its properties and those of the machine.
#include <stdio.h>
#include <string.h>

#include "base/cpu.h"
#include "base/fault.h"
#include "base/gpu.h"
#include "base/memory.h"
#include "base/meter.h"
#include "base/text.h"
#include "grammar/vocabulary.h"
#include "runtime/engine_internal.h"
#include "runtime/prompt.h"
#include "runtime/rooms.h"
#include "runtime/scheduler.h"
#include "runtime/variant.h"
#include "tokenizer/open.h"

#define MAX_JSON (256u << 20)  // bytes
#define GPU_PROMPT_CHUNK 256   // prompt tokens beside decodes: less than 30 ms for a 1B model on an H200
#define CPU_PROMPT_CHUNK 64
#define ENCODER_SEQUENCES 64  // texts of one step of an encoder, unless the caller chooses
#ifndef MLXCEL_IREE_VERSION   // the IREE version that mlxcel is built with; "" if unknown
#define MLXCEL_IREE_VERSION ""
#endif

void mlx_engine_options_initialize(mlx_engine_options_t *out_options) {
  *out_options = (mlx_engine_options_t){.device = MLX_USE_AUTO};
}

// ----------------------------------------------------------------------------------------------------------
// Device

static mlx_status_t open_cpu(mlx_engine_t *engine, const char *name, const mlx_engine_options_t *options) {
  MLX_TRY(mlx_variant_choose_cpu(engine, name, options->cpu_level));
  // More threads than CPUs only take time from each other.
  const int cpus = mlx_cpu_count();
  const int threads = options->threads > 0 && options->threads < cpus ? options->threads : cpus;
  return mlx_device_open(MLX_DEVICE_CPU, threads, &engine->device);
}

static mlx_status_t open_cuda(mlx_engine_t *engine, const char *name, const mlx_engine_options_t *options) {
  mlx_gpu_info_t gpu;
  MLX_TRY(mlx_gpu_query(options->gpu, &gpu));
  MLX_TRY(mlx_variant_choose_gpu(engine, name, &gpu));
  mlx_status_t status = mlx_device_open_gpu(options->gpu, &engine->device);
  if (!status) {
    engine->gpu = options->gpu;
    snprintf(engine->gpu_name, sizeof engine->gpu_name, "%s", gpu.name);
    return NULL;
  }
  mlx_status_t reason =
      mlx_error(MLX_UNAVAILABLE, "cannot open the GPU %s: %s", gpu.name, mlx_status_message(status));
  mlx_status_free(status);
  return mlx_status_hint(reason, "run `nvidia-smi` to see which processes use it, or use --device cpu");
}

static bool has_cpu_code(const mlx_manifest_t *m) {
  for (size_t i = 0; i < m->variant_count; ++i) {
    if (mlx_variant_is_cpu(&m->variants[i])) return true;
  }
  return false;
}

// --device auto: prefers the GPU. A model with code for both falls back to the CPU if the GPU cannot be used,
// and device_reason explains why.
static mlx_status_t open_auto(mlx_engine_t *engine, const char *name, const mlx_engine_options_t *options) {
  const mlx_targets_text_t targets = mlx_manifest_targets_text(&engine->manifest);
  bool gpu = false;
  for (size_t i = 0; i < engine->manifest.variant_count; ++i)
    gpu = gpu || !mlx_variant_is_cpu(&engine->manifest.variants[i]);
  mlx_status_t status = gpu && !options->cpu_level ? open_cuda(engine, name, options) : NULL;
  if (status && !has_cpu_code(&engine->manifest)) return status;
  if (status || !engine->device) {
    engine->variant = NULL;
    mlx_status_t cpu_status = open_cpu(engine, name, options);
    if (cpu_status) {
      mlx_status_free(status);
      return cpu_status;
    }
  }
  const size_t size = sizeof engine->device_reason;
  if (options->reason) {
    snprintf(engine->device_reason, size, "%s", options->reason);
  } else if (engine->manifest.variant_count == 1) {
    snprintf(engine->device_reason, size, "the model is compiled for %s", engine->variant->target);
  } else {
    snprintf(engine->device_reason, size, "%s of %.150s%s%s", engine->variant->target, targets.text,
             status ? "; " : "", mlx_status_message(status));
  }
  mlx_status_free(status);
  return NULL;
}

// Replaces a hint that suggests --device cpu if the model has no code for a CPU.
static mlx_status_t fix_cpu_hint(const mlx_engine_t *engine, mlx_status_t status) {
  if (has_cpu_code(&engine->manifest) || !strstr(mlx_status_hint_text(status), "--device cpu")) return status;
  return mlx_status_rehint(
      status,
      "run `mlxcel doctor` to see why the GPU cannot be used, or compile the model for the "
      "CPU: mlxcel compile %s --target cpu",
      engine->manifest.source);
}

static mlx_status_t open_device(mlx_engine_t *engine, const char *name, const mlx_engine_options_t *options) {
  if (options->device == MLX_USE_CUDA) return fix_cpu_hint(engine, open_cuda(engine, name, options));
  if (options->device == MLX_USE_CPU) return open_cpu(engine, name, options);
  return fix_cpu_hint(engine, open_auto(engine, name, options));
}

// ----------------------------------------------------------------------------------------------------------
// Memory

static mlx_stepper_options_t stepper_options(const mlx_engine_t *engine) {
  return (mlx_stepper_options_t){.device = engine->device,
                                 .program = engine->program,
                                 .variant = engine->variant,
                                 .weights = engine->weights.data,
                                 .whole = engine->manifest.embedding.encoder,
                                 .vocab = engine->manifest.vocab,
                                 .slots = engine->sizing.sequences,
                                 .slot_pages = engine->sizing.slot_pages,
                                 .pool_pages = engine->sizing.pool_pages,
                                 .window_pages = engine->sizing.window_pages,
                                 .states = engine->sizing.states};
}

#define GPU_RESERVE ((uint64_t)128 << 20)  // bytes for the driver, and as many or more for values of a step

// A CPU uses mapped weights in place, so only the state must fit into memory.
static mlx_status_t free_cpu_memory(const char *name, uint64_t state, uint64_t *out_free) {
  const uint64_t memory = mlx_physical_memory();
  *out_free = memory - state;
  if (state < memory) return NULL;
  return mlx_status_hint(
      mlx_error(MLX_OUT_OF_MEMORY, "%s needs %s of memory for its scratch and results; this machine has %s",
                name, mlx_size_text(state).text, mlx_size_text(memory).text),
      "use a smaller model, or fewer sequences (--parallel)");
}

static mlx_status_t free_gpu_memory(const mlx_engine_t *engine, const char *name, int shares,
                                    uint64_t weights, uint64_t state, uint64_t *out_free) {
  size_t free_bytes, total;
  MLX_TRY(mlx_device_memory(engine->device, &free_bytes, &total));
  if (shares > 1) free_bytes /= (size_t)shares;
  const uint64_t step = (uint64_t)engine->variant->step_bytes, own = step > GPU_RESERVE ? step : GPU_RESERVE;
  const uint64_t needed = state < UINT64_MAX - own - GPU_RESERVE ? state + own + GPU_RESERVE : UINT64_MAX;
  *out_free = free_bytes - weights - needed;
  if (weights < free_bytes && needed < free_bytes - weights) return NULL;
  mlx_status_t status = mlx_error(
      MLX_OUT_OF_MEMORY,
      "%s needs %s of GPU memory for its weights and %s for scratch and results; %s of %s are free%s", name,
      mlx_size_text(weights).text, mlx_size_text(needed).text, mlx_size_text(free_bytes).text,
      mlx_size_text(total).text, shares > 1 ? " for each engine" : "");
  return mlx_status_hint(
      status, "run `nvidia-smi` to see which processes use the GPU; or use a smaller model or --device cpu");
}

// Bytes that are left for the KV pool. Fails if there are none.
static mlx_status_t free_memory(const mlx_engine_t *engine, const mlx_model_parts_t *parts,
                                const mlx_stepper_options_t *stepper, int shares, uint64_t *out_free) {
  const uint64_t arguments = mlx_engine_stepper_bytes(stepper);
  const uint64_t scratch = (uint64_t)engine->variant->state_bytes;
  const uint64_t state = scratch < UINT64_MAX - arguments ? scratch + arguments : UINT64_MAX;
  if (mlx_device_kind(engine->device) == MLX_DEVICE_CPU) return free_cpu_memory(parts->name, state, out_free);
  const mlx_bundle_file_t *file = mlx_manifest_file(&engine->manifest, engine->variant->weights);
  mlx_file_stamp_t stamp = {.size = file ? (uint64_t)file->size : 0};
  if (parts->weights_path) MLX_TRY(mlx_file_stamp(parts->weights_path, &stamp));
  if (parts->weights) stamp.size = parts->weights->size;
  return free_gpu_memory(engine, parts->name, shares, stamp.size, state, out_free);
}

static mlx_sizing_request_t sizing_request(const mlx_engine_t *engine, const mlx_model_parts_t *parts,
                                           const mlx_engine_options_t *options) {
  const int64_t most = engine->manifest.context, wanted = options->sequences;
  mlx_sizing_request_t request = {.name = parts->name,
                                  .model_context = most,
                                  .context = options->context,
                                  .sequences = wanted < 0 && wanted >= -MLX_MAX_SEQUENCES ? -wanted : wanted,
                                  .memory = options->memory};
  if (!engine->manifest.embedding.encoder) return request;
  if (wanted <= 0) request.sequences = ENCODER_SEQUENCES;
  if (!request.context) request.context = most;
  // A server opens a chat model and an encoder with the same options: -c of the one may be above the limit of
  // the other.
  if (request.context > most) request.context = most;
  return request;
}

// Chooses context, sequences and pages before anything is loaded. Fails if the model does not fit into the
// memory of its device.
static mlx_status_t choose_sizes(mlx_engine_t *engine, const mlx_model_parts_t *parts,
                                 const mlx_engine_options_t *options) {
  mlx_sizing_request_t request = sizing_request(engine, parts, options);
  const mlx_variant_t *v = engine->variant;
  const int64_t step = v->steps[v->step_count - 1].tokens;
  request.page_bytes = (uint64_t)v->page_bytes;
  request.window_page_bytes = (uint64_t)v->window_page_bytes;
  request.state_bytes = (uint64_t)v->recurrent_bytes;
  request.window_held = MLX_WINDOW_PAGES_HELD(v->window, step > v->burst ? step : v->burst);
  request.free_memory = UINT64_MAX;
  MLX_TRY(mlx_sizing_choose(&request, &engine->sizing));  // as if memory were not short
  const mlx_stepper_options_t stepper = stepper_options(engine);
  MLX_TRY(free_memory(engine, parts, &stepper, options->memory_shares, &request.free_memory));
  return mlx_sizing_choose(&request, &engine->sizing);
}

// ----------------------------------------------------------------------------------------------------------
// Program

// Sets the sizes that mlx_engine_info returns. A decode step does not stream all weights: if the model has a
// separate output head, it reads one row of the embedding table.
static void set_sizes(mlx_engine_t *engine, uint64_t all, uint64_t (*size_of)(void *user, const char *name),
                      void *user) {
  const bool has_head = size_of(user, "lm_head.weight") > 0;
  engine->weight_bytes = all;
  engine->token_weight_bytes = all - (has_head ? size_of(user, "model.embed_tokens.weight") : 0);
}

static uint64_t entry_size(void *user, const char *name) {
  const mlx_archive_t *archive = user;
  for (size_t i = 0; i < archive->count; ++i) {
    if (!strcmp(archive->entries[i].name, name)) return archive->entries[i].size;
  }
  return 0;
}

// Finds the data of a mapped archive: the range from its first entry to the end of its last.
static mlx_status_t find_data(mlx_engine_t *engine, const mlx_model_parts_t *parts, mlx_weights_t *out) {
  mlx_archive_t archive;
  MLX_TRY(mlx_archive_parse(parts->weights_path ? parts->weights_path : parts->name, engine->weights.data,
                            engine->weights.size, &archive));
  const uint8_t *start = NULL, *end = NULL;
  uint64_t all = 0;
  for (size_t i = 0; i < archive.count; ++i) {
    const mlx_archive_entry_t *entry = &archive.entries[i];
    if (!start || entry->data < start) start = entry->data;
    if (!end || entry->data + entry->size > end) end = entry->data + entry->size;
    all += entry->size;
  }
  set_sizes(engine, all, entry_size, &archive);
  out->data = start;
  out->size = start ? (size_t)(end - start) : 0;
  mlx_archive_clear(&archive);
  return NULL;
}

static mlx_status_t find_weights(mlx_engine_t *engine, const mlx_model_parts_t *parts, mlx_weights_t *out) {
  const mlx_weight_reader_t *reader = parts->weights;
  if (!reader) return find_data(engine, parts, out);
  if (mlx_device_kind(engine->device) == MLX_DEVICE_CPU || reader->size > SIZE_MAX)
    return mlx_error(MLX_INTERNAL, "%s: weights for a CPU must be in a file", parts->name);
  set_sizes(engine, reader->size, reader->size_of, reader->user);
  out->size = (size_t)reader->size;
  out->reader = reader;
  return NULL;
}

// Maps the module and the weights: two files of the cache, or two views of the bundle. The bundle owns its
// views.
static mlx_status_t map_files(mlx_engine_t *engine, const mlx_model_parts_t *parts,
                              const mlx_digest_watch_t *watch) {
  if (!engine->bundle) {
    MLX_TRY(mlx_map_file(parts->vmfb_path, &engine->vmfb));
    return parts->weights ? NULL : mlx_map_file(parts->weights_path, &engine->weights);
  }
  MLX_TRY(mlx_bundle_map(engine->bundle,
                         engine->level ? mlx_bundle_module(engine->level).text : engine->variant->module,
                         NULL, &engine->vmfb));
  return mlx_bundle_map(engine->bundle, engine->variant->weights, watch, &engine->weights);
}

static mlx_status_t load_program(mlx_engine_t *engine, const mlx_model_parts_t *parts,
                                 const mlx_engine_options_t *options) {
  mlx_meter_t meter;
  mlx_meter_begin(&meter, options->report, "checking weights (at first use)", 0);
  const mlx_digest_watch_t watch = mlx_meter_watch(&meter);
  mlx_status_t mapped = map_files(engine, parts, &watch);
  mlx_meter_end(&meter);
  MLX_TRY(mapped);
  MLX_TRY(mlx_report_check(options->report));
  mlx_meter_begin(&meter, options->report, "loading weights", 0);
  mlx_weights_t weights = {.name = MLX_WHOLE_ARCHIVE,
                           .on_load = watch.on_bytes,
                           .user = &meter,
                           .cancelled = mlx_report_cancelled(options->report)};
  MLX_TRY(find_weights(engine, parts, &weights));
  mlx_status_t status =
      mlx_program_load(engine->device, engine->vmfb.data, engine->vmfb.size, &weights, &engine->program);
  mlx_meter_end(&meter);
  const mlx_code_t code = mlx_status_code(status);
  if (code == MLX_CANCELLED) return status;
  status = mlx_status_annotate(status, "loading %s", parts->vmfb_path ? parts->vmfb_path : parts->name);
  if (code == MLX_OUT_OF_MEMORY)
    return mlx_status_hint(status, "the weights do not fit into memory: use a smaller model");
  return mlx_status_hint(status,
                         "the module does not match this version of mlxcel or the weights: compile the model "
                         "again");
}

static mlx_status_t require_function(const mlx_engine_t *engine, const char *name, const char *function) {
  if (mlx_program_has(engine->program, function)) return NULL;
  return mlx_status_hint(
      mlx_error(MLX_INVALID_INPUT, "%s: the module has no function '%s', but its manifest lists it", name,
                function),
      "compile the model again");
}

static mlx_status_t check_functions(const mlx_engine_t *engine, const char *name) {
  char function[32];
  for (size_t i = 0; i < engine->variant->step_count; ++i) {
    snprintf(function, sizeof function, "step_%lld", (long long)engine->variant->steps[i].tokens);
    MLX_TRY(require_function(engine, name, function));
  }
  return engine->variant->burst ? require_function(engine, name, "burst") : NULL;
}

static mlx_status_t make_pool(mlx_engine_t *engine, const char *name) {
  const mlx_sizing_t *sizing = &engine->sizing;
  const mlx_stepper_options_t options = stepper_options(engine);
  mlx_status_t status = mlx_engine_stepper_create(&options, &engine->stepper);
  if (status) return mlx_status_annotate(status, "loading %s", name);
  MLX_TRY(mlx_pool_create(sizing->pool_pages, sizing->window_pages, sizing->sequences, &engine->pool));
  return sizing->states ? mlx_pool_add_states(engine->pool, sizing->states) : NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Opening

// --dtype bf16 and f16 also round activations; 16-bit weights with f32 activations are --dtype auto.
static mlx_status_t check_dtype(const mlx_engine_t *engine, const char *name, const char *wanted) {
  const mlx_variant_t *v = engine->variant;
  const bool any = !wanted || !strcmp(wanted, "auto");
  const bool rounds = !any && (!strcmp(wanted, "bf16") || !strcmp(wanted, "f16"));
  if (any || (!strcmp(wanted, v->dtype) && !strcmp(rounds ? wanted : "f32", v->activations))) return NULL;
  return mlx_status_hint(
      mlx_error(MLX_USAGE, "%s was compiled with %s weights and %s activations, not for --dtype %s", name,
                v->dtype, v->activations, wanted),
      "compile the model again with --dtype %s", wanted);
}

static mlx_status_t check_kv(const mlx_engine_t *engine, const char *name, const char *wanted) {
  const char *kv = engine->variant->kv;
  if (!wanted || !strcmp(wanted, kv)) return NULL;
  return mlx_status_hint(
      mlx_error(MLX_USAGE, "%s was compiled with KV format %s, not with %s", name, kv, wanted),
      "compile the model again with --kv %s", wanted);
}

// Marks the special tokens of |text| as text first.
static mlx_status_t encode_plain(const mlx_tokenizer_t *tokenizer, const char *text, size_t length,
                                 bool add_start, size_t limit, int32_t **out_ids, size_t *out_count) {
  mlx_text_t marked = {0};
  mlx_status_t status = mlx_tokenizer_mark(tokenizer, text, length, &marked);
  if (!status)
    status = mlx_tokenizer_encode_within(tokenizer, marked.data, marked.length, add_start, limit, out_ids,
                                         out_count);
  mlx_text_clear(&marked);
  return status;
}

mlx_status_t mlx_engine_check_prompt(const mlx_tokenizer_t *tokenizer, const mlx_engine_options_t *options,
                                     int64_t context, int64_t model_context, int64_t vocab, int32_t **out_ids,
                                     size_t *out_count) {
  const mlx_engine_options_t *o = options;
  const mlx_context_limit_t limit = {context, model_context};
  *out_ids = NULL;
  *out_count = 0;
  if (!o->prompt) return NULL;
  const bool add_start = !o->prompt_is_chat;
  mlx_status_t status =
      o->prompt_is_plain
          ? encode_plain(tokenizer, o->prompt, o->prompt_length, add_start, SIZE_MAX, out_ids, out_count)
          : mlx_tokenizer_encode(tokenizer, o->prompt, o->prompt_length, add_start, out_ids, out_count);
  if (!status) status = mlx_prompt_check(*out_ids, *out_count, 0, limit, vocab);
  if (!status) return NULL;
  mlx_free(*out_ids);
  *out_ids = NULL;
  return status;
}

// A module compiled by another IREE version uses other instructions and cannot be loaded.
static bool is_other_iree(const mlx_manifest_origin_t *origin) {
  const char *ours = MLXCEL_IREE_VERSION;
  return origin->iree[0] && ours[0] && strcmp(origin->iree, ours);
}

static mlx_status_t check_iree(const char *name, const char *manifest, size_t length) {
  const mlx_manifest_origin_t origin = mlx_manifest_origin(manifest, length);
  if (!is_other_iree(&origin)) return NULL;
  return mlx_manifest_hint_recompile(
      mlx_error(MLX_UNSUPPORTED, "%s: compiled for IREE %s; this mlxcel runs IREE %s", name, origin.iree,
                MLXCEL_IREE_VERSION),
      &origin);
}

static mlx_status_t read_tokenizer(void *user, char **out_json, size_t *out_length) {
  return mlx_bundle_read(user, MLX_BUNDLE_TOKENIZER, MAX_JSON, out_json, out_length);
}

// The key is the manifest's digest of tokenizer.json. mlx_bundle_read checks it, so cached tables with this
// key were made from a text with this digest.
static mlx_status_t open_bundle_tokenizer(mlx_bundle_t *bundle, const mlx_report_t *report,
                                          mlx_tokenizer_t **out_tokenizer) {
  const mlx_bundle_display_path_t name = mlx_bundle_display_path(bundle, MLX_BUNDLE_TOKENIZER);
  const mlx_bundle_file_t *file = mlx_manifest_file(mlx_bundle_manifest(bundle), MLX_BUNDLE_TOKENIZER);
  const mlx_file_name_t model = mlx_file_name(mlx_bundle_path(bundle));
  const mlx_tokenizer_text_t text = {.name = name.text,
                                     .model = model.text,
                                     .key = file ? file->sha256 : NULL,
                                     .read = read_tokenizer,
                                     .user = bundle,
                                     .report = report};
  mlx_cache_t *cache = NULL;
  mlx_status_free(mlx_cache_open(NULL, &cache));  // a bundle also opens without a cache
  mlx_status_t status = mlx_tokenizer_open(cache, &text, out_tokenizer);
  mlx_cache_close(cache);
  return status;
}

mlx_status_t mlx_engine_open_tokenizer(const char *path, mlx_tokenizer_t **out_tokenizer) {
  mlx_bundle_t *bundle;
  *out_tokenizer = NULL;
  MLX_TRY(mlx_bundle_open(path, &bundle));
  mlx_status_t status = open_bundle_tokenizer(bundle, NULL, out_tokenizer);
  mlx_bundle_close(bundle);
  return status;
}

// The vocabulary that a grammar matches tokens against: for the first token of a text, or for later ones.
// Borrowed from the engine.
static mlx_status_t vocabulary_of(mlx_engine_t *engine, bool first, const mlx_vocabulary_t **out_vocabulary) {
  const int which = first && mlx_tokenizer_first_differs(engine->tokenizer);
  if (!engine->vocabularies[which]) {
    MLX_TRY(mlx_vocabulary_create(engine->tokenizer, (size_t)engine->manifest.vocab, which,
                                  &engine->vocabularies[which]));
  }
  *out_vocabulary = engine->vocabularies[which];
  return NULL;
}

static const float *score_row_of(const mlx_engine_t *engine) {
  const mlx_manifest_embedding_t *e = &engine->manifest.embedding;
  return e->score_size ? e->score_row : NULL;
}

// It submits the steps of all sessions and requests.
mlx_status_t mlx_engine_create_scheduler(mlx_engine_t *engine) {
  const bool gpu = mlx_device_kind(engine->device) == MLX_DEVICE_CUDA;
  const mlx_scheduler_parts_t parts = {.stepper = engine->ranks ? engine->ranks : engine->stepper,
                                       .pool = engine->pool,
                                       .language = {.tokenizer = engine->tokenizer,
                                                    .eos = engine->manifest.eos,
                                                    .eos_count = engine->manifest.eos_count,
                                                    .vocab = engine->manifest.vocab,
                                                    .context = engine->sizing.context,
                                                    .model_context = engine->manifest.context,
                                                    .raw_embeddings = engine->manifest.embedding.pooling[0] &&
                                                                      !engine->manifest.embedding.normalize,
                                                    .is_classifier = engine->manifest.embedding.labels > 0,
                                                    .typed = engine->manifest.embedding.typed,
                                                    .headless = engine->manifest.embedding.headless,
                                                    .score_row = score_row_of(engine),
                                                    .vocabulary = vocabulary_of,
                                                    .engine = engine},
                                       .prompt_chunk = gpu ? GPU_PROMPT_CHUNK : CPU_PROMPT_CHUNK};
  return mlx_scheduler_create_on(&parts, &(mlx_scheduler_options_t){0}, &engine->scheduler);
}

static mlx_status_t open_into(mlx_engine_t *engine, const mlx_model_parts_t *parts,
                              const mlx_engine_options_t *options) {
  MLX_TRY(
      mlx_manifest_read(parts->manifest_name, parts->manifest, parts->manifest_length, &engine->manifest));
  MLX_TRY(check_iree(parts->name, parts->manifest, parts->manifest_length));
  const mlx_sizing_request_t request = sizing_request(engine, parts, options);
  int64_t context;
  MLX_TRY(mlx_sizing_context(&request, &context));
  if (engine->bundle) MLX_TRY(open_bundle_tokenizer(engine->bundle, options->report, &engine->tokenizer));
  if (!engine->prompt)
    MLX_TRY(mlx_engine_check_prompt(engine->tokenizer, options, context, engine->manifest.context,
                                    engine->manifest.vocab, &engine->prompt, &engine->prompt_count));
  if (parts->chat) MLX_TRY(mlx_chat_create(parts->name, parts->chat, parts->chat_length, &engine->chat));
  MLX_TRY(open_device(engine, parts->name, options));
  MLX_TRY(check_dtype(engine, parts->name, options->dtype));
  MLX_TRY(check_kv(engine, parts->name, options->kv));
  engine->kernels = mlx_variant_kernels_text(engine->variant);
  engine->levels = mlx_variant_levels_text(engine->variant);
  MLX_TRY(choose_sizes(engine, parts, options));
  MLX_TRY(load_program(engine, parts, options));
  MLX_TRY(check_functions(engine, parts->name));
  MLX_TRY(make_pool(engine, parts->name));
  return mlx_engine_create_scheduler(engine);
}

// Takes ownership of |bundle|, also on failure. It may be NULL.
static mlx_status_t open_engine(const mlx_model_parts_t *parts, mlx_bundle_t *bundle,
                                const mlx_engine_options_t *options, mlx_engine_t **out_engine) {
  *out_engine = NULL;
  mlx_engine_t *engine;
  mlx_status_t status = mlx_alloc(1, sizeof *engine, &engine);
  if (status) {
    mlx_bundle_close(bundle);
    mlx_tokenizer_free(parts->tokenizer);
    mlx_free(parts->prompt);
    return status;
  }
  engine->bundle = bundle;
  engine->prompt = parts->prompt;
  engine->prompt_count = parts->prompt_count;
  engine->tokenizer = parts->tokenizer;
  status = open_into(engine, parts, options);
  if (status) {
    mlx_engine_close(engine);
    return status;
  }
  *out_engine = engine;
  return NULL;
}

mlx_status_t mlx_engine_open(const mlx_model_parts_t *parts, const mlx_engine_options_t *options,
                             mlx_engine_t **out_engine) {
  return open_engine(parts, NULL, options, out_engine);
}

void mlx_engine_close(mlx_engine_t *engine) {
  if (!engine) return;
  mlx_scheduler_delete(engine->scheduler);
  mlx_ranks_free(engine->ranks);
  for (int i = 1; i < MLX_MOST_RANK_ENGINES; ++i) mlx_engine_close(engine->others[i]);
  mlx_engine_stepper_free(engine->stepper);
  mlx_program_free(engine->program);
  mlx_device_close(engine->device);
  for (int i = 0; i < 2; ++i) mlx_vocabulary_free(engine->vocabularies[i]);
  mlx_tokenizer_free(engine->tokenizer);
  mlx_free(engine->prompt);
  mlx_chat_free(engine->chat);
  if (!engine->bundle) {
    mlx_unmap(&engine->vmfb);
    mlx_unmap(&engine->weights);
  }
  mlx_bundle_close(engine->bundle);
  mlx_pool_free(engine->pool);
  mlx_free(engine);
}

bool mlx_engine_is_bundle(const char *path) { return mlx_is_bundle(path); }

bool mlx_engine_needs_recompile(const char *path) {
  char *text;
  size_t length;
  mlx_status_t status = mlx_bundle_read_manifest(path, &text, &length);
  mlx_manifest_origin_t origin = {.contract = -1};
  if (!status) origin = mlx_manifest_origin(text, length);
  mlx_free(text);
  mlx_status_free(status);
  return origin.contract >= 0 && (origin.contract != MLX_CONTRACT_VERSION || is_other_iree(&origin));
}

// Opens an engine from a bundle that passed the trust check. Takes ownership of |bundle|, also on failure.
static mlx_status_t open_trusted(mlx_bundle_t *bundle, const mlx_engine_options_t *options,
                                 mlx_engine_t **out_engine) {
  const mlx_bundle_display_path_t manifest = mlx_bundle_display_path(bundle, MLX_BUNDLE_MANIFEST);
  mlx_model_parts_t parts = {.name = mlx_bundle_path(bundle), .manifest_name = manifest.text};
  char *chat = NULL;
  mlx_status_t status = NULL;
  parts.manifest = mlx_bundle_manifest_text(bundle, &parts.manifest_length);
  if (mlx_bundle_lists(bundle, MLX_BUNDLE_CHAT))
    status = mlx_bundle_read(bundle, MLX_BUNDLE_CHAT, MAX_JSON, &chat, &parts.chat_length);
  parts.chat = chat;
  if (status) {
    mlx_bundle_close(bundle);
  } else {
    status = open_engine(&parts, bundle, options, out_engine);
  }
  mlx_free(chat);
  return status;
}

mlx_status_t mlx_engine_open_bundle(const char *path, const mlx_engine_options_t *options,
                                    mlx_engine_t **out_engine) {
  mlx_bundle_t *bundle;
  bool vouched;
  size_t length;
  *out_engine = NULL;
  MLX_TRY(mlx_bundle_open(path, &bundle));
  const char *manifest = mlx_bundle_manifest_text(bundle, &length);
  // The version check comes before the trust check: the user need not allow a bundle that cannot run.
  mlx_status_t status = check_iree(path, manifest, length);
  if (!status) status = mlx_bundle_check_trust(bundle, options->allow_unsigned, &vouched);
  if (!status) {
    MLX_TRY(open_trusted(bundle, options, out_engine));
    (*out_engine)->is_unsigned = !vouched;
    return NULL;
  }
  mlx_bundle_close(bundle);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Information

// Without window pages, a window of the manifest is that of all layers (artifact/manifest.h).
static uint64_t window_kv_bytes(const mlx_variant_t *v) {
  if (!v->window) return 0;
  if (!v->window_page_bytes) return (uint64_t)v->kv_bytes;
  const double pages = (double)(v->page_bytes + v->window_page_bytes);
  return (uint64_t)((double)v->kv_bytes * (double)v->window_page_bytes / pages + 0.5);
}

void mlx_engine_watch_pages(mlx_engine_t *engine, const mlx_page_watcher_t *watcher) {
  mlx_pool_watch(engine->pool, watcher);
}

bool mlx_engine_is_damaged(const mlx_engine_t *engine) {
  return engine->weights.data && mlx_fault_hit(engine->weights.data);
}

static const char *prompt_or_none(const mlx_manifest_t *m, const char *name) {
  const char *text = mlx_manifest_prompt(&m->embedding, name);
  return text ? text : "";
}

mlx_engine_info_t mlx_engine_info(const mlx_engine_t *engine) {
  const mlx_manifest_t *m = &engine->manifest;
  const mlx_variant_t *variant = engine->variant;
  return (mlx_engine_info_t){
      .device = mlx_device_kind(engine->device) == MLX_DEVICE_CPU ? "cpu" : "cuda",
      .device_reason = engine->device_reason,
      .is_unsigned = engine->is_unsigned,
      .gpu = engine->gpu_name,
      .gpu_number = engine->gpu,
      .threads = mlx_device_threads(engine->device),
      .architecture = m->architecture,
      .source = m->source,
      .target = variant->target,
      .dtype = variant->dtype,
      .kv = variant->kv,
      .activations = variant->activations,
      .cpu_level = engine->level ? engine->level : "",
      .levels = engine->levels.text,
      .kernels = engine->kernels.text,
      .context = engine->sizing.context,
      .model_context = engine->manifest.context,
      .vocab = m->vocab,
      .hidden = variant->hidden,
      .is_encoder = m->embedding.encoder,
      .is_normalized = !m->embedding.pooling[0] || m->embedding.normalize,
      .pooling = m->embedding.pooling,
      .labels = m->embedding.labels,
      .route_layers = variant->route_layers,
      .route_used = variant->route_used,
      .query_prompt = prompt_or_none(m, "query"),
      .document_prompt = prompt_or_none(m, "document"),
      .default_prompt = prompt_or_none(m, m->embedding.default_prompt),
      .similarity = m->embedding.similarity[0] ? m->embedding.similarity : "cosine",
      .sequences = engine->sizing.sequences,
      .weight_bytes = engine->weight_bytes,
      .token_weight_bytes = engine->token_weight_bytes,
      .kv_bytes = (uint64_t)variant->kv_bytes,
      .window_kv_bytes = window_kv_bytes(variant),
      .window = (uint64_t)variant->window,
      .pool_bytes = (uint64_t)(engine->sizing.pool_pages * variant->page_bytes +
                               engine->sizing.window_pages * variant->window_page_bytes +
                               engine->sizing.states * variant->recurrent_bytes)};
}

const char *mlx_engine_embedding_prompt(const mlx_engine_t *engine, const char *name) {
  return mlx_manifest_prompt(&engine->manifest.embedding, name);
}

const char *mlx_engine_embedding_prompt_name(const mlx_engine_t *engine, size_t index) {
  const mlx_manifest_embedding_t *e = &engine->manifest.embedding;
  return index < e->prompt_count ? e->prompts[index].name : NULL;
}

mlx_status_t mlx_engine_gpu_target(int number, char *out_target, size_t size, uint64_t *out_memory) {
  mlx_gpu_info_t gpu;
  mlx_variant_t variant = {0};  // code for this GPU without linked kernels
  *out_memory = 0;
  MLX_TRY(mlx_gpu_query(number, &gpu));
  if (!mlx_gpu_kind_find(gpu.sm)) {
    return mlx_status_hint(
        mlx_error(MLX_UNAVAILABLE, "no usable NVIDIA GPU: sm_%d (%s) is not supported", gpu.sm, gpu.name),
        "use --device cpu");
  }
  snprintf(variant.target, sizeof variant.target, "cuda:sm_%d", gpu.sm);
  MLX_TRY(mlx_variant_check_gpu("code for this GPU", &variant, &gpu));
  snprintf(out_target, size, "%s", variant.target);
  *out_memory = gpu.memory;
  return NULL;
}

mlx_status_t mlx_engine_gpu_text(int number, char *out_text, size_t size, int *out_count) {
  mlx_gpu_info_t gpu;
  out_text[0] = 0;
  *out_count = 0;
  MLX_TRY(mlx_gpu_query(number, &gpu));
  *out_count = gpu.count;
  snprintf(out_text, size, "%s, sm_%d, %.1f GiB, driver for CUDA %d.%d", gpu.name, gpu.sm,
           (double)gpu.memory / (1 << 30), gpu.driver / 1000, gpu.driver % 1000 / 10);
  return NULL;
}

static mlx_status_t run_smoke(mlx_device_t *device, mlx_device_program_t *program) {
  static const int32_t values[4] = {1, 2, 3, 40};
  const mlx_shape_t shape = {.element = MLX_ELEMENT_I32, .rank = 1, .dims = {4}};
  mlx_buffer_t *buffer = NULL;
  mlx_call_t *call = NULL;
  mlx_status_t status = mlx_buffer_share(device, shape, &buffer);
  if (!status) memcpy(mlx_buffer_host(buffer), values, sizeof values);
  if (!status) status = mlx_program_submit(program, "smoke", &buffer, NULL, 1, NULL, 0, &call);
  if (!status) status = mlx_call_wait(call);
  const int32_t *sums = status ? values : mlx_buffer_host(buffer);
  for (int i = 0; i < 4 && !status; ++i) {
    if (sums[i] != 2 * values[i])
      status = mlx_error(MLX_INTERNAL, "the device computed 2 * %d = %d", values[i], sums[i]);
  }
  mlx_buffer_free(buffer);
  return status;
}

mlx_status_t mlx_engine_smoke(mlx_device_choice_t choice, const char *vmfb_path) {
  mlx_device_t *device = NULL;
  mlx_device_program_t *program = NULL;
  mlx_map_t vmfb;
  MLX_TRY(mlx_map_file(vmfb_path, &vmfb));
  mlx_status_t status =
      mlx_device_open(choice == MLX_USE_CUDA ? MLX_DEVICE_CUDA : MLX_DEVICE_CPU, 1, &device);
  if (!status) status = mlx_program_load(device, vmfb.data, vmfb.size, NULL, &program);
  if (!status) status = run_smoke(device, program);
  mlx_program_free(program);
  mlx_device_close(device);
  mlx_unmap(&vmfb);
  return status;
}

mlx_status_t mlx_engine_tokenize(const mlx_engine_t *engine, const char *text, size_t length,
                                 int32_t **out_ids, size_t *out_count) {
  return mlx_tokenizer_encode(engine->tokenizer, text, length, true, out_ids, out_count);
}

mlx_status_t mlx_engine_tokenize_chat(const mlx_engine_t *engine, const char *text, size_t length,
                                      int32_t **out_ids, size_t *out_count) {
  return mlx_tokenizer_encode(engine->tokenizer, text, length, false, out_ids, out_count);
}

mlx_status_t mlx_engine_tokenize_within(const mlx_engine_t *engine, const char *text, size_t length,
                                        bool is_chat, size_t limit, int32_t **out_ids, size_t *out_count) {
  return mlx_tokenizer_encode_within(engine->tokenizer, text, length, !is_chat, limit, out_ids, out_count);
}

mlx_status_t mlx_engine_tokenize_plain(const mlx_engine_t *engine, const char *text, size_t length,
                                       bool add_start, size_t limit, int32_t **out_ids, size_t *out_count) {
  return encode_plain(engine->tokenizer, text, length, add_start, limit, out_ids, out_count);
}

const int32_t *mlx_engine_prompt(const mlx_engine_t *engine, size_t *out_count) {
  *out_count = engine->prompt_count;
  return engine->prompt;
}

mlx_status_t mlx_engine_token_bytes(const mlx_engine_t *engine, int32_t id, char **out_bytes,
                                    size_t *out_length) {
  mlx_text_t text = {0};
  mlx_tokenizer_piece(engine->tokenizer, id, false, false, &text);
  mlx_status_t status = mlx_text_take(&text, out_bytes, out_length);
  mlx_text_clear(&text);
  return status;
}

bool mlx_engine_find_token(const mlx_engine_t *engine, const char *token, int32_t *out_id) {
  return mlx_tokenizer_find(engine->tokenizer, token, out_id);
}

bool mlx_engine_is_end(const mlx_engine_t *engine, int32_t id) {
  for (size_t i = 0; i < engine->manifest.eos_count; ++i) {
    if (engine->manifest.eos[i] == id) return true;
  }
  return false;
}

const int32_t *mlx_engine_ends(const mlx_engine_t *engine, size_t *out_count) {
  *out_count = engine->manifest.eos_count;
  return engine->manifest.eos;
}

mlx_status_t mlx_engine_detokenize(const mlx_engine_t *engine, const int32_t *ids, size_t count, bool special,
                                   char **out_text, size_t *out_length) {
  return mlx_tokenizer_decode(engine->tokenizer, ids, count, !special, out_text, out_length);
}

mlx_status_t mlx_engine_prepare_grammars(mlx_engine_t *engine) {
  const mlx_vocabulary_t *vocabulary;
  MLX_TRY(vocabulary_of(engine, true, &vocabulary));
  return vocabulary_of(engine, false, &vocabulary);
}

void mlx_engine_free_ids(int32_t *ids) { mlx_free(ids); }

const mlx_chat_t *mlx_engine_chat(const mlx_engine_t *engine) { return engine->chat; }
