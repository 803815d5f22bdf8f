// Dispatches to a registry or an OCI layout, and checks digests. See store.h.
#include "transfer/store.h"

#include <string.h>

#include "base/memory.h"
#include "transfer/oci_layout.h"

#define MAX_INCOMPLETE 64  // list entries that are completed from their manifests

struct mlx_store {
  mlx_registry_t *registry;  // NULL for an OCI layout
  char *folder;              // of an OCI layout, else NULL
};

mlx_status_t mlx_store_open(const mlx_oci_ref_t *ref, const mlx_registry_options_t *options,
                            mlx_store_t **out_store) {
  *out_store = NULL;
  mlx_store_t *store;
  MLX_TRY(mlx_alloc(1, sizeof *store, &store));
  mlx_status_t status = ref->layout ? mlx_copy_text(ref->name, strlen(ref->name), &store->folder)
                                    : mlx_registry_open(ref, options, &store->registry);
  if (status) {
    mlx_store_close(store);
    return status;
  }
  *out_store = store;
  return NULL;
}

void mlx_store_close(mlx_store_t *store) {
  if (!store) return;
  mlx_registry_close(store->registry);
  mlx_free(store->folder);
  mlx_free(store);
}

static mlx_status_t check_document(const char *reference, const mlx_text_t *json) {
  char digest[MLX_OCI_DIGEST];
  mlx_oci_digest(json->data ? json->data : "", json->length, digest);
  if (!mlx_oci_is_digest(reference) || !strcmp(reference, digest)) return NULL;
  return mlx_error(MLX_INVALID_INPUT, "requested %s, but received content with the digest %s", reference,
                   digest);
}

mlx_status_t mlx_store_get_document(mlx_store_t *store, const char *reference, mlx_text_t *out_json) {
  MLX_TRY(store->registry ? mlx_registry_get_document(store->registry, reference, out_json)
                          : mlx_oci_layout_get_document(store->folder, reference, out_json));
  return check_document(reference, out_json);
}

mlx_status_t mlx_store_put_document(mlx_store_t *store, const char *tag,
                                    const mlx_oci_descriptor_t *descriptor, const char *json, size_t length,
                                    const char *subject) {
  if (!store->registry) return mlx_oci_layout_put_document(store->folder, tag, descriptor, json, length);
  return mlx_registry_put_document(store->registry, tag ? tag : descriptor->digest, descriptor, json, length,
                                   subject);
}

// Some tools drop artifact types and annotations when they copy a list. Reads them from the manifest.
static mlx_status_t complete(mlx_store_t *store, mlx_oci_descriptor_t *item) {
  mlx_text_t json = {0};
  mlx_oci_document_t document = {0};
  mlx_status_t status = mlx_store_get_document(store, item->digest, &json);
  if (!status)
    status = mlx_oci_document_read(item->digest, json.data ? json.data : "", json.length, &document);
  if (!status) {
    memcpy(item->artifact_type,
           document.artifact_type[0] ? document.artifact_type : document.config.media_type,
           sizeof item->artifact_type);
    item->annotations = document.annotations;
  }
  mlx_oci_document_free(&document);
  mlx_text_clear(&json);
  return status;
}

mlx_status_t mlx_store_referrers(mlx_store_t *store, const char *digest, const char *artifact_type,
                                 mlx_oci_document_t *out_index) {
  *out_index = (mlx_oci_document_t){0};
  mlx_status_t status = store->registry
                            ? mlx_registry_referrers(store->registry, digest, artifact_type, out_index)
                            : mlx_oci_layout_referrers(store->folder, digest, artifact_type, out_index);
  size_t incomplete = 0;
  for (size_t i = 0; i < out_index->count && !status; ++i) {
    if (out_index->items[i].artifact_type[0]) continue;
    if (++incomplete > MAX_INCOMPLETE)
      status = mlx_error(MLX_INVALID_INPUT, "more than %d referrers of %s have no artifact type",
                         MAX_INCOMPLETE, digest);
    if (!status) status = complete(store, &out_index->items[i]);
  }
  if (status) mlx_oci_document_free(out_index);
  return status;
}

mlx_status_t mlx_store_tags(mlx_store_t *store, mlx_text_t *out_tags, size_t *out_count) {
  *out_count = 0;
  return store->registry ? mlx_registry_tags(store->registry, out_tags, out_count)
                         : mlx_oci_layout_tags(store->folder, out_tags, out_count);
}

mlx_status_t mlx_store_put_blob(mlx_store_t *store, mlx_http_t *http, const mlx_blob_t *blob,
                                mlx_progress_t *progress) {
  if (store->registry) return mlx_registry_put_blob(store->registry, http, blob, progress);
  MLX_TRY(mlx_oci_layout_put_blob(store->folder, blob));
  atomic_fetch_add(progress, blob->descriptor.size);
  return NULL;
}

mlx_status_t mlx_store_get_blob(mlx_store_t *store, mlx_http_t *http, const mlx_oci_descriptor_t *descriptor,
                                const char *path, mlx_progress_t *progress) {
  if (store->registry) return mlx_registry_get_blob(store->registry, http, descriptor, path, progress);
  MLX_TRY(mlx_oci_layout_get_blob(store->folder, descriptor, path));
  atomic_fetch_add(progress, descriptor->size);
  return NULL;
}
