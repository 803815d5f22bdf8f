// Pull from a registry or an OCI folder: the model a tag names, and the module compiled for the target that is wanted.
#include <stdio.h>
#include <string.h>

#include "artifact/bundle.h"
#include "artifact/download.h"
#include "artifact/modelpack.h"
#include "artifact/oci_place.h"
#include "artifact/output.h"
#include "artifact/pull.h"
#include "artifact/push.h"
#include "base/file.h"
#include "base/memory.h"

#define PARALLEL 4
#define MAX_LAYERS 256

typedef struct fetch {
  const mlx_push_options_t *options;
  const mlx_oci_ref_t *ref;
  mlx_store_t *store;
  mlx_oci_document_t model, module;
  mlx_oci_document_t others[MLX_MAX_TARGETS];      // of the same bundle, where all targets are wanted
  size_t other_count;
  char model_digest[MLX_OCI_DIGEST], module_digest[MLX_OCI_DIGEST];
  const mlx_oci_descriptor_t *layers[MAX_LAYERS];  // of both
  size_t count, done;                              // of which the first are here
  char *folder, *staging;
} fetch_t;

static void free_fetch(fetch_t *fetch) {
  mlx_oci_document_free(&fetch->model);
  mlx_oci_document_free(&fetch->module);
  for (size_t i = 0; i < fetch->other_count; ++i) mlx_oci_document_free(&fetch->others[i]);
  mlx_store_close(fetch->store);
  mlx_free(fetch->folder);
  mlx_free(fetch->staging);
}

static mlx_status_t get_document(fetch_t *fetch, const char *reference, mlx_oci_document_t *out, char out_digest[MLX_OCI_DIGEST]) {
  mlx_text_t json = {0};
  mlx_status_t status = mlx_store_get_document(fetch->store, reference, &json);
  if (!status) status = mlx_oci_document_read(reference, json.data ? json.data : "", json.length, out);
  if (!status) mlx_oci_digest(json.data, json.length, out_digest);
  mlx_text_clear(&json);
  return status;
}

static void list_targets(const mlx_oci_document_t *index, char *out, size_t size) {
  size_t used = 0;
  *out = 0;
  for (size_t i = 0; i < index->count && used + 70 < size; ++i) {
    used += (size_t)snprintf(out + used, size - used, "%s%s", used ? ", " : "", index->items[i].target);
  }
}

// Modules alone; where some were pushed under |tag|, no others: a later push of the same weights under another tag is not what it means.
static void keep_modules(mlx_oci_document_t *index, const char *tag) {
  size_t kept = 0, tagged = 0;
  for (size_t i = 0; i < index->count; ++i) {
    if (!strcmp(index->items[i].artifact_type, MLX_OCI_MODULE)) index->items[kept++] = index->items[i];
  }
  index->count = kept;
  for (size_t i = 0; i < kept; ++i) {
    if (!strcmp(index->items[i].pushed_as, tag)) index->items[tagged++] = index->items[i];
  }
  if (tagged) index->count = tagged;
}

static bool wants_all(const fetch_t *fetch) { return fetch->options->target && !strcmp(fetch->options->target, "all"); }

// The index of the module to take: the one wanted, else the only one, else the best for this machine. Of several for a target, and where all
// are wanted, the one pushed last.
static mlx_status_t choose_module(const fetch_t *fetch, const mlx_oci_document_t *index, size_t *out_chosen) {
  const mlx_push_options_t *options = fetch->options;
  char targets[1024];
  size_t fitting = 0, best = 0;
  list_targets(index, targets, sizeof targets);
  if (wants_all(fetch) && index->count) {
    *out_chosen = index->count - 1;
    return NULL;
  }
  for (size_t i = 0; i < index->count; ++i) {
    const char *target = index->items[i].target;
    const size_t rank = !options->target && options->rank ? options->rank(target, index->items[i].cpu) : 0;
    if ((options->target && strcmp(target, options->target)) || rank < best) continue;
    if (!fitting || rank) fitting = 1;  // of two that suit alike, the later
    else if (strcmp(index->items[*out_chosen].target, target)) ++fitting;
    best = rank;
    *out_chosen = i;
  }
  if (fitting == 1) {
    if (best) mlx_report_note(options->report, "taking the code for %s, of %s", index->items[*out_chosen].target, targets);
    return NULL;
  }
  if (!index->count) return mlx_error(MLX_UNSUPPORTED, "the model is there, but nothing that was compiled for it");
  if (fitting) {
    return mlx_status_hint(mlx_error(MLX_USAGE, "the model was compiled for several targets, none of them known to run here"), "name one with --target: %s", targets);
  }
  return mlx_status_hint(mlx_error(MLX_NOT_FOUND, "the model was not compiled for %s", options->target), "it was for: %s", targets);
}

