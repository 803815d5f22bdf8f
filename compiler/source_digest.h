// The digest of a model's files, by which a bundle knows what it was made from. A single file's is what
// sha256sum prints of it; of several, that of all that sha256sum prints of them in the order of their names.
#ifndef MLXCEL_COMPILER_SOURCE_DIGEST_H_
#define MLXCEL_COMPILER_SOURCE_DIGEST_H_

#include "base/report.h"
#include "cache/cache.h"
#include "models/model.h"

typedef struct mlx_source_digests {
  char all[MLX_DIGEST_HEX];      // of every file that something of a bundle comes from
  char weights[MLX_DIGEST_HEX];  // of config, tokenizer and weights: a new template or licence does not make
                                 // new weights
} mlx_source_digests_t;

// |cache| remembers the digests of files; |report| may be NULL.
mlx_status_t mlx_source_digest(mlx_cache_t *cache, const mlx_source_t *source, const mlx_report_t *report,
                               mlx_source_digests_t *out_digests) MLX_MUST_USE;

#endif  // MLXCEL_COMPILER_SOURCE_DIGEST_H_
