// Dequantization of MLX, GPTQ, AWQ and MXFP4 matrices, bit for bit: hand-computed cases for each kind and
// width, and goldens computed with numpy (tests/parity/packing_goldens.py).
#include "models/import/packing.h"

#include <float.h>
#include <math.h>

#include "base/memory.h"
#include "models/model.h"
#include "tests/support/check.h"

typedef struct packing_golden {
  mlx_packing_kind_t kind;
  int bits, group, rows, columns;
  mlx_dtype_t dtype;
  int zeros_minus_one, act_order;
  uint64_t digest;   // FNV-1a over the f32 bits
  uint32_t last[3];  // the last three values
} packing_golden_t;

#include "tests/goldens/packing.h"

// ----------------------------------------------------------------------------------------------------------
// Hand-computed cases

#define ONE_AND_A_HALF 0x3e00  // f16
#define MINUS_TWO 0xc000

static mlx_tensor_t tensor(mlx_dtype_t dtype, const void *data) {
  return (mlx_tensor_t){.dtype = dtype, .data = data};
}

// One row of |bits|-bit codes. The bytes |pack| repeat, and so do the codes |codes| that they hold.
static void check_mlx(int bits, int group, const uint8_t *pack, size_t pack_size, const int *codes,
                      size_t code_count) {
  uint8_t words[256];
  const uint16_t scales[2] = {ONE_AND_A_HALF, ONE_AND_A_HALF}, biases[2] = {MINUS_TWO, 0};
  float out[256];
  for (size_t i = 0; i < sizeof words; ++i) words[i] = pack[i % pack_size];
  const mlx_tensor_t parts[] = {tensor(MLX_U32, words), tensor(MLX_F16, scales), tensor(MLX_F16, biases)};
  const mlx_packing_t packing = {.kind = MLX_PACKED_MLX,
                                 .bits = bits,
                                 .rows = 1,
                                 .columns = 2 * group,
                                 .group = group,
                                 .parts = {&parts[0], &parts[1], &parts[2]}};
  mlx_packing_dequantize(&packing, 0, 1, out);
  for (int i = 0; i < 2 * group; ++i) {
    const float expected = 1.5f * (float)codes[(size_t)i % code_count] + (i < group ? -2.0f : 0.0f);
    if (out[i] != expected)
      CHECK_FAIL("%d bits, groups of %d: element %d is %g, expected %g", bits, group, i, (double)out[i],
                 (double)expected);
  }
}

TEST(mlx_codes_of_every_width_are_dequantized) {
  for (int group = 32; group <= 128; group *= 2) {
    check_mlx(2, group, (const uint8_t[]){0xe4}, 1, (const int[]){0, 1, 2, 3}, 4);
    check_mlx(3, group, (const uint8_t[]){0x88, 0xc6, 0xfa}, 3, (const int[]){0, 1, 2, 3, 4, 5, 6, 7}, 8);
    check_mlx(4, group, (const uint8_t[]){0x10, 0xf7}, 2, (const int[]){0, 1, 7, 15}, 4);
    check_mlx(6, group, (const uint8_t[]){0x81, 0x30, 0xfc}, 3, (const int[]){1, 2, 3, 63}, 4);
    check_mlx(8, group, (const uint8_t[]){0, 1, 128, 255}, 4, (const int[]){0, 1, 128, 255}, 4);
  }
}

// Eight rows, eight columns, one group. In GPTQ's matrix code [row][column] is the column, in AWQ's the row.
TEST(gptq_codes_and_zero_points_are_dequantized) {
  uint32_t codes[8];
  for (int i = 0; i < 8; ++i) codes[i] = 0x76543210;
  const uint32_t zeros[1] = {0xf0123456};
  static const int stored[8] = {6, 5, 4, 3, 2, 1, 0, 15};
  uint16_t scales[8];
  for (int i = 0; i < 8; ++i) scales[i] = i % 2 ? MINUS_TWO : ONE_AND_A_HALF;
  const mlx_tensor_t parts[] = {tensor(MLX_I32, codes), tensor(MLX_F16, scales), tensor(MLX_I32, zeros)};
  mlx_packing_t packing = {.kind = MLX_PACKED_GPTQ,
                           .bits = 4,
                           .rows = 8,
                           .columns = 8,
                           .group = 8,
                           .parts = {&parts[0], &parts[1], &parts[2]}};
  for (int minus_one = 0; minus_one < 2; ++minus_one) {
    float out[8][8];
    packing.zeros_minus_one = minus_one;
    mlx_packing_dequantize(&packing, 0, 8, out[0]);
    for (int row = 0; row < 8; ++row) {
      int zero = minus_one ? (stored[row] == 15 ? 0 : stored[row] + 1) : stored[row];
      for (int i = 0; i < 8; ++i) CHECK(out[row][i] == (row % 2 ? -2.0f : 1.5f) * (float)(i - zero));
    }
  }
}