static mlx_status_t get_one(fetch_t *fetch, const char *reference, mlx_oci_document_t *out, char out_digest[MLX_OCI_DIGEST]) {
  MLX_TRY(get_document(fetch, reference, out, out_digest));
  if (!strcmp(out->subject.digest, fetch->model_digest) && !strcmp(out->artifact_type, MLX_OCI_MODULE)) return NULL;
  return mlx_error(MLX_INVALID_INPUT, "the module %s belongs to another model", out_digest);
}

static const char *manifest_of(const mlx_oci_document_t *module) {
  for (size_t i = 0; i < module->count; ++i) {
    if (!strcmp(module->items[i].path, MLX_BUNDLE_MANIFEST)) return module->items[i].digest;
  }
  return "";
}

// One bundle pushed under two tags has its modules twice.
static bool has_target(const fetch_t *fetch, const char *target) {
  bool has = !strcmp(fetch->module.target, target);
  for (size_t i = 0; i < fetch->other_count && !has; ++i) has = !strcmp(fetch->others[i].target, target);
  return has;
}

// Modules of one bundle have its manifest. Those of others cannot be in it; whoever asked for all is told.
static mlx_status_t get_others(fetch_t *fetch, const mlx_oci_document_t *index) {
  char digest[MLX_OCI_DIGEST];
  mlx_oci_document_t left = {.items = index->items};  // their descriptors, moved to the front
  for (size_t i = 0; i < index->count; ++i) {
    mlx_oci_document_t other = {0};
    if (!strcmp(index->items[i].digest, fetch->module_digest)) continue;
    mlx_status_t status = get_one(fetch, index->items[i].digest, &other, digest);
    const bool ours = !status && !strcmp(manifest_of(&other), manifest_of(&fetch->module));
    if (ours && !has_target(fetch, other.target) && fetch->other_count < MLX_MAX_TARGETS) {
      fetch->others[fetch->other_count++] = other;
      continue;
    }
    mlx_oci_document_free(&other);
    MLX_TRY(status);
    if (!ours) left.items[left.count++] = index->items[i];
  }
  char targets[1024];
  list_targets(&left, targets, sizeof targets);
  if (left.count) mlx_report_note(fetch->options->report, "left out, being of other bundles: %s", targets);
  return NULL;
}

static mlx_status_t get_listed(fetch_t *fetch, const mlx_oci_document_t *index) {
  size_t chosen = 0;
  if (!fetch->module_digest[0]) {
    MLX_TRY(choose_module(fetch, index, &chosen));
    MLX_TRY(get_one(fetch, index->items[chosen].digest, &fetch->module, fetch->module_digest));
  }
  return wants_all(fetch) ? get_others(fetch, index) : NULL;
}

// The module, unless the reference named it, and the others of its bundle where all are wanted.
static mlx_status_t get_modules(fetch_t *fetch) {
  const char *wanted = fetch->options->target;
  mlx_oci_document_t index;
  if (fetch->module_digest[0] && !wants_all(fetch)) {
    if (!wanted || !strcmp(wanted, fetch->module.target)) return NULL;
    return mlx_error(MLX_NOT_FOUND, "%s was compiled for %s, not for %s", fetch->module_digest, fetch->module.target, wanted);
  }
  MLX_TRY(mlx_store_referrers(fetch->store, fetch->model_digest, MLX_OCI_MODULE, &index));
  keep_modules(&index, fetch->ref->reference);
  mlx_status_t status = get_listed(fetch, &index);
  mlx_oci_document_free(&index);
  return status;
}

static const mlx_oci_descriptor_t *find_layer(const fetch_t *fetch, const char *name) {
  for (size_t i = 0; i < fetch->count; ++i) {
    if (!strcmp(fetch->layers[i]->path, name)) return fetch->layers[i];
  }
  return NULL;
}

// Those of a document that |manifest| says are needed; all where that is NULL.
static mlx_status_t add_layers(fetch_t *fetch, const mlx_oci_document_t *document, const mlx_manifest_t *manifest) {
  for (size_t i = 0; i < document->count; ++i) {
    const mlx_oci_descriptor_t *layer = &document->items[i];
    if (manifest && !mlx_manifest_needs(manifest, fetch->module.target, layer->path)) continue;
    if (!mlx_is_bundle_file(layer->path)) return mlx_error(MLX_UNSUPPORTED, "the layer %s is called '%s', which is no file of a compiled model", layer->digest, layer->path);
    const mlx_oci_descriptor_t *same = find_layer(fetch, layer->path);
    if (same && !strcmp(same->digest, layer->digest)) continue;  // modules of one bundle share its manifest
    if (same) return mlx_error(MLX_INVALID_INPUT, "there are two layers for '%s'", layer->path);
    if (fetch->count == MAX_LAYERS) return mlx_error(MLX_INVALID_INPUT, "there are more than %d layers", MAX_LAYERS);
    fetch->layers[fetch->count++] = layer;
  }
  return NULL;
}

