// Source digest: identifies the files that a bundle was compiled from. For a single file it is the output of
// sha256sum. For several files it is the SHA-256 of the sha256sum lines of all files, sorted by name.
#ifndef MLXCEL_COMPILER_SOURCE_DIGEST_H_
#define MLXCEL_COMPILER_SOURCE_DIGEST_H_

#include "base/report.h"
#include "cache/cache.h"
#include "models/model.h"

typedef struct mlx_source_digests {
  char all[MLX_DIGEST_HEX];      // of every file that contributes to a bundle
  char weights[MLX_DIGEST_HEX];  // of config, tokenizer and weights: a new chat template or license does not
                                 // change the weight archive
} mlx_source_digests_t;

// |cache| remembers the digests of files; |report| may be NULL.
mlx_status_t mlx_source_digest(mlx_cache_t *cache, const mlx_source_t *source, const mlx_report_t *report,
                               mlx_source_digests_t *out_digests) MLX_MUST_USE;

#endif  // MLXCEL_COMPILER_SOURCE_DIGEST_H_
