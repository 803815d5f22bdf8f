// Tiles hold exactly the values of the file, at the positions that the GPU kernels read.
#include "compiler/tiles.h"

#include <math.h>

#include "graph/kquants.h"
#include "tests/support/check.h"
#include "tests/support/random_gguf.h"

#define COLUMNS 768  // six tiles, and blocks of 256

// Bits [at, at + count) of half |odd| of word |nth| that |lane| owns.
static int bits_at(const uint8_t *tile, int bits, int lane, int nth, int odd, int at, int count) {
  const int first = bits < 4 ? 2 : 4;  // words of a lane in the first run
  const uint8_t *word = nth < first ? tile + 4 * (lane * first + nth)
                                    : tile + 128 * first + 4 * (lane * (bits - first) + nth - first);
  return (word[2 * odd] | word[2 * odd + 1] << 8) >> at & ((1 << count) - 1);
}

// The stored code of pair |pair| of a piece.
static int code_at(mlx_tiles_t t, const uint8_t *tile, int lane, int piece, int pair, int odd) {
  const int each = t.bits ? 16 / t.bits : 0, nth = 4 * piece + pair, left = nth - each * t.bits;
  if (t.bits == 8)
    return (int8_t)tile[piece / 2 * 512 + lane * 16 + piece % 2 * 8 + pair / 2 * 4 + pair % 2 + odd * 2];
  if (left < 0) return bits_at(tile, t.bits, lane, nth / each, odd, nth % each * t.bits, t.bits);
  if (t.bits == 6) {
    return bits_at(tile, 6, lane, left, odd, 12, 4) |
           bits_at(tile, 6, lane, 4 + left / 2, odd, 12 + left % 2 * 2, 2) << 4;
  }
  int code = 0;
  for (int i = 0; i < t.bits; ++i) code |= bits_at(tile, t.bits, lane, i, odd, 15, 1) << i;
  return code;
}

static float code_value(mlx_tiles_t t, int stored) {
  if (t.center == MLX_TILE_E2M1) return (float)mlx_mxfp4_doubled[stored] / 2;
  if (t.center == MLX_TILE_IQ4) return mlx_iq4_values[stored];
  return (float)(stored - t.center);
}

static float half_at(const uint8_t *at) {
  float value;
  mlx_dtype_info(MLX_F16)->to_f32(at, 1, &value);
  return value;
}

// Scale (|offset| 0) or offset of 16 columns. |codes|: bytes of the codes of a tile, |bytes|: of a tile.
static float number_at(mlx_tiles_t t, const uint8_t *tile, size_t codes, size_t bytes, int nth, int row,
                       int piece, int half, int offset) {
  static const mlx_dtype_t types[] = {MLX_F16, MLX_F32, MLX_BF16};
  const uint8_t *numbers = tile + codes;
  const size_t each = t.halves ? 2 : 1,
               at = ((size_t)row * 4 + (size_t)piece) * each + (t.halves ? (size_t)half : 0);
  // Of two tiles, the first has the f16 number of the scales and the second that of the offsets.
  const uint8_t *shared = t.numbers == MLX_TILE_K8 ? tile
                          : nth % 2 == offset      ? tile
                          : nth % 2                ? tile - bytes
                                                   : tile + bytes;
  float value;
  switch (t.numbers) {
    case MLX_TILE_E8M0: return ldexpf(1, numbers[at] - 127);
    case MLX_TILE_K6: {
      const int minimum =
          (numbers[row * 8 + 4 + piece / 2] >> piece % 2 * 4 & 15) | numbers[row * 8 + piece] >> 6 << 4;
      return half_at(shared + codes + row * 8 + 6) *
             (float)(offset ? minimum : numbers[row * 8 + piece] & 63);
    }
    case MLX_TILE_K4: return half_at(shared + codes + 64 + row * 2) * (float)(numbers[at] >> offset * 4 & 15);
    case MLX_TILE_K8:
      return half_at(shared + codes + 32 * each + (size_t)row * 2) * (float)(numbers[at] - 128);
    default: break;
  }
  const mlx_dtype_info_t *info = mlx_dtype_info(types[t.numbers]);
  const size_t offset_at =
      ((size_t)row * 4 + (size_t)piece) * (size_t)t.offset + (t.offset == 2 ? (size_t)half : 0);
  info->to_f32(
      offset ? numbers + (32 * each + offset_at) * info->block_bytes : numbers + at * info->block_bytes, 1,
      &value);
  return value;
}

