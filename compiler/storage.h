// Storage: how each weight of a model is stored in the archive. The one place that decides it.
#ifndef MLXCEL_COMPILER_STORAGE_H_
#define MLXCEL_COMPILER_STORAGE_H_

#include "base/report.h"
#include "compiler/panels.h"
#include "compiler/quantize.h"
#include "compiler/tiles.h"
#include "models/model.h"

// How matrices are stored. "The dtype" is mlx_storage_t.dtype, or with as_stored the dtype of the file.
typedef enum mlx_layout {
  MLX_LAYOUT_ROWS,              // row-major, in the dtype
  MLX_LAYOUT_PANELS,            // CPU panels of 16 rows (kernels/cpu/panel_format.h), in the dtype
  MLX_LAYOUT_QUANTIZED_PANELS,  // CPU panels with the codes of the file if a format holds them, else in the
                                // dtype
  MLX_LAYOUT_TILES,  // GPU tiles (kernels/cuda/tile_format.cuh) with the codes of the file if a tile
                     // format holds them, else row-major in the dtype
} mlx_layout_t;

typedef struct mlx_storage {
  mlx_dtype_t dtype;
  bool as_stored;  // a matrix of bf16 or f16 keeps the dtype of its file
  mlx_layout_t layout;
  mlx_quantize_t quantize;      // applied to matrices with more bits, in the two quantized layouts only
  const mlx_weight_t *weights;  // the model's, to index |tiles|; may be NULL
  const mlx_tiles_t *tiles;     // tile format of each weight; NULL: the one that its own codes need
} mlx_storage_t;

typedef enum mlx_stored_kind {
  MLX_STORED_FLOATS,     // a vector, or a matrix of floats, in the dtype or in its dtype in the file
  MLX_STORED_CODES,      // the integers and scales of the file; nothing is rounded
  MLX_STORED_QUANTIZED,  // integers that mlx_quantize_block chose
} mlx_stored_kind_t;

// How one weight is stored.
typedef struct mlx_stored {
  mlx_stored_kind_t kind;
  mlx_dtype_t dtype;  // of floats. Vectors (norms) stay f32: they are small, and their errors affect every
                      // activation. Column orders are i32
  mlx_panel_format_t format;  // of a matrix in panels
  mlx_tiles_t tiles;          // of a matrix in tiles; the matrices of experts follow each other
  mlx_quantize_t quantize;    // of kind MLX_STORED_QUANTIZED
} mlx_stored_t;
bool mlx_weight_is_quantized(const mlx_weight_t *weight);  // in its file
// Whether it is the matrix of a product or an embedding table. Norms, biases and sinks are none, whatever
// their rank; nor are the weights of experts, which have rank 3.
bool mlx_weight_is_matrix(const mlx_weight_t *weight);
// Whether its values differ from those of the file.
bool mlx_weight_is_changed(const mlx_weight_t *weight);
// Whether it is the matrices of experts: [experts, rows, columns].
bool mlx_weight_is_experts(const mlx_weight_t *weight);
// Whether it is stored in CPU panels: a matrix, or the matrices of experts one after the other.
bool mlx_weight_in_panels(const mlx_weight_t *weight, mlx_layout_t layout);
mlx_stored_t mlx_weight_stored(const mlx_weight_t *weight, mlx_storage_t storage);

// Number of matrices that are stored as |kind|.
size_t mlx_weights_count(const mlx_model_t *model, mlx_storage_t storage, mlx_stored_kind_t kind);
// Reports one note per kind of matrix in the file: how many there are and how they are stored.
void mlx_weights_explain(const mlx_model_t *model, mlx_storage_t storage, const mlx_report_t *report);

#endif  // MLXCEL_COMPILER_STORAGE_H_
