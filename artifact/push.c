#include "artifact/push.h"

#include <stdio.h>
#include <string.h>

#include "artifact/manifest.h"
#include "base/file.h"
#include "base/memory.h"
#include "cache/cache.h"

#define PARALLEL 4
#define MAX_LAYERS (1 + MLX_MAX_LEVELS)  // of either document
#define MAX_BLOBS (2 * MAX_LAYERS + 4)   // of both, and the documents and their configurations
#define EMPTY "{}"
#define MAX_MANIFEST (1u << 20)

void mlx_push_options_initialize(mlx_push_options_t *options) {
  *options = (mlx_push_options_t){0};
  mlx_http_options_initialize(&options->store.http);
}

// A bundle on its way out.
typedef struct push {
  const char *folder;
  const mlx_push_options_t *options;
  mlx_store_t *store;
  mlx_cache_t *cache;               // knows the digests of large files
  mlx_manifest_t manifest;
  char *manifest_text;
  mlx_blob_t blobs[MAX_BLOBS];
  char *paths[MAX_BLOBS];           // owned
  size_t count;
  mlx_oci_descriptor_t model_layers[MAX_LAYERS], module_layers[MAX_LAYERS];
  size_t model_count, module_count;
  mlx_text_t config, model, module; // documents
  mlx_oci_descriptor_t model_described, module_described;
} push_t;

static void free_push(push_t *push) {
  for (size_t i = 0; i < push->count; ++i) mlx_free(push->paths[i]);
  mlx_text_clear(&push->config);
  mlx_text_clear(&push->model);
  mlx_text_clear(&push->module);
  mlx_free(push->manifest_text);
  mlx_cache_close(push->cache);
  mlx_store_close(push->store);
}

// ---------------------------------------------------------------------------------------------------------------------
// Blobs and documents

static mlx_status_t check_digest(const push_t *push, const char *name, const mlx_oci_descriptor_t *described) {
  for (size_t i = 0; i < push->manifest.file_count; ++i) {
    const mlx_bundle_file_t *file = &push->manifest.files[i];
    if (strcmp(file->name, name) || !strcmp(file->sha256, described->digest + strlen("sha256:"))) continue;
    return mlx_status_hint(mlx_error(MLX_INVALID_INPUT, "'%s/%s' is not what its manifest says: its digest is %s, it should be sha256:%s", push->folder,
                                     name, described->digest, file->sha256),
                           "the bundle is damaged: compile or pull it again");
  }
  return NULL;
}

static mlx_status_t add_file(push_t *push, const char *name, const char *media_type, mlx_oci_descriptor_t *layers, size_t *layer_count) {
  const size_t i = push->count;
  mlx_blob_t *blob = &push->blobs[i];
  mlx_oci_descriptor_t *d = &blob->described;
  mlx_file_stamp_t stamp;
  MLX_TRY(mlx_join_path(push->folder, name, &push->paths[i]));
  ++push->count;
  blob->path = push->paths[i];
  MLX_TRY(mlx_file_stamp(blob->path, &stamp));
  d->size = stamp.size;
  snprintf(d->media_type, sizeof d->media_type, "%s", media_type);
  snprintf(d->path, sizeof d->path, "%s", name);
  memcpy(d->digest, "sha256:", 7);
  mlx_report_progress(push->options->report, "reading %s", name);
  MLX_TRY(mlx_cache_digest_file(push->cache, blob->path, d->digest + 7));
  MLX_TRY(check_digest(push, name, d));
  layers[(*layer_count)++] = *d;
  return NULL;
}

static mlx_oci_descriptor_t add_text(push_t *push, const char *media_type, const char *text, size_t length) {
  mlx_blob_t *blob = &push->blobs[push->count++];
  blob->bytes = text;
  blob->described.size = length;
  snprintf(blob->described.media_type, sizeof blob->described.media_type, "%s", media_type);
  mlx_oci_digest(text, length, blob->described.digest);
  return blob->described;
}

// ModelPack's account of the model. No dates: the same model must have the same digest wherever it is pushed from.
static mlx_status_t write_config(push_t *push) {
  mlx_text_t *out = &push->config;
  const mlx_manifest_t *m = &push->manifest;
  mlx_text_puts(out, "{\n  \"descriptor\": {\"family\": ");
  mlx_text_json_string(out, m->architecture, strlen(m->architecture));
  mlx_text_puts(out, ", \"name\": ");
  mlx_text_json_string(out, m->source, strlen(m->source));
  mlx_text_puts(out, "},\n  \"config\": {\"architecture\": \"transformer\", \"format\": \"irpa\", \"precision\": ");
  mlx_text_json_string(out, m->dtype, strlen(m->dtype));
  mlx_text_puts(out, "},\n  \"modelfs\": {\"type\": \"layers\", \"diffIds\": [");
  for (size_t i = 0; i < push->model_count; ++i) mlx_text_printf(out, "%s\"%s\"", i ? ", " : "", push->model_layers[i].digest);
  mlx_text_puts(out, "]}\n}\n");
  return mlx_text_finish(out);
}

static mlx_status_t describe(const mlx_oci_document_t *document, mlx_text_t *text, mlx_oci_descriptor_t *out) {
  mlx_oci_manifest_write(document, text);
  MLX_TRY(mlx_text_finish(text));
  *out = (mlx_oci_descriptor_t){.size = text->length};
  snprintf(out->media_type, sizeof out->media_type, "%s", MLX_OCI_MANIFEST);
  snprintf(out->artifact_type, sizeof out->artifact_type, "%s", document->artifact_type);
  snprintf(out->target, sizeof out->target, "%s", document->target);
  mlx_oci_digest(text->data, text->length, out->digest);
  return NULL;
}

