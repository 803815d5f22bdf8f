// Pulls bundles from registries and OCI layouts: the model manifest, and the modules for the requested
// targets. See pull_oci.h.
#include "transfer/pull_oci.h"

#include <stdio.h>
#include <string.h>

#include "artifact/bundle.h"
#include "base/file.h"
#include "base/memory.h"
#include "cache/cache.h"
#include "transfer/download.h"
#include "transfer/modelpack.h"
#include "transfer/oci_cache.h"
#include "transfer/output.h"

#define PARALLEL 4
#define MAX_LAYERS 256

void mlx_pull_oci_options_initialize(mlx_pull_oci_options_t *options) {
  *options = (mlx_pull_oci_options_t){0};
  mlx_http_options_initialize(&options->store.http);
}

// One pull in progress.
typedef struct fetch {
  const mlx_pull_oci_options_t *options;
  const char *text;  // the reference, for messages
  const mlx_oci_ref_t *ref;
  mlx_store_t *store;
  mlx_oci_document_t model, module;
  mlx_oci_document_t others[MLX_MAX_TARGETS];  // modules of the other targets, for --target all
  size_t other_count;
  char model_digest[MLX_OCI_DIGEST], module_digest[MLX_OCI_DIGEST];
  const mlx_oci_descriptor_t *layers[MAX_LAYERS];  // the needed layers of all documents
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
      named = !strcmp(index->items[j].annotations.target, index->items[i].annotations.target);
    if (named) continue;
    used += (size_t)snprintf(out + used, size - used, "%s%s", used ? ", " : "",
                             index->items[i].annotations.target);
  }
}

// Keeps only modules. If some were pushed under |tag|, keeps only those: the others belong to pushes of the
// same weights under another tag.
static void keep_modules(mlx_oci_document_t *index, const char *tag) {
  size_t kept = 0, tagged = 0;
  for (size_t i = 0; i < index->count; ++i) {
    if (!strcmp(index->items[i].artifact_type, MLX_OCI_MODULE)) index->items[kept++] = index->items[i];
  }
  index->count = kept;
  for (size_t i = 0; i < kept; ++i) {
    if (!strcmp(index->items[i].annotations.tag, tag)) index->items[tagged++] = index->items[i];
  }
  if (tagged) index->count = tagged;
}

static bool all_targets(const fetch_t *fetch) {
  return fetch->options->target && !strcmp(fetch->options->target, "all");
}

// True if module |b|, which is listed after module |a|, was also pushed after it, judging by their serials.
static bool is_later(const mlx_oci_document_t *index, size_t a, size_t b) {
  return index->items[b].annotations.serial >= index->items[a].annotations.serial;
}

// Chooses the module for the requested target, else the only module, else the best for this machine. Among
// several modules of one target, and for --target all, chooses the one pushed last.
static mlx_status_t choose_module(const fetch_t *fetch, const mlx_oci_document_t *index, size_t *out_chosen) {
  const mlx_pull_oci_options_t *options = fetch->options;
  char targets[1024];
  size_t candidates = 0, best = 0;
  list_targets(index, targets, sizeof targets);
  for (size_t i = 0; i < index->count; ++i) {
    const mlx_oci_annotations_t *annotations = &index->items[i].annotations;
    const size_t rank =
        !options->target && options->rank ? options->rank(annotations->target, annotations->cpu) : 0;
    if ((options->target && !all_targets(fetch) && strcmp(annotations->target, options->target)) ||
        rank < best)
      continue;
    const bool is_better = !candidates || rank > best || is_later(index, *out_chosen, i);
    if (!candidates || rank || all_targets(fetch))
      candidates = 1;
    else if (strcmp(index->items[*out_chosen].annotations.target, annotations->target))
      ++candidates;
    best = rank;
    if (is_better) *out_chosen = i;
  }
  if (candidates == 1) {
    const char *target = index->items[*out_chosen].annotations.target;
    if (best && strcmp(target, targets))
      mlx_report_note(options->report, "pulling the code for %s (available: %s)", target, targets);
    return NULL;
  }
  if (!index->count) return mlx_error(MLX_UNSUPPORTED, "'%s' has no compiled code", fetch->text);
  if (candidates) {
    return mlx_status_hint(
        mlx_error(MLX_USAGE, "'%s' has code for several targets, and none is known to run on this machine",
                  fetch->text),
        "use --target with one of: %s", targets);
  }
  return mlx_status_hint(mlx_error(MLX_NOT_FOUND, "'%s' has no code for %s", fetch->text, options->target),
                         "use --target with one of: %s", targets);
}