TEST(awq_interleaving_is_undone) {
  uint32_t codes[8];
  for (int i = 0; i < 8; ++i) codes[i] = 0x75316420;  // rows 0 2 4 6 1 3 5 7, from the lowest bits on
  const uint32_t zeros[1] = {0xfdb9eca8};             // the row + 8
  uint16_t scales[8];
  for (int i = 0; i < 8; ++i) scales[i] = i == 3 ? MINUS_TWO : ONE_AND_A_HALF;
  const mlx_tensor_t parts[] = {tensor(MLX_I32, codes), tensor(MLX_F16, scales), tensor(MLX_I32, zeros)};
  const mlx_packing_t packing = {.kind = MLX_PACKED_AWQ,
                                 .bits = 4,
                                 .rows = 8,
                                 .columns = 8,
                                 .group = 8,
                                 .parts = {&parts[0], &parts[1], &parts[2]}};
  float out[8][8];
  codes[5] ^= 0x00100000;  // row 3 of column 5 is 2: the sixth code of the word
  mlx_packing_dequantize(&packing, 0, 8, out[0]);
  for (int row = 0; row < 8; ++row) {
    for (int i = 0; i < 8; ++i) CHECK(out[row][i] == (row == 3 ? (i == 5 ? 18.0f : 16.0f) : -12.0f));
  }
}

TEST(gptq_columns_follow_their_group_index) {
  const uint32_t codes[16] = {0x11111111, 0x11111111, 0x11111111, 0x11111111, 0x11111111, 0x11111111,
                              0x11111111, 0x11111111, 0x11111111, 0x11111111, 0x11111111, 0x11111111,
                              0x11111111, 0x11111111, 0x11111111, 0x11111111};
  const uint32_t zeros[2] = {0, 0x33333333}, groups[16] = {1, 0, 0, 1, 1, 1, 0, 1, 0, 0, 0, 0, 1, 0, 1, 0};
  uint16_t scales[2][8];
  for (int i = 0; i < 8; ++i) scales[0][i] = ONE_AND_A_HALF, scales[1][i] = MINUS_TWO;
  const mlx_tensor_t parts[] = {tensor(MLX_I32, codes), tensor(MLX_F16, scales), tensor(MLX_I32, zeros),
                                tensor(MLX_I32, groups)};
  const mlx_packing_t packing = {.kind = MLX_PACKED_GPTQ,
                                 .bits = 4,
                                 .rows = 8,
                                 .columns = 16,
                                 .group = 8,
                                 .parts = {&parts[0], &parts[1], &parts[2], &parts[3]}};
  float out[16];
  mlx_packing_dequantize(&packing, 6, 1, out);
  for (int i = 0; i < 16; ++i) CHECK(out[i] == (groups[i] ? 4.0f : 1.5f));
}

// Eight rows of 128 columns in four groups: column i belongs to group i * 5 % 128 / 32.
#define SORTED_COLUMNS 128
#define SORTED_GROUP 32
typedef struct sortable {
  uint32_t codes[SORTED_COLUMNS], zeros[4], groups[SORTED_COLUMNS];
  uint16_t scales[4][8];
  mlx_tensor_t parts[4];
  mlx_packing_t packing;
} sortable_t;

