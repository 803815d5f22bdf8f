// Fetches and stores entries of remote caches. See remote_cache.h.
#include "transfer/remote_cache.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "artifact/bundle.h"
#include "artifact/sign.h"
#include "base/file.h"
#include "base/leftover.h"
#include "base/memory.h"
#include "base/user.h"
#include "transfer/download.h"
#include "transfer/store.h"
#include "transfer/url.h"

#define SIGNATURE_FILE MLX_MODULE_RECORD MLX_SIGNATURE_ENDING
#define MODULE_FILE MLX_BUNDLE_VMFB
#define OCI_CACHE "application/vnd.mlxcel.cache.v1+json"  // type of the manifest
#define OCI_RECORD "application/vnd.mlxcel.cache.record.v1+json"
#define EMPTY "{}"

// A start waits for a server no longer than it takes to notice that it is gone: the module can be compiled.
#define CONNECT_SECONDS 5
#define STALL_SECONDS 10
#define TRIES 2
#define PAUSE_SECONDS 0.2

struct mlx_remote_cache {
  const mlx_report_t *report;  // borrowed
  char *place;                 // owned: a folder or a URL, without a trailing slash; of a registry, as given
  bool is_url, is_oci;
  mlx_oci_ref_t ref;   // of a registry
  mlx_store_t *store;  // owned; opened by the first request
  mlx_registry_options_t oci;
  mlx_http_t *http;     // owned
  char *authorization;  // owned; NULL: none
};

// ----------------------------------------------------------------------------------------------------------
// Opening

// The token goes only to a server whose connection is protected.
static mlx_status_t read_token(mlx_remote_cache_t *r) {
  const char *token = mlx_environment("MLXCEL_REMOTE_CACHE_TOKEN");
  bool is_protected;
  if (!token || !r->is_url) return NULL;
  MLX_TRY(mlx_http_check_secret_url(r->place, &is_protected));
  if (!is_protected)
    return mlx_status_hint(
        mlx_error(MLX_USAGE, "a token cannot be sent to '%s': the connection is not encrypted",
                  mlx_display_url(r->place).text),
        "use https, or unset MLXCEL_REMOTE_CACHE_TOKEN");
  return mlx_format(&r->authorization, "Bearer %s", token);
}

static mlx_status_t read_place(mlx_remote_cache_t *r, const char *place) {
  size_t length = strlen(place);
  mlx_url_t url;
  r->is_oci = mlx_is_oci_ref(place);
  r->is_url = !strncmp(place, "https://", 8) || !strncmp(place, "http://", 7);
  while (length > 1 && place[length - 1] == '/') --length;
  MLX_TRY(mlx_copy_text(place, length, &r->place));
  if (r->is_oci) return mlx_oci_ref_parse(place, &r->ref);
  if (!r->is_url && strstr(place, "://"))
    return mlx_status_hint(mlx_error(MLX_USAGE, "'%s' is not a place for a cache", place),
                           "use oci://HOST/NAME, https://HOST/PATH or a folder");
  if (!r->is_url) return NULL;
  if (strpbrk(place, "?#"))
    return mlx_error(MLX_USAGE, "'%s': the URL of a cache must not have a query or fragment",
                     mlx_display_url(place).text);
  return mlx_url_parse(place, &url);
}

mlx_status_t mlx_remote_cache_open(const char *place, const mlx_report_t *report,
                                   mlx_remote_cache_t **out_remote) {
  mlx_remote_cache_t *r;
  *out_remote = NULL;
  MLX_TRY(mlx_alloc(1, sizeof *r, &r));
  r->report = report;
  mlx_http_options_initialize(&r->oci.http);
  r->oci.http.connect_seconds = CONNECT_SECONDS;
  r->oci.http.stall_seconds = STALL_SECONDS;
  r->oci.http.tries = TRIES;
  r->oci.http.pause_seconds = PAUSE_SECONDS;
  r->oci.http.cancelled = mlx_report_cancelled(report);
  mlx_status_t status = read_place(r, place);
  if (!status) status = read_token(r);
  if (!status && (r->is_url || r->is_oci)) status = mlx_http_open(&r->oci.http, &r->http);
  if (status)
    mlx_remote_cache_close(r);
  else
    *out_remote = r;
  return status;
}

