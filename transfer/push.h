// Push and pull of compiled models (.mlxb) to and from registries and OCI folders (transfer/oci.h says how
// they are laid out), and pull of models that others put there.
#ifndef MLXCEL_TRANSFER_PUSH_H_
#define MLXCEL_TRANSFER_PUSH_H_

#include "transfer/store.h"

typedef struct mlx_push_options {
  mlx_store_options_t store;
  const char *target;  // pull: the module to take, of several; NULL: the only one, or the best; "all": all of
                       // the bundle that was pushed last
  size_t (*rank)(
      const char *target,
      const char *cpu);  // pull: how well a target suits this machine, 0 not at all; NULL: nobody knows
  const char *output;  // pull: a folder that does not exist yet; NULL: NAME.mlxb here, the cache for a model
                       // without compiled code
  bool to_cache;       // pull: compiled models go there too
  const mlx_report_t *report;  // may be NULL
} mlx_push_options_t;
void mlx_push_options_initialize(mlx_push_options_t *options);

// Puts the bundle at |path| under |ref|: blobs first, those that are there already not again, the tag last.
// *|out_digest| is the model's manifest; the report is told those of its modules.
mlx_status_t mlx_push_bundle(const char *path, const char *ref, const mlx_push_options_t *options,
                             char out_digest[MLX_OCI_DIGEST]) MLX_MUST_USE;

// Brings a model with one of its modules here; or one without (transfer/modelpack.h). *|out_path| is what to
// open, the new folder or a GGUF file; release with mlx_free.
mlx_status_t mlx_pull_oci(const char *ref, const mlx_push_options_t *options, char **out_path) MLX_MUST_USE;

// What an earlier pull of the same reference left in the cache, or NULL. Asks nobody. A folder is no
// reference to remember: its answer is always NULL.
mlx_status_t mlx_pull_oci_find(const char *ref, char **out_path) MLX_MUST_USE;

#endif  // MLXCEL_TRANSFER_PUSH_H_
