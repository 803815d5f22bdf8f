// Weights: writes a model's weights as one archive, in the layout that the compiled module reads.
#ifndef MLXCEL_COMPILER_WEIGHTS_H_
#define MLXCEL_COMPILER_WEIGHTS_H_

#include "base/digest.h"
#include "compiler/storage.h"

// Part of the cache key. Change it whenever the bytes written for the same model change.
#define MLX_WEIGHTS_LAYOUT "rows as Hugging Face has them, vectors f32, irpa 1"
#define MLX_PANELS_LAYOUT "panels of 16 rows, codes of 4 to 8 bits, bf16 in pairs, vectors f32, irpa 5"
#define MLX_TILES_LAYOUT "tiles of 8 rows, vectors f32, irpa 3"

// Bytes of one weight in the archive, without alignment.
uint64_t mlx_weight_stored_bytes(const mlx_weight_t *weight, mlx_storage_t storage);

// Byte offset of each weight, relative to the first; |out_offsets| has room for all. Returns the bytes from
// the start of the first to the end of the last: the size of MLX_WHOLE_ARCHIVE.
uint64_t mlx_weights_layout(const mlx_model_t *model, mlx_storage_t storage, uint64_t *out_offsets);

// Writes every weight to |path| as mlx_weight_stored decides, with rows in Hugging Face's order. Converts a
// few rows at a time. A tensor that already has the type keeps its exact bits.
mlx_status_t mlx_weights_write(const mlx_model_t *model, mlx_storage_t storage, const char *path,
                               const mlx_report_t *report) MLX_MUST_USE;
// The same, and computes the digests of the archive while it is written.
mlx_status_t mlx_weights_write_hashed(const mlx_model_t *model, mlx_storage_t storage, const char *path,
                                      const mlx_report_t *report, uint64_t *out_size,
                                      mlx_file_digests_t *out_digests) MLX_MUST_USE;

#endif  // MLXCEL_COMPILER_WEIGHTS_H_
