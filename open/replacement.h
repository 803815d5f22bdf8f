// Replacement: the source model of a bundle that this version cannot run.
#ifndef MLXCEL_OPEN_REPLACEMENT_H_
#define MLXCEL_OPEN_REPLACEMENT_H_

#include "runtime/mlxcel.h"

// Returns |status|, the result of opening a bundle. If the bundle is for another contract or IREE version and
// its source model is beside it, *|out_source| is that model, to compile again; else NULL. Release with
// mlx_free.
// The manifest names the source, so it must pass the trust check first. An unsigned manifest is not followed:
// the user gets |status|. A signature that does not match is a worse error and replaces |status|.
mlx_status_t mlx_find_replacement(const char *bundle, const mlx_engine_options_t *options,
                                  mlx_status_t status, char **out_source) MLX_MUST_USE;

#endif  // MLXCEL_OPEN_REPLACEMENT_H_
