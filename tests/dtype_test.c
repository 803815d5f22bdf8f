// Promises of the dtype table: what widening gives, and that sizes never wrap.
#include "models/dtype.h"

#include "tests/check.h"

typedef struct dequant_golden {
  mlx_dtype_t dtype;
  const uint8_t *in;
  size_t in_size;
  const uint32_t *out;
  size_t out_count;
} dequant_golden_t;

#include "tests/goldens/dequant.h"

static bool is_nan(uint32_t bits) { return (bits & 0x7fffffff) > 0x7f800000; }

TEST(dequantisation_matches_the_gguf_package) {
  for (size_t i = 0; i < sizeof dequant_goldens / sizeof *dequant_goldens; ++i) {
    const dequant_golden_t *golden = &dequant_goldens[i];
    const mlx_dtype_info_t *info = mlx_dtype_info(golden->dtype);
    size_t blocks = golden->in_size / info->block_bytes;
    CHECK_INT(blocks * info->block_bytes, golden->in_size);
    CHECK_INT(blocks * info->block_elements, golden->out_count);
    // One byte further on than malloc gives, because files promise no alignment.
    uint8_t *in = malloc(golden->in_size + 1);
    uint32_t *out = malloc(4 * golden->out_count);
    memcpy(in + 1, golden->in, golden->in_size);
    info->to_f32(in + 1, blocks, (float *)out);
    for (size_t j = 0; j < golden->out_count; ++j) {
      // Which NaN an operation makes is the machine's affair; a NaN that is only copied must keep its bits.
      if (info->block_elements > 1 && is_nan(out[j]) && is_nan(golden->out[j])) continue;
      if (out[j] != golden->out[j]) CHECK_FAIL("%s element %zu is %08x, expected %08x", info->name, j, out[j], golden->out[j]);
    }
    free(in);
    free(out);
  }
}

static uint64_t hash_of_every_value(mlx_dtype_t dtype) {
  uint64_t hash = UINT64_C(0xcbf29ce484222325);
  for (uint32_t value = 0; value < 65536; ++value) {
    uint8_t in[2] = {(uint8_t)value, (uint8_t)(value >> 8)};
    uint32_t out;
    float wide;
    mlx_dtype_info(dtype)->to_f32(in, 1, &wide);
    memcpy(&out, &wide, sizeof out);
    for (int i = 0; i < 4; ++i) hash = (hash ^ (uint8_t)(out >> 8 * i)) * UINT64_C(0x100000001b3);
  }
  return hash;
}

TEST(every_f16_and_bf16_value_is_widened_exactly) {
  CHECK(hash_of_every_value(MLX_F16) == EVERY_F16);
  CHECK(hash_of_every_value(MLX_BF16) == EVERY_BF16);
}

TEST(sizes_are_whole_blocks_and_never_wrap) {
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

TEST(every_type_has_a_full_row_in_the_table) {
  for (int i = 0; i < MLX_DTYPE_COUNT; ++i) {
    const mlx_dtype_info_t *info = mlx_dtype_info((mlx_dtype_t)i);
    CHECK(info->name && info->block_elements && info->block_bytes);
    CHECK((info->mlir != NULL) == (info->block_elements == 1));
  }
}

TEST_MAIN(CASE(dequantisation_matches_the_gguf_package), CASE(every_f16_and_bf16_value_is_widened_exactly),
          CASE(sizes_are_whole_blocks_and_never_wrap), CASE(every_type_has_a_full_row_in_the_table))
