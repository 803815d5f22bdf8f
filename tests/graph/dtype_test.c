// The dtype table: conversion to and from f32, and sizes that never overflow.
#include "graph/dtype.h"

#include <float.h>
#include <math.h>

#include "base/file.h"
#include "base/memory.h"
#include "tests/support/check.h"

typedef struct dequant_golden {
  mlx_dtype_t dtype;
  const uint8_t *in;
  size_t in_size;
  const uint32_t *out;
  size_t out_count;
} dequant_golden_t;

typedef struct random_golden {
  mlx_dtype_t dtype;
  int scales[2];  // offsets of the f16 scales in a block; -1: none
  uint64_t hash;  // of RANDOM_BLOCKS dequantized random blocks
} random_golden_t;

#include "tests/goldens/dequant.h"

static bool is_nan(uint32_t bits) { return (bits & 0x7fffffff) > 0x7f800000; }

TEST(dequantization_matches_the_gguf_package) {
  for (size_t i = 0; i < sizeof dequant_goldens / sizeof *dequant_goldens; ++i) {
    const dequant_golden_t *golden = &dequant_goldens[i];
    const mlx_dtype_info_t *info = mlx_dtype_info(golden->dtype);
    size_t blocks = golden->in_size / info->block_bytes;
    CHECK_INT(blocks * info->block_bytes, golden->in_size);
    CHECK_INT(blocks * info->block_elements, golden->out_count);
    // Offset by one byte, because tensors in files can have any alignment.
    uint8_t *in = malloc(golden->in_size + 1);
    uint32_t *out = malloc(4 * golden->out_count);
    memcpy(in + 1, golden->in, golden->in_size);
    info->to_f32(in + 1, blocks, (float *)out);
    for (size_t j = 0; j < golden->out_count; ++j) {
      // Arithmetic may produce any NaN, but a NaN that is only copied must keep its bits.
      if (info->block_elements > 1 && is_nan(out[j]) && is_nan(golden->out[j])) continue;
      if (out[j] != golden->out[j])
        CHECK_FAIL("%s element %zu is %08x, expected %08x", info->name, j, out[j], golden->out[j]);
    }
    free(in);
    free(out);
  }
}