static void make_sortable(sortable_t *m, mlx_dtype_t scales) {
  for (uint32_t i = 0; i < SORTED_COLUMNS; ++i) {
    m->codes[i] = 0x9e3779b9u * (i + 1);
    m->groups[i] = i * 5 % SORTED_COLUMNS / SORTED_GROUP;
  }
  for (int i = 0; i < 32; ++i) m->scales[i / 8][i % 8] = (uint16_t)(ONE_AND_A_HALF + 3 * i);
  for (uint32_t i = 0; i < 4; ++i) m->zeros[i] = 0x85ebca6bu * (i + 7);
  const mlx_tensor_t parts[] = {tensor(MLX_I32, m->codes), tensor(scales, m->scales),
                                tensor(MLX_I32, m->zeros), tensor(MLX_I32, m->groups)};
  memcpy(m->parts, parts, sizeof parts);
  m->packing = (mlx_packing_t){.kind = MLX_PACKED_GPTQ,
                               .bits = 4,
                               .rows = 8,
                               .columns = SORTED_COLUMNS,
                               .group = SORTED_GROUP,
                               .parts = {&m->parts[0], &m->parts[1], &m->parts[2], &m->parts[3]}};
}

TEST(gptq_columns_in_act_order_are_sorted_by_group) {
  static float plain[8][SORTED_COLUMNS], sorted[8][SORTED_COLUMNS];
  int32_t order[SORTED_COLUMNS];
  int64_t starts[4];
  sortable_t m;
  for (int dtype = 0; dtype < 2; ++dtype) {
    make_sortable(&m, dtype ? MLX_BF16 : MLX_F16);
    CHECK(!mlx_packing_has_codes(&m.packing));
    mlx_packing_dequantize(&m.packing, 0, 8, plain[0]);
    CHECK(mlx_packing_sort_columns(&m.packing, starts, order));
    m.packing.order = order;
    CHECK(mlx_packing_has_codes(&m.packing));
    mlx_packing_dequantize(&m.packing, 0, 8, sorted[0]);
    for (int i = 0; i < SORTED_COLUMNS; ++i) {
      CHECK_INT(m.groups[order[i]], i / SORTED_GROUP);
      CHECK(i % SORTED_GROUP == 0 || order[i] > order[i - 1]);  // so no column is there twice
      for (int row = 0; row < 8; ++row) CHECK(sorted[row][i] == plain[row][order[i]]);
    }
    for (int at = 0; at < 8 * 4; ++at) {
      mlx_codes_t block;
      mlx_packing_codes(&m.packing, at / 4, at % 4, &block);
      for (int i = 0; i < 32; ++i)
        CHECK((float)block.code[i] * block.scale[0] + block.offset[0] == sorted[at / 4][at % 4 * 32 + i]);
    }
  }
}

// Kernels could not read the sorted columns, or there is nothing to sort.
TEST(gptq_columns_that_cannot_be_sorted_stay_as_they_are) {
  int32_t order[SORTED_COLUMNS];
  int64_t starts[8];
  sortable_t m;
  make_sortable(&m, MLX_F16);
  m.groups[3] = (m.groups[3] + 1) % 4;  // groups of 31, 33, 32 and 32 columns
  CHECK(!mlx_packing_sort_columns(&m.packing, starts, order));
  m.groups[3] = 4;
  CHECK(!mlx_packing_sort_columns(&m.packing, starts, order));
  m.groups[3] = UINT32_MAX;
  CHECK(!mlx_packing_sort_columns(&m.packing, starts, order));
  for (uint32_t i = 0; i < SORTED_COLUMNS; ++i) m.groups[i] = i / SORTED_GROUP;
  CHECK(!mlx_packing_sort_columns(&m.packing, starts, order));
  make_sortable(&m, MLX_F16);
  m.packing.group = 16;
  for (uint32_t i = 0; i < SORTED_COLUMNS; ++i) m.groups[i] = i * 5 % SORTED_COLUMNS / 16;
  CHECK(!mlx_packing_sort_columns(&m.packing, starts, order));
}

// ----------------------------------------------------------------------------------------------------------
// Goldens: the same random generator as in tests/parity/packing_goldens.py, called in the same order

static uint64_t state;

static uint32_t draw(void) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(state >> 33);
}

static uint32_t draw_word(void) {
  const uint32_t high = draw() << 1;
  return high ^ draw();
}

