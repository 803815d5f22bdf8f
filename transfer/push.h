// Push: uploads a bundle (.mlxb) to a registry or an OCI layout. transfer/oci.h describes how it is stored.
#ifndef MLXCEL_TRANSFER_PUSH_H_
#define MLXCEL_TRANSFER_PUSH_H_

#include "base/report.h"
#include "transfer/store.h"

typedef struct mlx_push_options {
  mlx_registry_options_t store;
  const mlx_report_t *report;  // may be NULL
} mlx_push_options_t;
void mlx_push_options_initialize(mlx_push_options_t *options);

// Pushes the bundle at |path| to |ref|: first the blobs that the store lacks, the tag last. |out_digest| gets
// the digest of the model manifest; |report| gets a note with the digest of each module manifest.
mlx_status_t mlx_push_bundle(const char *path, const char *ref, const mlx_push_options_t *options,
                             char out_digest[MLX_OCI_DIGEST]) MLX_MUST_USE;

#endif  // MLXCEL_TRANSFER_PUSH_H_
