// Local: the record of the bundles that this machine compiled. A recorded bundle may run without a signature.
//
// The record is in the user's state folder, not in the cache, so that `mlxcel cache clear` keeps it:
//   STATE/compiled/DIGEST.json       DIGEST is the SHA-256 of the bundle's manifest
//   STATE/compiled/DIGEST+HEX.json   a bundle without weights; HEX identifies its path
// Only the user (and root) may write to it: anything else is an error.
#ifndef MLXCEL_ARTIFACT_LOCAL_H_
#define MLXCEL_ARTIFACT_LOCAL_H_

#include "base/digest.h"
#include "base/status.h"

// Records that this machine compiled the bundle with this manifest. |thin_bundle| is the path of a bundle
// without weights, which needs the weights in the cache; else NULL.
mlx_status_t mlx_local_add(const char *manifest, size_t length, const char *thin_bundle) MLX_MUST_USE;

// Sets *|out_found| if the bundle with this manifest is recorded.
mlx_status_t mlx_local_find(const char *manifest, size_t length, bool *out_found) MLX_MUST_USE;

// Calls |visit| with every weights file that a recorded bundle without weights needs, by its tree digest.
// |missing|: nothing is at the recorded path |bundle|, so the bundle was moved or removed. Leaves out bundles
// that another file replaced. Stops at the first error.
typedef mlx_status_t (*mlx_local_visit_fn_t)(void *user, const char *bundle, const char *tree, bool missing);
mlx_status_t mlx_local_needed_weights(mlx_local_visit_fn_t visit, void *user) MLX_MUST_USE;

#endif  // MLXCEL_ARTIFACT_LOCAL_H_