// Unaligned and of the exact size, so that the sanitizer sees every out-of-bounds read.
static mlx_tensor_t exact_tensor(mlx_dtype_t dtype, size_t count, const uint32_t *values) {
  const size_t width = mlx_dtype_info(dtype)->block_bytes;
  uint8_t *data = malloc(count * width + 1);
  for (size_t i = 0; i < count; ++i) memcpy(data + 1 + i * width, &values[i], width);
  return (mlx_tensor_t){.dtype = dtype, .data = data + 1};
}

#define MAX_WORDS 8192  // per part

static mlx_tensor_t draw_words(mlx_dtype_t dtype, size_t count) {
  static uint32_t words[MAX_WORDS];
  CHECK(count <= MAX_WORDS);
  for (size_t i = 0; i < count; ++i) words[i] = draw_word();
  return exact_tensor(dtype, count, words);
}

static mlx_tensor_t draw_floats(mlx_dtype_t dtype, size_t count) {
  static uint32_t bits[MAX_WORDS];
  CHECK(count <= MAX_WORDS);
  for (size_t i = 0; i < count; ++i) bits[i] = draw_word();
  for (size_t i = 0; i < count; ++i) {
    const uint32_t exponent = draw() % 21;
    const uint32_t wide = (bits[i] & 0x807fffff) | (exponent + 110) << 23;
    bits[i] = dtype == MLX_F16 ? (bits[i] & 0x83ff) | exponent << 10 : dtype == MLX_BF16 ? wide >> 16 : wide;
  }
  return exact_tensor(dtype, count, bits);
}

static mlx_tensor_t draw_bytes(size_t count) {
  static uint32_t words[MAX_WORDS];
  CHECK(count <= MAX_WORDS);
  for (size_t i = 0; i < count; ++i) words[i] = draw() & 255;
  return exact_tensor(MLX_U8, count, words);
}

static mlx_tensor_t draw_groups(size_t count, uint32_t groups) {
  static uint32_t words[MAX_WORDS];
  for (size_t i = 0; i < count; ++i) words[i] = draw() % groups;
  return exact_tensor(MLX_I32, count, words);
}

static void check_words(const packing_golden_t *g, size_t number, const float *out) {
  const size_t count = (size_t)(g->rows * g->columns);
  uint64_t digest = 0xcbf29ce484222325;
  const uint8_t *bytes = (const uint8_t *)out;
  for (size_t i = 0; i < 4 * count; ++i) digest = (digest ^ bytes[i]) * 0x100000001b3;
  for (size_t i = 0; i < 3; ++i) {
    uint32_t word;
    memcpy(&word, &out[count - 3 + i], sizeof word);
    if (word != g->last[i])
      CHECK_FAIL("golden %zu: word %zu from the end is %08x, expected %08x", number, 2 - i, word, g->last[i]);
  }
  if (digest != g->digest)
    CHECK_FAIL("golden %zu: the last words match, but an earlier word differs", number);
}

static void check_golden(const packing_golden_t *g, size_t number) {
  const size_t rows = (size_t)g->rows, columns = (size_t)g->columns, groups = columns / (size_t)g->group;
  const bool mlx = g->kind == MLX_PACKED_MLX, mxfp4 = g->kind == MLX_PACKED_MXFP4;
  static float out[40 * 256];
  CHECK(rows * columns <= sizeof out / sizeof *out);
  state = number;
  mlx_tensor_t parts[MLX_PART_COUNT] = {0};
  parts[0] = mxfp4 ? draw_bytes(rows * columns / 2)
                   : draw_words(mlx ? MLX_U32 : MLX_I32, rows * columns * (size_t)g->bits / 32);
  parts[1] = mxfp4 ? draw_bytes(rows * groups) : draw_floats(g->dtype, rows * groups);
  if (!mxfp4) parts[2] = mlx ? draw_floats(g->dtype, rows * groups) : draw_words(MLX_I32, rows / 8 * groups);
  if (g->act_order) parts[3] = draw_groups(columns, (uint32_t)groups);
  mlx_packing_t packing = {.kind = g->kind,
                           .bits = g->bits,
                           .rows = g->rows,
                           .columns = g->columns,
                           .group = g->group,
                           .zeros_minus_one = g->zeros_minus_one};
  for (int i = 0; i < MLX_PART_COUNT; ++i) packing.parts[i] = parts[i].data ? &parts[i] : NULL;
  for (int64_t row = 0; row < g->rows;) {  // in unequal steps: the chunking must not matter
    const int64_t step = row + 3 < g->rows ? 3 : g->rows - row;
    mlx_packing_dequantize(&packing, row, step, out + row * g->columns);
    row += step;
  }
  check_words(g, number, out);
  for (int i = 0; i < MLX_PART_COUNT; ++i) {
    if (parts[i].data) free((uint8_t *)(uintptr_t)parts[i].data - 1);
  }
}

