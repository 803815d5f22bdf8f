// Bundle stream: checks a single-file bundle while it arrives, so that a server cannot fill the disk.
//
// The archive's headers declare the size of each member, and the manifest declares it again. A byte that no
// header declares is an error, and so is a member whose size differs from the manifest's once that is known.
// Files that are not part of a bundle may take 64 MiB in all.
//
// Threads: a stream belongs to one thread at a time.
#ifndef MLXCEL_ARTIFACT_BUNDLE_STREAM_H_
#define MLXCEL_ARTIFACT_BUNDLE_STREAM_H_

#include <stdint.h>

#include "base/status.h"

typedef struct mlx_bundle_stream mlx_bundle_stream_t;

// |reserve| is called with the size of each member before its first byte, and may fail if there is no space;
// may be NULL. |name| appears in errors. Both are borrowed. Release with mlx_bundle_stream_free.
typedef mlx_status_t (*mlx_reserve_fn_t)(void *user, uint64_t bytes);
mlx_status_t mlx_bundle_stream_create(const char *name, mlx_reserve_fn_t reserve, void *user,
                                      mlx_bundle_stream_t **out_stream) MLX_MUST_USE;
void mlx_bundle_stream_free(mlx_bundle_stream_t *stream);  // NULL is fine

// Starts over at the first byte.
void mlx_bundle_stream_begin(mlx_bundle_stream_t *stream);
// Checks the next bytes. The archive may be incomplete after the last of them: mlx_bundle_open checks that.
mlx_status_t mlx_bundle_stream_add(mlx_bundle_stream_t *stream, const char *bytes,
                                   size_t length) MLX_MUST_USE;

#endif  // MLXCEL_ARTIFACT_BUNDLE_STREAM_H_
