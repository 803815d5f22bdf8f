// Describes a bundle as OCI documents and uploads it. See push.h.
#include "transfer/push.h"

#include <stdio.h>
#include <string.h>

#include "artifact/bundle.h"
#include "artifact/minisign.h"
#include "base/json_writer.h"
#include "base/memory.h"
#include "base/meter.h"

#define PARALLEL 4
#define MAX_LAYERS (MLX_MAX_BUNDLE_FILES + 2)  // of one document: all files, the manifest, its signature
#define MAX_BLOBS (MAX_LAYERS + MLX_MAX_TARGETS + 2)  // of all documents, with their configs
#define EMPTY "{}"                                    // config of a module

void mlx_push_options_initialize(mlx_push_options_t *options) {
  *options = (mlx_push_options_t){0};
  mlx_http_options_initialize(&options->store.http);
}

typedef struct module {
  mlx_oci_descriptor_t layers[MAX_LAYERS];
  size_t count;
  mlx_text_t document;
  mlx_oci_descriptor_t descriptor;
} module_t;

// One push in progress.
typedef struct push {
  const char *path, *tag;
  const mlx_push_options_t *options;
  mlx_store_t *store;
  mlx_bundle_t *bundle;
  const mlx_manifest_t *manifest;  // of the bundle
  char *signature;                 // text of the signature; NULL if unsigned
  size_t signature_length;
  mlx_blob_t blobs[MAX_BLOBS];
  size_t count;
  mlx_oci_descriptor_t layers[MAX_LAYERS];  // of the model
  size_t layer_count;
  mlx_text_t config, model;
  mlx_oci_descriptor_t model_descriptor;
  module_t modules[MLX_MAX_TARGETS];
} push_t;

static void free_push(push_t *push) {
  mlx_text_clear(&push->config);
  mlx_text_clear(&push->model);
  for (size_t i = 0; i < MLX_MAX_TARGETS; ++i) mlx_text_clear(&push->modules[i].document);
  mlx_free(push->signature);
  mlx_bundle_close(push->bundle);
  mlx_store_close(push->store);
}

// ----------------------------------------------------------------------------------------------------------
// Blobs and documents

static mlx_oci_descriptor_t describe_blob(const char *media_type, const char *digest, uint64_t size) {
  mlx_oci_descriptor_t d = {.size = size};
  snprintf(d.media_type, sizeof d.media_type, "%s", media_type);
  snprintf(d.digest, sizeof d.digest, "%s", digest);
  return d;
}

// Adds a blob unless another document already has it.
static void add_blob(push_t *push, const mlx_oci_descriptor_t *descriptor, const void *bytes) {
  for (size_t i = 0; i < push->count; ++i) {
    if (!strcmp(push->blobs[i].descriptor.digest, descriptor->digest)) return;
  }
  push->blobs[push->count++] = (mlx_blob_t){.descriptor = *descriptor, .bytes = bytes};
}

// Adds a bundle file as a layer, after checking its digest.
static mlx_status_t add_file(push_t *push, const char *name, const char *media_type,
                             mlx_oci_descriptor_t *layers, size_t *layer_count) {
  const mlx_bundle_file_t *file = mlx_manifest_file(push->manifest, name);
  char digest[MLX_OCI_DIGEST], title[96];
  mlx_meter_t meter;
  mlx_map_t view;
  if (!file) return mlx_error(MLX_INVALID_INPUT, "the manifest of '%s' does not list '%s'", push->path, name);
  snprintf(title, sizeof title, "reading %.64s", name);
  mlx_meter_begin(&meter, push->options->report, title, 0);
  const mlx_digest_watch_t watch = mlx_meter_watch(&meter);
  mlx_status_t status = mlx_bundle_map(push->bundle, name, &watch, &view);
  mlx_meter_end(&meter);
  MLX_TRY(status);
  snprintf(digest, sizeof digest, "sha256:%s", file->sha256);
  mlx_oci_descriptor_t *layer = &layers[(*layer_count)++];
  *layer = describe_blob(media_type, digest, view.size);
  snprintf(layer->path, sizeof layer->path, "%s", name);
  add_blob(push, layer, view.data ? (const void *)view.data : "");
  return NULL;
}

