// The manifest of a compiled model, and the license files that go with it.
#include <stdio.h>
#include <string.h>

#include "artifact/bundle.h"
#include "base/file.h"
#include "base/memory.h"
#include "compiler/compile_job.h"
#include "compiler/weights.h"
#include "models/import/classifier.h"
#include "models/import/format.h"
#include "models/import/sentence.h"

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
  if (!mlx_is_file(file->path)) {  // a folder named LICENSE
    mlx_compiled_file_clear(file);
    return NULL;
  }
  snprintf(file->name, sizeof file->name, "%s", name);
  ++out->licence_count;
  return NULL;
}

// License files beside the weights of a Hugging Face directory. A GGUF file has none.
mlx_status_t mlx_job_find_licences(const mlx_compile_job_t *job, mlx_compiled_t *out) {
  licences_t licences = {.folder = mlx_source_path(job->model->source), .out = out};
  return mlx_is_dir(licences.folder) ? mlx_list_dir(licences.folder, add_licence, &licences) : NULL;
}

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

// Does not read the file: the cache remembers the digests of its files.
static mlx_status_t add_cached_file(mlx_compile_job_t *job, const mlx_compiled_file_t *from) {
  mlx_bundle_file_t *file = add_file(&job->manifest, from->name);
  mlx_file_stamp_t stamp;
  MLX_TRY(mlx_file_stamp(from->path, &stamp));
  file->size = (int64_t)stamp.size;
  if (mlx_is_weights_file(from->name))
    MLX_TRY(mlx_cache_tree_digest_part(job->cache, from->path, 0, stamp.size, NULL, file->tree));
  return mlx_cache_digest_file(job->cache, from->path, NULL, file->sha256);
}

// Lists the files of the bundle with their digests, so that a copy can be verified.
static mlx_status_t add_files(mlx_compile_job_t *job, const mlx_compiled_t *out) {
  if (!out->weights_path || job->options->for_engine) return NULL;
  add_text_file(&job->manifest, MLX_BUNDLE_TOKENIZER, out->tokenizer, out->tokenizer_length);
  if (out->chat) add_text_file(&job->manifest, MLX_BUNDLE_CHAT, out->chat, out->chat_length);
  for (size_t i = 0; i < out->licence_count; ++i) MLX_TRY(add_cached_file(job, &out->licences[i]));
  for (size_t i = 0; i < out->module_count; ++i) MLX_TRY(add_cached_file(job, &out->modules[i]));
  for (size_t i = 0; i < out->weights_count; ++i) MLX_TRY(add_cached_file(job, &out->weights[i]));
  return NULL;
}

// "3.13" from "3.13.0 @ ...": the IREE version that the runtime needs.
static void short_version(const char *version, char *out, size_t size) {
  int major, minor;
  if (sscanf(version, "%d.%d", &major, &minor) == 2) snprintf(out, size, "%d.%d", major, minor);
}

static int64_t count_parameters(const mlx_model_t *model) {
  int64_t total = 0;
  for (size_t i = 0; i < model->weight_count; ++i) {
    int64_t count = model->weights[i].is_order ? 0 : 1;
    for (int j = 0; j < model->weights[i].tensor.rank; ++j) count *= model->weights[i].tensor.dims[j];
    total += count;
  }
  return total;
}

static void describe_prompts(const mlx_sentence_t *sentence, mlx_manifest_embedding_t *out) {
  out->prompt_count = sentence->prompt_count;
  memcpy(out->prompts, sentence->prompts, sizeof out->prompts);
  memcpy(out->default_prompt, sentence->default_prompt, sizeof sentence->default_prompt);
  memcpy(out->similarity, sentence->similarity, sizeof out->similarity);
}

_Static_assert(MLX_MAX_SCORE_ROW == MLX_MAX_MANIFEST_ROW, "every class head fits");