static uint64_t next_random(uint64_t *state) {  // splitmix64
  uint64_t z = (*state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

static uint64_t hash_word(uint64_t hash, uint32_t word) {  // FNV-1a
  for (int i = 0; i < 4; ++i) hash = (hash ^ (uint8_t)(word >> 8 * i)) * UINT64_C(0x100000001b3);
  return hash;
}

#define HASH_START UINT64_C(0xcbf29ce484222325)

// The same as random_hash in tests/parity/dequant_goldens.py: random bytes, where the first blocks have every
// edge case, or pair of edge cases, as scales. Types with a one-byte scale get all 256 values.
static uint8_t *random_blocks(const random_golden_t *golden) {
  const mlx_dtype_info_t *info = mlx_dtype_info(golden->dtype);
  const size_t edges = sizeof edge_scales / sizeof *edge_scales;
  uint8_t *blocks = malloc(RANDOM_BLOCKS * info->block_bytes);
  uint64_t state = (uint64_t)info->gguf_type;
  for (size_t i = 0; i < RANDOM_BLOCKS * info->block_bytes; ++i) blocks[i] = (uint8_t)next_random(&state);
  for (size_t i = 0; golden->scales[0] < 0 && i < 256; ++i) blocks[i * info->block_bytes] = (uint8_t)i;
  size_t with_edges = 1;
  for (int i = 0; i < 2; ++i) with_edges *= golden->scales[i] < 0 ? 1 : edges;
  for (size_t i = 0; i < with_edges; ++i) {
    size_t rest = i;
    for (int j = 0; j < 2 && golden->scales[j] >= 0; ++j, rest /= edges) {
      uint8_t *scale = blocks + i * info->block_bytes + golden->scales[j];
      scale[0] = (uint8_t)edge_scales[rest % edges];
      scale[1] = (uint8_t)(edge_scales[rest % edges] >> 8);
    }
  }
  return blocks;
}

TEST(random_blocks_of_every_quantized_type_match_the_gguf_package) {
  for (size_t i = 0; i < sizeof random_goldens / sizeof *random_goldens; ++i) {
    const mlx_dtype_info_t *info = mlx_dtype_info(random_goldens[i].dtype);
    const size_t count = RANDOM_BLOCKS * info->block_elements;
    uint8_t *blocks = random_blocks(&random_goldens[i]);
    uint32_t *out = malloc(4 * count);
    uint64_t hash = HASH_START;
    info->to_f32(blocks, RANDOM_BLOCKS, (float *)out);
    for (size_t j = 0; j < count; ++j) hash = hash_word(hash, is_nan(out[j]) ? 0x7fc00000 : out[j]);
    if (hash != random_goldens[i].hash)
      CHECK_FAIL("random blocks of %s are dequantized to other values", info->name);
    free(blocks);
    free(out);
  }
}

TEST(every_convertible_type_has_goldens) {
  for (int i = 0; i < MLX_DTYPE_COUNT; ++i) {
    const mlx_dtype_info_t *info = mlx_dtype_info((mlx_dtype_t)i);
    bool full = false, random = false;
    for (size_t j = 0; j < sizeof dequant_goldens / sizeof *dequant_goldens; ++j)
      full |= (int)dequant_goldens[j].dtype == i;
    for (size_t j = 0; j < sizeof random_goldens / sizeof *random_goldens; ++j)
      random |= (int)random_goldens[j].dtype == i;
    CHECK(full == (info->to_f32 != NULL));
    CHECK(random == (info->block_elements > 1));
  }
}

static uint64_t hash_of_every_value(mlx_dtype_t dtype) {
  uint64_t hash = HASH_START;
  for (uint32_t value = 0; value < 65536; ++value) {
    uint8_t in[2] = {(uint8_t)value, (uint8_t)(value >> 8)};
    uint32_t out;
    float value_f32;
    mlx_dtype_info(dtype)->to_f32(in, 1, &value_f32);
    memcpy(&out, &value_f32, sizeof out);
    hash = hash_word(hash, out);
  }
  return hash;
}

TEST(every_f16_and_bf16_value_converts_exactly) {
  CHECK(hash_of_every_value(MLX_F16) == EVERY_F16);
  CHECK(hash_of_every_value(MLX_BF16) == EVERY_BF16);
}

static uint16_t rounded(mlx_dtype_t dtype, float value) {
  uint8_t out[3];  // offset by one byte: any alignment is allowed
  uint16_t bits;
  mlx_dtype_info(dtype)->from_f32(&value, 1, out + 1);
  memcpy(&bits, out + 1, sizeof bits);
  return bits;
}

static float to_float(mlx_dtype_t dtype, uint16_t bits) {
  float value;
  mlx_dtype_info(dtype)->to_f32((const uint8_t *)&bits, 1, &value);
  return value;
}

static void check_rounds_to(mlx_dtype_t dtype, float value, uint16_t expected) {
  uint16_t bits = rounded(dtype, value);
  if (bits != expected)
    CHECK_FAIL("%a is %04x in %s, expected %04x", (double)value, bits, mlx_dtype_info(dtype)->name, expected);
}

// Checks every finite value, every midpoint between two neighbours, and the floats next to each midpoint.
// |infinity| is the bit pattern of infinity. Rounding treats it as |beyond|, the next power of two.
static void check_all_rounding(mlx_dtype_t dtype, uint16_t infinity, double beyond) {
  for (uint16_t bits = 0; bits < infinity; ++bits) {
    double low = (double)to_float(dtype, bits),
           high = bits + 1 == infinity ? beyond : (double)to_float(dtype, (uint16_t)(bits + 1));
    float middle = (float)((low + high) / 2);
    uint16_t next = (uint16_t)(bits + 1), even = bits % 2 ? next : bits;
    for (int sign = 0; sign < 2; ++sign) {
      uint16_t minus = sign ? 0x8000 : 0;
      float direction = sign ? -1.0f : 1.0f;
      check_rounds_to(dtype, direction * (float)low, bits | minus);
      check_rounds_to(dtype, direction * middle, even | minus);
      check_rounds_to(dtype, direction * nextafterf(middle, 0.0f), bits | minus);
      check_rounds_to(dtype, direction * nextafterf(middle, INFINITY), next | minus);
    }
  }
}

TEST(rounding_is_to_nearest_even) {
  check_all_rounding(MLX_F16, 0x7c00, 0x1p16);
  check_all_rounding(MLX_BF16, 0x7f80, 0x1p128);
}

TEST(overflow_rounds_to_infinity_and_underflow_to_zero) {
  check_rounds_to(MLX_F16, 65519.996f, 0x7bff);
  check_rounds_to(MLX_F16, 65520.0f, 0x7c00);
  check_rounds_to(MLX_F16, -1e30f, 0xfc00);
  check_rounds_to(MLX_F16, FLT_MAX, 0x7c00);
  check_rounds_to(MLX_F16, INFINITY, 0x7c00);
  check_rounds_to(MLX_F16, 0x1p-24f, 0x0001);
  check_rounds_to(MLX_F16, 0x1p-25f, 0x0000);
  check_rounds_to(MLX_F16, -0x1p-149f, 0x8000);
  check_rounds_to(MLX_BF16, -FLT_MAX, 0xff80);
  check_rounds_to(MLX_BF16, -INFINITY, 0xff80);
  check_rounds_to(MLX_BF16, -0x1p-149f, 0x8000);
}

// A NaN whose payload is only in the dropped bits must not become infinity.
TEST(a_nan_stays_nan_and_becomes_quiet) {
  static const uint32_t nans[] = {0x7f800001, 0xffbfffff, 0x7fc00000, 0x7fffffff, 0xff800001};
  for (size_t i = 0; i < sizeof nans / sizeof *nans; ++i) {
    float value;
    memcpy(&value, &nans[i], sizeof value);
    uint16_t f16 = rounded(MLX_F16, value), bf16 = rounded(MLX_BF16, value);
    CHECK_INT(f16 & 0x7e00, 0x7e00);
    CHECK_INT(bf16 & 0x7fc0, 0x7fc0);
    CHECK_INT(f16 >> 15, nans[i] >> 31);
    CHECK_INT(bf16 >> 15, nans[i] >> 31);
  }
}

TEST(dtype_parse_accepts_only_f32_bf16_and_f16) {
  mlx_dtype_t dtype;
  CHECK_OK(mlx_dtype_parse("f32", &dtype));
  CHECK_INT(dtype, MLX_F32);
  CHECK_OK(mlx_dtype_parse("bf16", &dtype));
  CHECK_INT(dtype, MLX_BF16);
  CHECK_OK(mlx_dtype_parse("f16", &dtype));
  CHECK_INT(dtype, MLX_F16);
  CHECK_ERROR(mlx_dtype_parse("i32", &dtype), MLX_USAGE, "unknown dtype 'i32'");
  CHECK_ERROR(mlx_dtype_parse("Q4_0", &dtype), MLX_USAGE, "unknown dtype 'Q4_0'");
}

TEST(sizes_are_whole_blocks_and_never_overflow) {
  size_t bytes = 0;
  CHECK(mlx_dtype_tensor_bytes(MLX_F32, 2, (int64_t[]){3, 5}, &bytes) && bytes == 60);
  CHECK(mlx_dtype_tensor_bytes(MLX_Q4_1, 2, (int64_t[]){3, 64}, &bytes) && bytes == 120);
  CHECK(mlx_dtype_tensor_bytes(MLX_F32, 0, NULL, &bytes) && bytes == 4);
  CHECK(mlx_dtype_tensor_bytes(MLX_F32, 2, (int64_t[]){0, 5}, &bytes) && bytes == 0);
  CHECK(!mlx_dtype_tensor_bytes(MLX_Q4_1, 2, (int64_t[]){64, 3}, &bytes));
  CHECK(!mlx_dtype_tensor_bytes(MLX_Q8_0, 0, NULL, &bytes));
  CHECK(!mlx_dtype_tensor_bytes(MLX_F32, 1, (int64_t[]){-1}, &bytes));
  CHECK(!mlx_dtype_tensor_bytes(MLX_F32, 1, (int64_t[]){INT64_MAX}, &bytes));
  CHECK(!mlx_dtype_tensor_bytes(MLX_F32, 2, (int64_t[]){INT64_MAX, INT64_MAX}, &bytes));
  CHECK(!mlx_dtype_tensor_bytes(MLX_Q4_0, 2, (int64_t[]){INT64_C(1) << 60, 32}, &bytes));
}

TEST(every_type_has_a_complete_table_entry) {
  for (int i = 0; i < MLX_DTYPE_COUNT; ++i) {
    const mlx_dtype_info_t *info = mlx_dtype_info((mlx_dtype_t)i);
    CHECK(info->name && info->block_elements && info->block_bytes);
    CHECK((info->mlir != NULL) == (info->block_elements == 1));
  }
}

TEST(docs_formats_md_has_the_same_table) {
  char *text, row[100];
  CHECK_OK(mlx_read_file(MLXCEL_SOURCE_DIR "/docs/formats.md", 1 << 20, &text, &(size_t){0}));
  for (int i = 0; i < MLX_DTYPE_COUNT; ++i) {
    const mlx_dtype_info_t *info = mlx_dtype_info((mlx_dtype_t)i);
    if (info->gguf_type < 0 || !info->to_f32) continue;
    snprintf(row, sizeof row, "\n| %s | %d | %zu | %zu | ", info->name, info->gguf_type, info->block_elements,
             info->block_bytes);
    CHECK_CONTAINS(text, row);
  }
  mlx_free(text);
}

TEST_MAIN(CASE(dequantization_matches_the_gguf_package),
          CASE(random_blocks_of_every_quantized_type_match_the_gguf_package),
          CASE(every_convertible_type_has_goldens), CASE(every_f16_and_bf16_value_converts_exactly),
          CASE(rounding_is_to_nearest_even), CASE(overflow_rounds_to_infinity_and_underflow_to_zero),
          CASE(a_nan_stays_nan_and_becomes_quiet), CASE(dtype_parse_accepts_only_f32_bf16_and_f16),
          CASE(sizes_are_whole_blocks_and_never_overflow), CASE(every_type_has_a_complete_table_entry),
          CASE(docs_formats_md_has_the_same_table))
