// Tile formats for the GPU kernels, and writing rows into tiles.
#include "compiler/tiles.h"

#include <stdio.h>
#include <string.h>

#include "graph/half.h"
#include "graph/kquants.h"

#define BLOCK MLX_CODES
#define BLOCKS (MLX_TILE_COLUMNS / BLOCK)  // per row of a tile
#define ROWS MLX_TILE_ROWS

// ----------------------------------------------------------------------------------------------------------
// Formats

mlx_tiles_t mlx_tiles_of(mlx_dtype_t dtype) {
  static const mlx_tiles_t formats[MLX_DTYPE_COUNT] = {
      [MLX_Q4_0] = {4, MLX_TILE_F16, 0, false, 8},
      [MLX_Q4_1] = {4, MLX_TILE_F16, 1, false, 0},
      [MLX_Q5_0] = {5, MLX_TILE_F16, 0, false, 16},
      [MLX_Q5_1] = {5, MLX_TILE_F16, 1, false, 0},
      [MLX_Q8_0] = {8, MLX_TILE_F16, 0, false, 0},
      [MLX_Q2_K] = {2, MLX_TILE_K4, 2, true, 0},
      [MLX_Q3_K] = {3, MLX_TILE_K8, 0, true, 4},
      [MLX_Q4_K] = {4, MLX_TILE_K6, 1, false, 0},
      [MLX_Q5_K] = {5, MLX_TILE_K6, 1, false, 0},
      [MLX_Q6_K] = {6, MLX_TILE_K8, 0, true, 32},
      [MLX_IQ4_NL] = {4, MLX_TILE_F16, 0, false, MLX_TILE_IQ4},
      [MLX_IQ4_XS] = {4, MLX_TILE_K8, 0, false, MLX_TILE_IQ4},
      [MLX_MXFP4] = {4, MLX_TILE_E8M0, 0, false, MLX_TILE_E2M1},
  };
  return formats[dtype];
}

mlx_tiles_t mlx_tiles_of_packing(const mlx_packing_t *packing) {
  if (!mlx_packing_has_codes(packing)) return (mlx_tiles_t){0};
  if (packing->kind == MLX_PACKED_MXFP4) return mlx_tiles_of(MLX_MXFP4);
  const mlx_dtype_t scale = packing->parts[MLX_PART_SCALES]->dtype;
  if (packing->kind != MLX_PACKED_MLX) {  // with f32 scales the codes are -16 to 15, else 0 to 15
    return scale == MLX_F32 ? (mlx_tiles_t){5, MLX_TILE_F32, 0, false, 16}
                            : (mlx_tiles_t){4, MLX_TILE_F32, 1, false, 0};
  }
  const bool alike = packing->parts[MLX_PART_OFFSETS]->dtype == scale;
  // mlx_tiles_put shifts bytes above 127, which changes their offset; only f32 holds the new one.
  const bool narrow = alike && packing->bits < 8;
  return (mlx_tiles_t){.bits = packing->bits < 8 ? packing->bits : 8,
                       .numbers = narrow && scale == MLX_F16    ? MLX_TILE_F16
                                  : narrow && scale == MLX_BF16 ? MLX_TILE_BF16
                                                                : MLX_TILE_F32,
                       .offset = 1};
}

bool mlx_tiles_equal(mlx_tiles_t a, mlx_tiles_t b) {
  return a.bits == b.bits && a.numbers == b.numbers && a.offset == b.offset && a.halves == b.halves &&
         a.center == b.center;
}

static int max_int(int a, int b) { return a > b ? a : b; }

mlx_tiles_t mlx_tiles_for_both(mlx_tiles_t a, mlx_tiles_t b) {
  if (mlx_tiles_equal(a, b)) return a;
  const bool bytes = a.center != b.center || a.center < 0;
  const int offset = max_int(a.offset, b.offset);
  return (mlx_tiles_t){.bits = bytes ? 8 : max_int(a.bits, b.bits),
                       .numbers = a.numbers == b.numbers ? a.numbers : MLX_TILE_F32,
                       .offset = offset,
                       .halves = a.halves || b.halves || offset == 2,
                       .center = bytes ? 0 : a.center};
}

// ----------------------------------------------------------------------------------------------------------
// Sizes

#define RECORD 8  // bytes of a row's numbers in a tile with MLX_TILE_K6

static int64_t number_bytes(mlx_tiles_t tiles) {
  return tiles.numbers == MLX_TILE_F32 ? 4 : tiles.numbers <= MLX_TILE_BF16 ? 2 : 1;
}
static bool is_grouped(mlx_tiles_t tiles) { return tiles.numbers >= MLX_TILE_K6; }
static int64_t code_bytes(mlx_tiles_t tiles) { return ROWS * MLX_TILE_COLUMNS * tiles.bits / 8; }
static int64_t scale_bytes(mlx_tiles_t tiles) {
  return tiles.numbers == MLX_TILE_K6 ? ROWS * RECORD
                                      : ROWS * BLOCKS * (1 + tiles.halves) * number_bytes(tiles);
}

