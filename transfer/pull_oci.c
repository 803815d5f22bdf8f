// Pull from a registry or an OCI folder: the model a tag names, and the module compiled for the target that
// is wanted.
#include <stdio.h>
#include <string.h>

#include "artifact/bundle.h"
#include "base/file.h"
#include "base/memory.h"
#include "transfer/download.h"
#include "transfer/modelpack.h"
#include "transfer/oci_place.h"
#include "transfer/output.h"
#include "transfer/pull.h"
#include "transfer/push.h"

#define PARALLEL 4
#define MAX_LAYERS 256

typedef struct fetch {
  const mlx_push_options_t *options;
  const mlx_oci_ref_t *ref;
  mlx_store_t *store;
  mlx_oci_document_t model, module;
  mlx_oci_document_t others[MLX_MAX_TARGETS];  // of the same bundle, where all targets are wanted
  size_t other_count;
  char model_digest[MLX_OCI_DIGEST], module_digest[MLX_OCI_DIGEST];
  const mlx_oci_descriptor_t *layers[MAX_LAYERS];  // of all of them, as far as they are needed
  size_t count;
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

static mlx_status_t get_document(fetch_t *fetch, const char *reference, mlx_oci_document_t *out,
                                 char out_digest[MLX_OCI_DIGEST]) {
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
    bool named = false;
    for (size_t j = 0; j < i && !named; ++j)
      named = !strcmp(index->items[j].notes.target, index->items[i].notes.target);
    if (named) continue;
    used += (size_t)snprintf(out + used, size - used, "%s%s", used ? ", " : "", index->items[i].notes.target);
  }
}

// Modules alone; where some were pushed under |tag|, no others: a later push of the same weights under
// another tag is not what it means.
static void keep_modules(mlx_oci_document_t *index, const char *tag) {
  size_t kept = 0, tagged = 0;
  for (size_t i = 0; i < index->count; ++i) {
    if (!strcmp(index->items[i].artifact_type, MLX_OCI_MODULE)) index->items[kept++] = index->items[i];
  }
  index->count = kept;
  for (size_t i = 0; i < kept; ++i) {
    if (!strcmp(index->items[i].notes.tag, tag)) index->items[tagged++] = index->items[i];
  }
  if (tagged) index->count = tagged;
}

static bool wants_all(const fetch_t *fetch) {
  return fetch->options->target && !strcmp(fetch->options->target, "all");
}

// Whether the module at |b|, which is listed behind that at |a|, was pushed later too, as far as they say.
static bool is_later(const mlx_oci_document_t *index, size_t a, size_t b) {
  return index->items[b].notes.serial >= index->items[a].notes.serial;
}

// The index of the module to take: the one wanted, else the only one, else the best for this machine. Of
// several for a target, and where all are wanted, the one pushed last.
static mlx_status_t choose_module(const fetch_t *fetch, const mlx_oci_document_t *index, size_t *out_chosen) {
  const mlx_push_options_t *options = fetch->options;
  char targets[1024];
  size_t fitting = 0, best = 0;
  list_targets(index, targets, sizeof targets);
  for (size_t i = 0; i < index->count; ++i) {
    const mlx_oci_notes_t *notes = &index->items[i].notes;
    const size_t rank = !options->target && options->rank ? options->rank(notes->target, notes->cpu) : 0;
    if ((options->target && !wants_all(fetch) && strcmp(notes->target, options->target)) || rank < best)
      continue;
    const bool takes = !fitting || rank > best || is_later(index, *out_chosen, i);
    if (!fitting || rank || wants_all(fetch))
      fitting = 1;
    else if (strcmp(index->items[*out_chosen].notes.target, notes->target))
      ++fitting;
    best = rank;
    if (takes) *out_chosen = i;
  }
  if (fitting == 1) {
    const char *target = index->items[*out_chosen].notes.target;
    if (best && strcmp(target, targets))
      mlx_report_note(options->report, "taking the code for %s, of %s", target, targets);
    return NULL;
  }
  if (!index->count)
    return mlx_error(MLX_UNSUPPORTED, "the model is there, but nothing that was compiled for it");
  if (fitting) {
    return mlx_status_hint(
        mlx_error(MLX_USAGE, "the model was compiled for several targets, none of them known to run here"),
        "name one with --target: %s", targets);
  }
  return mlx_status_hint(mlx_error(MLX_NOT_FOUND, "the model was not compiled for %s", options->target),
                         "it was for: %s", targets);
}