static mlx_status_t get_module(fetch_t *fetch, const char *reference, mlx_oci_document_t *out,
                               char out_digest[MLX_OCI_DIGEST]) {
  MLX_TRY(get_document(fetch, reference, out, out_digest));
  if (!strcmp(out->subject.digest, fetch->model_digest) && !strcmp(out->artifact_type, MLX_OCI_MODULE))
    return NULL;
  return mlx_error(MLX_INVALID_INPUT, "%s is not a module of the model %s", out_digest, fetch->model_digest);
}

static const mlx_oci_descriptor_t *manifest_of(const mlx_oci_document_t *module) {
  for (size_t i = 0; i < module->count; ++i) {
    if (!strcmp(module->items[i].path, MLX_BUNDLE_MANIFEST)) return &module->items[i];
  }
  return NULL;
}

static bool is_same_bundle(const mlx_oci_document_t *a, const mlx_oci_document_t *b) {
  return manifest_of(a) && manifest_of(b) && !strcmp(manifest_of(a)->digest, manifest_of(b)->digest);
}

// A bundle that was pushed under two tags has two modules per target.
static bool has_target(const fetch_t *fetch, const char *target) {
  bool has = !strcmp(fetch->module.annotations.target, target);
  for (size_t i = 0; i < fetch->other_count && !has; ++i)
    has = !strcmp(fetch->others[i].annotations.target, target);
  return has;
}

// Gets the modules of the other targets. Modules of one bundle have the same bundle manifest. Modules of
// other bundles cannot be combined with it: reports a note with their targets.
static mlx_status_t get_other_modules(fetch_t *fetch, const mlx_oci_document_t *index) {
  char digest[MLX_OCI_DIGEST];
  // Modules of other bundles; reuses the array of |index|.
  mlx_oci_document_t skipped = {.items = index->items};
  for (size_t i = 0; i < index->count; ++i) {
    mlx_oci_document_t other = {0};
    if (!strcmp(index->items[i].digest, fetch->module_digest)) continue;
    mlx_status_t status = get_module(fetch, index->items[i].digest, &other, digest);
    const bool same_bundle = !status && is_same_bundle(&other, &fetch->module);
    if (same_bundle && !has_target(fetch, other.annotations.target) && fetch->other_count < MLX_MAX_TARGETS) {
      fetch->others[fetch->other_count++] = other;
      continue;
    }
    mlx_oci_document_free(&other);
    MLX_TRY(status);
    if (!same_bundle) skipped.items[skipped.count++] = index->items[i];
  }
  char targets[1024];
  size_t count = skipped.count;
  for (size_t i = skipped.count = 0; i < count; ++i) {
    if (!has_target(fetch, skipped.items[i].annotations.target))
      skipped.items[skipped.count++] = skipped.items[i];
  }
  list_targets(&skipped, targets, sizeof targets);
  if (skipped.count) mlx_report_note(fetch->options->report, "skipped code of other bundles: %s", targets);
  return NULL;
}

static mlx_status_t get_listed_modules(fetch_t *fetch, const mlx_oci_document_t *index) {
  size_t chosen = 0;
  if (!fetch->module_digest[0]) {
    MLX_TRY(choose_module(fetch, index, &chosen));
    MLX_TRY(get_module(fetch, index->items[chosen].digest, &fetch->module, fetch->module_digest));
  }
  return all_targets(fetch) ? get_other_modules(fetch, index) : NULL;
}