void mlx_remote_cache_close(mlx_remote_cache_t *r) {
  if (!r) return;
  mlx_store_close(r->store);
  mlx_http_close(r->http);
  mlx_free(r->authorization);
  mlx_free(r->place);
  mlx_free(r);
}

// ----------------------------------------------------------------------------------------------------------
// Entries: where their files are

typedef struct entry {
  mlx_remote_cache_t *remote;
  const char *key;
  mlx_oci_document_t document;  // of a registry
  bool has_document;
} entry_t;

static mlx_status_t file_place(const entry_t *e, const char *name, char **out_place) {
  return mlx_format(out_place, "%s/%s/%s", e->remote->place, e->key, name);
}

static mlx_status_t open_store(mlx_remote_cache_t *r) {
  return r->store ? NULL : mlx_store_open(&r->ref, &r->oci, &r->store);
}

static mlx_status_t read_document(entry_t *e) {
  mlx_text_t json = {0};
  if (e->has_document) return NULL;
  MLX_TRY(open_store(e->remote));
  mlx_status_t status = mlx_store_get_document(e->remote->store, e->key, &json);
  if (!status) status = mlx_text_finish(&json);
  if (!status) status = mlx_oci_document_read(e->key, json.data, json.length, &e->document);
  e->has_document = !status;
  mlx_text_clear(&json);
  return status;
}

static void clear_entry(entry_t *e) {
  if (e->has_document) mlx_oci_document_free(&e->document);
}

static mlx_status_t find_layer(entry_t *e, const char *name, const mlx_oci_descriptor_t **out_layer) {
  MLX_TRY(read_document(e));
  for (size_t i = 0; i < e->document.count; ++i) {
    *out_layer = &e->document.items[i];
    if (!strcmp((*out_layer)->path, name)) return NULL;
  }
  return mlx_error(MLX_INVALID_INPUT, "the entry %.12s has no %s", e->key, name);
}

// Some servers, such as object stores, answer 403 for a missing file.
static bool is_missing(long status) { return status == 404 || status == 410 || status == 403; }

static mlx_status_t get_url(const mlx_remote_cache_t *r, const char *url, size_t most, char **out_text,
                            size_t *out_length) {
  mlx_http_response_t response = {0};
  const mlx_http_request_t request = {.url = url, .max_bytes = most, .authorization = r->authorization};
  mlx_status_t status = mlx_http_send(r->http, &request, &response);
  if (!status && is_missing(response.status))
    status = mlx_error(MLX_NOT_FOUND, "there is no %s", mlx_display_url(url).text);
  if (!status) status = mlx_http_check(&request, &response);
  if (!status) status = mlx_text_take(&response.body, out_text, out_length);
  mlx_http_response_clear(&response);
  return status;
}

// A file of the entry at |path|: of a registry and a web server, it is checked before it has this name.
static mlx_status_t get_file(entry_t *e, const char *name, uint64_t size, const char *sha256,
                             const char *path) {
  mlx_remote_cache_t *r = e->remote;
  const mlx_oci_descriptor_t *layer;
  mlx_progress_t progress = 0;
  char *place;
  if (r->is_oci) {
    MLX_TRY(find_layer(e, name, &layer));
    if (size != MLX_SIZE_UNKNOWN &&
        (layer->size != size || strcmp(layer->digest + strlen("sha256:"), sha256) != 0))
      return mlx_error(MLX_INVALID_INPUT, "%s of the entry %.12s is not the one that was signed", name,
                       e->key);
    if (layer->size > (size == MLX_SIZE_UNKNOWN ? MLX_MAX_MODULE_RECORD : MLX_MAX_REMOTE_MODULE))
      return mlx_error(MLX_INVALID_INPUT, "%s of the entry %.12s is too large", name, e->key);
    return mlx_store_get_blob(r->store, r->http, layer, path, &progress);
  }
  MLX_TRY(file_place(e, name, &place));
  mlx_status_t status;
  if (r->is_url) {
    mlx_download_t download = {
        .name = name, .url = place, .authorization = r->authorization, .path = path, .size = size};
    snprintf(download.sha256, sizeof download.sha256, "%s", sha256);
    status = mlx_download_file(r->http, &download, &progress);
  } else {
    status = mlx_copy_file(place, path);
  }
  mlx_free(place);
  return status;
}