static mlx_oci_descriptor_t add_text(push_t *push, const char *media_type, const char *text, size_t length) {
  char digest[MLX_OCI_DIGEST];
  mlx_oci_digest(text, length, digest);
  const mlx_oci_descriptor_t descriptor = describe_blob(media_type, digest, length);
  add_blob(push, &descriptor, text);
  return descriptor;
}

// Writes the ModelPack config. It contains no dates, so that equal models have equal digests.
static mlx_status_t write_config(push_t *push) {
  mlx_text_t *out = &push->config;
  const mlx_manifest_t *m = push->manifest;
  mlx_json_writer_t json = {.out = out};
  mlx_json_begin_object(&json, NULL, MLX_JSON_LINES);
  mlx_json_begin_object(&json, "descriptor", MLX_JSON_ONE_LINE);
  mlx_json_put_text(&json, "family", m->architecture);
  mlx_json_put_text(&json, "name", m->source);
  mlx_json_end(&json);
  mlx_json_begin_object(&json, "config", MLX_JSON_ONE_LINE);
  mlx_json_put_text(&json, "architecture", "transformer");
  mlx_json_put_text(&json, "format", "irpa");
  mlx_json_put_text(&json, "precision", m->variants[0].dtype);
  mlx_json_end(&json);
  mlx_json_begin_object(&json, "modelfs", MLX_JSON_ONE_LINE);
  mlx_json_put_text(&json, "type", "layers");
  mlx_json_begin_list(&json, "diffIds", MLX_JSON_ONE_LINE);
  for (size_t i = 0; i < push->layer_count; ++i) mlx_json_put_text(&json, NULL, push->layers[i].digest);
  mlx_json_end(&json);
  mlx_json_end(&json);
  mlx_json_end(&json);
  mlx_text_puts(out, "\n");
  return mlx_text_finish(out);
}

static mlx_status_t describe(const mlx_oci_document_t *document, mlx_text_t *text,
                             mlx_oci_descriptor_t *out) {
  mlx_oci_manifest_write(document, text);
  MLX_TRY(mlx_text_finish(text));
  *out = (mlx_oci_descriptor_t){.size = text->length};
  snprintf(out->media_type, sizeof out->media_type, "%s", MLX_OCI_MANIFEST);
  snprintf(out->artifact_type, sizeof out->artifact_type, "%s", document->artifact_type);
  out->annotations = document->annotations;
  mlx_oci_digest(text->data, text->length, out->digest);
  return NULL;
}

static const char *media_type_of(const char *name) {
  if (mlx_is_licence_file(name)) return MLX_OCI_DOC;
  return mlx_is_weights_file(name) ? MLX_OCI_WEIGHT : MLX_OCI_WEIGHT_CONFIG;
}

// Describes all files except the code, in manifest order. The result does not depend on the targets, so that
// equal models have equal digests.
static mlx_status_t describe_model(push_t *push) {
  for (size_t i = 0; i < push->manifest->file_count; ++i) {
    const char *name = push->manifest->files[i].name;
    if (!mlx_is_module_file(name))
      MLX_TRY(add_file(push, name, media_type_of(name), push->layers, &push->layer_count));
  }
  MLX_TRY(write_config(push));
  mlx_oci_document_t model = {
      .artifact_type = MLX_OCI_MODEL, .items = push->layers, .count = push->layer_count};
  model.config = add_text(push, MLX_OCI_MODEL_CONFIG, push->config.data, push->config.length);
  return describe(&model, &push->model, &push->model_descriptor);
}

// Adds the bundle's manifest, which covers all targets, and its signature. Every module has both, so that a
// pull of one target can still be verified.
static void add_manifest(push_t *push, module_t *module) {
  size_t length;
  const char *text = mlx_bundle_manifest_text(push->bundle, &length);
  mlx_oci_descriptor_t *layer = &module->layers[module->count++];
  *layer = add_text(push, MLX_OCI_MODULE_MANIFEST, text, length);
  snprintf(layer->path, sizeof layer->path, "%s", MLX_BUNDLE_MANIFEST);
  if (!push->signature) return;
  layer = &module->layers[module->count++];
  *layer = add_text(push, MLX_OCI_MODULE_SIGNATURE, push->signature, push->signature_length);
  snprintf(layer->path, sizeof layer->path, "%s", MLX_BUNDLE_SIGNATURE);
}