static mlx_status_t get_one(fetch_t *fetch, const char *reference, mlx_oci_document_t *out,
                            char out_digest[MLX_OCI_DIGEST]) {
  MLX_TRY(get_document(fetch, reference, out, out_digest));
  if (!strcmp(out->subject.digest, fetch->model_digest) && !strcmp(out->artifact_type, MLX_OCI_MODULE))
    return NULL;
  return mlx_error(MLX_INVALID_INPUT, "the module %s belongs to another model", out_digest);
}

static const mlx_oci_descriptor_t *manifest_of(const mlx_oci_document_t *module) {
  for (size_t i = 0; i < module->count; ++i) {
    if (!strcmp(module->items[i].path, MLX_BUNDLE_MANIFEST)) return &module->items[i];
  }
  return NULL;
}

static bool of_one_bundle(const mlx_oci_document_t *a, const mlx_oci_document_t *b) {
  return manifest_of(a) && manifest_of(b) && !strcmp(manifest_of(a)->digest, manifest_of(b)->digest);
}

// One bundle pushed under two tags has its modules twice.
static bool has_target(const fetch_t *fetch, const char *target) {
  bool has = !strcmp(fetch->module.notes.target, target);
  for (size_t i = 0; i < fetch->other_count && !has; ++i)
    has = !strcmp(fetch->others[i].notes.target, target);
  return has;
}