static mlx_status_t describe_model(push_t *push) {
  char *chat;
  MLX_TRY(add_file(push, MLX_BUNDLE_WEIGHTS, MLX_OCI_WEIGHT, push->model_layers, &push->model_count));
  MLX_TRY(add_file(push, MLX_BUNDLE_TOKENIZER, MLX_OCI_WEIGHT_CONFIG, push->model_layers, &push->model_count));
  MLX_TRY(mlx_join_path(push->folder, MLX_BUNDLE_CHAT, &chat));
  const bool has_chat = mlx_is_file(chat);
  mlx_free(chat);
  if (has_chat) MLX_TRY(add_file(push, MLX_BUNDLE_CHAT, MLX_OCI_WEIGHT_CONFIG, push->model_layers, &push->model_count));
  MLX_TRY(write_config(push));
  mlx_oci_document_t model = {.artifact_type = MLX_OCI_MODEL, .items = push->model_layers, .count = push->model_count};
  model.config = add_text(push, MLX_OCI_MODEL_CONFIG, push->config.data, push->config.length);
  return describe(&model, &push->model, &push->model_described);
}

static mlx_status_t describe_module(push_t *push) {
  MLX_TRY(add_file(push, MLX_BUNDLE_MANIFEST, MLX_OCI_MODULE_MANIFEST, push->module_layers, &push->module_count));
  const size_t levels = push->manifest.level_count;
  for (size_t i = 0; i < levels || i == 0; ++i) {
    const mlx_module_name_t name = mlx_bundle_module(levels ? push->manifest.levels[i] : NULL);
    MLX_TRY(add_file(push, name.text, MLX_OCI_MODULE_CODE, push->module_layers, &push->module_count));
  }
  mlx_oci_document_t module = {.artifact_type = MLX_OCI_MODULE, .items = push->module_layers, .count = push->module_count, .subject = push->model_described};
  snprintf(module.target, sizeof module.target, "%s", push->manifest.target);
  module.config = add_text(push, MLX_OCI_EMPTY, EMPTY, strlen(EMPTY));
  return describe(&module, &push->module, &push->module_described);
}

// ---------------------------------------------------------------------------------------------------------------------
// Sending

static mlx_status_t put_job(void *user, size_t index, mlx_http_t *http, mlx_tally_t *tally) {
  push_t *push = user;
  return mlx_store_put_blob(push->store, http, &push->blobs[index], tally);
}

static mlx_status_t send_blobs(push_t *push) {
  char title[300];
  uint64_t bytes = 0;
  for (size_t i = 0; i < push->count; ++i) bytes += push->blobs[i].described.size;
  snprintf(title, sizeof title, "pushing %.255s", mlx_file_name(push->folder).text);
  const mlx_transfer_t transfer = {.title = title, .count = push->count, .parallel = PARALLEL, .bytes = bytes, .job = put_job, .user = push,
                                   .http = &push->options->store.http, .report = push->options->report};
  return mlx_transfer_run(&transfer);
}

// The model first without its name, then what refers to it, then the name: whoever pulls by it finds all.
static mlx_status_t send_documents(push_t *push, const char *tag) {
  MLX_TRY(mlx_store_put_document(push->store, NULL, &push->model_described, push->model.data, push->model.length, NULL));
  MLX_TRY(mlx_store_put_document(push->store, NULL, &push->module_described, push->module.data, push->module.length, push->model_described.digest));
  return mlx_store_put_document(push->store, tag, &push->model_described, push->model.data, push->model.length, NULL);
}

static mlx_status_t read_bundle(push_t *push) {
  char *path;
  size_t length;
  if (!mlx_is_bundle(push->folder)) {
    return mlx_status_hint(mlx_error(MLX_USAGE, "'%s' is not a compiled model", push->folder), "mlxcel compile MODEL -o NAME.mlxb makes one");
  }
  MLX_TRY(mlx_join_path(push->folder, MLX_BUNDLE_MANIFEST, &path));
  mlx_status_t status = mlx_read_file(path, MAX_MANIFEST, &push->manifest_text, &length);
  if (!status) status = mlx_manifest_read(path, push->manifest_text, length, &push->manifest);
  mlx_free(path);
  return status;
}

static mlx_status_t run_push(push_t *push, const mlx_oci_ref_t *ref) {
  MLX_TRY(read_bundle(push));
  MLX_TRY(mlx_cache_open(NULL, &push->cache));
  MLX_TRY(mlx_store_open(ref, &push->options->store, &push->store));
  MLX_TRY(describe_model(push));
  MLX_TRY(describe_module(push));
  mlx_report_done(push->options->report);
  MLX_TRY(send_blobs(push));
  return send_documents(push, ref->reference);
}

mlx_status_t mlx_push_bundle(const char *folder, const char *text, const mlx_push_options_t *options, char out_digest[MLX_OCI_DIGEST]) {
  mlx_oci_ref_t ref;
  MLX_TRY(mlx_oci_ref_parse(text, &ref));
  if (mlx_oci_is_digest(ref.reference)) return mlx_error(MLX_USAGE, "'%s' is a digest: push to a tag", text);
  push_t push = {.folder = folder, .options = options};
  mlx_status_t status = run_push(&push, &ref);
  memcpy(out_digest, push.model_described.digest, MLX_OCI_DIGEST);
  free_push(&push);
  return status;
}