static mlx_status_t add_module(push_t *push, const mlx_variant_t *variant, module_t *module) {
  add_manifest(push, module);
  for (size_t i = 0; i < mlx_variant_module_count(variant); ++i) {
    MLX_TRY(add_file(push, mlx_variant_module(variant, i).text, MLX_OCI_MODULE_CODE, module->layers,
                     &module->count));
  }
  return NULL;
}

static mlx_status_t describe_module(push_t *push, const mlx_variant_t *variant, uint64_t serial,
                                    module_t *module) {
  mlx_oci_document_t document = {.artifact_type = MLX_OCI_MODULE,
                                 .items = module->layers,
                                 .count = module->count,
                                 .subject = push->model_descriptor,
                                 .annotations.serial = serial};
  snprintf(document.annotations.target, sizeof document.annotations.target, "%s", variant->target);
  snprintf(document.annotations.cpu, sizeof document.annotations.cpu, "%s", variant->cpu);
  snprintf(document.annotations.tag, sizeof document.annotations.tag, "%s", push->tag);
  document.config = add_text(push, MLX_OCI_EMPTY, EMPTY, strlen(EMPTY));
  mlx_text_clear(&module->document);
  return describe(&document, &module->document, &module->descriptor);
}

static bool has_digest(const mlx_oci_document_t *index, const char *digest) {
  bool has = false;
  for (size_t i = 0; i < index->count && !has; ++i) has = !strcmp(index->items[i].digest, digest);
  return has;
}

// Describes the modules with the serial of the last push under this tag. If the store lacks one of them, this
// is a new push and gets the next serial.
static mlx_status_t describe_modules(push_t *push, const mlx_oci_document_t *index) {
  uint64_t last = 0;
  bool is_repeated = true;
  for (size_t i = 0; i < index->count; ++i) {
    const mlx_oci_annotations_t *annotations = &index->items[i].annotations;
    if (!strcmp(annotations->tag, push->tag) && annotations->serial > last) last = annotations->serial;
  }
  for (uint64_t serial = last; serial <= last + 1; ++serial) {
    for (size_t i = 0; i < push->manifest->variant_count; ++i) {
      MLX_TRY(describe_module(push, &push->manifest->variants[i], serial, &push->modules[i]));
      is_repeated = is_repeated && has_digest(index, push->modules[i].descriptor.digest);
    }
    if (is_repeated) return NULL;
  }
  return NULL;
}

