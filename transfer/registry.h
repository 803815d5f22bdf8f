// Registry: OCI content in a registry, through the OCI distribution API.
//
// If the registry requires a token, one is requested with docker's credentials for the host. If it lacks the
// referrers API, the list of referrers is kept under a tag named after the subject, as the specification
// requires. The registry checks the digest of every upload.
//
// Threads: mlx_registry_put_blob and mlx_registry_get_blob may run in parallel, each with its own HTTP
// client. All other functions use the registry's client, so only one of them may run at a time.
#ifndef MLXCEL_TRANSFER_REGISTRY_H_
#define MLXCEL_TRANSFER_REGISTRY_H_

#include "transfer/oci.h"
#include "transfer/transfer.h"

typedef struct mlx_registry_options {
  bool plain_http;       // use http instead of https; a registry on this machine always uses http
  uint64_t chunk_bytes;  // a longer blob is uploaded in pieces of this size; 0 for 64 MiB
  mlx_http_options_t http;
} mlx_registry_options_t;

typedef struct mlx_registry mlx_registry_t;
mlx_status_t mlx_registry_open(const mlx_oci_ref_t *ref, const mlx_registry_options_t *options,
                               mlx_registry_t **out_registry) MLX_MUST_USE;
void mlx_registry_close(mlx_registry_t *registry);  // NULL is fine

// Appends a manifest or an index, by tag or digest. MLX_NOT_FOUND if there is none.
mlx_status_t mlx_registry_get_document(mlx_registry_t *registry, const char *reference,
                                       mlx_text_t *out_json) MLX_MUST_USE;
// Stores a document under |reference|, a tag or its digest. |subject| is the digest of its subject, or NULL.
mlx_status_t mlx_registry_put_document(mlx_registry_t *registry, const char *reference,
                                       const mlx_oci_descriptor_t *descriptor, const char *json,
                                       size_t length, const char *subject) MLX_MUST_USE;
// Appends the manifests whose subject is |digest| to |out_index|. The registry may ignore |artifact_type|.
mlx_status_t mlx_registry_referrers(mlx_registry_t *registry, const char *digest, const char *artifact_type,
                                    mlx_oci_document_t *out_index) MLX_MUST_USE;
// Appends all tags of the repository, each with a NUL.
mlx_status_t mlx_registry_tags(mlx_registry_t *registry, mlx_text_t *out_tags,
                               size_t *out_count) MLX_MUST_USE;
// Uploads a blob unless the registry has it. A broken upload is resumed.
mlx_status_t mlx_registry_put_blob(mlx_registry_t *registry, mlx_http_t *http, const mlx_blob_t *blob,
                                   mlx_progress_t *progress) MLX_MUST_USE;
// Downloads a blob to |path| and checks its digest. Resumes an earlier download.
mlx_status_t mlx_registry_get_blob(mlx_registry_t *registry, mlx_http_t *http,
                                   const mlx_oci_descriptor_t *descriptor, const char *path,
                                   mlx_progress_t *progress) MLX_MUST_USE;

#endif  // MLXCEL_TRANSFER_REGISTRY_H_