// Element (row, column) of the eight rows at |tiles|, located as docs/internals/quantized-tiles.md describes:
// by lane, piece and pair.
static float element(mlx_tiles_t t, const uint8_t *tiles, int row, int column) {
  const size_t bytes = (size_t)mlx_tiles_bytes(t, MLX_TILE_ROWS, MLX_TILE_COLUMNS),
               codes = 128 * (size_t)t.bits;
  const uint8_t *tile = tiles + (size_t)(column / 128) * bytes;
  const int piece = column % 128 / 32, half = column % 32 / 16, within = column % 16;
  const int lane = 4 * row + within % 8 / 2, pair = within / 8 * 2 + half;
  const float code = code_value(t, code_at(t, tile, lane, piece, pair, within % 2));
  const float product = number_at(t, tile, codes, bytes, column / 128, row, piece, half, 0) * code;
  return t.offset ? product + number_at(t, tile, codes, bytes, column / 128, row, piece, half, 1) : product;
}

#define MAX_ROW 8192

// Fills |rows| with random blocks of |type| and writes their codes into |tiles|, which has zeros.
static void put_random_rows(const random_packed_t *type, mlx_tiles_t tiles, uint64_t seed,
                            uint8_t rows[MLX_TILE_ROWS][MAX_ROW], uint8_t *out) {
  const mlx_dtype_info_t *info = mlx_dtype_info(type->dtype);
  for (int row = 0; row < MLX_TILE_ROWS; ++row) {
    for (size_t i = 0; i < COLUMNS / info->block_elements; ++i)
      random_block(type, &seed, rows[row] + i * info->block_bytes);
    for (int64_t nth = 0; nth < COLUMNS / MLX_TILE_COLUMNS; ++nth) {
      mlx_codes_t codes[MLX_TILE_BLOCKS];
      for (int i = 0; i < MLX_TILE_BLOCKS; ++i)
        CHECK(mlx_codes_read(type->dtype, rows[row], (size_t)nth * MLX_TILE_BLOCKS + (size_t)i, &codes[i]));
      mlx_tiles_put(tiles, codes, MLX_TILE_BLOCKS, row, nth, out);
    }
  }
}

static void check_type(const random_packed_t *type, mlx_tiles_t tiles) {
  static uint8_t rows[MLX_TILE_ROWS][MAX_ROW], out[65536];
  static float expected[COLUMNS];
  const mlx_dtype_info_t *info = mlx_dtype_info(type->dtype);
  const uint64_t bytes = mlx_tiles_bytes(tiles, MLX_TILE_ROWS, COLUMNS);
  CHECK(bytes <= sizeof out);
  memset(out, 0, sizeof out);
  put_random_rows(type, tiles, 5, rows, out);
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
    const mlx_tiles_t tiles = mlx_tiles_of(random_packed_types[i].dtype);
    check_type(&random_packed_types[i], tiles);
    held += tiles.bits > 0;
  }
  CHECK_INT(held, RANDOM_PACKED_TYPES);
}

TEST(copied_blocks_have_the_same_bytes_as_stored_codes) {
  static uint8_t rows[MLX_TILE_ROWS][MAX_ROW], stored[65536], copied[65536];
  for (size_t t = 0; t < RANDOM_PACKED_TYPES; ++t) {
    const mlx_dtype_t dtype = random_packed_types[t].dtype;
    memset(stored, 0, sizeof stored);
    memset(copied, 0, sizeof copied);
    memset(copied, 255, mlx_tiles_bytes(mlx_tiles_of(dtype), MLX_TILE_ROWS, COLUMNS));  // all is written
    put_random_rows(&random_packed_types[t], mlx_tiles_of(dtype), 7, rows, stored);
    for (int row = 0; row < MLX_TILE_ROWS; ++row) {
      for (int64_t nth = 0; nth < COLUMNS / MLX_TILE_COLUMNS; ++nth)
        CHECK(mlx_tiles_copy(dtype, rows[row], MLX_TILE_BLOCKS, row, nth, copied));
    }
    if (memcmp(stored, copied, sizeof stored)) CHECK_FAIL("%s differs", mlx_dtype_info(dtype)->name);
  }
}