static int64_t tile_bytes(mlx_tiles_t tiles) {
  const int64_t more = tiles.numbers == MLX_TILE_K6 ? 0
                       : is_grouped(tiles)          ? ROWS * 2
                                                    : ROWS * BLOCKS * tiles.offset * number_bytes(tiles);
  return code_bytes(tiles) + scale_bytes(tiles) + more;
}

double mlx_tiles_bits(mlx_tiles_t tiles) { return (double)tile_bytes(tiles) * 8 / (ROWS * MLX_TILE_COLUMNS); }

void mlx_tiles_describe(mlx_tiles_t tiles, char *out, size_t size) {
  static const char *const numbers[] = {[MLX_TILE_F16] = "in f16",
                                        [MLX_TILE_F32] = "in f32",
                                        [MLX_TILE_BF16] = "in bf16",
                                        [MLX_TILE_E8M0] = "that is a power of two",
                                        [MLX_TILE_K6] = "of 6 bits times f16",
                                        [MLX_TILE_K4] = "of 4 bits times f16",
                                        [MLX_TILE_K8] = "of 8 bits times f16"};
  static const char *const factors[2][3] = {
      {"a scale", "scale and offset", "scale and two offsets"},
      {"two scales", "two scales and an offset", "two scales and offsets"}};
  snprintf(out, size, "%d-bit %s, %s %s", tiles.bits,
           tiles.center == MLX_TILE_E2M1  ? "floats"
           : tiles.center == MLX_TILE_IQ4 ? "table indices"
                                          : "codes",
           factors[tiles.halves][tiles.offset], numbers[tiles.numbers]);
}

uint64_t mlx_tiles_bytes(mlx_tiles_t tiles, int64_t rows, int64_t columns) {
  const int64_t down = (rows + ROWS - 1) / ROWS, across = (columns + MLX_TILE_COLUMNS - 1) / MLX_TILE_COLUMNS;
  return (uint64_t)down * (uint64_t)across * (uint64_t)tile_bytes(tiles);
}

// ----------------------------------------------------------------------------------------------------------
// Writing codes

// The integers that are stored for |code|, after |shift| is subtracted and |factor| multiplied.
static void store_codes(mlx_tiles_t tiles, int factor, int shift, const int16_t code[BLOCK],
                        int16_t out[BLOCK]) {
  if (tiles.center == MLX_TILE_E2M1) {
    for (int i = 0; i < BLOCK; ++i) out[i] = (int16_t)mlx_mxfp4_index(code[i] * factor);
  } else if (tiles.center == MLX_TILE_IQ4) {
    for (int i = 0; i < BLOCK; ++i) out[i] = (int16_t)mlx_iq4_index(code[i]);
  } else {
    const int add = tiles.center - shift;
    for (int i = 0; i < BLOCK; ++i) out[i] = (int16_t)(code[i] + add);
  }
}

// ORs |value| into the two bytes at |half| from bit |at| on.
static void put_bits(uint8_t *half, int value, int at) {
  half[0] |= (uint8_t)(value << at);
  half[1] |= (uint8_t)(value << at >> 8);
}

// Half |odd| of word |nth| of the |bits| words that a lane owns. Words are stored in two runs, so that a lane
// reads each with one instruction: words 0 to 3 (fewer than 4 bits: 0 and 1) of all lanes, then the others.
static uint8_t *half_word(uint8_t *tile, int bits, int64_t lane, int nth, int odd) {
  const int first = bits >= 4 ? 4 : 2, count = nth < first ? first : bits - first;
  return tile + (nth < first ? 0 : 128 * first) + (lane * count + nth % first) * 4 + odd * 2;
}

// Codes are in the order of mma fragments. Lane 4 * row + quad holds four pairs of columns of a block. Pair
// half + 2 * i (half and i are 0 or 1) is columns 16 * half + 8 * i + 2 * quad and the next one.

// Stores one code of 2, 3 or 5 bits.
static inline void put_code(int bits, uint8_t *tile, int64_t row, int block, int column, int code) {
  const int half = column / 16, quad = column / 2 % 4, pair = half + column / 8 % 2 * 2, odd = column % 2;
  const int64_t lane = row * 4 + quad;
  const int each = 16 / bits, nth = block * 4 + pair, left = nth - each * bits;
  if (left < 0) {
    put_bits(half_word(tile, bits, lane, nth / each, odd), code, nth % each * bits);
  } else {  // one code is left, and one bit in each half word
    for (int i = 0; i < bits; ++i) put_bits(half_word(tile, bits, lane, i, odd), code >> i & 1, 15);
  }
}

