// Tiles: quantized matrices as the GPU kernels read them, 8 rows x 128 columns together
// (kernels/cuda/decode_tiles.cuh describes the layout).
#ifndef MLXCEL_COMPILER_TILES_H_
#define MLXCEL_COMPILER_TILES_H_

#include <stdbool.h>
#include <stdint.h>

#include "compiler/panels.h"

#define MLX_TILE_ROWS 8
#define MLX_TILE_COLUMNS 128

typedef struct mlx_tiles {
  int bits;     // per code: 4 or 8; 0: no tile format
  bool wide;    // scales and offsets are f32; else f16
  bool offset;  // each 32 columns have an offset
  bool halves;  // each 16 columns have a scale; else each 32
  int center;   // added to a 4-bit code when it is stored
} mlx_tiles_t;

// The tile format that holds the same values as panels of |format|; bits is 0 if there is none.
mlx_tiles_t mlx_tiles_of(mlx_panel_format_t format);

bool mlx_tiles_equal(mlx_tiles_t a, mlx_tiles_t b);
// The narrowest tile format that holds the values of both.
mlx_tiles_t mlx_tiles_for_both(mlx_tiles_t a, mlx_tiles_t b);

double mlx_tiles_bits(mlx_tiles_t tiles);  // per weight, scales and offsets included

// Bytes of a matrix. |columns| is a multiple of 32; a row count below 8 gives the size of one tile row.
uint64_t mlx_tiles_bytes(mlx_tiles_t tiles, int64_t rows, int64_t columns);

// Writes block |nth| of row |row| into eight rows that the caller zeroed. Codes above 127 are stored minus
// 128, and the offset grows accordingly. That offset, rounded to f32, is the only value that may change.
void mlx_tiles_put(mlx_tiles_t tiles, const mlx_codes_t *codes, int64_t row, int64_t nth, uint8_t *out);

// "4,0,1,0,0": the template arguments of the kernels.
#define MLX_TILES_FORMAT "%d,%d,%d,%d,%d"
#define MLX_TILES_ARGUMENTS(tiles) (tiles).bits, (tiles).wide, (tiles).offset, (tiles).halves, (tiles).center

#endif  // MLXCEL_COMPILER_TILES_H_
