// Store: a place for OCI content, a registry over HTTP (transfer/registry.c) or a folder (transfer/layout.c),
// behind the same few calls.
//
// A registry is asked for a token when it wants one, with the credentials docker has for its host. Every
// digest is checked: of what is read before it is used, of what is written by the registry.
//
// Threads: blobs may be put and got by several threads at once, each with an HTTP client of its own;
// everything else by one.
#ifndef MLXCEL_TRANSFER_STORE_H_
#define MLXCEL_TRANSFER_STORE_H_

#include "transfer/oci.h"
#include "transfer/transfer.h"

typedef struct mlx_store_options {
  bool plain_http;       // speak http to a registry; one on this machine is spoken to so anyway
  uint64_t chunk_bytes;  // a longer blob is sent in such pieces; 0: 64 MiB
  mlx_http_options_t http;
} mlx_store_options_t;

typedef struct mlx_store mlx_store_t;
mlx_status_t mlx_store_open(const mlx_oci_ref_t *ref, const mlx_store_options_t *options,
                            mlx_store_t **out_store) MLX_MUST_USE;
void mlx_store_close(mlx_store_t *store);  // NULL is fine

// A manifest or an index by tag or digest. A missing one is MLX_NOT_FOUND.
mlx_status_t mlx_store_get_document(mlx_store_t *store, const char *reference,
                                    mlx_text_t *out_json) MLX_MUST_USE;
// Puts one under its digest, and under |tag| where that is not NULL. |described| says what it is; of a module
// its subject must be there.
mlx_status_t mlx_store_put_document(mlx_store_t *store, const char *tag,
                                    const mlx_oci_descriptor_t *described, const char *json, size_t length,
                                    const char *subject) MLX_MUST_USE;
// The manifests of |artifact_type| whose subject is |digest|, with their artifact types and targets also
// where the list that names them lacks those. Others may be among them. Release with mlx_oci_document_free.
mlx_status_t mlx_store_referrers(mlx_store_t *store, const char *digest, const char *artifact_type,
                                 mlx_oci_document_t *out_index) MLX_MUST_USE;

// The tags of this name, one after the other, each with a NUL behind it; at most as many as a few pages of a
// registry's list hold.
mlx_status_t mlx_store_tags(mlx_store_t *store, mlx_text_t *out_tags, size_t *out_count) MLX_MUST_USE;

// A blob from a file, or from memory where |path| is NULL. One that is there already is not sent.
typedef struct mlx_blob {
  mlx_oci_descriptor_t described;
  const char *path;
  const void *bytes;
} mlx_blob_t;
mlx_status_t mlx_store_put_blob(mlx_store_t *store, mlx_http_t *http, const mlx_blob_t *blob,
                                mlx_tally_t *tally) MLX_MUST_USE;
// To the file |path|, checked before it gets that name; goes on where an earlier one stopped.
mlx_status_t mlx_store_get_blob(mlx_store_t *store, mlx_http_t *http, const mlx_oci_descriptor_t *described,
                                const char *path, mlx_tally_t *tally) MLX_MUST_USE;

// ---- the two kinds, for store.c alone ----

typedef struct mlx_registry mlx_registry_t;
mlx_status_t mlx_registry_open(const mlx_oci_ref_t *ref, const mlx_store_options_t *options,
                               mlx_registry_t **out_registry) MLX_MUST_USE;
void mlx_registry_close(mlx_registry_t *registry);
mlx_status_t mlx_registry_get_document(mlx_registry_t *registry, const char *reference,
                                       mlx_text_t *out_json) MLX_MUST_USE;
mlx_status_t mlx_registry_put_document(mlx_registry_t *registry, const char *reference,
                                       const mlx_oci_descriptor_t *described, const char *json, size_t length,
                                       const char *subject) MLX_MUST_USE;
mlx_status_t mlx_registry_referrers(mlx_registry_t *registry, const char *digest, const char *artifact_type,
                                    mlx_oci_document_t *out_index) MLX_MUST_USE;
mlx_status_t mlx_registry_tags(mlx_registry_t *registry, mlx_text_t *out_tags,
                               size_t *out_count) MLX_MUST_USE;
mlx_status_t mlx_registry_put_blob(mlx_registry_t *registry, mlx_http_t *http, const mlx_blob_t *blob,
                                   mlx_tally_t *tally) MLX_MUST_USE;
mlx_status_t mlx_registry_get_blob(mlx_registry_t *registry, mlx_http_t *http,
                                   const mlx_oci_descriptor_t *described, const char *path,
                                   mlx_tally_t *tally) MLX_MUST_USE;

mlx_status_t mlx_layout_get_document(const char *folder, const char *reference,
                                     mlx_text_t *out_json) MLX_MUST_USE;
mlx_status_t mlx_layout_put_document(const char *folder, const char *tag,
                                     const mlx_oci_descriptor_t *described, const char *json,
                                     size_t length) MLX_MUST_USE;
mlx_status_t mlx_layout_referrers(const char *folder, const char *digest, const char *artifact_type,
                                  mlx_oci_document_t *out_index) MLX_MUST_USE;
mlx_status_t mlx_layout_tags(const char *folder, mlx_text_t *out_tags, size_t *out_count) MLX_MUST_USE;
mlx_status_t mlx_layout_put_blob(const char *folder, const mlx_blob_t *blob) MLX_MUST_USE;
mlx_status_t mlx_layout_get_blob(const char *folder, const mlx_oci_descriptor_t *described,
                                 const char *path) MLX_MUST_USE;

#endif  // MLXCEL_TRANSFER_STORE_H_
