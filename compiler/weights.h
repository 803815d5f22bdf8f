// Weights: a model's tensors as the compiled module wants them, in one archive.
#ifndef MLXCEL_COMPILER_WEIGHTS_H_
#define MLXCEL_COMPILER_WEIGHTS_H_

#include "compiler/storage.h"

// Changes whenever the bytes written for the same model change, also by --quantize: it is part of the cache
// key.
#define MLX_WEIGHTS_LAYOUT "rows as Hugging Face has them, vectors f32, irpa 0"
#define MLX_PANELS_LAYOUT "panels of 16 rows, vectors f32, irpa 3"
#define MLX_TILES_LAYOUT "tiles of 8 rows, vectors f32, irpa 2"

// Where each weight begins in the archive, in bytes from the first one's start; |out_offsets| has room for
// all. Gives the bytes from there to the last one's end: what MLX_WHOLE_ARCHIVE stands for.
uint64_t mlx_weights_layout(const mlx_model_t *model, mlx_storage_t storage, uint64_t *out_offsets);

// Writes every weight to |path| as mlx_weight_stored says, with its rows in Hugging Face's order, a few rows
// at a time. A tensor that has the type already keeps its very bits.
mlx_status_t mlx_weights_write(const mlx_model_t *model, mlx_storage_t storage, const char *path,
                               const mlx_report_t *report) MLX_MUST_USE;

#endif  // MLXCEL_COMPILER_WEIGHTS_H_
