// Tile formats for the GPU kernels, and writing rows into tiles.
#include "compiler/tiles.h"

#include <stdio.h>
#include <string.h>

#include "compiler/vectors.h"
#include "graph/half.h"
#include "graph/kquants.h"

#define BLOCK MLX_CODES
#define BLOCKS MLX_TILE_BLOCKS
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
  if (packing->kind != MLX_PACKED_MLX) {  // codes are -15 to 15, symmetric -8 to 7; with bf16 scales 0 to 15
    return scale == MLX_F32    ? (mlx_tiles_t){5, MLX_TILE_F32, 0, false, 16}
           : scale == MLX_BF16 ? (mlx_tiles_t){4, MLX_TILE_F32, 1, false, 0}
                               : mlx_tiles_of(packing->symmetric ? MLX_Q4_0 : MLX_Q5_0);
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
  static const char *const numbers[] = {
#define NUMBERS_TEXT(name, text) [MLX_TILE_##name] = text,
      MLX_TILE_NUMBERS_TABLE(NUMBERS_TEXT)
#undef NUMBERS_TEXT
  };
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

static inline mlx_words_t zip_low_words(mlx_words_t a, mlx_words_t b) {
  return MLX_SHUFFLE(mlx_words_t, a, b, 0, 4, 1, 5);
}
static inline mlx_words_t zip_high_words(mlx_words_t a, mlx_words_t b) {
  return MLX_SHUFFLE(mlx_words_t, a, b, 2, 6, 3, 7);
}
static inline void store_zipped_pairs(uint8_t *to, mlx_words_t a, mlx_words_t b) {
  mlx_store_bytes(to, (mlx_bytes_t)MLX_SHUFFLE(mlx_words_t, a, b, 0, 1, 4, 5));
  mlx_store_bytes(to + 16, (mlx_bytes_t)MLX_SHUFFLE(mlx_words_t, a, b, 2, 3, 6, 7));
}

// Codes are in the order of mma fragments. Lane 4 * row + quad holds 16 pairs of columns of a tile: pair half
// + 2 * i (half and i are 0 or 1) of a block is columns 16 * half + 8 * i + 2 * quad and the next one. The
// lane has |bits| words of 32 bits; the code at an even column is in the low half of a word, the one at the
// next column in the high half.
#define PAIRS 16

// Adds pair |nth| of the four lanes of a row, |code|, to their words. With 3 and 5 bits, the last pair has
// one bit in each word. With 6 bits, the last four pairs have what two codes leave of each word: four bits,
// and in the last two words twice two.
static inline void add_pair(int bits, int nth, mlx_halves_t code, mlx_halves_t words[]) {
  const int each = 16 / bits, left = nth - each * bits;
  if (left < 0) {
    words[nth / each] |= code << nth % each * bits;
  } else if (bits == 6) {
    words[left] |= code << 12;
    words[4 + left / 2] |= code >> 4 << (12 + left % 2 * 2);
  } else {
    for (int word = 0; word < bits; ++word) words[word] |= code >> word << 15;
  }
}

// Stores |count| words (1, 2 or 4) of each of the four lanes of a row, lane after lane.
static inline void store_words(int count, const mlx_halves_t words[], uint8_t *to) {
  const mlx_words_t a = (mlx_words_t)words[0];
  if (count == 1) {
    mlx_store_bytes(to, (mlx_bytes_t)a);
    return;
  }
  const mlx_words_t b = (mlx_words_t)words[1], low = zip_low_words(a, b), high = zip_high_words(a, b);
  if (count == 2) {
    mlx_store_bytes(to, (mlx_bytes_t)low);
    mlx_store_bytes(to + 16, (mlx_bytes_t)high);
    return;
  }
  const mlx_words_t c = (mlx_words_t)words[2], d = (mlx_words_t)words[3];
  store_zipped_pairs(to, low, zip_low_words(c, d));
  store_zipped_pairs(to + 32, high, zip_high_words(c, d));
}

// Writes row |row| of a tile. Words are stored in two runs, so that a lane reads each with one instruction:
// words 0 to 3 (fewer than 4 bits: 0 and 1) of all lanes, then the others. |bits| is a constant at each call.
static inline void write_row(int bits, const uint8_t code[MLX_TILE_COLUMNS], int64_t row, uint8_t *tile) {
  const int first = bits >= 4 ? 4 : 2, others = bits - first;
  mlx_halves_t words[8] = {{0}};
#pragma GCC unroll 16
  for (int nth = 0; nth < PAIRS; nth += 2) {
    const uint8_t *from = code + nth / 4 * BLOCK;
    const mlx_bytes_t a = mlx_load_bytes(from), b = mlx_load_bytes(from + 16);
    const mlx_halves_t both = (mlx_halves_t)(nth % 4 ? mlx_zip_high(a, b) : mlx_zip_low(a, b));
    add_pair(bits, nth, both & 255, words);
    add_pair(bits, nth + 1, both >> 8, words);
  }
  store_words(first, words, tile + row * 16 * first);
  if (others) store_words(others, words + first, tile + 128 * first + row * 16 * others);
}

// |code|: each below 2^bits, or a signed byte.
static void put_codes(int bits, const uint8_t code[MLX_TILE_COLUMNS], int64_t row, uint8_t *tile) {
  switch (bits) {
    case 2: write_row(2, code, row, tile); break;
    case 3: write_row(3, code, row, tile); break;
    case 4: write_row(4, code, row, tile); break;
    case 5: write_row(5, code, row, tile); break;
    case 6: write_row(6, code, row, tile); break;
    default: write_row(8, code, row, tile);
  }
}

// The integers that are stored for |code|, after |shift| is subtracted and |factor| multiplied.
static void store_codes(mlx_tiles_t tiles, int factor, int shift, const int16_t code[BLOCK],
                        uint8_t out[BLOCK]) {
  if (tiles.center == MLX_TILE_E2M1) {
    for (int i = 0; i < BLOCK; ++i) out[i] = (uint8_t)mlx_mxfp4_index(code[i] * factor);
  } else if (tiles.center == MLX_TILE_IQ4) {
    for (int i = 0; i < BLOCK; ++i) out[i] = (uint8_t)mlx_iq4_index(code[i]);
  } else {
    const int add = tiles.center - shift;
    for (int i = 0; i < BLOCK; ++i) out[i] = (uint8_t)(code[i] + add);
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

// The integers of block |block| in a row's record of MLX_TILE_K6, which has zeros there.
static void put_sixes(uint8_t record[RECORD], int block, int scale, int offset) {
  record[block] = (uint8_t)(scale | offset >> 4 << 6);
  record[4 + block / 2] = (uint8_t)(record[4 + block / 2] | (offset & 15) << block % 2 * 4);
}

// Scales and offsets of a K type: integers, and the f16 number that they multiply. With offsets, two tiles
// share 256 columns: the first has the number of the scales, the second that of the offsets.
static void put_factors(mlx_tiles_t tiles, const mlx_codes_t *codes, int count, int64_t row, int64_t nth,
                        uint8_t *numbers) {
  const float shared = tiles.offset && nth % 2 ? codes->block_offset : codes->block_scale;
  if (tiles.numbers == MLX_TILE_K6) {
    uint8_t *record = numbers + row * RECORD;
    memset(record, 0, RECORD);
    for (int i = 0; i < count; ++i) put_sixes(record, i, codes[i].scale_factor[0], codes[i].offset_factor[0]);
    put_half(record + 6, shared);
    return;
  }
  const int each = 1 + tiles.halves;
  for (int i = 0; i < count * each; ++i) {
    const int scale = codes[i / each].scale_factor[i % each],
              offset = codes[i / each].offset_factor[i % each];
    numbers[row * BLOCKS * each + i] =
        (uint8_t)(tiles.numbers == MLX_TILE_K4 ? scale | offset << 4 : scale + 128);
  }
  put_half(numbers + scale_bytes(tiles) + row * 2, shared);
}

static void put_numbers(mlx_tiles_t tiles, const mlx_codes_t *c, int64_t at, int shift, uint8_t *numbers) {
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
static void put_mxfp4(mlx_tiles_t tiles, const mlx_codes_t *c, uint8_t code[BLOCK], uint8_t *exponent) {
  const int e = mlx_mxfp4_exponent(c->scale[0]);
  *exponent = (uint8_t)(e == 255 ? 254 : e);
  store_codes(tiles, e == 255 ? 2 : 1, 0, c->code, code);
}

void mlx_tiles_put(mlx_tiles_t tiles, const mlx_codes_t *codes, int count, int64_t row, int64_t nth,
                   uint8_t *out) {
  uint8_t code[MLX_TILE_COLUMNS] = {0}, *tile = out + nth * tile_bytes(tiles),
          *numbers = tile + code_bytes(tiles);
  for (int block = 0; block < count; ++block) {
    const mlx_codes_t *c = &codes[block];
    const int64_t at = row * BLOCKS + block;
    if (tiles.numbers == MLX_TILE_E8M0) {
      put_mxfp4(tiles, c, code + block * BLOCK, numbers + at);
      continue;
    }
    int shift = 0;
    for (int i = 0; i < BLOCK; ++i) shift = c->code[i] > 127 ? 128 : shift;
    store_codes(tiles, 1, shift, c->code, code + block * BLOCK);
    if (!is_grouped(tiles)) put_numbers(tiles, c, at, shift, numbers);
  }
  if (is_grouped(tiles)) put_factors(tiles, codes, count, row, nth, numbers);
  put_codes(tiles.bits, code, row, tile);
}

// ----------------------------------------------------------------------------------------------------------
// Copying blocks

static bool is_finite_f16(const uint8_t *number) { return (number[1] & 0x7c) != 0x7c; }

// A row of 4-bit codes, 16 bytes per block: byte j has columns j and 16 + j. The four pairs of a lane in a
// block are one word.
static inline void put_nibbles(const mlx_bytes_t nibbles[BLOCKS], int64_t row, uint8_t *tile) {
  mlx_halves_t words[BLOCKS];
  for (int i = 0; i < BLOCKS; ++i) {
    const mlx_bytes_t other = MLX_SHUFFLE(mlx_bytes_t, nibbles[i], nibbles[i], 8, 9, 10, 11, 12, 13, 14, 15,
                                          0, 1, 2, 3, 4, 5, 6, 7);
    words[i] = (mlx_halves_t)mlx_zip_low(nibbles[i], other);
  }
  store_words(BLOCKS, words, tile + row * 64);
}

// Copies the scales and offsets, f16, of |count| blocks. False if one is not finite.
static inline bool copy_numbers(mlx_tiles_t tiles, const uint8_t *from, size_t block_bytes, int count,
                                uint8_t *scales, uint8_t *offsets) {
  for (int i = 0; i < count; ++i, from += block_bytes) {
    if (!is_finite_f16(from) || (tiles.offset && !is_finite_f16(from + 2))) return false;
    memcpy(scales + 2 * i, from, 2);
    if (tiles.offset) memcpy(offsets + 2 * i, from + 2, 2);
  }
  return true;
}

// Adds the fifth bits of 16 codes: bit |bits| of each byte of |high|.
static inline void add_fifth(mlx_bytes_t high, mlx_bytes_t bits, uint8_t code[16]) {
  mlx_store_bytes(code, mlx_load_bytes(code) | ((mlx_bytes_t)((high & bits) != 0) & 16));
}

static inline void read_fives(const uint8_t *high, const uint8_t *nibbles, uint8_t code[BLOCK]) {
  const mlx_bytes_t each = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
  const mlx_bytes_t bytes = mlx_load_bytes(nibbles);
  mlx_store_bytes(code, bytes & 15);
  mlx_store_bytes(code + 16, bytes >> 4);
  for (int i = 0; i < BLOCK; i += 16, high += 2) {
    const uint8_t a = high[0], b = high[1];
    add_fifth((mlx_bytes_t){a, a, a, a, a, a, a, a, b, b, b, b, b, b, b, b}, each, code + i);
  }
}

// Types with blocks of 32: a scale and perhaps an offset in f16, perhaps four bytes of fifth bits, and codes.
static bool copy_blocks(mlx_tiles_t tiles, const uint8_t *from, size_t block_bytes, int count, int64_t row,
                        uint8_t *tile) {
  uint8_t code[MLX_TILE_COLUMNS] = {0}, *scales = tile + code_bytes(tiles) + row * BLOCKS * 2;
  const uint8_t *after = from + 2 + 2 * tiles.offset;  // the numbers
  if (!copy_numbers(tiles, from, block_bytes, count, scales, scales + scale_bytes(tiles))) return false;
  if (tiles.bits == 4) {
    mlx_bytes_t nibbles[BLOCKS] = {{0}};
    for (int i = 0; i < count; ++i) nibbles[i] = mlx_load_bytes(after + (size_t)i * block_bytes);
    put_nibbles(nibbles, row, tile);
    return true;
  }
  for (int i = 0; i < count; ++i, after += block_bytes) {
    if (tiles.bits == 8)
      memcpy(code + i * BLOCK, after, BLOCK);
    else
      read_fives(after, after + 4, code + i * BLOCK);
  }
  put_codes(tiles.bits, code, row, tile);
  return true;
}

// Half of a block of Q4_K or Q5_K. The offset is the negative minimum.
static bool copy_q4_k(mlx_tiles_t tiles, const uint8_t *from, int half, int64_t row, uint8_t *tile) {
  const uint8_t *high = from + 16, *bytes = from + (tiles.bits == 5 ? 48 : 16) + half * 64;
  uint8_t code[MLX_TILE_COLUMNS], *record = tile + code_bytes(tiles) + row * RECORD;
  mlx_bytes_t nibbles[BLOCKS];
  if (!is_finite_f16(from) || !is_finite_f16(from + 2)) return false;
  memset(record, 0, RECORD);
  for (int i = 0; i < BLOCKS; ++i) {
    int scale, minimum;
    mlx_group_factors(from + 4, half * BLOCKS + i, &scale, &minimum);
    put_sixes(record, i, scale, minimum);
  }
  memcpy(record + 6, from + 2 * half, 2);
  if (half) record[7] ^= 0x80;
  for (int i = 0; i < BLOCKS; i += 2, bytes += BLOCK) {  // byte j has column j of both blocks
    const mlx_bytes_t a = mlx_load_bytes(bytes), b = mlx_load_bytes(bytes + 16);
    nibbles[i] = (a & 15) | b << 4;
    nibbles[i + 1] = a >> 4 | (b & 240);
  }
  if (tiles.bits == 4) {
    put_nibbles(nibbles, row, tile);
    return true;
  }
  for (int i = 0; i < MLX_TILE_COLUMNS; i += 16) {
    const int block = i / BLOCK;
    const mlx_bytes_t bit = (mlx_bytes_t){0} + (uint8_t)(1 << (half * BLOCKS + block));
    mlx_store_bytes(code + i, i % BLOCK ? nibbles[block] >> 4 : nibbles[block] & 15);
    add_fifth(mlx_load_bytes(high + i % BLOCK), bit, code + i);
  }
  put_codes(5, code, row, tile);
  return true;
}

static bool copy_q6_k(mlx_tiles_t tiles, const uint8_t *from, int half, int64_t row, uint8_t *tile) {
  const uint8_t *low = from + half * 64, *high = from + 128 + half * 32, *scales = from + 192 + half * 8;
  uint8_t code[MLX_TILE_COLUMNS], *numbers = tile + code_bytes(tiles), *factors = numbers + row * 2 * BLOCKS;
  if (!is_finite_f16(from + 208)) return false;
  memcpy(numbers + scale_bytes(tiles) + row * 2, from + 208, 2);
  for (int i = 0; i < 2 * BLOCKS; ++i) factors[i] = scales[i] ^ 0x80;  // adds 128 to a signed byte
#pragma GCC unroll 8
  for (int i = 0; i < MLX_TILE_COLUMNS; i += 16) {
    const int block = i / BLOCK;
    const mlx_bytes_t nibbles = mlx_load_bytes(low + block % 2 * BLOCK + i % BLOCK),
                      twos = mlx_load_bytes(high + i % BLOCK) >> 2 * block & 3;
    mlx_store_bytes(code + i, (block / 2 ? nibbles >> 4 : nibbles & 15) | twos << 4);
  }
  put_codes(6, code, row, tile);
  return true;
}

static bool copy_q2_k(mlx_tiles_t tiles, const uint8_t *from, int half, int64_t row, uint8_t *tile) {
  uint8_t code[MLX_TILE_COLUMNS], *numbers = tile + code_bytes(tiles),
                                  *shared = numbers + scale_bytes(tiles) + row * 2;
  if (!is_finite_f16(from + 80) || !is_finite_f16(from + 82)) return false;
  memcpy(numbers + row * 2 * BLOCKS, from + half * 2 * BLOCKS, 2 * BLOCKS);
  memcpy(shared, from + 80 + 2 * half, 2);
  if (half) shared[1] ^= 0x80;  // the offset is the negative minimum
#pragma GCC unroll 8
  for (int i = 0; i < MLX_TILE_COLUMNS; i += 16)
    mlx_store_bytes(code + i, mlx_load_bytes(from + 16 + half * BLOCK + i % BLOCK) >> i / BLOCK * 2 & 3);
  put_codes(2, code, row, tile);
  return true;
}

static bool copy_q3_k(mlx_tiles_t tiles, const uint8_t *from, int half, int64_t row, uint8_t *tile) {
  uint8_t code[MLX_TILE_COLUMNS], *numbers = tile + code_bytes(tiles), *factors = numbers + row * 2 * BLOCKS;
  if (!is_finite_f16(from + 108)) return false;
  memcpy(numbers + scale_bytes(tiles) + row * 2, from + 108, 2);
  for (int i = 0; i < 2 * BLOCKS; ++i)
    factors[i] = (uint8_t)(mlx_q3_k_scale(from + 96, half * 2 * BLOCKS + i) + 128);
#pragma GCC unroll 8
  for (int i = 0; i < MLX_TILE_COLUMNS; i += 16) {
    const mlx_bytes_t bit = (mlx_bytes_t){0} + (uint8_t)(1 << (half * BLOCKS + i / BLOCK)),
                      third = (mlx_bytes_t)((mlx_load_bytes(from + i % BLOCK) & bit) != 0) & 4;
    mlx_store_bytes(code + i,
                    (mlx_load_bytes(from + 32 + half * BLOCK + i % BLOCK) >> i / BLOCK * 2 & 3) | third);
  }
  put_codes(3, code, row, tile);
  return true;
}

static bool copy_iq4_xs(mlx_tiles_t tiles, const uint8_t *from, int half, int64_t row, uint8_t *tile) {
  uint8_t *numbers = tile + code_bytes(tiles), *factors = numbers + row * BLOCKS;
  mlx_bytes_t nibbles[BLOCKS];
  if (!is_finite_f16(from)) return false;
  memcpy(numbers + scale_bytes(tiles) + row * 2, from, 2);
  for (int i = 0; i < BLOCKS; ++i) {
    factors[i] = (uint8_t)(mlx_iq4_xs_scale(from, half * BLOCKS + i) + 128);
    nibbles[i] = mlx_load_bytes(from + 8 + 16 * (half * BLOCKS + i));
  }
  put_nibbles(nibbles, row, tile);
  return true;
}

// Each block has a scale at |scales| and 16 bytes of codes at |codes|. |adjacent|: byte j has columns 2 * j
// and 2 * j + 1, as in Hugging Face directories. The scale 255 needs other codes (put_mxfp4). -0 becomes 0.
static bool copy_mxfp4(const uint8_t *scales, const uint8_t *codes, size_t stride, size_t codes_stride,
                       bool adjacent, int count, int64_t row, uint8_t *tile) {
  uint8_t *exponents = tile + code_bytes(mlx_tiles_of(MLX_MXFP4)) + row * BLOCKS;
  mlx_bytes_t nibbles[BLOCKS] = {{0}};
  for (int i = 0; i < count; ++i, scales += stride, codes += codes_stride) {
    if (*scales == 255) return false;
    exponents[i] = *scales;
    const mlx_bytes_t bytes = mlx_load_bytes(codes);
    mlx_bytes_t low = bytes & 15, high = bytes >> 4;
    low &= (mlx_bytes_t)(low != 8);
    high &= (mlx_bytes_t)(high != 8);
    nibbles[i] = adjacent ? mlx_zip_low(low, high) | mlx_zip_high(low, high) << 4 : low | high << 4;
  }
  put_nibbles(nibbles, row, tile);
  return true;
}

bool mlx_tiles_copy_mxfp4(const uint8_t *scales, const uint8_t *codes, int count, int64_t row, int64_t nth,
                          uint8_t *out) {
  return copy_mxfp4(scales + nth * BLOCKS, codes + nth * BLOCKS * 16, 1, 16, true, count, row,
                    out + nth * tile_bytes(mlx_tiles_of(MLX_MXFP4)));
}

bool mlx_tiles_copy(mlx_dtype_t dtype, const uint8_t *row_bytes, int count, int64_t row, int64_t nth,
                    uint8_t *out) {
  const mlx_tiles_t tiles = mlx_tiles_of(dtype);
  const mlx_dtype_info_t *info = mlx_dtype_info(dtype);
  const uint8_t *from = row_bytes + (size_t)nth * MLX_TILE_COLUMNS / info->block_elements * info->block_bytes;
  uint8_t *tile = out + nth * tile_bytes(tiles);
  switch (dtype) {
    case MLX_Q4_0:
    case MLX_Q4_1:
    case MLX_Q5_0:
    case MLX_Q5_1:
    case MLX_Q8_0:
    case MLX_IQ4_NL: return copy_blocks(tiles, from, info->block_bytes, count, row, tile);
    case MLX_Q2_K: return copy_q2_k(tiles, from, (int)(nth % 2), row, tile);
    case MLX_Q3_K: return copy_q3_k(tiles, from, (int)(nth % 2), row, tile);
    case MLX_Q4_K:
    case MLX_Q5_K: return copy_q4_k(tiles, from, (int)(nth % 2), row, tile);
    case MLX_Q6_K: return copy_q6_k(tiles, from, (int)(nth % 2), row, tile);
    case MLX_IQ4_XS: return copy_iq4_xs(tiles, from, (int)(nth % 2), row, tile);
    case MLX_MXFP4:
      return copy_mxfp4(from, from + 1, info->block_bytes, info->block_bytes, false, count, row, tile);
    default: return false;
  }
}