// |bits| is a constant at each call, so that put_code has no division.
static inline void put_each(int bits, uint8_t *tile, int64_t row, int block, const int16_t code[BLOCK]) {
  for (int i = 0; i < BLOCK; ++i) put_code(bits, tile, row, block, i, code[i]);
}

// 6 bits: a half word has two codes. Those of block 3 use the four bits that are left in each of the six.
static void put_sixes(uint8_t *tile, int64_t row, int block, const int16_t code[BLOCK]) {
  for (int i = 0; i < 8; ++i) {  // 2 * quad + odd
    const int64_t lane = row * 4 + i / 2;
    const int odd = i % 2, pairs[4] = {code[i], code[16 + i], code[8 + i], code[24 + i]};
    for (int k = 0; block < 3 && k < 2; ++k)
      put_bits(half_word(tile, 6, lane, 2 * block + k, odd), pairs[2 * k] | pairs[2 * k + 1] << 6, 0);
    for (int k = 0; block == 3 && k < 4; ++k) {
      put_bits(half_word(tile, 6, lane, k, odd), pairs[k] & 15, 12);
      put_bits(half_word(tile, 6, lane, 4 + k / 2, odd), pairs[k] >> 4, 12 + k % 2 * 2);
    }
  }
}

// 4 bits: the four pairs of a lane are one word.
static void put_nibbles(uint8_t *tile, int64_t row, int block, const int16_t code[BLOCK]) {
  for (int quad = 0; quad < 4; ++quad, code += 2) {
    uint8_t *word = tile + ((row * 4 + quad) * 4 + block) * 4;
    for (int odd = 0; odd < 2; ++odd) {
      word[2 * odd] = (uint8_t)(code[odd] | code[16 + odd] << 4);
      word[2 * odd + 1] = (uint8_t)(code[8 + odd] | code[24 + odd] << 4);
    }
  }
}

// 8 bits: the four pairs of a lane are two words.
static void put_bytes(uint8_t *tile, int64_t row, int block, const int16_t code[BLOCK]) {
  for (int quad = 0; quad < 4; ++quad, code += 2) {
    uint8_t *words = tile + block / 2 * 512 + (row * 4 + quad) * 16 + block % 2 * 8;
    for (int i = 0; i < 8; ++i) words[i] = (uint8_t)code[i / 4 * 8 + i % 2 * 16 + i / 2 % 2];
  }
}

// Stores the codes of a block, each below 2^bits (or a signed byte), in a tile that the caller zeroed.
static void put_codes(int bits, uint8_t *tile, int64_t row, int block, const int16_t code[BLOCK]) {
  switch (bits) {
    case 2: put_each(2, tile, row, block, code); break;
    case 3: put_each(3, tile, row, block, code); break;
    case 4: put_nibbles(tile, row, block, code); break;
    case 5: put_each(5, tile, row, block, code); break;
    case 6: put_sixes(tile, row, block, code); break;
    default: put_bytes(tile, row, block, code);
  }
}

// ----------------------------------------------------------------------------------------------------------
// Writing numbers

static void put_number(mlx_tiles_t tiles, uint8_t *numbers, int64_t nth, float value) {
  static const mlx_dtype_t types[] = {
      [MLX_TILE_F16] = MLX_F16, [MLX_TILE_F32] = MLX_F32, [MLX_TILE_BF16] = MLX_BF16};
  mlx_dtype_info(types[tiles.numbers])->from_f32(&value, 1, numbers + nth * number_bytes(tiles));
}

static void put_half(uint8_t *out, float value) { mlx_dtype_info(MLX_F16)->from_f32(&value, 1, out); }

// Scales and offsets of a K type: integers, and the f16 number that they multiply. With offsets, two tiles
// share 256 columns: the first has the number of the scales, the second that of the offsets.
static void put_factors(mlx_tiles_t tiles, const mlx_codes_t *c, uint8_t *numbers, int64_t row, int64_t nth) {
  const int64_t block = nth % BLOCKS;
  const float shared = tiles.offset && nth / BLOCKS % 2 ? c->block_offset : c->block_scale;
  if (tiles.numbers == MLX_TILE_K6) {
    uint8_t *record = numbers + row * RECORD;
    record[block] = (uint8_t)(c->scale_factor[0] | c->offset_factor[0] >> 4 << 6);
    record[4 + block / 2] |= (uint8_t)((c->offset_factor[0] & 15) << block % 2 * 4);
    put_half(record + 6, shared);
    return;
  }
  for (int i = 0; i <= tiles.halves; ++i) {
    numbers[(row * BLOCKS + block) * (1 + tiles.halves) + i] =
        (uint8_t)(tiles.numbers == MLX_TILE_K4 ? c->scale_factor[i] | c->offset_factor[i] << 4
                                               : c->scale_factor[i] + 128);
  }
  put_half(numbers + scale_bytes(tiles) + row * 2, shared);
}

