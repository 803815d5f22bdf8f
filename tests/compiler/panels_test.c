// Panels hold bit for bit the dequantized values, for every GGUF type and every quantized checkpoint format.
// Formats that no panel can hold are stored as floats.
#include "compiler/panels.h"

#include <math.h>

#include "artifact/archive.h"
#include "base/memory.h"
#include "compiler/weights.h"
#include "tests/support/command.h"
#include "tests/support/random_gguf.h"

#define ROWS 40  // two panels and a half
#define COLUMNS 512

// ----------------------------------------------------------------------------------------------------------
// Reading panels, using only the table of formats

static float number_at(const mlx_panel_info_t *info, const uint8_t *numbers, int nth, int row) {
  const mlx_dtype_info_t *type = mlx_dtype_info(info->number);
  float value;
  const uint8_t *at = numbers + (size_t)(nth * MLX_PANEL_ROWS + row) * type->block_bytes;
  if (info->number == MLX_U8) return ldexpf(1, *at - MLX_PANEL_POWER_BIAS);
  type->to_f32(at, 1, &value);
  return value;
}

static int code_at(const mlx_panel_info_t *info, const uint8_t *codes, int column, int row) {
  if (info->code_bits < 8) {
    static const int8_t values[][16] = {
        [MLX_PANEL_VALUES_IQ4] = {MLX_PANEL_IQ4}, [MLX_PANEL_VALUES_MXFP4] = {MLX_PANEL_MXFP4_DOUBLED}};
    const int more = info->code_bits - 4, octet = column / 8, octets = more ? 4 / more : 4;
    const uint8_t *low = codes + (octet * MLX_PANEL_ROWS + row) * 4 + column % 8 / 2,
                  *high = codes + ((4 + octet / octets) * MLX_PANEL_ROWS + row) * 4 + column % 8 / 2;
    int code = *low >> column % 2 * 4 & 15;
    if (more) code |= (*high >> (octet % octets * 2 + column % 2) * more & ((1 << more) - 1)) << 4;
    return info->values ? values[info->values][code] : code + info->least_code;
  }
  const uint8_t byte = codes[column * MLX_PANEL_ROWS + row];
  return info->least_code < 0 ? (int8_t)byte : byte;
}

// Bytes of the scales and offsets of a block, and of the numbers of a super-block.
static size_t scale_bytes(const mlx_panel_info_t *info) {
  return (size_t)(info->scales + info->offsets) * MLX_PANEL_ROWS *
         (info->grouped ? 1 : mlx_dtype_info(info->number)->block_bytes);
}
static size_t group_bytes(const mlx_panel_info_t *info) {
  return info->grouped
             ? (info->offsets ? 2u : 1u) * MLX_PANEL_ROWS * mlx_dtype_info(info->number)->block_bytes
             : 0;
}

// The |nth| scale or offset of a block.
static float factor_at(const mlx_panel_info_t *info, const uint8_t *group, const uint8_t *block, int nth,
                       int row) {
  if (!info->grouped) return number_at(info, block, nth, row);
  const uint8_t byte = block[nth * MLX_PANEL_ROWS + row];
  const int factor = info->offsets ? byte : (int8_t)byte;
  return number_at(info, group, nth >= info->scales, row) * (float)factor;
}

static float element_at(mlx_panel_format_t format, const uint8_t *matrix, int row, int column) {
  const mlx_panel_info_t *info = mlx_panel_info(format);
  const uint8_t *panel = matrix + row / MLX_PANEL_ROWS * mlx_panel_bytes((int32_t)format, COLUMNS);
  row %= MLX_PANEL_ROWS;
  if (format == MLX_PANEL_BF16)  // pairs of neighbouring columns
    return number_at(info, panel, column / 2 * 2 + row / 8, row % 8 * 2 + column % 2);
  if (!info->code_bits) return number_at(info, panel, column, row);
  const int nth = column / MLX_PANEL_BLOCK, half = column % MLX_PANEL_BLOCK / 16;
  const size_t own = scale_bytes(info) + (size_t)(MLX_PANEL_BLOCK * MLX_PANEL_ROWS * info->code_bits) / 8;
  const uint8_t *group = panel + (size_t)(nth / 8) * (group_bytes(info) + 8 * own),
                *block = group + group_bytes(info) + (size_t)(nth % 8) * own;
  const int code = code_at(info, block + scale_bytes(info), column % MLX_PANEL_BLOCK, row);
  const float product = factor_at(info, group, block, info->scales == 2 ? half : 0, row) * (float)code;
  return info->offsets
             ? product + factor_at(info, group, block, info->scales + (info->offsets == 2 ? half : 0), row)
             : product;
}