// A short file of the entry. |scratch| is a path for a copy.
static mlx_status_t get_text(entry_t *e, const char *name, size_t most, const char *scratch, char **out_text,
                             size_t *out_length) {
  const mlx_remote_cache_t *r = e->remote;
  char *place = NULL;
  mlx_status_t status;
  *out_text = NULL;
  if (r->is_oci) {
    MLX_TRY(get_file(e, name, MLX_SIZE_UNKNOWN, "", scratch));
    status = mlx_read_file(scratch, most, out_text, out_length);
    mlx_status_free(mlx_remove_tree(scratch));
    return status;
  }
  MLX_TRY(file_place(e, name, &place));
  status = r->is_url ? get_url(r, place, most, out_text, out_length)
                     : mlx_read_file(place, most, out_text, out_length);
  mlx_free(place);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Fetching

// An entry without a signature of a trusted key is there, and is not used.
static mlx_status_t refuse(mlx_status_t status) {
  mlx_status_t refused = mlx_status_hint(mlx_error(MLX_INVALID_INPUT, "%s", mlx_status_message(status)), "%s",
                                         mlx_status_hint_text(status));
  mlx_status_free(status);
  return refused;
}

// |key| NULL: any trusted key.
static mlx_status_t read_record(entry_t *e, const char *scratch, const mlx_public_key_t *key,
                                mlx_module_record_t *out) {
  char *text = NULL, *signature = NULL;
  size_t length, signature_length;
  mlx_signer_t signer;
  mlx_status_t status = get_text(e, MLX_MODULE_RECORD, MLX_MAX_MODULE_RECORD, scratch, &text, &length);
  if (!status)
    status = get_text(e, SIGNATURE_FILE, MLX_MAX_SIGNATURE_FILE, scratch, &signature, &signature_length);
  const mlx_signed_data_t data = {
      .name = MLX_MODULE_RECORD, .bytes = text, .length = length, .domain = MLX_DOMAIN_CACHE};
  if (!status)
    status =
        key ? mlx_trust_check_key(&data, SIGNATURE_FILE, signature, signature_length, "own key", key, &signer)
            : mlx_trust_check(&data, SIGNATURE_FILE, signature, signature_length, &signer);
  if (mlx_status_code(status) == MLX_NOT_FOUND && text) status = refuse(status);
  if (!status) status = mlx_module_record_read(MLX_MODULE_RECORD, text, length, out);
  // The record of another entry would be valid in its place only.
  if (!status && strcmp(out->key, e->key))
    status = mlx_error(MLX_INVALID_INPUT, "the record is that of another entry, %.12s", out->key);
  mlx_free(text);
  mlx_free(signature);
  return status;
}

static mlx_status_t check_compiler(const mlx_module_wanted_t *wanted, const mlx_module_record_t *record) {
  const size_t length = strlen(wanted->compiler);
  const bool same = wanted->compiler_digest[0] ? !strcmp(record->compiler, wanted->compiler) &&
                                                     !strcmp(record->compiler_digest, wanted->compiler_digest)
                                               : !strncmp(record->compiler, wanted->compiler, length);
  if (same) return NULL;
  return mlx_error(MLX_UNSUPPORTED, "another iree-compile made the entry (%.60s); this machine uses %.60s",
                   record->compiler, wanted->compiler);
}

static mlx_status_t check_module(const char *path, const mlx_module_record_t *record) {
  char sha256[MLX_DIGEST_HEX];
  mlx_file_stamp_t stamp;
  MLX_TRY(mlx_file_stamp(path, &stamp));
  if (stamp.size == record->size) {
    MLX_TRY(mlx_digest_file(path, NULL, sha256));
    if (!strcmp(sha256, record->sha256)) return NULL;
  }
  return mlx_error(MLX_INVALID_INPUT, "the module is not the one that was signed");
}

mlx_status_t mlx_remote_cache_fetch(mlx_remote_cache_t *r, const mlx_module_wanted_t *wanted,
                                    const char *path, mlx_module_record_t *out_record) {
  entry_t entry = {.remote = r, .key = wanted->key};
  mlx_status_t status = read_record(&entry, path, NULL, out_record);
  if (!status) status = check_compiler(wanted, out_record);
  if (!status) status = get_file(&entry, MODULE_FILE, out_record->size, out_record->sha256, path);
  if (!status) status = check_module(path, out_record);
  clear_entry(&entry);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Storing

typedef struct upload {
  entry_t entry;
  const char *path;  // of the module
  mlx_text_t record;
  char *signature;
  size_t signature_length;
} upload_t;

static mlx_status_t sign_record(upload_t *u, const mlx_module_record_t *record, const mlx_secret_key_t *key) {
  char comment[64];
  snprintf(comment, sizeof comment, "timestamp:%lld", (long long)time(NULL));
  MLX_TRY(mlx_module_record_write(record, &u->record));
  const mlx_signed_data_t data = {.name = MLX_MODULE_RECORD,
                                  .bytes = u->record.data,
                                  .length = u->record.length,
                                  .domain = MLX_DOMAIN_CACHE};
  return mlx_signature_make(key, &data, NULL, comment, &u->signature, &u->signature_length);
}

static mlx_status_t put_folder(const upload_t *u) {
  char *folder = NULL, *path = NULL, *temporary = NULL;
  mlx_status_t status = mlx_join_path(u->entry.remote->place, u->entry.key, &folder);
  if (!status) status = mlx_make_dirs(folder, 0755);
  if (!status) status = mlx_join_path(folder, MODULE_FILE, &path);
  if (!status) status = mlx_temporary_path(path, &temporary);
  if (!status) mlx_leftover_remove(path);
  if (!status) status = mlx_copy_file(u->path, temporary);
  if (!status) status = mlx_rename(temporary, path);
  mlx_free(path);
  mlx_free(temporary);
  path = NULL;
  if (!status) status = mlx_join_path(folder, SIGNATURE_FILE, &path);
  if (!status) status = mlx_replace_file(path, u->signature, u->signature_length);
  mlx_free(path);
  path = NULL;
  if (!status) status = mlx_join_path(folder, MLX_MODULE_RECORD, &path);  // last: it makes the entry visible
  if (!status) status = mlx_replace_file(path, u->record.data, u->record.length);
  mlx_free(path);
  mlx_free(folder);
  return status;
}

static mlx_status_t put_url(const upload_t *u, const char *name, const void *bytes, const char *path,
                            uint64_t length) {
  const mlx_remote_cache_t *r = u->entry.remote;
  mlx_http_response_t response = {0};
  char *url;
  MLX_TRY(file_place(&u->entry, name, &url));
  const mlx_http_request_t request = {.method = "PUT",
                                      .url = url,
                                      .authorization = r->authorization,
                                      .body = bytes,
                                      .body_path = path,
                                      .body_length = length,
                                      .max_bytes = MLX_MAX_MODULE_RECORD};
  mlx_status_t status = mlx_http_send(r->http, &request, &response);
  if (!status) status = mlx_http_check(&request, &response);
  mlx_http_response_clear(&response);
  mlx_free(url);
  return status;
}

static mlx_status_t put_web(const upload_t *u, const mlx_module_record_t *record) {
  MLX_TRY(put_url(u, MODULE_FILE, NULL, u->path, record->size));
  MLX_TRY(put_url(u, SIGNATURE_FILE, u->signature, NULL, u->signature_length));
  return put_url(u, MLX_MODULE_RECORD, u->record.data, NULL, u->record.length);
}

static mlx_blob_t describe_blob(const char *name, const char *type, const char *digest, uint64_t size,
                                const void *bytes, const char *path) {
  mlx_blob_t blob = {.bytes = bytes, .path = path, .descriptor.size = size};
  snprintf(blob.descriptor.media_type, sizeof blob.descriptor.media_type, "%s", type);
  snprintf(blob.descriptor.path, sizeof blob.descriptor.path, "%s", name);
  if (digest)
    snprintf(blob.descriptor.digest, sizeof blob.descriptor.digest, "sha256:%s", digest);
  else
    mlx_oci_digest(bytes, (size_t)size, blob.descriptor.digest);
  return blob;
}

static mlx_status_t put_oci(const upload_t *u, const mlx_module_record_t *record) {
  mlx_remote_cache_t *r = u->entry.remote;
  const mlx_blob_t blobs[] = {
      describe_blob(MODULE_FILE, MLX_OCI_MODULE_CODE, record->sha256, record->size, NULL, u->path),
      describe_blob(SIGNATURE_FILE, MLX_OCI_MODULE_SIGNATURE, NULL, u->signature_length, u->signature, NULL),
      describe_blob(MLX_MODULE_RECORD, OCI_RECORD, NULL, u->record.length, u->record.data, NULL),
      describe_blob("", MLX_OCI_EMPTY, NULL, strlen(EMPTY), EMPTY, NULL)};
  mlx_oci_descriptor_t layers[3], descriptor = {.media_type = MLX_OCI_MANIFEST, .artifact_type = OCI_CACHE};
  mlx_oci_document_t document = {.artifact_type = OCI_CACHE, .items = layers, .count = 3};
  mlx_progress_t progress = 0;
  mlx_text_t json = {0};
  MLX_TRY(open_store(r));
  for (size_t i = 0; i < 4; ++i) MLX_TRY(mlx_store_put_blob(r->store, r->http, &blobs[i], &progress));
  for (size_t i = 0; i < 3; ++i) layers[i] = blobs[i].descriptor;
  document.config = blobs[3].descriptor;
  mlx_oci_manifest_write(&document, &json);
  mlx_status_t status = mlx_text_finish(&json);
  if (!status) {
    descriptor.size = json.length;
    mlx_oci_digest(json.data, json.length, descriptor.digest);
    status = mlx_store_put_document(r->store, u->entry.key, &descriptor, json.data, json.length, NULL);
  }
  mlx_text_clear(&json);
  return status;
}

// Whether the entry is there with a record that |key| signed.
static mlx_status_t find_own(mlx_remote_cache_t *r, const mlx_module_record_t *record, const char *scratch,
                             const mlx_secret_key_t *key, bool *out_found) {
  const mlx_public_key_t own = mlx_secret_key_public(key);
  entry_t entry = {.remote = r, .key = record->key};
  mlx_module_record_t there;
  mlx_status_t status = read_record(&entry, scratch, &own, &there);
  clear_entry(&entry);
  *out_found = !status && !memcmp(&there, record, sizeof there);
  const mlx_code_t code = mlx_status_code(status);
  if (code != MLX_NOT_FOUND && code != MLX_INVALID_INPUT) return status;
  mlx_status_free(status);  // missing, or not an entry that this key signed: it is written
  return NULL;
}

mlx_status_t mlx_remote_cache_put(mlx_remote_cache_t *r, const mlx_module_record_t *record, const char *path,
                                  const mlx_secret_key_t *key, bool *out_added) {
  upload_t u = {.entry = {.remote = r, .key = record->key}, .path = path};
  char *scratch;
  bool found = false;
  *out_added = false;
  MLX_TRY(check_module(path, record));
  MLX_TRY(mlx_temporary_path(path, &scratch));
  mlx_status_t status = find_own(r, record, scratch, key, &found);
  mlx_free(scratch);
  if (!status && !found) {
    status = sign_record(&u, record, key);
    if (!status) status = r->is_oci ? put_oci(&u, record) : r->is_url ? put_web(&u, record) : put_folder(&u);
    *out_added = !status;
  }
  mlx_text_clear(&u.record);
  mlx_free(u.signature);
  return status;
}