static mlx_status_t get_job(void *user, size_t index, mlx_http_t *http, mlx_tally_t *tally) {
  fetch_t *fetch = user;
  char *path;
  const mlx_oci_descriptor_t *layer = fetch->layers[fetch->done + index];
  MLX_TRY(mlx_join_path(fetch->staging, layer->path, &path));
  mlx_status_t status = mlx_store_get_blob(fetch->store, http, layer, path, tally);
  mlx_free(path);
  return status;
}

static mlx_status_t get_layers(fetch_t *fetch, const char *name) {
  char title[300];
  uint64_t bytes = 0;
  for (size_t i = fetch->done; i < fetch->count; ++i) {
    if (__builtin_add_overflow(bytes, fetch->layers[i]->size, &bytes)) return mlx_error(MLX_INVALID_INPUT, "the layers' sizes cannot be");
  }
  MLX_TRY(mlx_output_stage(fetch->staging));
  MLX_TRY(mlx_download_check_space(fetch->staging, bytes));
  snprintf(title, sizeof title, "pulling %.255s", mlx_file_name(name).text);
  const mlx_transfer_t transfer = {.title = title, .count = fetch->count - fetch->done, .parallel = PARALLEL, .bytes = bytes, .job = get_job, .user = fetch,
                                   .http = &fetch->options->store.http, .report = fetch->options->report};
  MLX_TRY(mlx_status_hint(mlx_transfer_run(&transfer), "what came so far is kept: run the command again to go on"));
  fetch->done = fetch->count;
  return NULL;
}

// What an earlier pull left and this one has no use for.
static mlx_status_t remove_stray(void *user, const char *name) {
  const fetch_t *fetch = user;
  char *path;
  if (find_layer(fetch, name)) return NULL;
  MLX_TRY(mlx_join_path(fetch->staging, name, &path));
  mlx_status_t status = mlx_remove_tree(path);
  mlx_free(path);
  return status;
}

// The module's own manifest names the files it was compiled with.
static mlx_status_t check_bundle(const fetch_t *fetch) {
  mlx_bundle_t *bundle;
  MLX_TRY(mlx_bundle_open(fetch->staging, &bundle));
  const mlx_manifest_t *manifest = mlx_bundle_manifest(bundle);
  mlx_status_t status = NULL;
  for (size_t i = 0; !status && i < manifest->file_count; ++i) {
    const mlx_oci_descriptor_t *layer = find_layer(fetch, manifest->files[i].name);
    const bool same = layer && !strcmp(layer->digest + strlen("sha256:"), manifest->files[i].sha256);
    if (layer ? same : !wants_all(fetch) && !mlx_manifest_needs(manifest, fetch->module.target, manifest->files[i].name)) continue;
    status = mlx_error(MLX_INVALID_INPUT, "the module was compiled with another '%s' than the model has", manifest->files[i].name);
  }
  mlx_bundle_close(bundle);
  return status;
}

static bool is_model(const mlx_oci_document_t *document) {
  const char *type = document->artifact_type[0] ? document->artifact_type : document->config.media_type;  // as the image specification has it
  return !strcmp(type, MLX_OCI_MODEL) || !strcmp(type, MLX_OCI_MODEL_CONFIG);
}

// A tag that is not there, with those that are; lists of referrers are none that a person would want.
static mlx_status_t name_tags(fetch_t *fetch, mlx_status_t missing) {
  mlx_text_t tags = {0};
  char names[1024] = "";
  size_t count, used = 0, at = 0;
  mlx_status_t status = mlx_store_tags(fetch->store, &tags, &count);
  for (size_t i = 0; !status && i < count; ++i, at += strlen(tags.data + at) + 1) {
    const char *tag = tags.data + at;
    if (!strncmp(tag, "sha256-", 7)) continue;
    if (used + strlen(tag) + 8 > sizeof names) {
      snprintf(names + used, sizeof names - used, ", ...");
      break;
    }
    used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", tag);
  }
  mlx_status_free(status);  // the missing one is what there is to tell
  mlx_text_clear(&tags);
  return used ? mlx_status_hint(missing, "there are: %s", names) : missing;
}

// The reference named a module: its subject is the model.
static mlx_status_t get_subject(fetch_t *fetch) {
  fetch->module = fetch->model;
  fetch->model = (mlx_oci_document_t){0};
  memcpy(fetch->module_digest, fetch->model_digest, sizeof fetch->module_digest);
  return get_document(fetch, fetch->module.subject.digest, &fetch->model, fetch->model_digest);
}

