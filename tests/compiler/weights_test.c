// weights.irpa holds every tensor in the requested type, with rows in Hugging Face's order.
#include "compiler/weights.h"

#include "artifact/archive.h"
#include "tests/support/check.h"
#include "tests/support/command.h"

#define COLUMNS 3

// Includes bits that arithmetic could change: subnormals and a negative zero. All fit into f16.
static const uint16_t bf16_rows[4][COLUMNS] = {
    {0x3f80, 0x4701, 0x0001}, {0xc77f, 0x8000, 0xbf81}, {0x4049, 0x477f, 0}, {1, 2, 3}};
static const float f32_rows[2][COLUMNS] = {{1.00390625f, 1.01171875f, -60000.0f},
                                           {0x1p-24f, 0x1p-132f, 0.1f}};
static const float norm[COLUMNS] = {0.1f, 1.00390625f, -3e38f};

static mlx_weight_t weight(const char *name, mlx_dtype_t dtype, int64_t rows, const void *data,
                           mlx_row_order_t order) {
  mlx_weight_t w = {.name = (char *)(uintptr_t)name, .order = order, .order_head_dim = 4};
  w.tensor = (mlx_tensor_t){
      .dtype = dtype, .rank = rows ? 2 : 1, .dims = {rows ? rows : COLUMNS, COLUMNS}, .data = data};
  CHECK(mlx_dtype_tensor_bytes(dtype, w.tensor.rank, w.tensor.dims, &w.tensor.size));
  return w;
}

static char weights_folder[64];

static void drop_weights(mlx_map_t *map) {
  mlx_unmap(map);
  CHECK_OK(mlx_remove_tree(weights_folder));
}

// Writes weights as |dtype| and maps the archive. Release with drop_weights.
static mlx_map_t write_list(mlx_weight_t *weights, size_t count, mlx_dtype_t dtype,
                            mlx_archive_t *out_archive) {
  const mlx_model_t model = {.weights = weights, .weight_count = count};
  char path[96];
  strcpy(weights_folder, "/tmp/mlxcel-weights-XXXXXX");
  CHECK(mkdtemp(weights_folder));
  snprintf(path, sizeof path, "%s/x.irpa", weights_folder);
  CHECK_OK(mlx_weights_write(&model, (mlx_storage_t){.dtype = dtype}, path, NULL));
  mlx_map_t map;
  CHECK_OK(mlx_map_file(path, &map));
  CHECK_OK(mlx_archive_parse("x.irpa", map.data, map.size, out_archive));
  CHECK_INT(out_archive->count, count);
  return map;
}

static mlx_map_t write_weights(mlx_dtype_t dtype, mlx_archive_t *out_archive) {
  mlx_weight_t weights[] = {weight("as_stored", MLX_BF16, 4, bf16_rows, MLX_ROWS_AS_STORED),
                            weight("interleaved", MLX_BF16, 4, bf16_rows, MLX_ROWS_INTERLEAVED_HALVES),
                            weight("f32", MLX_F32, 2, f32_rows, MLX_ROWS_AS_STORED),
                            weight("norm", MLX_F32, 0, norm, MLX_ROWS_AS_STORED)};
  return write_list(weights, 4, dtype, out_archive);
}

static void check_bytes(const mlx_archive_entry_t *entry, const void *expected, size_t size) {
  if (entry->size != size) CHECK_FAIL("%s has %zu bytes, expected %zu", entry->name, entry->size, size);
  for (size_t i = 0; i < size; ++i) {
    uint8_t want = ((const uint8_t *)expected)[i];
    if (entry->data[i] != want)
      CHECK_FAIL("%s: byte %zu is %02x, expected %02x", entry->name, i, entry->data[i], want);
  }
}