// The CPU kernel and existing archives depend on these sizes.
TEST(block_sizes_of_the_format_table_are_unchanged) {
  // clang-format off
  // Bytes of a block with its share of the super-block, and of the super-block's own numbers.
  static const int bytes[MLX_PANEL_FORMATS][2] = {
      [MLX_PANEL_F32] = {2048, 0},      [MLX_PANEL_F16] = {1024, 0},     [MLX_PANEL_BF16] = {1024, 0},
      [MLX_PANEL_Q4_0] = {288, 0},      [MLX_PANEL_Q4_1] = {320, 0},     [MLX_PANEL_Q8_0] = {544, 0},
      [MLX_PANEL_Q5_0] = {352, 0},      [MLX_PANEL_Q5_1] = {384, 0},     [MLX_PANEL_IQ4_NL] = {288, 0},
      [MLX_PANEL_MXFP4] = {272, 0},     [MLX_PANEL_Q3_K] = {292, 32},    [MLX_PANEL_IQ4_XS] = {276, 32},
      [MLX_PANEL_Q4_WIDE] = {384, 0},   [MLX_PANEL_Q8_WIDE] = {640, 0},  [MLX_PANEL_Q8_HALVES] = {640, 0},
      [MLX_PANEL_Q8_1] = {576, 0},      [MLX_PANEL_Q4_BF16] = {320, 0},  [MLX_PANEL_Q8_BF16] = {576, 0},
      [MLX_PANEL_Q4_K] = {296, 64},     [MLX_PANEL_Q5_K] = {360, 64},    [MLX_PANEL_Q6_K] = {420, 32},
      [MLX_PANEL_Q2_K] = {328, 64}};
  // clang-format on
  for (int i = 0; i < MLX_PANEL_FORMATS; ++i) {
    CHECK_INT(mlx_panel_block_bytes(i), bytes[i][0]);
    CHECK_INT(mlx_panel_group_bytes(i), bytes[i][1]);
  }
}

TEST(every_weight_type_has_a_panel_format_with_as_many_bits) {
  for (int i = 0; i < MLX_DTYPE_COUNT; ++i) {
    const mlx_dtype_info_t *info = mlx_dtype_info((mlx_dtype_t)i);
    CHECK_INT(info->panel != MLX_PANEL_NONE, info->to_f32 != NULL);
    if (info->to_f32) CHECK(mlx_panel_bits(info->panel) >= mlx_dtype_bits((mlx_dtype_t)i));
  }
}

// ----------------------------------------------------------------------------------------------------------
// Writing one matrix through mlx_weights_write, quantized and as f32

static char folders[2][32];

static mlx_map_t write_archive(const mlx_model_t *model, mlx_storage_t storage, char *folder,
                               mlx_archive_t *out_archive) {
  char path[64];
  strcpy(folder, "/tmp/mlxcel-panels-XXXXXX");
  CHECK(mkdtemp(folder));
  snprintf(path, sizeof path, "%s/x.irpa", folder);
  CHECK_OK(mlx_weights_write(model, storage, path, NULL));
  mlx_map_t map;
  CHECK_OK(mlx_map_file(path, &map));
  CHECK_OK(mlx_archive_parse("x.irpa", map.data, map.size, out_archive));
  CHECK_INT(out_archive->count, 1);
  return map;
}