// MXFP4 of a Hugging Face directory. The exponent 255 needs other codes, so it is not copied.
TEST(mxfp4_with_adjacent_codes_is_copied) {
  uint8_t scales[4] = {0, 127, 200, 254}, bytes[4][16], stored[1024] = {0}, copied[1024] = {0};
  mlx_tensor_t codes_part = {.data = bytes[0]}, scales_part = {.data = scales};
  const mlx_packing_t packing = {.kind = MLX_PACKED_MXFP4,
                                 .columns = 128,
                                 .parts = {[MLX_PART_CODES] = &codes_part, [MLX_PART_SCALES] = &scales_part}};
  mlx_codes_t codes[4];
  uint64_t seed = 9;
  for (int i = 0; i < 64; ++i) bytes[i / 16][i % 16] = (uint8_t)(random_bits(&seed) >> 8);
  bytes[0][0] = 0x88;  // -0 twice
  for (int i = 0; i < 4; ++i) mlx_packing_codes(&packing, 0, i, &codes[i]);
  mlx_tiles_put(mlx_tiles_of(MLX_MXFP4), codes, 4, 6, 0, stored);
  CHECK(mlx_tiles_copy_mxfp4(scales, bytes[0], 4, 6, 0, copied));
  CHECK(!memcmp(stored, copied, sizeof stored));
  scales[3] = 255;
  CHECK(!mlx_tiles_copy_mxfp4(scales, bytes[0], 4, 6, 0, copied));
}

// A row of 96 columns leaves the last block of its tile as the caller zeroed it.
TEST(blocks_that_a_tile_does_not_have_are_zero) {
  static uint8_t row[MLX_TILE_BLOCKS * 34], stored[2048], copied[2048];
  for (size_t t = 0; t < RANDOM_PACKED_TYPES; ++t) {
    const random_packed_t *type = &random_packed_types[t];
    const mlx_dtype_info_t *info = mlx_dtype_info(type->dtype);
    const mlx_tiles_t tiles = mlx_tiles_of(type->dtype);
    mlx_codes_t codes[MLX_TILE_BLOCKS];
    uint64_t seed = 3;
    if (info->block_elements != MLX_CODES) continue;
    memset(stored, 0, sizeof stored);
    memset(copied, 0, sizeof copied);
    for (int i = 0; i < 3; ++i) {
      random_block(type, &seed, row + (size_t)i * info->block_bytes);
      CHECK(mlx_codes_read(type->dtype, row, (size_t)i, &codes[i]));
    }
    mlx_tiles_put(tiles, codes, 3, 2, 0, stored);
    for (int column = 96; column < 128 && tiles.center >= 0; ++column)
      CHECK_INT(
          code_at(tiles, stored, 8 + column % 8 / 2, 3, column % 32 / 16 + column / 8 % 2 * 2, column % 2),
          0);
    for (int half = 0; half < 2 && tiles.numbers <= MLX_TILE_BF16; ++half)
      CHECK(number_at(tiles, stored, 128 * (size_t)tiles.bits, 0, 0, 2, 3, half, 0) == 0);
    CHECK(mlx_tiles_copy(type->dtype, row, 3, 2, 0, copied));
    CHECK(!memcmp(stored, copied, sizeof stored));
  }
}

