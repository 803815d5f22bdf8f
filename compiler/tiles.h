// Tiles: quantized matrices as the GPU kernels read them, 8 rows x 128 columns together
// (docs/internals/quantized-tiles.md describes the layout, kernels/cuda/tile_format.cuh reads it).
#ifndef MLXCEL_COMPILER_TILES_H_
#define MLXCEL_COMPILER_TILES_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "graph/codes.h"
#include "kernels/kernel_tables.h"
#include "models/import/packing.h"

#define MLX_TILE_ROWS 8
#define MLX_TILE_COLUMNS 128
#define MLX_TILE_BLOCKS (MLX_TILE_COLUMNS / MLX_CODES)  // in a row of a tile

// How scales and offsets are stored.
typedef enum mlx_tile_numbers {
#define NUMBERS_ENUMERATOR(name, text) MLX_TILE_##name,
  MLX_TILE_NUMBERS_TABLE(NUMBERS_ENUMERATOR)
#undef NUMBERS_ENUMERATOR
} mlx_tile_numbers_t;

typedef struct mlx_tiles {
  int bits;                    // per code: 2 to 6 or 8; 0: no tile format
  mlx_tile_numbers_t numbers;  // of scales and offsets
  int offset;                  // offsets of each 32 columns: 0, 1, or 2 (one for each 16)
  bool halves;                 // each 16 columns have a scale; else each 32
  int center;  // added to a code when it is stored, or a table (MLX_TILE_E2M1). 0 with 8 bits, which are signed
} mlx_tiles_t;

// The tile format that holds the values of a type or of a quantized checkpoint matrix; bits is 0 if there is
// none.
mlx_tiles_t mlx_tiles_of(mlx_dtype_t dtype);
mlx_tiles_t mlx_tiles_of_packing(const mlx_packing_t *packing);

bool mlx_tiles_equal(mlx_tiles_t a, mlx_tiles_t b);
// A tile format that holds the values of both: the same one if they are equal, else a wider one.
mlx_tiles_t mlx_tiles_for_both(mlx_tiles_t a, mlx_tiles_t b);

double mlx_tiles_bits(mlx_tiles_t tiles);  // per weight, scales and offsets included
// Text for users: "4-bit codes, scale and offset in f16".
void mlx_tiles_describe(mlx_tiles_t tiles, char *out, size_t size);

// Bytes of a matrix. |columns| is a multiple of 32; a row count below 8 gives the size of one tile row.
uint64_t mlx_tiles_bytes(mlx_tiles_t tiles, int64_t rows, int64_t columns);

// Writes row |row| of tile |nth| of eight rows: |count| blocks, at most MLX_TILE_BLOCKS. The caller zeroed
// what it does not write: the numbers of missing blocks, and missing rows. Codes above 127 are stored minus
// 128, and the offset grows accordingly. That offset, rounded to f32, is the only value that may change.
void mlx_tiles_put(mlx_tiles_t tiles, const mlx_codes_t *codes, int count, int64_t row, int64_t nth,
                   uint8_t *out);
// The same for a row as it is in a file, in tiles of its own type (mlx_tiles_of), without converting its
// numbers. False for numbers that are not finite or (MXFP4) need other codes; the row of the tile is then
// undefined.
bool mlx_tiles_copy(mlx_dtype_t dtype, const uint8_t *row_bytes, int count, int64_t row, int64_t nth,
                    uint8_t *out);
// The same for a row of an MXFP4 matrix of a Hugging Face directory: its scales, and its codes (packing.h).
bool mlx_tiles_copy_mxfp4(const uint8_t *scales, const uint8_t *codes, int count, int64_t row, int64_t nth,
                          uint8_t *out);

// "4,0,1,0,0": the template arguments of the kernels.
#define MLX_TILES_FORMAT "%d,%d,%d,%d,%d"
#define MLX_TILES_ARGUMENTS(tiles) \
  (tiles).bits, (int)(tiles).numbers, (tiles).offset, (int)(tiles).halves, (tiles).center

#endif  // MLXCEL_COMPILER_TILES_H_