TEST(random_matrices_match_numpy_and_transformers) {
  for (size_t i = 0; i < sizeof packing_goldens / sizeof *packing_goldens; ++i)
    check_golden(&packing_goldens[i], i);
}

// Every code with every scale. The extremes are subnormal numbers and infinity, as in transformers'
// convert_moe_packed_tensors.
TEST(mxfp4_codes_with_every_scale_are_dequantized) {
  static const double values[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  uint8_t codes[16];
  for (int i = 0; i < 16; ++i) codes[i] = (uint8_t)(i | (15 - i) << 4);
  for (int s = 0; s < 256; ++s) {
    const uint8_t scale = (uint8_t)s;
    const mlx_tensor_t parts[] = {tensor(MLX_U8, codes), tensor(MLX_U8, &scale)};
    const mlx_packing_t packing = {.kind = MLX_PACKED_MXFP4,
                                   .bits = 4,
                                   .rows = 1,
                                   .columns = 32,
                                   .group = 32,
                                   .stack = 1,
                                   .parts = {&parts[0], &parts[1]}};
    float out[32];
    mlx_packing_dequantize(&packing, 0, 1, out);
    for (int i = 0; i < 32; ++i) {
      const int code = i % 2 ? 15 - i / 2 : i / 2;
      const double exact = ldexp(values[code & 7], s - 127);
      const float expected = exact > FLT_MAX ? INFINITY : (float)exact;
      CHECK(fabsf(out[i]) == expected && !signbit(out[i]) == (code < 8));
    }
  }
}

// The codes are twice the e2m1 values, and their scale is half of the block's, so that the products are
// exact.
TEST(mxfp4_codes_are_integers_with_half_the_scale) {
  uint8_t codes[2][2][16], scales[2][2] = {{127, 120}, {0, 135}};
  float values[2][64];
  mlx_codes_t block;
  for (size_t i = 0; i < sizeof codes; ++i) ((uint8_t *)codes)[i] = (uint8_t)(i * 37 + 5);
  const mlx_tensor_t parts[] = {tensor(MLX_U8, codes), tensor(MLX_U8, scales)};
  const mlx_packing_t packing = {.kind = MLX_PACKED_MXFP4,
                                 .bits = 4,
                                 .rows = 2,
                                 .columns = 64,
                                 .group = 32,
                                 .parts = {&parts[0], &parts[1]}};
  CHECK(mlx_packing_has_codes(&packing));
  mlx_packing_dequantize(&packing, 0, 2, values[0]);
  for (int at = 0; at < 4; ++at) {
    mlx_packing_codes(&packing, at / 2, at % 2, &block);
    CHECK(block.offset[0] == 0 && block.offset[1] == 0);
    for (int i = 0; i < 32; ++i) {
      const float expected = values[at / 2][at % 2 * 32 + i];
      CHECK(block.code[i] >= -12 && block.code[i] <= 12 &&
            (float)block.code[i] * block.scale[i / 16] == expected);
    }
  }
}

TEST_MAIN(CASE(mxfp4_codes_are_integers_with_half_the_scale),
          CASE(mxfp4_codes_with_every_scale_are_dequantized), CASE(mlx_codes_of_every_width_are_dequantized),
          CASE(gptq_codes_and_zero_points_are_dequantized), CASE(awq_interleaving_is_undone),
          CASE(gptq_columns_follow_their_group_index), CASE(gptq_columns_in_act_order_are_sorted_by_group),
          CASE(gptq_columns_that_cannot_be_sorted_stay_as_they_are),
          CASE(random_matrices_match_numpy_and_transformers))