TEST(blocks_with_a_number_that_is_not_finite_are_not_copied) {
  static const struct {
    mlx_dtype_t dtype;
    int at;  // the high byte of an f16 number
  } numbers[] = {{MLX_Q4_0, 1},   {MLX_Q4_1, 1},   {MLX_Q4_1, 3},   {MLX_Q5_0, 1},
                 {MLX_Q5_1, 3},   {MLX_Q8_0, 1},   {MLX_Q2_K, 81},  {MLX_Q2_K, 83},
                 {MLX_Q3_K, 109}, {MLX_Q4_K, 1},   {MLX_Q4_K, 3},   {MLX_Q5_K, 1},
                 {MLX_Q5_K, 3},   {MLX_Q6_K, 209}, {MLX_IQ4_NL, 1}, {MLX_IQ4_XS, 1}};
  static const uint8_t high[] = {0x7c, 0x7e, 0xfc};  // infinity, NaN, negative infinity
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; ++i) {
    const mlx_dtype_info_t *info = mlx_dtype_info(numbers[i].dtype);
    uint8_t row[MLX_TILE_BLOCKS * 210] = {0}, out[2048];
    const int count = info->block_elements == MLX_CODES ? 1 : MLX_TILE_BLOCKS;
    CHECK(mlx_tiles_copy(numbers[i].dtype, row, count, 0, 0, out));
    for (size_t k = 0; k < sizeof high; ++k) {
      row[numbers[i].at] = high[k];
      CHECK(!mlx_tiles_copy(numbers[i].dtype, row, count, 0, 0, out));
    }
  }
}

// A type takes no more memory than in its file, or an eighth of a bit more.
TEST(tiles_have_the_size_of_the_file) {
  for (size_t i = 0; i < RANDOM_PACKED_TYPES; ++i) {
    const mlx_dtype_t dtype = random_packed_types[i].dtype;
    const double bits = mlx_tiles_bits(mlx_tiles_of(dtype)), in_file = mlx_dtype_bits(dtype);
    if (bits > in_file + (dtype == MLX_Q3_K ? 0.1875 : 0.125))
      CHECK_FAIL("%s: %g bits per weight, %g in the file", mlx_dtype_info(dtype)->name, bits, in_file);
    CHECK(mlx_tiles_bytes(mlx_tiles_of(dtype), 8, 128) % 16 == 0);  // lanes load 16 bytes
  }
  CHECK(mlx_tiles_bits(mlx_tiles_of(MLX_Q4_K)) == 4.5);
  CHECK(mlx_tiles_bits(mlx_tiles_of(MLX_Q6_K)) == 6.625);
  CHECK(mlx_tiles_bits(mlx_tiles_of(MLX_MXFP4)) == 4.25);
}

TEST(tiles_are_described_for_users) {
  static const struct {
    mlx_dtype_t dtype;
    const char *text;
  } expected[] = {{MLX_Q4_0, "4-bit codes, a scale in f16"},
                  {MLX_Q5_1, "5-bit codes, scale and offset in f16"},
                  {MLX_Q4_K, "4-bit codes, scale and offset of 6 bits times f16"},
                  {MLX_Q6_K, "6-bit codes, two scales of 8 bits times f16"},
                  {MLX_Q2_K, "2-bit codes, two scales and offsets of 4 bits times f16"},
                  {MLX_IQ4_NL, "4-bit table indices, a scale in f16"},
                  {MLX_MXFP4, "4-bit floats, a scale that is a power of two"}};
  for (size_t i = 0; i < sizeof expected / sizeof *expected; ++i) {
    char text[80];
    mlx_tiles_describe(mlx_tiles_of(expected[i].dtype), text, sizeof text);
    CHECK_TEXT(text, expected[i].text);
  }
}

// All exponents of MXFP4, also the two whose half scale is subnormal. 255 has no f32 number of its own.
TEST(mxfp4_keeps_every_exponent) {
  const mlx_tiles_t tiles = mlx_tiles_of(MLX_MXFP4);
  const mlx_dtype_info_t *info = mlx_dtype_info(MLX_MXFP4);
  for (int e = 0; e < 256; ++e) {
    static uint8_t out[1024];
    uint8_t block[17] = {(uint8_t)e};
    float expected[MLX_CODES];
    mlx_codes_t codes[3];
    for (int i = 0; i < 16; ++i) block[1 + i] = (uint8_t)(i | (15 - i) << 4);
    memset(out, 0, sizeof out);
    for (int i = 0; i < 3; ++i) CHECK(mlx_codes_read(MLX_MXFP4, block, 0, &codes[i]));
    mlx_tiles_put(tiles, codes, 3, 5, 0, out);
    info->to_f32(block, 1, expected);
    for (int i = 0; i < MLX_CODES; ++i) CHECK(element(tiles, out, 5, 64 + i) == expected[i]);
  }
}

