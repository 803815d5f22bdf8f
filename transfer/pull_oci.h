// Pull from a registry or an OCI layout: a bundle for one or all targets, or a model without compiled code
// (transfer/modelpack.h).
#ifndef MLXCEL_TRANSFER_PULL_OCI_H_
#define MLXCEL_TRANSFER_PULL_OCI_H_

#include "base/report.h"
#include "transfer/store.h"

typedef struct mlx_pull_oci_options {
  mlx_registry_options_t store;
  // Target to pull. NULL for the only or the best one; "all" for all targets of the bundle pushed last.
  const char *target;
  // How well a target suits this machine, 0 if it cannot run; NULL if unknown.
  size_t (*rank)(const char *target, const char *cpu);
  const char *output;  // path that must not exist; NULL for ./NAME.mlxb, or the cache without compiled code
  bool to_cache;       // put a bundle in the cache, not in |output|
  const mlx_report_t *report;  // may be NULL
} mlx_pull_oci_options_t;
void mlx_pull_oci_options_initialize(mlx_pull_oci_options_t *options);

// Pulls the model that |ref| names. *|out_path| is the folder or GGUF file to open; release with mlx_free.
mlx_status_t mlx_pull_oci(const char *ref, const mlx_pull_oci_options_t *options,
                          char **out_path) MLX_MUST_USE;

// Returns the path that an earlier pull of the same reference stored in the cache, or NULL. Uses no network.
// Always NULL for an OCI layout.
mlx_status_t mlx_pull_oci_find(const char *ref, char **out_path) MLX_MUST_USE;

#endif  // MLXCEL_TRANSFER_PULL_OCI_H_