static void check_exact(const char *name, mlx_weight_t *weight, mlx_stored_kind_t kind) {
  const mlx_model_t model = {.weights = weight, .weight_count = 1};
  const mlx_storage_t quantized = {.dtype = MLX_F32, .layout = MLX_LAYOUT_QUANTIZED_PANELS},
                      floats = {.dtype = MLX_F32};
  const mlx_stored_t stored = mlx_weight_stored(weight, quantized);
  mlx_archive_t archives[2];
  mlx_map_t maps[2] = {write_archive(&model, quantized, folders[0], &archives[0]),
                       write_archive(&model, floats, folders[1], &archives[1])};
  if (stored.kind != kind) CHECK_FAIL("%s is stored as kind %d, expected %d", name, stored.kind, kind);
  CHECK_INT(archives[0].entries[0].size, mlx_panels_bytes(stored.format, ROWS, COLUMNS));
  for (int row = 0; row < ROWS; ++row) {
    for (int column = 0; column < COLUMNS; ++column) {
      const float value = element_at(stored.format, archives[0].entries[0].data, row, column);
      float expected;
      memcpy(&expected, archives[1].entries[0].data + 4 * (size_t)(row * COLUMNS + column), sizeof expected);
      if (memcmp(&value, &expected, sizeof value) &&
          !(value == 0 && expected == 0)) {  // the sign of a zero may differ
        CHECK_FAIL("%s: element %d of row %d is %a, expected %a", name, column, row, (double)value,
                   (double)expected);
      }
    }
  }
  for (int i = 0; i < 2; ++i) {
    mlx_archive_clear(&archives[i]);
    mlx_unmap(&maps[i]);
    CHECK_OK(mlx_remove_tree(folders[i]));
  }
}

static mlx_weight_t weight_of(mlx_dtype_t dtype, const void *data) {
  mlx_weight_t weight = {
      .name = (char *)(uintptr_t)"w", .order = MLX_ROWS_INTERLEAVED_HALVES, .order_head_dim = 8};
  weight.tensor = (mlx_tensor_t){.dtype = dtype, .rank = 2, .dims = {ROWS, COLUMNS}, .data = data};
  return weight;
}

TEST(every_quantized_gguf_type_is_repacked_without_loss) {
  static uint8_t bytes[ROWS * COLUMNS * 2];
  uint64_t state = 23;
  for (size_t i = 0; i < RANDOM_PACKED_TYPES; ++i) {
    const mlx_dtype_info_t *info = mlx_dtype_info(random_packed_types[i].dtype);
    const size_t blocks = ROWS * COLUMNS / info->block_elements;
    for (size_t k = 0; k < blocks; ++k)
      random_block(&random_packed_types[i], &state, bytes + k * info->block_bytes);
    mlx_weight_t weight = weight_of(random_packed_types[i].dtype, bytes);
    weight.tensor.size = blocks * info->block_bytes;
    check_exact(info->name, &weight, MLX_STORED_CODES);
  }
}

// Fills |rows| with random blocks of all bytes, also numbers that random_block does not make: negative ones,
// zeros and subnormals.
static void random_rows(const random_packed_t *type, uint64_t *state, size_t bytes, uint8_t *out) {
  const mlx_dtype_info_t *info = mlx_dtype_info(type->dtype);
  for (size_t at = 0; at < bytes; at += info->block_bytes) {
    random_block(type, state, out + at);
    const uint16_t numbers[] = {0x0000, 0x8000, 0x0001, 0x83ff, 0x7bff, 0xfbff, 0x1234};
    const uint16_t number = numbers[random_bits(state) % 7];
    if (type->scale_at >= 0) memcpy(out + at + type->scale_at, &number, 2);
    if (type->dtype == MLX_MXFP4) out[at] = (uint8_t)(random_bits(state) >> 8);
  }
}

TEST(rows_are_copied_into_a_panel_as_their_codes_are_put) {
  static uint8_t bytes[MLX_PANEL_ROWS][3 * 256 * 2], put[65536], copied[65536];
  static const int64_t counts[] = {1, 3, 8, 17};  // of blocks
  uint64_t state = 37;
  for (size_t t = 0; t < RANDOM_PACKED_TYPES * 4; ++t) {
    const random_packed_t *type = &random_packed_types[t / 4];
    const mlx_dtype_info_t *info = mlx_dtype_info(type->dtype);
    const int64_t blocks = info->block_elements == MLX_CODES ? counts[t % 4] : 1 + (int64_t)(t % 3),
                  columns = blocks * (int64_t)info->block_elements;
    const size_t size = (size_t)mlx_panel_bytes((int32_t)info->panel, columns);
    const uint8_t *rows[MLX_PANEL_ROWS];
    CHECK(size < sizeof put);
    memset(put, 0, sizeof put);
    memset(copied, 0xa5, size);  // every byte is written
    memset(copied + size, 0, sizeof copied - size);
    for (int row = 0; row < MLX_PANEL_ROWS; ++row) {
      rows[row] = bytes[row];
      random_rows(type, &state, (size_t)blocks * info->block_bytes, bytes[row]);
      for (int64_t nth = 0; nth < columns / MLX_CODES; ++nth) {
        mlx_codes_t codes;
        CHECK(mlx_codes_read(type->dtype, bytes[row], (size_t)nth, &codes));
        mlx_panel_put(info->panel, &codes, row, nth, put);
      }
    }
    CHECK(mlx_panel_copy(type->dtype, rows, columns, copied));
    for (size_t i = 0; i < sizeof put; ++i) {
      if (put[i] != copied[i]) CHECK_FAIL("%s: byte %zu differs", info->name, i);
    }
  }
}

