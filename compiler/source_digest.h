// Source digest: identifies the files that a bundle was compiled from. For a single file it is the output of
// sha256sum. For several files it is the SHA-256 of the sha256sum lines of all files, sorted by name.
#ifndef MLXCEL_COMPILER_SOURCE_DIGEST_H_
#define MLXCEL_COMPILER_SOURCE_DIGEST_H_

#include "base/report.h"
#include "cache/cache.h"
#include "models/model.h"

// |cache| remembers the digests of files; |report| may be NULL.
mlx_status_t mlx_source_digest(mlx_cache_t *cache, const mlx_source_t *source, const mlx_report_t *report,
                               char out_hex[MLX_DIGEST_HEX]) MLX_MUST_USE;
// The same from tree digests, which several threads compute, and only of config, tokenizer and weights: a new
// chat template or license does not change the weight archive. For keys of the cache.
mlx_status_t mlx_source_tree_digest(mlx_cache_t *cache, const mlx_source_t *source,
                                    const mlx_report_t *report, char out_hex[MLX_DIGEST_HEX]) MLX_MUST_USE;

#endif  // MLXCEL_COMPILER_SOURCE_DIGEST_H_