// Modules of one bundle have its manifest. Those of others cannot be in it; whoever asked for all is told
// which targets they were for.
static mlx_status_t get_others(fetch_t *fetch, const mlx_oci_document_t *index) {
  char digest[MLX_OCI_DIGEST];
  mlx_oci_document_t left = {.items = index->items};  // their descriptors, moved to the front
  for (size_t i = 0; i < index->count; ++i) {
    mlx_oci_document_t other = {0};
    if (!strcmp(index->items[i].digest, fetch->module_digest)) continue;
    mlx_status_t status = get_one(fetch, index->items[i].digest, &other, digest);
    const bool ours = !status && of_one_bundle(&other, &fetch->module);
    if (ours && !has_target(fetch, other.notes.target) && fetch->other_count < MLX_MAX_TARGETS) {
      fetch->others[fetch->other_count++] = other;
      continue;
    }
    mlx_oci_document_free(&other);
    MLX_TRY(status);
    if (!ours) left.items[left.count++] = index->items[i];
  }
  char targets[1024];
  size_t count = left.count;
  for (size_t i = left.count = 0; i < count; ++i) {
    if (!has_target(fetch, left.items[i].notes.target)) left.items[left.count++] = left.items[i];
  }
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
    if (!wanted || !strcmp(wanted, fetch->module.notes.target)) return NULL;
    return mlx_error(MLX_NOT_FOUND, "%s was compiled for %s, not for %s", fetch->module_digest,
                     fetch->module.notes.target, wanted);
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

static bool belongs(const fetch_t *fetch, const mlx_manifest_t *manifest, const char *name) {
  if (!strcmp(name, MLX_BUNDLE_MANIFEST) || !strcmp(name, MLX_BUNDLE_SIGNATURE)) return true;
  if (!mlx_manifest_file(manifest, name)) {
    mlx_report_note(fetch->options->report, "left out, since the model's manifest does not list it: %s",
                    name);
    return false;
  }
  return wants_all(fetch) || mlx_manifest_needs(manifest, fetch->module.notes.target, name);
}

// Those of a document that belong to the bundle whose manifest this is, and are wanted.
static mlx_status_t add_layers(fetch_t *fetch, const mlx_oci_document_t *document,
                               const mlx_manifest_t *manifest) {
  for (size_t i = 0; i < document->count; ++i) {
    const mlx_oci_descriptor_t *layer = &document->items[i];
    if (!belongs(fetch, manifest, layer->path)) continue;
    const mlx_oci_descriptor_t *same = find_layer(fetch, layer->path);
    if (same && !strcmp(same->digest, layer->digest)) continue;  // modules of one bundle share its manifest
    if (same) return mlx_error(MLX_INVALID_INPUT, "there are two layers for '%s'", layer->path);
    if (fetch->count == MAX_LAYERS)
      return mlx_error(MLX_INVALID_INPUT, "there are more than %d layers", MAX_LAYERS);
    fetch->layers[fetch->count++] = layer;
  }
  return NULL;
}

static mlx_status_t add_module(fetch_t *fetch, const mlx_oci_document_t *module,
                               const mlx_manifest_t *manifest) {
  for (size_t i = 0; i < manifest->variant_count; ++i) {
    if (!strcmp(manifest->variants[i].target, module->notes.target))
      return add_layers(fetch, module, manifest);
  }
  return mlx_error(MLX_INVALID_INPUT,
                   "a module says that it was compiled for '%s', its manifest that it was for %s",
                   module->notes.target, mlx_manifest_targets_text(manifest).text);
}

// The module's manifest comes first: it says what else is needed, and so how much.
static mlx_status_t get_manifest(fetch_t *fetch) {
  const mlx_oci_descriptor_t *layer = manifest_of(&fetch->module);
  char *path;
  mlx_http_t *http = NULL;
  mlx_tally_t tally = 0;
  if (!layer)
    return mlx_error(MLX_INVALID_INPUT, "the module %s has no " MLX_BUNDLE_MANIFEST, fetch->module_digest);
  if (layer->size > MLX_MAX_MANIFEST)
    return mlx_error(MLX_INVALID_INPUT, "the manifest %s is longer than %u bytes", layer->digest,
                     MLX_MAX_MANIFEST);
  MLX_TRY(mlx_join_path(fetch->staging, MLX_BUNDLE_MANIFEST, &path));
  mlx_status_t status = mlx_http_open(&fetch->options->store.http, &http);
  if (!status) status = mlx_store_get_blob(fetch->store, http, layer, path, &tally);
  mlx_http_close(http);
  mlx_free(path);
  return status;
}

static mlx_status_t plan(fetch_t *fetch) {
  mlx_bundle_t *bundle;
  MLX_TRY(get_manifest(fetch));
  MLX_TRY(mlx_bundle_open(fetch->staging, &bundle));
  const mlx_manifest_t *manifest = mlx_bundle_manifest(bundle);
  mlx_status_t status = mlx_pull_need_files(manifest);
  if (!status) status = add_module(fetch, &fetch->module, manifest);
  for (size_t i = 0; i < fetch->other_count && !status; ++i)
    status = add_module(fetch, &fetch->others[i], manifest);
  if (!status) status = add_layers(fetch, &fetch->model, manifest);
  mlx_bundle_close(bundle);
  return status;
}

static mlx_status_t layer_path(const fetch_t *fetch, size_t index, char **out_path) {
  return mlx_join_path(fetch->staging, fetch->layers[index]->path, out_path);
}

static mlx_status_t get_job(void *user, size_t index, mlx_http_t *http, mlx_tally_t *tally) {
  fetch_t *fetch = user;
  char *path;
  MLX_TRY(layer_path(fetch, index, &path));
  mlx_status_t status = mlx_store_get_blob(fetch->store, http, fetch->layers[index], path, tally);
  mlx_free(path);
  return status;
}

static mlx_status_t add_sizes(const fetch_t *fetch, uint64_t *out_all, uint64_t *out_missing) {
  *out_all = *out_missing = 0;
  for (size_t i = 0; i < fetch->count; ++i) {
    char *path;
    const uint64_t size = fetch->layers[i]->size;
    if (__builtin_add_overflow(*out_all, size, out_all))
      return mlx_error(MLX_INVALID_INPUT, "the layers' sizes cannot be");
    MLX_TRY(layer_path(fetch, i, &path));
    *out_missing += size - mlx_download_present(path, size);
    mlx_free(path);
  }
  return NULL;
}

static mlx_status_t get_layers(fetch_t *fetch, const char *name) {
  char title[300];
  uint64_t all, missing;
  MLX_TRY(add_sizes(fetch, &all, &missing));
  MLX_TRY(mlx_download_check_space(fetch->staging, missing));
  snprintf(title, sizeof title, "pulling %.255s", mlx_file_name(name).text);
  const mlx_transfer_t transfer = {.title = title,
                                   .count = fetch->count,
                                   .parallel = PARALLEL,
                                   .bytes = all,
                                   .job = get_job,
                                   .user = fetch,
                                   .http = &fetch->options->store.http,
                                   .report = fetch->options->report};
  return mlx_status_hint(mlx_transfer_run(&transfer),
                         "what came so far is kept: run the command again to go on");
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
    if (layer ? same
              : !wants_all(fetch) &&
                    !mlx_manifest_needs(manifest, fetch->module.notes.target, manifest->files[i].name))
      continue;
    status = mlx_error(MLX_INVALID_INPUT, "the module was compiled with another '%s' than the model has",
                       manifest->files[i].name);
  }
  mlx_bundle_close(bundle);
  return status;
}