TEST(rows_with_a_number_that_is_not_finite_are_not_copied) {
  static uint8_t row[256], damaged[256], panel[65536];
  static const uint8_t high[] = {0x7c, 0x7e, 0xfc};  // infinity, NaN, negative infinity
  for (size_t t = 0; t < RANDOM_PACKED_TYPES * 6; ++t) {
    const random_packed_t *type = &random_packed_types[t / 6];
    const int64_t columns = (int64_t)mlx_dtype_info(type->dtype)->block_elements;
    const int at = t % 2 ? type->second_at : type->scale_at;
    const uint8_t *rows[MLX_PANEL_ROWS];
    for (int i = 0; i < MLX_PANEL_ROWS; ++i) rows[i] = row;
    CHECK(mlx_panel_copy(type->dtype, rows, columns, panel));
    if (at < 0) continue;
    memset(damaged, 0, sizeof damaged);
    damaged[at + 1] = high[t % 6 / 2];
    rows[t % MLX_PANEL_ROWS] = damaged;
    CHECK(!mlx_panel_copy(type->dtype, rows, columns, panel));
  }
  const uint8_t *rows[MLX_PANEL_ROWS] = {0};
  CHECK(!mlx_panel_copy(MLX_F32, rows, 32, panel));
}

// ----------------------------------------------------------------------------------------------------------
// Quantized Hugging Face directories

static uint8_t part_bytes[MLX_PART_COUNT][ROWS * COLUMNS * 8];
static mlx_tensor_t part_tensors[MLX_PART_COUNT];

// Random words as codes and zero points; random scales and offsets of ordinary size in the precision of their
// type.
static mlx_weight_t random_packing(mlx_packing_kind_t kind, int bits, int group, mlx_dtype_t scales,
                                   uint64_t *state) {
  const int numbers = ROWS * COLUMNS / group;
  for (int part = 0; part < MLX_PART_COUNT; ++part) {
    const bool floats = part == MLX_PART_SCALES || (part == MLX_PART_OFFSETS && kind == MLX_PACKED_MLX);
    for (size_t i = 0; i < sizeof part_bytes[part]; ++i)
      part_bytes[part][i] = (uint8_t)(random_bits(state) >> 8);
    for (int i = 0; floats && i < numbers; ++i) {
      const float value = 0.01f * random_normal(state);
      mlx_dtype_info(scales)->from_f32(&value, 1,
                                       part_bytes[part] + (size_t)i * mlx_dtype_info(scales)->block_bytes);
    }
    part_tensors[part] = (mlx_tensor_t){.dtype = floats ? scales : MLX_I32, .data = part_bytes[part]};
  }
  mlx_weight_t weight = weight_of(MLX_U32, part_bytes[MLX_PART_CODES]);
  weight.order = MLX_ROWS_AS_STORED;
  weight.tensor.size = (size_t)(ROWS * COLUMNS * bits) / 8;
  weight.packing = (mlx_packing_t){.kind = kind,
                                   .bits = bits,
                                   .rows = ROWS,
                                   .columns = COLUMNS,
                                   .group = group,
                                   .zeros_minus_one = kind == MLX_PACKED_GPTQ,
                                   .parts = {&part_tensors[0], &part_tensors[1], &part_tensors[2]}};
  return weight;
}

static mlx_panel_format_t panel_of(const mlx_weight_t *weight) {
  return mlx_weight_stored(weight, (mlx_storage_t){.layout = MLX_LAYOUT_QUANTIZED_PANELS}).format;
}

