// Where models of registries lie in the cache folder, beside those of hubs:
//   models/oci/HOST%2FNAME/DIGEST/       a model's files, put there when all are checked; DIGEST is its
//   manifest's, or its module's where it is compiled models/oci/HOST%2FNAME/DIGEST.part/  files being pulled;
//   a pull that was killed goes on from here models/oci/HOST%2FNAME/refs/TAG      the digest that the tag
//   meant when it was last pulled models/oci/HOST%2FNAME/.lock         held by the one who pulls
#ifndef MLXCEL_TRANSFER_OCI_PLACE_H_
#define MLXCEL_TRANSFER_OCI_PLACE_H_

#include "base/report.h"
#include "cache/lock.h"
#include "transfer/oci.h"

// One HOST%2FNAME, held.
typedef struct mlx_oci_place {
  char *folder;
  mlx_lock_t lock;
} mlx_oci_place_t;

// Waits for whoever holds it, with a word to |report| (may be NULL). Leave it with mlx_oci_place_leave.
mlx_status_t mlx_oci_place_enter(const mlx_oci_ref_t *ref, const mlx_report_t *report,
                                 mlx_oci_place_t *out) MLX_MUST_USE;
void mlx_oci_place_leave(mlx_oci_place_t *place);

// The folder of |digest| in it, whether it is there or not. Release with mlx_free.
mlx_status_t mlx_oci_place_folder(const mlx_oci_place_t *place, const char *digest,
                                  char **out_folder) MLX_MUST_USE;

// |ref| means |digest| from now on. A folder laid out like a registry is no reference to remember.
mlx_status_t mlx_oci_place_remember(const mlx_oci_place_t *place, const mlx_oci_ref_t *ref,
                                    const char *digest) MLX_MUST_USE;

// The folder of what |ref| meant when it was last pulled, or NULL. Asks nobody. Release with mlx_free.
mlx_status_t mlx_oci_place_find(const mlx_oci_ref_t *ref, char **out_folder) MLX_MUST_USE;

// Who looks for |ref| next asks the registry.
mlx_status_t mlx_oci_place_forget(const mlx_oci_ref_t *ref) MLX_MUST_USE;

#endif  // MLXCEL_TRANSFER_OCI_PLACE_H_
