// Tiles: packed matrices as the GPU's kernels read them, 8 rows x 128 columns together
// (kernels/cuda/decode_tiles.cuh has the layout).
#ifndef MLXCEL_COMPILER_TILES_H_
#define MLXCEL_COMPILER_TILES_H_

#include <stdbool.h>
#include <stdint.h>

#include "compiler/panels.h"

#define MLX_TILE_ROWS 8
#define MLX_TILE_COLUMNS 128

typedef struct mlx_tiles {
  int bits;     // of a code, 4 or 8; 0: no tiles
  bool wide;    // scales and offsets are f32, else f16
  bool offset;  // of 32 columns
  bool halves;  // 16 columns have a scale of their own, else 32
  int center;   // so much more is stored than a code means, when it has 4 bits
} mlx_tiles_t;

// Tiles that hold what panels of |format| hold, without bits where there are none.
mlx_tiles_t mlx_tiles_of(mlx_panel_format_t format);

bool mlx_tiles_equal(mlx_tiles_t a, mlx_tiles_t b);
// Tiles that hold what either does.
mlx_tiles_t mlx_tiles_for_both(mlx_tiles_t a, mlx_tiles_t b);

double mlx_tiles_bits(mlx_tiles_t tiles);  // of a weight, scales and offsets included

// Of a matrix, and of the eight rows that are together; |columns| are a multiple of 32.
uint64_t mlx_tiles_bytes(mlx_tiles_t tiles, int64_t rows, int64_t columns);

// Puts block |nth| of row |row|, of eight rows that were zero before. A code above 127 becomes smaller and
// the offset larger: the only thing that may be rounded, to f32.
void mlx_tiles_put(mlx_tiles_t tiles, const mlx_codes_t *codes, int64_t row, int64_t nth, uint8_t *out);

// "4,0,1,0,0": what the kernels' template is told.
#define MLX_TILES_FORMAT "%d,%d,%d,%d,%d"
#define MLX_TILES_ARGUMENTS(tiles) (tiles).bits, (tiles).wide, (tiles).offset, (tiles).halves, (tiles).center

#endif  // MLXCEL_COMPILER_TILES_H_