static mlx_status_t get_model(fetch_t *fetch) {
  const mlx_oci_ref_t *ref = fetch->ref;
  MLX_TRY(mlx_store_open(ref, &fetch->options->store, &fetch->store));
  mlx_status_t status = get_document(fetch, ref->reference, &fetch->model, fetch->model_digest);
  if (mlx_status_code(status) == MLX_NOT_FOUND && !mlx_oci_is_digest(ref->reference)) return name_tags(fetch, status);
  MLX_TRY(status);
  if (!strcmp(fetch->model.artifact_type, MLX_OCI_MODULE) && fetch->model.subject.digest[0]) MLX_TRY(get_subject(fetch));
  if (is_model(&fetch->model)) return NULL;
  return mlx_error(MLX_UNSUPPORTED, "'%s' is not a model: its artifactType is '%s', not " MLX_OCI_MODEL, ref->reference, fetch->model.artifact_type);
}

static mlx_status_t add_model_layers(fetch_t *fetch) {
  mlx_bundle_t *bundle;
  MLX_TRY(mlx_bundle_open(fetch->staging, &bundle));
  mlx_status_t status = add_layers(fetch, &fetch->model, wants_all(fetch) ? NULL : mlx_bundle_manifest(bundle));
  mlx_bundle_close(bundle);
  return status;
}

// Makes fetch->folder, which is not there yet.
static mlx_status_t get_files(fetch_t *fetch, const char *name) {
  MLX_TRY(mlx_format(&fetch->staging, "%s.%.16s.%.16s%s.part", fetch->folder, fetch->model_digest + 7, fetch->module_digest + 7, wants_all(fetch) ? ".all" : ""));
  MLX_TRY(add_layers(fetch, &fetch->module, NULL));
  for (size_t i = 0; i < fetch->other_count; ++i) MLX_TRY(add_layers(fetch, &fetch->others[i], NULL));
  MLX_TRY(get_layers(fetch, name));
  MLX_TRY(add_model_layers(fetch));  // of which the module's manifest says what is needed
  MLX_TRY(get_layers(fetch, name));
  MLX_TRY(mlx_list_dir(fetch->staging, remove_stray, fetch));
  MLX_TRY(check_bundle(fetch));
  return mlx_rename(fetch->staging, fetch->folder);
}

static mlx_status_t get_bundle(fetch_t *fetch) {
  const mlx_oci_ref_t *ref = fetch->ref;
  mlx_lock_t lock;
  MLX_TRY(mlx_pull_place_bundle(mlx_file_name(ref->name).text, fetch->options->output, &fetch->folder));
  MLX_TRY(mlx_output_hold(fetch->folder, fetch->options->report, &lock));
  mlx_status_t status = get_modules(fetch);
  if (!status) status = get_files(fetch, fetch->folder);
  mlx_output_release(&lock);
  return status ? status : mlx_oci_place_forget(ref);  // the cache may have what the tag meant before
}

static mlx_status_t get_bundle_to_cache(fetch_t *fetch) {
  const mlx_oci_ref_t *ref = fetch->ref;
  mlx_oci_place_t place;
  MLX_TRY(get_modules(fetch));
  MLX_TRY(mlx_oci_place_enter(ref, fetch->options->report, &place));
  mlx_status_t status = mlx_oci_place_folder(&place, fetch->module_digest, &fetch->folder);
  if (!status && !mlx_is_dir(fetch->folder)) status = get_files(fetch, ref->name);
  if (!status) status = mlx_oci_place_remember(&place, ref, fetch->module_digest);
  mlx_oci_place_leave(&place);
  return status;
}

mlx_status_t mlx_pull_oci(const char *text, const mlx_push_options_t *options, char **out_path) {
  mlx_oci_ref_t ref;
  *out_path = NULL;
  MLX_TRY(mlx_oci_ref_parse(text, &ref));
  fetch_t fetch = {.options = options, .ref = &ref};
  mlx_status_t status = get_model(&fetch);
  if (!status && mlx_modelpack_is_compiled(&fetch.model)) {
    status = options->to_cache ? get_bundle_to_cache(&fetch) : get_bundle(&fetch);
    if (!status) *out_path = fetch.folder, fetch.folder = NULL;
  } else if (!status) {
    status = mlx_modelpack_pull(fetch.store, &ref, &fetch.model, fetch.model_digest, options, out_path);
  }
  free_fetch(&fetch);
  return status;
}

mlx_status_t mlx_pull_oci_find(const char *text, char **out_path) {
  mlx_oci_ref_t ref;
  char *folder;
  *out_path = NULL;
  MLX_TRY(mlx_oci_ref_parse(text, &ref));
  MLX_TRY(mlx_oci_place_find(&ref, &folder));
  if (!folder || mlx_is_bundle(folder)) {
    *out_path = folder;
    return NULL;
  }
  mlx_status_t status = mlx_modelpack_main(folder, NULL, out_path);
  mlx_free(folder);
  return status;
}