// Reads the list of existing modules, then describes the new ones. A missing or damaged list counts as empty.
static mlx_status_t list_and_describe_modules(push_t *push) {
  mlx_oci_document_t index = {0};
  mlx_status_t status =
      mlx_store_referrers(push->store, push->model_descriptor.digest, MLX_OCI_MODULE, &index);
  if (mlx_status_code(status) == MLX_NOT_FOUND || mlx_status_code(status) == MLX_INVALID_INPUT) {
    mlx_status_free(status);
    status = NULL;
  }
  if (!status) status = describe_modules(push, &index);
  mlx_oci_document_free(&index);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Sending

static mlx_status_t put_job(void *user, size_t index, mlx_http_t *http, mlx_progress_t *progress) {
  push_t *push = user;
  return mlx_store_put_blob(push->store, http, &push->blobs[index], progress);
}

static mlx_status_t send_blobs(push_t *push) {
  char title[300];
  uint64_t bytes = 0;
  for (size_t i = 0; i < push->count; ++i) bytes += push->blobs[i].descriptor.size;
  snprintf(title, sizeof title, "pushing %.255s", mlx_file_name(push->path).text);
  const mlx_transfer_t transfer = {.title = title,
                                   .count = push->count,
                                   .parallel = PARALLEL,
                                   .bytes = bytes,
                                   .job = put_job,
                                   .user = push,
                                   .http = &push->options->store.http,
                                   .report = push->options->report};
  return mlx_transfer_run(&transfer);
}

// Uploads the model manifest without a tag, then the modules, then sets the tag. A pull by tag therefore
// always finds all modules.
static mlx_status_t send_documents(push_t *push) {
  const char *model = push->model_descriptor.digest;
  MLX_TRY(mlx_store_put_document(push->store, NULL, &push->model_descriptor, push->model.data,
                                 push->model.length, NULL));
  for (size_t i = 0; i < push->manifest->variant_count; ++i) {
    const module_t *module = &push->modules[i];
    MLX_TRY(mlx_store_put_document(push->store, NULL, &module->descriptor, module->document.data,
                                   module->document.length, model));
  }
  return mlx_store_put_document(push->store, push->tag, &push->model_descriptor, push->model.data,
                                push->model.length, NULL);
}

// Fails if code is missing, as in a bundle that was pulled for one of its targets.
static mlx_status_t require_all_code(const push_t *push) {
  const mlx_manifest_t *m = push->manifest;
  for (size_t i = 0; i < m->file_count && m->variant_count > 1; ++i) {
    if (mlx_bundle_has(push->bundle, m->files[i].name) || mlx_is_weights_file(m->files[i].name)) continue;
    return mlx_status_hint(
        mlx_error(MLX_NOT_FOUND, "cannot push '%s': it has no %s (it was pulled for one of its targets: %s)",
                  push->path, m->files[i].name, mlx_manifest_targets_text(m).text),
        "pull all targets with `mlxcel pull --target all`, and push that bundle");
  }
  return NULL;
}

static mlx_status_t open_bundle(push_t *push) {
  if (!mlx_is_dir(push->path) && !mlx_is_file(push->path))
    return mlx_error(MLX_NOT_FOUND, "bundle '%s' does not exist", push->path);
  if (!mlx_is_bundle(push->path)) {
    return mlx_status_hint(mlx_error(MLX_USAGE, "'%s' is not a bundle", push->path),
                           "create one with `mlxcel compile MODEL -o NAME.mlxb`");
  }
  MLX_TRY(mlx_bundle_open(push->path, &push->bundle));
  push->manifest = mlx_bundle_manifest(push->bundle);
  if (push->manifest->file_count) {
    MLX_TRY(require_all_code(push));
    if (!mlx_bundle_has(push->bundle, MLX_BUNDLE_SIGNATURE)) return NULL;
    return mlx_bundle_read(push->bundle, MLX_BUNDLE_SIGNATURE, MLX_MAX_SIGNATURE_FILE, &push->signature,
                           &push->signature_length);
  }
  return mlx_status_hint(
      mlx_error(MLX_UNSUPPORTED, "cannot push '%s': its manifest lists no files (an older mlxcel wrote it)",
                push->path),
      "compile the model again");
}

static mlx_status_t run_push(push_t *push, const mlx_oci_ref_t *ref) {
  MLX_TRY(open_bundle(push));
  MLX_TRY(mlx_store_open(ref, &push->options->store, &push->store));
  MLX_TRY(describe_model(push));
  for (size_t i = 0; i < push->manifest->variant_count; ++i)
    MLX_TRY(add_module(push, &push->manifest->variants[i], &push->modules[i]));
  MLX_TRY(list_and_describe_modules(push));
  mlx_report_done(push->options->report);
  MLX_TRY(send_blobs(push));
  MLX_TRY(send_documents(push));
  for (size_t i = 0; i < push->manifest->variant_count; ++i) {
    mlx_report_note(push->options->report, "module for %s: %s", push->manifest->variants[i].target,
                    push->modules[i].descriptor.digest);
  }
  return NULL;
}

mlx_status_t mlx_push_bundle(const char *path, const char *text, const mlx_push_options_t *options,
                             char out_digest[MLX_OCI_DIGEST]) {
  mlx_oci_ref_t ref;
  push_t *push;
  MLX_TRY(mlx_oci_ref_parse(text, &ref));
  if (mlx_oci_is_digest(ref.reference))
    return mlx_error(MLX_USAGE, "cannot push to '%s': use a tag, not a digest", text);
  MLX_TRY(mlx_alloc(1, sizeof *push, &push));
  push->path = path;
  push->tag = ref.reference;
  push->options = options;
  mlx_status_t status = run_push(push, &ref);
  memcpy(out_digest, push->model_descriptor.digest, MLX_OCI_DIGEST);
  free_push(push);
  mlx_free(push);
  return status;
}
