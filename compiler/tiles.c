// Tile formats for the GPU kernels, and writing rows into tiles.
#include "compiler/tiles.h"

#include <string.h>

#define BLOCK MLX_CODES
#define BLOCKS (MLX_TILE_COLUMNS / BLOCK)  // per row of a tile

mlx_tiles_t mlx_tiles_of(mlx_panel_format_t format) {
  const mlx_panel_info_t *info = mlx_panel_info(format);
  if (!info->code_bits || info->offsets > 1) return (mlx_tiles_t){0};
  // mlx_tiles_put shifts unsigned bytes, which changes their offset; f16 might not hold the new one.
  const bool unsigned_bytes = info->code_bits == 8 && info->least_code == 0;
  return (mlx_tiles_t){.bits = info->code_bits,
                       .wide = info->number != MLX_F16 || info->grouped || unsigned_bytes,
                       .offset = info->offsets,
                       .halves = info->scales == 2,
                       .center = info->code_bits == 4 ? -info->least_code : 0};
}

bool mlx_tiles_equal(mlx_tiles_t a, mlx_tiles_t b) {
  return a.bits == b.bits && a.wide == b.wide && a.offset == b.offset && a.halves == b.halves &&
         a.center == b.center;
}

mlx_tiles_t mlx_tiles_for_both(mlx_tiles_t a, mlx_tiles_t b) {
  const bool bytes = a.bits == 8 || b.bits == 8 || a.center != b.center;
  return (mlx_tiles_t){.bits = bytes ? 8 : 4,
                       .wide = a.wide || b.wide,
                       .offset = a.offset || b.offset,
                       .halves = a.halves || b.halves,
                       .center = bytes ? 0 : a.center};
}

static int64_t number_bytes(mlx_tiles_t tiles) { return tiles.wide ? 4 : 2; }
static int64_t code_bytes(mlx_tiles_t tiles) { return MLX_TILE_ROWS * MLX_TILE_COLUMNS * tiles.bits / 8; }

static int64_t tile_bytes(mlx_tiles_t tiles) {
  return code_bytes(tiles) + MLX_TILE_ROWS * BLOCKS * number_bytes(tiles) * (1 + tiles.halves + tiles.offset);
}

double mlx_tiles_bits(mlx_tiles_t tiles) {
  return (double)tile_bytes(tiles) * 8 / (MLX_TILE_ROWS * MLX_TILE_COLUMNS);
}

uint64_t mlx_tiles_bytes(mlx_tiles_t tiles, int64_t rows, int64_t columns) {
  const int64_t down = (rows + MLX_TILE_ROWS - 1) / MLX_TILE_ROWS,
                across = (columns + MLX_TILE_COLUMNS - 1) / MLX_TILE_COLUMNS;
  return (uint64_t)down * (uint64_t)across * (uint64_t)tile_bytes(tiles);
}

static void put_number(mlx_tiles_t tiles, uint8_t *numbers, int64_t nth, float value) {
  mlx_dtype_info(tiles.wide ? MLX_F32 : MLX_F16)->from_f32(&value, 1, numbers + nth * number_bytes(tiles));
}

// Stores one code in the order of mma fragments. Lane 4 * row + quad holds four pairs of columns of a block.
// Pair half + 2 * i (half and i are 0 or 1) is columns 16 * half + 8 * i + 2 * quad and the next one.
static void put_code(mlx_tiles_t tiles, uint8_t *tile, int64_t row, int64_t block, int column, int code) {
  const int half = column / 16, quad = column / 2 % 4, pair = half + column / 8 % 2 * 2, odd = column % 2;
  uint8_t *lane = tile + (row * 4 + quad) * 16;
  if (tiles.bits == 8) {
    lane[block / 2 * 512 + block % 2 * 8 + pair / 2 * 4 + pair % 2 + odd * 2] = (uint8_t)code;
  } else {
    lane[block * 4 + pair / 2 + odd * 2] |= (uint8_t)((code + tiles.center) << pair % 2 * 4);
  }
}

void mlx_tiles_put(mlx_tiles_t tiles, const mlx_codes_t *codes, int64_t row, int64_t nth, uint8_t *out) {
  const int64_t block = nth % BLOCKS, at = row * BLOCKS + block;
  uint8_t *tile = out + nth / BLOCKS * tile_bytes(tiles), *scales = tile + code_bytes(tiles);
  uint8_t *offsets = scales + MLX_TILE_ROWS * BLOCKS * number_bytes(tiles) * (1 + tiles.halves);
  int shift = 0;
  for (int i = 0; i < BLOCK; ++i) {
    if (codes->code[i] > 127) shift = 128;
  }
  for (int i = 0; i < BLOCK; ++i) put_code(tiles, tile, row, block, i, codes->code[i] - shift);
  for (int i = 0; i <= tiles.halves; ++i)
    put_number(tiles, scales, at * (1 + tiles.halves) + i, codes->scale[i]);
  if (tiles.offset)
    put_number(tiles, offsets, at, (float)(codes->offset[0] + (double)shift * codes->scale[0]));
}
