// OCI layout: OCI content in a folder, as the OCI image specification defines it: oci-layout, index.json with
// the tags, and blobs/sha256/DIGEST.
//
// A writer holds a lock on the file oci-layout: a shared lock while it writes blobs, an exclusive lock while
// it changes the index. Readers need no lock, because a file gets its final name only when it is complete.
#ifndef MLXCEL_TRANSFER_OCI_LAYOUT_H_
#define MLXCEL_TRANSFER_OCI_LAYOUT_H_

#include "transfer/oci.h"

// Appends a manifest or an index, by tag or digest, after checking its digest. MLX_NOT_FOUND if there is
// none.
mlx_status_t mlx_oci_layout_get_document(const char *folder, const char *reference,
                                         mlx_text_t *out_json) MLX_MUST_USE;
// Stores a document, and moves |tag| to it if not NULL.
mlx_status_t mlx_oci_layout_put_document(const char *folder, const char *tag,
                                         const mlx_oci_descriptor_t *descriptor, const char *json,
                                         size_t length) MLX_MUST_USE;
// Appends the manifests of |artifact_type| whose subject is |digest| to |out_index|.
mlx_status_t mlx_oci_layout_referrers(const char *folder, const char *digest, const char *artifact_type,
                                      mlx_oci_document_t *out_index) MLX_MUST_USE;
// Appends all tags, each with a NUL.
mlx_status_t mlx_oci_layout_tags(const char *folder, mlx_text_t *out_tags, size_t *out_count) MLX_MUST_USE;
// Stores a blob unless an undamaged copy is there.
mlx_status_t mlx_oci_layout_put_blob(const char *folder, const mlx_blob_t *blob) MLX_MUST_USE;
// Copies a blob to |path| and checks its digest.
mlx_status_t mlx_oci_layout_get_blob(const char *folder, const mlx_oci_descriptor_t *descriptor,
                                     const char *path) MLX_MUST_USE;

#endif  // MLXCEL_TRANSFER_OCI_LAYOUT_H_
