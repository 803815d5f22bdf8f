// OCI cache: where models of registries are stored in the cache folder, beside those of hubs.
//   models/oci/HOST%2FNAME/DIGEST/       files of a model, moved here once all are checked; DIGEST is the
//                                        module manifest's for a bundle, the model manifest's otherwise
//   models/oci/HOST%2FNAME/DIGEST.part/  files being pulled; an interrupted pull resumes from here
//   models/oci/HOST%2FNAME/refs/TAG      the digest that the tag named at the last pull
//   models/oci/HOST%2FNAME/.lock         held by the pulling process
#ifndef MLXCEL_TRANSFER_OCI_CACHE_H_
#define MLXCEL_TRANSFER_OCI_CACHE_H_

#include "base/report.h"
#include "cache/lock.h"
#include "transfer/oci.h"

// One locked HOST%2FNAME folder.
typedef struct mlx_oci_cache {
  char *folder;
  mlx_lock_t lock;
} mlx_oci_cache_t;

// Waits for the lock and reports the wait to |report| (may be NULL). Release with mlx_oci_cache_unlock.
mlx_status_t mlx_oci_cache_lock(const mlx_oci_ref_t *ref, const mlx_report_t *report,
                                mlx_oci_cache_t *out) MLX_MUST_USE;
void mlx_oci_cache_unlock(mlx_oci_cache_t *cache);

// Path of the folder for |digest|, which need not exist. Release with mlx_free.
mlx_status_t mlx_oci_cache_folder(const mlx_oci_cache_t *cache, const char *digest,
                                  char **out_folder) MLX_MUST_USE;

// Records that |ref| names |digest|. Does nothing for an OCI layout.
mlx_status_t mlx_oci_cache_set_ref(const mlx_oci_cache_t *cache, const mlx_oci_ref_t *ref,
                                   const char *digest) MLX_MUST_USE;

// Returns the folder that |ref| named at its last pull, or NULL. Uses no network. Release with mlx_free.
mlx_status_t mlx_oci_cache_find(const mlx_oci_ref_t *ref, char **out_folder) MLX_MUST_USE;

// Removes the record of |ref|, so that its next use queries the registry.
mlx_status_t mlx_oci_cache_remove_ref(const mlx_oci_ref_t *ref) MLX_MUST_USE;

#endif  // MLXCEL_TRANSFER_OCI_CACHE_H_
