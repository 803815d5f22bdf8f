// Store: OCI content in a registry (transfer/registry.h) or in a folder (transfer/oci_layout.h), behind one
// interface. The digest of all content is checked before the caller gets it.
//
// Threads: several threads may put and get blobs in parallel, each with its own HTTP client. Everything else
// belongs to one thread at a time.
#ifndef MLXCEL_TRANSFER_STORE_H_
#define MLXCEL_TRANSFER_STORE_H_

#include "transfer/registry.h"

typedef struct mlx_store mlx_store_t;
// |options| apply only to a registry.
mlx_status_t mlx_store_open(const mlx_oci_ref_t *ref, const mlx_registry_options_t *options,
                            mlx_store_t **out_store) MLX_MUST_USE;
void mlx_store_close(mlx_store_t *store);  // NULL is fine

// Appends a manifest or an index, by tag or digest. MLX_NOT_FOUND if there is none.
mlx_status_t mlx_store_get_document(mlx_store_t *store, const char *reference,
                                    mlx_text_t *out_json) MLX_MUST_USE;
// Stores a document under its digest, and under |tag| if not NULL. |subject| is the digest of its subject,
// which must be in the store, or NULL.
mlx_status_t mlx_store_put_document(mlx_store_t *store, const char *tag,
                                    const mlx_oci_descriptor_t *descriptor, const char *json, size_t length,
                                    const char *subject) MLX_MUST_USE;
// Lists the manifests of |artifact_type| whose subject is |digest|. Other types may be among them. Artifact
// type and annotations are filled in from the manifest if the store's list lacks them. Release with
// mlx_oci_document_free.
mlx_status_t mlx_store_referrers(mlx_store_t *store, const char *digest, const char *artifact_type,
                                 mlx_oci_document_t *out_index) MLX_MUST_USE;

// Appends the tags of the repository, each with a NUL. A registry's list is limited in length.
mlx_status_t mlx_store_tags(mlx_store_t *store, mlx_text_t *out_tags, size_t *out_count) MLX_MUST_USE;

// Stores a blob unless the store has it.
mlx_status_t mlx_store_put_blob(mlx_store_t *store, mlx_http_t *http, const mlx_blob_t *blob,
                                mlx_progress_t *progress) MLX_MUST_USE;
// Copies a blob to the file |path|, which is created only after the digest was checked. Resumes an earlier
// download.
mlx_status_t mlx_store_get_blob(mlx_store_t *store, mlx_http_t *http, const mlx_oci_descriptor_t *descriptor,
                                const char *path, mlx_progress_t *progress) MLX_MUST_USE;

#endif  // MLXCEL_TRANSFER_STORE_H_