static mlx_status_t describe_score(const mlx_model_t *model, const mlx_classifier_t *classifier,
                                   mlx_manifest_embedding_t *out) {
  out->score_size = (size_t)model->config.hidden;
  out->generation_prompt = classifier->generation_prompt;
  return mlx_classifier_row(model->source, classifier, &model->config, out->score_row);
}

static mlx_status_t describe_embedding(const mlx_model_t *model, mlx_manifest_embedding_t *out) {
  mlx_sentence_t sentence;
  mlx_classifier_t classifier;
  MLX_TRY(mlx_sentence_read(model->source, &sentence));
  MLX_TRY(mlx_classifier_read(model->source, &classifier));
  const mlx_config_t *c = &model->config;
  const bool scores = c->labels && !c->encoder;
  if (!sentence.found && !c->encoder && !scores) return NULL;
  snprintf(out->pooling, sizeof out->pooling, "%s",
           mlx_pooling_name(scores      ? MLX_POOL_LAST
                            : c->labels ? c->pooling
                                        : sentence.pooling));
  out->encoder = c->encoder;
  out->normalize = sentence.normalize && !c->labels;
  out->labels = c->labels;
  out->sigmoid = classifier.sigmoid;
  out->typed = classifier.typed && c->types > 1;
  out->headless = c->headless;
  describe_prompts(&sentence, out);
  return scores ? describe_score(model, &classifier, out) : NULL;
}

mlx_status_t mlx_job_describe_model(mlx_compile_job_t *job) {
  mlx_manifest_t *m = &job->manifest;
  m->contract = MLX_CONTRACT_VERSION;
  m->vocab = job->model->config.vocab;
  m->parameters = count_parameters(job->model);
  m->context = job->module.context;
  snprintf(m->architecture, sizeof m->architecture, "%s", mlx_source_architecture(job->model->source));
  snprintf(m->source, sizeof m->source, "%s", mlx_file_name(mlx_source_path(job->model->source)).text);
  for (char *c = m->source; *c; ++c) {  // the name is printed to terminals: no control characters
    if ((unsigned char)*c < ' ' || *c == 0x7f) *c = '?';
  }
  MLX_TRY(mlx_source_licence(job->model->source, m->license, sizeof m->license));
  MLX_TRY(describe_embedding(job->model, &m->embedding));
  return mlx_source_eos_ids(job->model->source, m->eos, MLX_MAX_EOS, &m->eos_count);
}

// The window of the manifest (artifact/manifest.h).
static int64_t module_window(const mlx_compile_job_t *job) {
  const mlx_graph_windows_t w = mlx_graph_windows(job->graph);
  return job->facts.window_page_bytes || w.windowed == w.layers ? w.widest : 0;
}

// The format of one weight in the archive. Codes that are kept have the name of their format in the file.
static void name_stored(const mlx_weight_t *weight, mlx_stored_t stored, char out[MLX_FORMAT_NAME]) {
  const mlx_dtype_t dtype =
      stored.kind == MLX_STORED_QUANTIZED ? mlx_quantize_dtype(stored.quantize) : stored.dtype;
  if (stored.kind == MLX_STORED_CODES)
    mlx_weight_format(weight, out);
  else
    snprintf(out, MLX_FORMAT_NAME, "%s", mlx_dtype_info(dtype)->name);
}

static void describe_formats(const mlx_compile_job_t *job, mlx_variant_t *v) {
  const mlx_storage_t storage = mlx_module_storage(&job->module);
  mlx_format_list_t formats = {0};
  for (size_t i = 0; i < job->model->weight_count; ++i) {
    const mlx_weight_t *weight = &job->model->weights[i];
    char name[MLX_FORMAT_NAME];
    if (weight->is_order) continue;
    name_stored(weight, mlx_weight_stored(weight, storage), name);
    mlx_format_list_add(&formats, name, mlx_weight_stored_bytes(weight, storage));
  }
  mlx_format_list_sort(&formats);
  for (; v->format_count < formats.count && v->format_count < MLX_MAX_FORMATS; ++v->format_count)
    memcpy(v->formats[v->format_count], formats.items[v->format_count].name, sizeof *v->formats);
}