TEST(every_mlx_width_group_size_and_scale_type_stays_quantized_without_loss) {
  static const int bits[] = {2, 3, 4, 6, 8};
  static const mlx_dtype_t types[] = {MLX_F16, MLX_BF16, MLX_F32};
  static const mlx_panel_format_t formats[3][2] = {{MLX_PANEL_Q4_1, MLX_PANEL_Q8_1},
                                                   {MLX_PANEL_Q4_BF16, MLX_PANEL_Q8_BF16},
                                                   {MLX_PANEL_Q4_WIDE, MLX_PANEL_Q8_WIDE}};
  uint64_t state = 29;
  for (int i = 0; i < 5 * 3 * 3; ++i) {
    char name[64];
    const int width = bits[i / 9], group = 32 << i % 3, type = i / 3 % 3;
    snprintf(name, sizeof name, "MLX of %d bits in groups of %d, %s", width, group,
             mlx_dtype_info(types[type])->name);
    mlx_weight_t weight = random_packing(MLX_PACKED_MLX, width, group, types[type], &state);
    check_exact(name, &weight, MLX_STORED_CODES);
    CHECK_INT(panel_of(&weight), formats[type][width > 4]);
  }
}

// With f16 scales, zero points that are all 8 take a bit less.
static void check_symmetric(mlx_weight_t weight) {
  const bool f16 = part_tensors[MLX_PART_SCALES].dtype == MLX_F16;
  const size_t bytes = (size_t)(ROWS * COLUMNS / weight.packing.group) / 2;
  CHECK(!mlx_packing_is_symmetric(&weight.packing));
  if (f16) CHECK_INT(panel_of(&weight), MLX_PANEL_Q5_0);
  memset(part_bytes[MLX_PART_OFFSETS], weight.packing.zeros_minus_one ? 0x77 : 0x88, bytes);
  weight.packing.symmetric = mlx_packing_is_symmetric(&weight.packing);
  CHECK(weight.packing.symmetric);
  check_exact("all zero points 8", &weight, MLX_STORED_CODES);
  if (f16) CHECK_INT(panel_of(&weight), MLX_PANEL_Q4_0);
  part_bytes[MLX_PART_OFFSETS][bytes - 1] ^= 0x10;  // the last one
  CHECK(!mlx_packing_is_symmetric(&weight.packing));
}

TEST(gptq_and_awq_stay_quantized_if_32_columns_share_a_scale) {
  static const mlx_dtype_t types[] = {MLX_F16, MLX_BF16, MLX_F32};
  static int32_t in_order[COLUMNS], out_of_order[COLUMNS];
  const mlx_tensor_t ordered = {.dtype = MLX_I32, .data = (const uint8_t *)in_order},
                     unordered = {.dtype = MLX_I32, .data = (const uint8_t *)out_of_order};
  uint64_t state = 31;
  for (int i = 0; i < COLUMNS; ++i) {
    in_order[i] = i / 64;
    out_of_order[i] = (i + 1) % COLUMNS / 64;
  }
  for (int i = 0; i < 2 * 3; ++i) {
    const mlx_packing_kind_t kind = i % 2 ? MLX_PACKED_AWQ : MLX_PACKED_GPTQ;
    mlx_weight_t weight = random_packing(kind, 4, 64, types[i / 2], &state);
    check_exact(i % 2 ? "AWQ" : "GPTQ", &weight, MLX_STORED_CODES);
    check_symmetric(weight);
    weight.packing.parts[MLX_PART_GROUPS] = &ordered;
    if (kind == MLX_PACKED_GPTQ) check_exact("GPTQ with an index in order", &weight, MLX_STORED_CODES);
    weight.packing.parts[MLX_PART_GROUPS] = &unordered;
    if (kind == MLX_PACKED_GPTQ) check_exact("GPTQ in act order", &weight, MLX_STORED_FLOATS);
    weight = random_packing(kind, 4, 16, types[i / 2], &state);
    check_exact("groups of 16", &weight, MLX_STORED_FLOATS);
  }
}

TEST_MAIN(CASE(block_sizes_of_the_format_table_are_unchanged),
          CASE(every_weight_type_has_a_panel_format_with_as_many_bits),
          CASE(every_quantized_gguf_type_is_repacked_without_loss),
          CASE(rows_are_copied_into_a_panel_as_their_codes_are_put),
          CASE(rows_with_a_number_that_is_not_finite_are_not_copied),
          CASE(every_mlx_width_group_size_and_scale_type_stays_quantized_without_loss),
          CASE(gptq_and_awq_stay_quantized_if_32_columns_share_a_scale))