TEST(tensor_of_the_requested_type_keeps_its_exact_bits) {
  mlx_archive_t archive;
  mlx_map_t map = write_weights(MLX_BF16, &archive);
  uint16_t in_order[4][COLUMNS];
  static const int stored[] = {0, 2, 1, 3};
  for (int i = 0; i < 4; ++i) memcpy(in_order[i], bf16_rows[stored[i]], sizeof in_order[i]);
  check_bytes(&archive.entries[0], bf16_rows, sizeof bf16_rows);
  check_bytes(&archive.entries[1], in_order, sizeof in_order);
  mlx_archive_clear(&archive);
  drop_weights(&map);
  map = write_weights(MLX_F32, &archive);
  check_bytes(&archive.entries[2], f32_rows, sizeof f32_rows);
  mlx_archive_clear(&archive);
  drop_weights(&map);
}

TEST(matrices_of_other_types_are_rounded_and_vectors_stay_f32) {
  static const uint16_t as_bf16[] = {0x3f80, 0x3f82, 0xc76a, 0x3380, 0x0002, 0x3dcd};
  static const uint16_t as_f16[] = {0x3c04, 0x3c0c, 0xfb53, 0x0001, 0x0000, 0x2e66};
  mlx_archive_t archive;
  mlx_map_t map = write_weights(MLX_BF16, &archive);
  check_bytes(&archive.entries[2], as_bf16, sizeof as_bf16);
  check_bytes(&archive.entries[3], norm, sizeof norm);
  mlx_archive_clear(&archive);
  drop_weights(&map);
  map = write_weights(MLX_F16, &archive);
  check_bytes(&archive.entries[2], as_f16, sizeof as_f16);
  check_bytes(&archive.entries[3], norm, sizeof norm);
  mlx_archive_clear(&archive);
  drop_weights(&map);
}

// Two heads of 2 + 3 rows with 64 columns in Q8_0: the first rows of each head are the columns of one weight,
// the others the rows of another. Blocks of 32 columns have a scale of their own.
#define HEADS 2
#define KEY_ROWS 2
#define VALUE_ROWS 3
#define HEAD_ROWS (KEY_ROWS + VALUE_ROWS)
#define HEAD_COLUMNS 64

static float head_value(int row, int column) {
  return (float)((row * 29 + column * 7) % 255 - 127) * (column < 32 ? 0.5f : 2.0f + (float)row);
}

static void store_heads(uint8_t *out) {
  for (int row = 0; row < HEADS * HEAD_ROWS; ++row) {
    for (int block = 0; block < HEAD_COLUMNS / 32; ++block) {
      const float scale = block ? 2.0f + (float)row : 0.5f;
      mlx_dtype_info(MLX_F16)->from_f32(&scale, 1, out);
      out += 2;
      for (int i = 0; i < 32; ++i) *out++ = (uint8_t)(int8_t)(head_value(row, 32 * block + i) / scale);
    }
  }
}

TEST(quantized_rows_of_heads_become_columns_of_one_weight_and_rows_of_another) {
  static uint8_t stored[HEADS * HEAD_ROWS * (HEAD_COLUMNS / 32) * 34];
  float keys[HEADS * HEAD_COLUMNS * KEY_ROWS], values[HEADS * VALUE_ROWS * HEAD_COLUMNS];
  store_heads(stored);
  for (int i = 0; i < HEADS * HEAD_COLUMNS * KEY_ROWS; ++i)
    keys[i] =
        head_value(i / (HEAD_COLUMNS * KEY_ROWS) * HEAD_ROWS + i % KEY_ROWS, i / KEY_ROWS % HEAD_COLUMNS);
  for (int i = 0; i < HEADS * VALUE_ROWS * HEAD_COLUMNS; ++i)
    values[i] =
        head_value(i / (VALUE_ROWS * HEAD_COLUMNS) * HEAD_ROWS + KEY_ROWS + i / HEAD_COLUMNS % VALUE_ROWS,
                   i % HEAD_COLUMNS);
  mlx_weight_t w[2] = {
      {.name = (char *)(uintptr_t)"keys", .order = MLX_COLUMNS_OF_HEADS},
      {.name = (char *)(uintptr_t)"values", .order = MLX_ROWS_OF_HEADS, .head_first = KEY_ROWS}};
  for (int i = 0; i < 2; ++i) {
    w[i].head_rows = HEAD_ROWS;
    w[i].tensor = (mlx_tensor_t){.dtype = MLX_Q8_0,
                                 .rank = 3,
                                 .dims = {HEADS, i ? VALUE_ROWS : HEAD_COLUMNS, i ? HEAD_COLUMNS : KEY_ROWS},
                                 .size = sizeof stored / HEAD_ROWS * (size_t)(i ? VALUE_ROWS : KEY_ROWS),
                                 .data = stored};
  }
  mlx_archive_t archive;
  mlx_map_t map = write_list(w, 2, MLX_F32, &archive);
  check_bytes(&archive.entries[0], keys, sizeof keys);
  check_bytes(&archive.entries[1], values, sizeof values);
  mlx_archive_clear(&archive);
  drop_weights(&map);
}