TEST(common_tile_format_holds_the_values_of_both_types) {
  for (size_t i = 0; i < RANDOM_PACKED_TYPES; ++i) {
    for (size_t k = 0; k < RANDOM_PACKED_TYPES; ++k) {
      const mlx_tiles_t a = mlx_tiles_of(random_packed_types[i].dtype),
                        b = mlx_tiles_of(random_packed_types[k].dtype), both = mlx_tiles_for_both(a, b);
      CHECK(mlx_tiles_equal(both, mlx_tiles_for_both(b, a)));
      check_type(&random_packed_types[i], both);
    }
  }
}

static mlx_tiles_t mlx_packing(int bits, mlx_dtype_t scales, mlx_dtype_t offsets) {
  const mlx_tensor_t s = {.dtype = scales}, o = {.dtype = offsets};
  const mlx_packing_t packing = {.kind = MLX_PACKED_MLX,
                                 .bits = bits,
                                 .group = 64,
                                 .parts = {[MLX_PART_SCALES] = &s, [MLX_PART_OFFSETS] = &o}};
  return mlx_tiles_of_packing(&packing);
}

TEST(mlx_codes_of_each_width_keep_their_value) {
  static const int widths[] = {2, 3, 4, 5, 6, 8};
  for (size_t i = 0; i < sizeof widths / sizeof *widths; ++i) {
    static uint8_t out[4096];
    const int bits = widths[i];
    const mlx_tiles_t tiles = mlx_packing(bits, MLX_BF16, MLX_BF16);
    mlx_codes_t codes[4];
    CHECK_INT(tiles.bits, bits);
    CHECK(bits == 8 || mlx_tiles_bits(tiles) == bits + 1.0);
    memset(out, 0, sizeof out);
    for (int k = 0; k < MLX_TILE_COLUMNS; ++k) {
      mlx_codes_t *c = &codes[k / MLX_CODES];
      c->scale[0] = c->scale[1] = 0.0078125f;
      c->offset[0] = c->offset[1] = -1.5f;
      c->code[k % MLX_CODES] = (int16_t)((k % MLX_CODES * 7 + k / MLX_CODES * 5) & ((1 << bits) - 1));
    }
    mlx_tiles_put(tiles, codes, 4, 6, 0, out);
    for (int k = 0; k < MLX_TILE_COLUMNS; ++k) {
      const int16_t code = codes[k / MLX_CODES].code[k % MLX_CODES];
      CHECK(element(tiles, out, 6, k) == 0.0078125f * (float)code - 1.5f);
    }
  }
  CHECK(mlx_packing(4, MLX_F16, MLX_F16).numbers == MLX_TILE_F16);
  CHECK(mlx_packing(4, MLX_F16, MLX_BF16).numbers == MLX_TILE_F32);
}