// Gets the module, unless the reference named it, and for --target all the other modules of its bundle.
static mlx_status_t get_modules(fetch_t *fetch) {
  const char *target = fetch->options->target;
  mlx_oci_document_t index;
  if (fetch->module_digest[0] && !all_targets(fetch)) {
    if (!target || !strcmp(target, fetch->module.annotations.target)) return NULL;
    return mlx_error(MLX_NOT_FOUND, "%s was compiled for %s, not for %s", fetch->module_digest,
                     fetch->module.annotations.target, target);
  }
  MLX_TRY(mlx_store_referrers(fetch->store, fetch->model_digest, MLX_OCI_MODULE, &index));
  keep_modules(&index, fetch->ref->reference);
  mlx_status_t status = get_listed_modules(fetch, &index);
  mlx_oci_document_free(&index);
  return status;
}

static const mlx_oci_descriptor_t *find_layer(const fetch_t *fetch, const char *name) {
  for (size_t i = 0; i < fetch->count; ++i) {
    if (!strcmp(fetch->layers[i]->path, name)) return fetch->layers[i];
  }
  return NULL;
}

static bool is_needed(const fetch_t *fetch, const mlx_manifest_t *manifest, const char *name) {
  if (!strcmp(name, MLX_BUNDLE_MANIFEST) || !strcmp(name, MLX_BUNDLE_SIGNATURE)) return true;
  if (!mlx_manifest_file(manifest, name)) {
    mlx_report_note(fetch->options->report, "skipped a file that the bundle's manifest does not list: %s",
                    name);
    return false;
  }
  return all_targets(fetch) || mlx_manifest_needs(manifest, fetch->module.annotations.target, name);
}

// Adds the layers of a document that |manifest| lists and the requested targets need.
static mlx_status_t add_layers(fetch_t *fetch, const mlx_oci_document_t *document,
                               const mlx_manifest_t *manifest) {
  for (size_t i = 0; i < document->count; ++i) {
    const mlx_oci_descriptor_t *layer = &document->items[i];
    if (!is_needed(fetch, manifest, layer->path)) continue;
    const mlx_oci_descriptor_t *same = find_layer(fetch, layer->path);
    if (same && !strcmp(same->digest, layer->digest))
      continue;  // modules of one bundle share its manifest file
    if (same)
      return mlx_error(MLX_INVALID_INPUT, "'%s' has two different layers for '%s'", fetch->text, layer->path);
    if (fetch->count == MAX_LAYERS)
      return mlx_error(MLX_INVALID_INPUT, "'%s' has more than %d layers", fetch->text, MAX_LAYERS);
    fetch->layers[fetch->count++] = layer;
  }
  return NULL;
}

static mlx_status_t add_module(fetch_t *fetch, const mlx_oci_document_t *module,
                               const mlx_manifest_t *manifest) {
  for (size_t i = 0; i < manifest->variant_count; ++i) {
    if (!strcmp(manifest->variants[i].target, module->annotations.target))
      return add_layers(fetch, module, manifest);
  }
  return mlx_error(MLX_INVALID_INPUT,
                   "'%s': a module is annotated with the target '%s', but its bundle manifest has %s",
                   fetch->text, module->annotations.target, mlx_manifest_targets_text(manifest).text);
}

// Downloads the bundle's manifest first: it determines which other layers are needed.
static mlx_status_t get_manifest(fetch_t *fetch) {
  const mlx_oci_descriptor_t *layer = manifest_of(&fetch->module);
  char *path;
  mlx_http_t *http = NULL;
  mlx_progress_t progress = 0;
  if (!layer)
    return mlx_error(MLX_INVALID_INPUT, "the module %s has no " MLX_BUNDLE_MANIFEST, fetch->module_digest);
  if (layer->size > MLX_MAX_MANIFEST)
    return mlx_error(MLX_INVALID_INPUT, "the manifest %s is longer than %u bytes", layer->digest,
                     MLX_MAX_MANIFEST);
  MLX_TRY(mlx_join_path(fetch->staging, MLX_BUNDLE_MANIFEST, &path));
  mlx_status_t status = mlx_http_open(&fetch->options->store.http, &http);
  if (!status) status = mlx_store_get_blob(fetch->store, http, layer, path, &progress);
  mlx_http_close(http);
  mlx_free(path);
  return status;
}