// Two experts of two rows. The stored tensor has gate and up one after the other or interleaved, as rows or
// as columns.
#define EXPERTS 2
#define ROWS 2

static float value_of(int expert, int half, int row, int column) {
  return (float)(1000 * expert + 100 * half + 10 * row + column);
}

static void check_half(mlx_fused_part_t half, mlx_row_order_t order, int columns) {
  float stored[EXPERTS * 2 * ROWS * COLUMNS], expected[EXPERTS * ROWS * COLUMNS];
  const bool interleaved = half == MLX_FUSED_EVEN_ROWS || half == MLX_FUSED_ODD_ROWS,
             second = half == MLX_FUSED_SECOND_HALF || half == MLX_FUSED_ODD_ROWS;
  for (int i = 0; i < EXPERTS * 2 * ROWS * columns; ++i) {
    const int expert = i / (2 * ROWS * columns), rest = i % (2 * ROWS * columns),
              transposed = order == MLX_ROWS_ARE_COLUMNS;
    const int line = transposed ? rest % (2 * ROWS) : rest / columns,
              column = transposed ? rest / (2 * ROWS) : rest % columns;
    stored[i] =
        value_of(expert, interleaved ? line % 2 : line / ROWS, interleaved ? line / 2 : line % ROWS, column);
  }
  for (int i = 0; i < EXPERTS * ROWS * columns; ++i) {
    expected[i] = value_of(i / (ROWS * columns), second, i / columns % ROWS, i % columns);
  }
  const size_t size = (size_t)(EXPERTS * ROWS * columns) * sizeof(float);
  mlx_weight_t w = {.name = (char *)(uintptr_t)"half", .order = order, .fused_part = half};
  w.tensor = (mlx_tensor_t){
      .dtype = MLX_F32, .rank = columns == 1 ? 2 : 3, .dims = {EXPERTS, ROWS, columns}, .size = size};
  w.tensor.data = (const uint8_t *)stored;
  mlx_archive_t archive;
  mlx_map_t map = write_list(&w, 1, MLX_F32, &archive);
  check_bytes(&archive.entries[0], expected, size);
  mlx_archive_clear(&archive);
  drop_weights(&map);
}

TEST(weight_can_be_one_half_of_the_rows_of_each_expert) {
  for (int half = MLX_FUSED_FIRST_HALF; half <= MLX_FUSED_ODD_ROWS; ++half) {
    check_half((mlx_fused_part_t)half, MLX_ROWS_AS_STORED, COLUMNS);
    check_half((mlx_fused_part_t)half, MLX_ROWS_ARE_COLUMNS, COLUMNS);
    check_half((mlx_fused_part_t)half, MLX_ROWS_AS_STORED, 1);  // biases
  }
}

TEST_MAIN(CASE(weight_can_be_one_half_of_the_rows_of_each_expert),
          CASE(quantized_rows_of_heads_become_columns_of_one_weight_and_rows_of_another),
          CASE(tensor_of_the_requested_type_keeps_its_exact_bits),
          CASE(matrices_of_other_types_are_rounded_and_vectors_stay_f32))
