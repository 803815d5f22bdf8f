// Weights: a model's tensors as the compiled module wants them, in one archive.
#ifndef MLXCEL_COMPILER_WEIGHTS_H_
#define MLXCEL_COMPILER_WEIGHTS_H_

#include "base/report.h"
#include "compiler/panels.h"
#include "compiler/quantize.h"
#include "compiler/tiles.h"
#include "models/model.h"

// Changes whenever the bytes written for the same model change, also by --quantize: it is part of the cache
// key.
#define MLX_WEIGHTS_LAYOUT "rows as Hugging Face has them, vectors f32, irpa 0"
#define MLX_PANELS_LAYOUT "panels of 16 rows, vectors f32, irpa 3"
#define MLX_TILES_LAYOUT "tiles of 8 rows, vectors f32, irpa 2"

// How matrices are stored.
typedef enum mlx_layout {
  MLX_LAYOUT_ROWS,    // one row after the other, in the dtype asked for
  MLX_LAYOUT_PANELS,  // 16 rows together, in the dtype asked for: kernels/cpu/layout.h
  MLX_LAYOUT_PACKED,  // such panels, with the file's own integers where a format holds them, else in the
                      // dtype asked for
  MLX_LAYOUT_TILES,  // such integers as tiles, where a kind of tiles holds them; else rows in the dtype asked
                     // for: kernels/cuda/decode_tiles.cuh
} mlx_layout_t;
typedef struct mlx_storage {
  mlx_dtype_t dtype;
  mlx_layout_t layout;
  mlx_quantize_t quantize;      // of matrices that are wider than that; in a packed layout only
  const mlx_weight_t *weights;  // of the model, and the tiles of each, where they are not simply what holds
                                // its integers; may be NULL
  const mlx_tiles_t *tiles;
} mlx_storage_t;

// ---- stored.c: what becomes of one weight ----

typedef enum mlx_stored_kind {
  MLX_STORED_NUMBERS,    // plain numbers: a vector, or a matrix in the dtype asked for or its own
  MLX_STORED_CODES,      // the integers and scales of its file; nothing is rounded
  MLX_STORED_QUANTISED,  // integers that we chose
} mlx_stored_kind_t;
typedef struct mlx_stored {
  mlx_stored_kind_t kind;
  mlx_dtype_t dtype;  // of plain numbers; vectors (norms) stay f32: they take no room, and their errors touch
                      // every activation
  mlx_panel_format_t format;  // of a matrix in panels
  mlx_tiles_t tiles;          // of a matrix in tiles
  mlx_quantize_t quantize;    // which, where it is
} mlx_stored_t;
mlx_stored_t mlx_weight_stored(const mlx_weight_t *weight, mlx_storage_t storage);

// Matrices of the model that are stored as |kind|.
size_t mlx_weights_count(const mlx_model_t *model, mlx_storage_t storage, mlx_stored_kind_t kind);
// A note for each kind of matrix in the file, what becomes of it and how many there are.
void mlx_weights_explain(const mlx_model_t *model, mlx_storage_t storage, const mlx_report_t *report);

// ---- weights.c ----

// Where each weight begins in the archive, in bytes from the first one's start; |out_offsets| has room for
// all. Gives the bytes from there to the last one's end: what MLX_WHOLE_ARCHIVE stands for.
uint64_t mlx_weights_layout(const mlx_model_t *model, mlx_storage_t storage, uint64_t *out_offsets);

// Writes every weight to |path| as mlx_weight_stored says, with its rows in Hugging Face's order, a few rows
// at a time. A tensor that has the type already keeps its very bits.
mlx_status_t mlx_weights_write(const mlx_model_t *model, mlx_storage_t storage, const char *path,
                               const mlx_report_t *report) MLX_MUST_USE;

#endif  // MLXCEL_COMPILER_WEIGHTS_H_
