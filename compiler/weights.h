// Weights: a model's tensors as the compiled module wants them, in one archive.
#ifndef MLXCEL_COMPILER_WEIGHTS_H_
#define MLXCEL_COMPILER_WEIGHTS_H_

#include "base/report.h"
#include "models/model.h"

// Changes whenever the bytes written for the same model change: it is part of the cache key.
#define MLX_WEIGHTS_LAYOUT "rows as Hugging Face has them, vectors f32, irpa 0"
#define MLX_PANELS_LAYOUT "panels of 16 rows, vectors f32, irpa 1"

// How matrices are stored.
typedef enum mlx_layout {
  MLX_LAYOUT_ROWS,    // one row after the other, in the dtype asked for
  MLX_LAYOUT_PANELS,  // 16 rows together, in the dtype asked for: kernels/cpu/network.h
  MLX_LAYOUT_PACKED,  // such panels, in the type the file has them where there are panels of it, else in the dtype asked for
} mlx_layout_t;
typedef struct mlx_storage {
  mlx_dtype_t dtype;
  mlx_layout_t layout;
} mlx_storage_t;

// What |weight| is stored as. Vectors (norms) stay f32: they take no room, and their errors touch every activation.
mlx_dtype_t mlx_weight_dtype(const mlx_weight_t *weight, mlx_storage_t storage);

// Where each weight begins in the archive, in bytes from the first one's start; |out_offsets| has room for all. Gives the bytes
// from there to the last one's end: what MLX_WHOLE_ARCHIVE stands for.
uint64_t mlx_weights_layout(const mlx_model_t *model, mlx_storage_t storage, uint64_t *out_offsets);

// Writes every weight to |path| as mlx_weight_dtype says, with its rows in Hugging Face's order, a few rows at a time.
// A tensor that has the type already keeps its very bits.
mlx_status_t mlx_weights_write(const mlx_model_t *model, mlx_storage_t storage, const char *path,
                               const mlx_report_t *report) MLX_MUST_USE;

#endif  // MLXCEL_COMPILER_WEIGHTS_H_