// A matrix of GPTQ with 8 rows and 128 columns, one group. |zeros|: the stored zero points of all rows.
static void check_gptq(mlx_dtype_t scales, uint32_t zeros, double bits) {
  static uint32_t words[16][MLX_TILE_ROWS];
  static uint8_t numbers[MLX_TILE_ROWS * 4], out[1024];
  static float expected[MLX_TILE_ROWS][MLX_TILE_COLUMNS];
  const mlx_dtype_info_t *type = mlx_dtype_info(scales);
  const mlx_tensor_t parts[] = {{.dtype = MLX_I32, .data = (const uint8_t *)words},
                                {.dtype = scales, .data = numbers},
                                {.dtype = MLX_I32, .data = (const uint8_t *)&zeros}};
  mlx_packing_t packing = {.kind = MLX_PACKED_GPTQ,
                           .bits = 4,
                           .rows = MLX_TILE_ROWS,
                           .columns = MLX_TILE_COLUMNS,
                           .group = MLX_TILE_COLUMNS,
                           .zeros_minus_one = true,
                           .parts = {&parts[0], &parts[1], &parts[2]}};
  uint64_t seed = 13;
  for (int i = 0; i < 16 * MLX_TILE_ROWS; ++i) words[i / 8][i % 8] = random_bits(&seed) << 1;
  for (size_t i = 0; i < MLX_TILE_ROWS; ++i) {
    const float scale = 0.01f * random_normal(&seed);
    type->from_f32(&scale, 1, numbers + i * type->block_bytes);
  }
  packing.symmetric = mlx_packing_is_symmetric(&packing);
  const mlx_tiles_t tiles = mlx_tiles_of_packing(&packing);
  memset(out, 0, sizeof out);
  CHECK(mlx_tiles_bits(tiles) == bits);
  mlx_packing_dequantize(&packing, 0, MLX_TILE_ROWS, expected[0]);
  for (int row = 0; row < MLX_TILE_ROWS; ++row) {
    mlx_codes_t codes[MLX_TILE_BLOCKS];
    for (int i = 0; i < MLX_TILE_BLOCKS; ++i) mlx_packing_codes(&packing, row, i, &codes[i]);
    mlx_tiles_put(tiles, codes, MLX_TILE_BLOCKS, row, 0, out);
  }
  for (int i = 0; i < MLX_TILE_ROWS * MLX_TILE_COLUMNS; ++i)
    CHECK(element(tiles, out, i / MLX_TILE_COLUMNS, i % MLX_TILE_COLUMNS) ==
          expected[i / MLX_TILE_COLUMNS][i % MLX_TILE_COLUMNS]);
}

TEST(gptq_codes_keep_their_value_with_any_zero_point) {
  static const uint32_t zeros = 0xfe830714, symmetric = 0x77777777;
  check_gptq(MLX_F16, zeros, 5.5);
  check_gptq(MLX_F16, symmetric, 4.5);
  check_gptq(MLX_BF16, zeros, 6);
  check_gptq(MLX_F32, zeros, 6);
}

// MLX's 8-bit codes go up to 255. Tiles store them minus 128 and add the difference to the offset.
TEST(codes_above_127_keep_their_value) {
  static uint8_t out[4096];
  const mlx_tiles_t tiles = mlx_packing(8, MLX_BF16, MLX_BF16);
  mlx_codes_t codes[2] = {{.scale = {0}}, {.scale = {0.0078125f, 0.0078125f}, .offset = {-1.0f, -1.0f}}};
  CHECK(tiles.bits == 8 && tiles.numbers == MLX_TILE_F32 && tiles.offset == 1);
  for (int i = 0; i < MLX_CODES; ++i) codes[1].code[i] = (int16_t)(8 * i + 7);
  mlx_tiles_put(tiles, codes, 2, 3, 0, out);
  for (int i = 0; i < MLX_CODES; ++i)
    CHECK(element(tiles, out, 3, 32 + i) == 0.0078125f * codes[1].code[i] - 1.0f);
}

// The last tile of a row and the last row of tiles are padded.
TEST(matrix_size_counts_whole_tiles) {
  const mlx_tiles_t q4_0 = mlx_tiles_of(MLX_Q4_0), halves = {8, MLX_TILE_F32, 0, true, 0};
  CHECK_INT(mlx_tiles_bytes(q4_0, 8, 128), 576);
  CHECK_INT(mlx_tiles_bytes(q4_0, 9, 160), 4 * 576);
  CHECK_INT(mlx_tiles_bytes(halves, 8, 128), 1024 + 256);
  CHECK(mlx_tiles_bits(q4_0) == 4.5);
}

TEST_MAIN(CASE(tiles_hold_the_dequantized_values_of_each_type),
          CASE(copied_blocks_have_the_same_bytes_as_stored_codes), CASE(mxfp4_with_adjacent_codes_is_copied),
          CASE(blocks_that_a_tile_does_not_have_are_zero),
          CASE(blocks_with_a_number_that_is_not_finite_are_not_copied), CASE(tiles_have_the_size_of_the_file),
          CASE(tiles_are_described_for_users), CASE(mxfp4_keeps_every_exponent),
          CASE(common_tile_format_holds_the_values_of_both_types),
          CASE(mlx_codes_of_each_width_keep_their_value),
          CASE(gptq_codes_keep_their_value_with_any_zero_point), CASE(codes_above_127_keep_their_value),
          CASE(matrix_size_counts_whole_tiles))