static bool is_model(const mlx_oci_document_t *document) {
  const char *type = document->artifact_type[0]
                         ? document->artifact_type
                         : document->config.media_type;  // as the image specification has it
  return !strcmp(type, MLX_OCI_MODEL) || !strcmp(type, MLX_OCI_MODEL_CONFIG);
}

// A tag that is not there, with those that are, or a name that has none; lists of referrers are none that a
// person would want.
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
  if (used) return mlx_status_hint(missing, "there are: %s", names);
  return mlx_status_hint(missing, "nothing is called '%s' there: is the name written right?",
                         fetch->ref->name);
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
  if (mlx_status_code(status) == MLX_NOT_FOUND && !mlx_oci_is_digest(ref->reference))
    return name_tags(fetch, status);
  MLX_TRY(status);
  if (!strcmp(fetch->model.artifact_type, MLX_OCI_MODULE) && fetch->model.subject.digest[0])
    MLX_TRY(get_subject(fetch));
  if (is_model(&fetch->model)) return NULL;
  return mlx_error(MLX_UNSUPPORTED, "'%s' is not a model: its artifactType is '%s', not " MLX_OCI_MODEL,
                   ref->reference, fetch->model.artifact_type);
}

// Makes fetch->folder, which is not there yet.
static mlx_status_t get_files(fetch_t *fetch, const char *name) {
  MLX_TRY(mlx_format(&fetch->staging, "%s.%.16s.%.16s%s.part", fetch->folder, fetch->model_digest + 7,
                     fetch->module_digest + 7, wants_all(fetch) ? ".all" : ""));
  MLX_TRY(mlx_output_stage(fetch->staging));
  mlx_status_t status = plan(fetch);
  if (!status) MLX_TRY(get_layers(fetch, name));
  if (!status) status = mlx_list_dir(fetch->staging, remove_stray, fetch);
  if (!status) status = check_bundle(fetch);
  if (mlx_status_code(status) == MLX_INVALID_INPUT)
    return mlx_status_join(status, mlx_remove_tree(fetch->staging));  // to come again would not help
  return status ? status : mlx_rename(fetch->staging, fetch->folder);
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