static mlx_status_t plan(fetch_t *fetch) {
  mlx_bundle_t *bundle;
  MLX_TRY(get_manifest(fetch));
  MLX_TRY(mlx_bundle_open(fetch->staging, &bundle));
  const mlx_manifest_t *manifest = mlx_bundle_manifest(bundle);
  mlx_status_t status = mlx_manifest_require_files(manifest);
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

static mlx_status_t get_job(void *user, size_t index, mlx_http_t *http, mlx_progress_t *progress) {
  fetch_t *fetch = user;
  char *path;
  MLX_TRY(layer_path(fetch, index, &path));
  mlx_status_t status = mlx_store_get_blob(fetch->store, http, fetch->layers[index], path, progress);
  mlx_free(path);
  return status;
}

static mlx_status_t add_sizes(const fetch_t *fetch, uint64_t *out_all, uint64_t *out_missing) {
  *out_all = *out_missing = 0;
  for (size_t i = 0; i < fetch->count; ++i) {
    char *path;
    const uint64_t size = fetch->layers[i]->size;
    if (__builtin_add_overflow(*out_all, size, out_all))
      return mlx_error(MLX_INVALID_INPUT, "'%s': invalid layer sizes: their sum overflows", fetch->text);
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
                         "the files downloaded so far are kept: run the command again to resume");
}

// Removes a file of an earlier pull that this pull does not need.
static mlx_status_t remove_unneeded(void *user, const char *name) {
  const fetch_t *fetch = user;
  char *path;
  if (find_layer(fetch, name)) return NULL;
  MLX_TRY(mlx_join_path(fetch->staging, name, &path));
  mlx_status_t status = mlx_remove_tree(path);
  mlx_free(path);
  return status;
}

// Compares the layers with the digests in the bundle's manifest.
static mlx_status_t check_bundle(const fetch_t *fetch) {
  mlx_bundle_t *bundle;
  MLX_TRY(mlx_bundle_open(fetch->staging, &bundle));
  const mlx_manifest_t *manifest = mlx_bundle_manifest(bundle);
  mlx_status_t status = NULL;
  for (size_t i = 0; !status && i < manifest->file_count; ++i) {
    const mlx_oci_descriptor_t *layer = find_layer(fetch, manifest->files[i].name);
    const bool same = layer && !strcmp(layer->digest + strlen("sha256:"), manifest->files[i].sha256);
    if (layer ? same
              : !all_targets(fetch) &&
                    !mlx_manifest_needs(manifest, fetch->module.annotations.target, manifest->files[i].name))
      continue;
    status = mlx_error(MLX_INVALID_INPUT, "'%s': layer '%s' does not match the bundle's manifest",
                       fetch->text, manifest->files[i].name);
  }
  mlx_bundle_close(bundle);
  return status;
}

static bool is_model(const mlx_oci_document_t *document) {
  const char *type = document->artifact_type[0]
                         ? document->artifact_type
                         : document->config.media_type;  // the image specification's fallback
  return !strcmp(type, MLX_OCI_MODEL) || !strcmp(type, MLX_OCI_MODEL_CONFIG);
}

// Adds the existing tags as a hint to the error about a missing tag. Skips the tags that only hold lists of
// referrers.
static mlx_status_t hint_tags(fetch_t *fetch, mlx_status_t missing) {
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
  mlx_status_free(status);  // report only the missing tag
  mlx_text_clear(&tags);
  if (used) return mlx_status_hint(missing, "use one of the existing tags: %s", names);
  return mlx_status_hint(missing, "no repository '%s' was found: check its name", fetch->ref->name);
}

// The reference named a module: gets the model, which is its subject.
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
    return hint_tags(fetch, status);
  MLX_TRY(status);
  if (!strcmp(fetch->model.artifact_type, MLX_OCI_MODULE) && fetch->model.subject.digest[0])
    MLX_TRY(get_subject(fetch));
  if (is_model(&fetch->model)) return NULL;
  return mlx_error(MLX_UNSUPPORTED, "'%s' is not a model: its artifactType is '%s', not " MLX_OCI_MODEL,
                   fetch->text, fetch->model.artifact_type);
}

