// Tiles hold exactly the values of the file, at the positions that the GPU kernels read.
#include "compiler/tiles.h"

#include "tests/check.h"
#include "tests/random_gguf.h"

#define COLUMNS 768  // six tiles, and blocks of 256

// Element (row, column) of the eight rows at |tiles|, located as docs/internals/cuda-kernels.md describes: by
// lane, piece and pair.
static float element(mlx_tiles_t t, const uint8_t *tiles, int row, int column) {
  const size_t number = t.wide ? 4 : 2, codes = 128 * (size_t)t.bits,
               scales = 32 * (size_t)(1 + t.halves) * number;
  const uint8_t *tile = tiles + (size_t)(column / 128) * (codes + scales + (t.offset ? 32 * number : 0));
  const int piece = column % 128 / 32, half = column % 32 / 16, within = column % 16;
  const int lane = 4 * row + within % 8 / 2, pair = within / 8 * 2 + half, odd = within % 2;
  uint32_t word;
  int code;
  if (t.bits == 4) {
    memcpy(&word, tile + lane * 16 + piece * 4, 4);
    code = (int)(word >> 4 * (pair + 4 * odd) & 15) - t.center;
  } else {
    memcpy(&word, tile + piece / 2 * 512 + lane * 16 + piece % 2 * 8 + pair / 2 * 4, 4);
    code = (int8_t)(word >> 8 * (pair % 2 + 2 * odd));
  }
  const mlx_dtype_info_t *info = mlx_dtype_info(t.wide ? MLX_F32 : MLX_F16);
  float scale, offset = 0;
  info->to_f32(tile + codes + (size_t)((row * 4 + piece) * (1 + t.halves) + (t.halves ? half : 0)) * number,
               1, &scale);
  if (t.offset) info->to_f32(tile + codes + scales + (size_t)(row * 4 + piece) * number, 1, &offset);
  const float product = scale * (float)code;
  return product + offset;
}

static void check_type(const random_packed_t *type, mlx_tiles_t tiles) {
  static uint8_t rows[MLX_TILE_ROWS][8192], out[65536];
  static float expected[COLUMNS];
  const mlx_dtype_info_t *info = mlx_dtype_info(type->dtype);
  const uint64_t bytes = mlx_tiles_bytes(tiles, MLX_TILE_ROWS, COLUMNS);
  uint64_t state = 5;
  CHECK(bytes <= sizeof out);
  memset(out, 0, sizeof out);
  for (int row = 0; row < MLX_TILE_ROWS; ++row) {
    for (size_t i = 0; i < COLUMNS / info->block_elements; ++i)
      random_block(type, &state, rows[row] + i * info->block_bytes);
    for (int64_t nth = 0; nth < COLUMNS / MLX_CODES; ++nth) {
      mlx_codes_t codes;
      CHECK(mlx_codes_read(type->dtype, rows[row], (size_t)nth, &codes));
      mlx_tiles_put(tiles, &codes, row, nth, out);
    }
  }
  for (int row = 0; row < MLX_TILE_ROWS; ++row) {
    info->to_f32(rows[row], COLUMNS / info->block_elements, expected);
    for (int column = 0; column < COLUMNS; ++column) {
      const float value = element(tiles, out, row, column);
      if (value != expected[column])
        CHECK_FAIL("%s: element (%d, %d) is %g, expected %g", info->name, row, column, (double)value,
                   (double)expected[column]);
    }
  }
}

TEST(tiles_hold_the_dequantized_values_of_each_type) {
  int held = 0;
  for (size_t i = 0; i < RANDOM_PACKED_TYPES; ++i) {
    const mlx_tiles_t tiles = mlx_tiles_of(mlx_dtype_info(random_packed_types[i].dtype)->panel);
    if (!tiles.bits) continue;  // Q2_K: each half has its own offset
    check_type(&random_packed_types[i], tiles);
    ++held;
  }
  CHECK_INT(held, RANDOM_PACKED_TYPES - 1);
}

TEST(common_tile_format_holds_the_values_of_both_types) {
  for (size_t i = 0; i < RANDOM_PACKED_TYPES; ++i) {
    for (size_t k = 0; k < RANDOM_PACKED_TYPES; ++k) {
      const mlx_panel_format_t a = mlx_dtype_info(random_packed_types[i].dtype)->panel,
                               b = mlx_dtype_info(random_packed_types[k].dtype)->panel;
      if (!mlx_tiles_of(a).bits || !mlx_tiles_of(b).bits) continue;
      const mlx_tiles_t both = mlx_tiles_for_both(mlx_tiles_of(a), mlx_tiles_of(b));
      CHECK(mlx_tiles_equal(both, mlx_tiles_for_both(mlx_tiles_of(b), mlx_tiles_of(a))));
      check_type(&random_packed_types[i], both);
    }
  }
}

// MLX's 8-bit codes go up to 255. Tiles store them minus 128 and add the difference to the offset.
TEST(codes_above_127_keep_their_value) {
  static uint8_t out[4096];
  const mlx_tiles_t tiles = mlx_tiles_of(MLX_PANEL_Q8_BF16);
  mlx_codes_t codes = {.scale = {0.0078125f, 0.0078125f}, .offset = {-1.0f, -1.0f}};
  CHECK(tiles.bits == 8 && tiles.wide && tiles.offset);
  for (int i = 0; i < MLX_CODES; ++i) codes.code[i] = (int16_t)(8 * i + 7);
  mlx_tiles_put(tiles, &codes, 3, 1, out);
  for (int i = 0; i < MLX_CODES; ++i)
    CHECK(element(tiles, out, 3, 32 + i) == codes.scale[0] * (float)codes.code[i] - 1.0f);
}

// The last tile of a row and the last row of tiles are padded.
TEST(matrix_size_counts_whole_tiles) {
  const mlx_tiles_t q4_0 = mlx_tiles_of(MLX_PANEL_Q4_0), halves = mlx_tiles_of(MLX_PANEL_Q8_HALVES);
  CHECK_INT(mlx_tiles_bytes(q4_0, 8, 128), 576);
  CHECK_INT(mlx_tiles_bytes(q4_0, 9, 160), 4 * 576);
  CHECK_INT(mlx_tiles_bytes(halves, 8, 128), 1024 + 256);
  CHECK(mlx_tiles_bits(q4_0) == 4.5);
}

TEST_MAIN(CASE(tiles_hold_the_dequantized_values_of_each_type),
          CASE(common_tile_format_holds_the_values_of_both_types), CASE(codes_above_127_keep_their_value),
          CASE(matrix_size_counts_whole_tiles))