mlx_status_t mlx_job_describe_target(mlx_compile_job_t *job, const mlx_compiled_file_t *modules,
                                     size_t module_count, const mlx_compiled_file_t *weights) {
  size_t position = 0;
  if (!mlx_job_kv_bytes(job, 1, &position)) position = 0;  // unknown
  mlx_variant_t *v = &job->manifest.variants[job->manifest.variant_count++];
  const mlx_module_facts_t *facts = &job->facts;
  *v = (mlx_variant_t){.step_count = facts->step_count,
                       .burst = facts->burst,
                       .ragged = facts->ragged,
                       .samples = facts->samples,
                       .fixed_rows = facts->fixed_rows,
                       .chunk_positions = facts->chunk_positions,
                       .page_bytes = facts->page_bytes,
                       .window_page_bytes = facts->window_page_bytes,
                       .recurrent_bytes = facts->recurrent_bytes,
                       .kv_row = facts->kv_row,
                       .hidden = facts->hidden,
                       .route_layers = facts->route_layers,
                       .route_used = facts->route_used,
                       .driver = job->target.gpu && job->kernels.count
                                     ? 1000 * mlx_nvrtc_major(job->nvrtc) + 10 * mlx_nvrtc_minor(job->nvrtc)
                                     : 0,
                       .state_bytes = facts->state_bytes,
                       .kv_bytes = (int64_t)position,
                       .window = module_window(job)};
  snprintf(v->target, sizeof v->target, "%s", job->target.name);
  snprintf(v->cpu, sizeof v->cpu, "%s", job->target.cpu);
  snprintf(v->dtype, sizeof v->dtype, "%s", mlx_job_storage_name(job));
  describe_formats(job, v);
  snprintf(v->kv, sizeof v->kv, "%s", mlx_kv_name(job->module.kv));
  snprintf(v->activations, sizeof v->activations, "%s",
           mlx_dtype_info(job->module.narrow ? job->module.dtype : MLX_F32)->mlir);
  snprintf(v->module, sizeof v->module, "%s", modules[0].name);
  snprintf(v->weights, sizeof v->weights, "%s", weights ? weights->name : MLX_BUNDLE_WEIGHTS);
  snprintf(v->kernels_digest, sizeof v->kernels_digest, "%s", job->kernels_digest);
  memcpy(v->steps, facts->steps, sizeof v->steps);
  _Static_assert(MLX_KERNEL_KINDS <= MLX_MAX_KERNELS, "a manifest can list all kernels");
  for (int kind = 0; kind < MLX_KERNEL_KINDS; ++kind) {
    if (!mlx_kernels_use(&job->kernels, (mlx_kernel_kind_t)kind)) continue;
    snprintf(v->kernels[v->kernel_count++], sizeof v->kernels[0], "%s",
             mlx_kernel_kind_name((mlx_kernel_kind_t)kind));
  }
  for (size_t i = 0; job->target.portable && i < module_count; ++i) {
    snprintf(v->levels[v->level_count++], sizeof v->levels[0], "%s", modules[i].level);
  }
  return mlx_job_describe_ops(job, v);
}

mlx_status_t mlx_job_write_manifest(mlx_compile_job_t *job, mlx_compiled_t *out) {
  mlx_manifest_t *m = &job->manifest;
  snprintf(m->compiler, sizeof m->compiler, "%s", job->compiler.version);
  snprintf(m->compiler_digest, sizeof m->compiler_digest, "%s", job->compiler.digest);
  short_version(m->compiler, m->iree, sizeof m->iree);
  MLX_TRY(add_files(job, out));
  return mlx_manifest_write(m, &out->manifest, &out->manifest_length);
}