// Downloads the files and creates fetch->folder, which must not exist.
static mlx_status_t get_files(fetch_t *fetch, const char *name) {
  MLX_TRY(mlx_format(&fetch->staging, "%s.%.16s.%.16s%s.part", fetch->folder, fetch->model_digest + 7,
                     fetch->module_digest + 7, all_targets(fetch) ? ".all" : ""));
  MLX_TRY(mlx_output_make_staging(fetch->staging));
  mlx_status_t status = plan(fetch);
  if (!status) MLX_TRY(get_layers(fetch, name));
  if (!status) status = mlx_list_dir(fetch->staging, remove_unneeded, fetch);
  if (!status) status = check_bundle(fetch);
  if (mlx_status_code(status) == MLX_INVALID_INPUT)
    return mlx_status_join(status, mlx_remove_tree(fetch->staging));  // a retry would fail again
  return status ? status : mlx_rename(fetch->staging, fetch->folder);
}

static mlx_status_t get_bundle(fetch_t *fetch) {
  const mlx_oci_ref_t *ref = fetch->ref;
  mlx_lock_t lock;
  MLX_TRY(mlx_output_bundle_path(mlx_file_name(ref->name).text, fetch->options->output, &fetch->folder));
  MLX_TRY(mlx_output_lock(fetch->folder, fetch->options->report, &lock));
  mlx_status_t status = get_modules(fetch);
  if (!status) status = get_files(fetch, fetch->folder);
  mlx_output_unlock(&lock);
  return status ? status : mlx_oci_cache_remove_ref(ref);  // the cache may hold an older bundle for the tag
}

static mlx_status_t get_bundle_to_cache(fetch_t *fetch) {
  const mlx_oci_ref_t *ref = fetch->ref;
  mlx_oci_cache_t cache;
  MLX_TRY(get_modules(fetch));
  MLX_TRY(mlx_oci_cache_lock(ref, fetch->options->report, &cache));
  mlx_status_t status = mlx_oci_cache_folder(&cache, fetch->module_digest, &fetch->folder);
  if (!status && !mlx_is_dir(fetch->folder)) status = get_files(fetch, ref->name);
  if (!status) status = mlx_oci_cache_set_ref(&cache, ref, fetch->module_digest);
  mlx_oci_cache_unlock(&cache);
  return status;
}

static mlx_status_t pull_modelpack(fetch_t *fetch, char **out_path) {
  const mlx_pull_oci_options_t *options = fetch->options;
  if (options->target)
    return mlx_error(MLX_USAGE, "cannot use --target: '%s' has no compiled code", fetch->text);
  const mlx_modelpack_options_t pull = {
      .http = &options->store.http, .output = options->output, .report = options->report};
  return mlx_modelpack_pull(fetch->store, fetch->ref, &fetch->model, fetch->model_digest, &pull, out_path);
}

mlx_status_t mlx_pull_oci(const char *text, const mlx_pull_oci_options_t *options, char **out_path) {
  mlx_oci_ref_t ref;
  *out_path = NULL;
  MLX_TRY(mlx_oci_ref_parse(text, &ref));
  fetch_t fetch = {.options = options, .text = text, .ref = &ref};
  mlx_status_t status = get_model(&fetch);
  if (!status && mlx_modelpack_is_compiled(&fetch.model)) {
    status = options->to_cache ? get_bundle_to_cache(&fetch) : get_bundle(&fetch);
    if (!status) *out_path = fetch.folder, fetch.folder = NULL;
  } else if (!status) {
    status = pull_modelpack(&fetch, out_path);
  }
  free_fetch(&fetch);
  // An error in a document names it by tag or digest only.
  if (mlx_status_code(status) == MLX_INVALID_INPUT &&
      !strstr(mlx_status_message(status), ref.layout ? ref.name : ref.host))
    status = mlx_status_annotate(status, "%s", text);
  return mlx_cache_hint(NULL, status);
}

mlx_status_t mlx_pull_oci_find(const char *text, char **out_path) {
  mlx_oci_ref_t ref;
  char *folder;
  *out_path = NULL;
  MLX_TRY(mlx_oci_ref_parse(text, &ref));
  MLX_TRY(mlx_oci_cache_find(&ref, &folder));
  if (!folder || mlx_is_bundle(folder)) {
    *out_path = folder;
    return NULL;
  }
  mlx_status_t status = mlx_modelpack_find_main(folder, NULL, out_path);
  mlx_free(folder);
  return status;
}