static void put_numbers(mlx_tiles_t tiles, const mlx_codes_t *c, uint8_t *numbers, int64_t row, int64_t nth,
                        int shift) {
  const int64_t at = row * BLOCKS + nth % BLOCKS;
  for (int i = 0; i <= tiles.halves; ++i)
    put_number(tiles, numbers, at * (1 + tiles.halves) + i, c->scale[i]);
  for (int i = 0; i < tiles.offset; ++i) {
    put_number(tiles, numbers + scale_bytes(tiles), at * tiles.offset + i,
               (float)(c->offset[i] + (double)shift * c->scale[i]));
  }
}

// ----------------------------------------------------------------------------------------------------------
// Writing blocks

// 2^128 is no f32. Such a block has the exponent 254 and doubled codes, which give the same numbers.
static void put_mxfp4(mlx_tiles_t tiles, const mlx_codes_t *c, uint8_t *tile, int64_t row, int64_t nth) {
  const int e = mlx_mxfp4_exponent(c->scale[0]), factor = e == 255 ? 2 : 1;
  tile[code_bytes(tiles) + row * BLOCKS + nth % BLOCKS] = (uint8_t)(e == 255 ? 254 : e);
  int16_t stored[BLOCK];
  store_codes(tiles, factor, 0, c->code, stored);
  put_codes(tiles.bits, tile, row, (int)(nth % BLOCKS), stored);
}

void mlx_tiles_put(mlx_tiles_t tiles, const mlx_codes_t *codes, int64_t row, int64_t nth, uint8_t *out) {
  uint8_t *tile = out + nth / BLOCKS * tile_bytes(tiles), *numbers = tile + code_bytes(tiles);
  if (tiles.numbers == MLX_TILE_E8M0) {
    put_mxfp4(tiles, codes, tile, row, nth);
    return;
  }
  int16_t stored[BLOCK];
  int shift = 0;
  for (int i = 0; i < BLOCK; ++i) shift = codes->code[i] > 127 ? 128 : shift;
  store_codes(tiles, 1, shift, codes->code, stored);
  put_codes(tiles.bits, tile, row, (int)(nth % BLOCKS), stored);
  if (is_grouped(tiles)) {
    put_factors(tiles, codes, numbers, row, nth);
  } else {
    put_numbers(tiles, codes, numbers, row, nth, shift);
  }
}

// ----------------------------------------------------------------------------------------------------------
// Copying blocks

static bool is_finite_f16(const uint8_t *number) { return (number[1] & 0x7c) != 0x7c; }

// put_nibbles for the bytes of a block in its file: byte j has columns j and 16 + j.
static void copy_nibbles(uint8_t *tile, int64_t row, int64_t block, const uint8_t from[16]) {
  for (int quad = 0; quad < 4; ++quad, from += 2) {
    const uint8_t word[4] = {from[0], from[8], from[1], from[9]};
    memcpy(tile + ((row * 4 + quad) * 4 + block) * 4, word, sizeof word);
  }
}

bool mlx_tiles_copy(mlx_dtype_t dtype, const uint8_t *row_bytes, int64_t row, int64_t nth, uint8_t *out) {
  if (dtype != MLX_Q4_0 && dtype != MLX_Q4_1 && dtype != MLX_Q8_0) return false;
  const mlx_tiles_t tiles = mlx_tiles_of(dtype);
  const uint8_t *from = row_bytes + (size_t)nth * mlx_dtype_info(dtype)->block_bytes;
  const int64_t block = nth % BLOCKS;
  uint8_t *tile = out + nth / BLOCKS * tile_bytes(tiles),
          *number = tile + code_bytes(tiles) + (row * BLOCKS + block) * 2;
  if (!is_finite_f16(from) || (tiles.offset && !is_finite_f16(from + 2))) return false;
  memcpy(number, from, 2);
  if (tiles.offset) memcpy(number + scale_bytes(tiles), from + 2, 2);
  from += 2 + 2 * tiles.offset;
  if (tiles.bits == 4) {
    copy_nibbles(tile, row, block, from);
    return true;
  }
  for (int quad = 0; quad < 4; ++quad, from += 2) {  // as put_bytes
    const uint8_t words[8] = {from[0], from[16], from[1], from[17], from[8], from[24], from[9], from[25]};
    memcpy(tile + block / 2 * 512 + (row * 4 + quad) * 16 + block % 2 * 8, words, sizeof words);
  }
  return true;
}
