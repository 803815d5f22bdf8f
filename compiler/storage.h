// Storage: how each weight of a model is stored in the archive. The one place that decides it.
#ifndef MLXCEL_COMPILER_STORAGE_H_
#define MLXCEL_COMPILER_STORAGE_H_

#include "base/report.h"
#include "compiler/quantize.h"
#include "compiler/tiles.h"
#include "models/model.h"

// How matrices are stored.
typedef enum mlx_layout {
  MLX_LAYOUT_ROWS,              // one row after the other, in the dtype asked for
  MLX_LAYOUT_PANELS,            // 16 rows together, in the dtype asked for: kernels/cpu/network.h
  MLX_LAYOUT_QUANTIZED_PANELS,  // such panels, with the file's own integers where a format holds them, else
                                // in the dtype asked for
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

typedef enum mlx_stored_kind {
  MLX_STORED_FLOATS,     // plain numbers: a vector, or a matrix in the dtype asked for or its own
  MLX_STORED_CODES,      // the integers and scales of its file; nothing is rounded
  MLX_STORED_QUANTIZED,  // integers that we chose
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

#endif  // MLXCEL_COMPILER_STORAGE_H_
