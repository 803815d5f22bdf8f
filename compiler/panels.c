#include "compiler/panels.h"

#include <string.h>

#include "models/model.h"

#define ROWS MLX_PANEL_ROWS
#define BLOCK MLX_PANEL_BLOCK

// ----------------------------------------------------------------------------------------------------------
// The table

static const mlx_panel_info_t infos[MLX_PANEL_FORMATS] = {
    //                       name                                            number  scales offsets bits least
    //                       grouped
    [MLX_PANEL_F32] = {"f32", MLX_F32, 0, 0, 0, 0, false},
    [MLX_PANEL_F16] = {"f16", MLX_F16, 0, 0, 0, 0, false},
    [MLX_PANEL_BF16] = {"bf16", MLX_BF16, 0, 0, 0, 0, false},
    [MLX_PANEL_Q4_0] = {"4-bit codes, a scale in f16", MLX_F16, 1, 0, 4, -8, false},
    [MLX_PANEL_Q4_1] = {"4-bit codes, scale and offset in f16", MLX_F16, 1, 1, 4, 0, false},
    [MLX_PANEL_Q8_0] = {"8-bit codes, a scale in f16", MLX_F16, 1, 0, 8, -128, false},
    [MLX_PANEL_Q4_WIDE] = {"4-bit codes, scale and offset in f32", MLX_F32, 1, 1, 4, 0, false},
    [MLX_PANEL_Q8_WIDE] = {"8-bit codes, scale and offset in f32", MLX_F32, 1, 1, 8, 0, false},
    [MLX_PANEL_Q8_HALVES] = {"8-bit codes, two scales in f32", MLX_F32, 2, 0, 8, -128, false},
    [MLX_PANEL_Q8_1] = {"8-bit codes, scale and offset in f16", MLX_F16, 1, 1, 8, 0, false},
    [MLX_PANEL_Q4_BF16] = {"4-bit codes, scale and offset in bf16", MLX_BF16, 1, 1, 4, 0, false},
    [MLX_PANEL_Q8_BF16] = {"8-bit codes, scale and offset in bf16", MLX_BF16, 1, 1, 8, 0, false},
    [MLX_PANEL_Q4_K] = {"4-bit codes, scale and offset of 8 bits times f16", MLX_F16, 1, 1, 4, 0, true},
    [MLX_PANEL_Q5_K] = {"8-bit codes, scale and offset of 8 bits times f16", MLX_F16, 1, 1, 8, 0, true},
    [MLX_PANEL_Q6_K] = {"8-bit codes, two scales of 8 bits times f16", MLX_F16, 2, 0, 8, -128, true},
    [MLX_PANEL_Q2_K] = {"4-bit codes, two scales and offsets of 8 bits times f16", MLX_F16, 2, 2, 4, 0, true},
};

const mlx_panel_info_t *mlx_panel_info(mlx_panel_format_t format) { return &infos[format]; }

double mlx_panel_bits(mlx_panel_format_t format) {
  return (double)mlx_panel_block_bytes((int32_t)format) * 8 / (ROWS * BLOCK);
}

bool mlx_panel_format(mlx_dtype_t dtype, mlx_panel_format_t *out_format) {
  static const struct {
    mlx_dtype_t dtype;
    mlx_panel_format_t format;
  } pairs[] = {{MLX_F32, MLX_PANEL_F32},        {MLX_F16, MLX_PANEL_F16},     {MLX_BF16, MLX_PANEL_BF16},
               {MLX_Q4_0, MLX_PANEL_Q4_0},      {MLX_Q4_1, MLX_PANEL_Q4_1},   {MLX_Q5_0, MLX_PANEL_Q8_0},
               {MLX_Q5_1, MLX_PANEL_Q8_1},      {MLX_Q8_0, MLX_PANEL_Q8_0},   {MLX_Q2_K, MLX_PANEL_Q2_K},
               {MLX_Q3_K, MLX_PANEL_Q8_0},      {MLX_Q4_K, MLX_PANEL_Q4_K},   {MLX_Q5_K, MLX_PANEL_Q5_K},
               {MLX_Q6_K, MLX_PANEL_Q6_K},      {MLX_IQ4_NL, MLX_PANEL_Q8_0}, {MLX_IQ4_XS, MLX_PANEL_Q6_K},
               {MLX_MXFP4, MLX_PANEL_Q8_HALVES}};
  for (size_t i = 0; i < sizeof pairs / sizeof *pairs; ++i) {
    if (pairs[i].dtype != dtype) continue;
    *out_format = pairs[i].format;
    return true;
  }
  return false;
}

bool mlx_panel_format_of_packing(const mlx_packing_t *packing, mlx_panel_format_t *out_format) {
  if (!mlx_packing_has_codes(packing)) return false;
  const mlx_dtype_t scale = packing->parts[MLX_PART_SCALES]->dtype;
  if (packing->kind != MLX_PACKED_MLX) {  // as mlx_packing_codes has them
    *out_format = scale == MLX_F32 ? MLX_PANEL_Q8_HALVES : MLX_PANEL_Q4_WIDE;
    return true;
  }
  const bool alike = packing->parts[MLX_PART_OFFSETS]->dtype == scale, nibbles = packing->bits <= 4;
  if (alike && scale == MLX_F16) {
    *out_format = nibbles ? MLX_PANEL_Q4_1 : MLX_PANEL_Q8_1;
  } else if (alike && scale == MLX_BF16) {
    *out_format = nibbles ? MLX_PANEL_Q4_BF16 : MLX_PANEL_Q8_BF16;
  } else {
    *out_format = nibbles ? MLX_PANEL_Q4_WIDE : MLX_PANEL_Q8_WIDE;
  }
  return true;
}

// ----------------------------------------------------------------------------------------------------------
// Writing

uint64_t mlx_panels_bytes(mlx_panel_format_t format, int64_t rows, int64_t columns) {
  return (uint64_t)((rows + ROWS - 1) / ROWS) * (uint64_t)mlx_panel_bytes((int32_t)format, columns);
}

void mlx_panel_pack(mlx_panel_format_t format, const uint8_t *rows, size_t row_bytes, int64_t count,
                    int64_t columns, uint8_t *out) {
  const size_t element = mlx_dtype_info(infos[format].number)->block_bytes;
  memset(out, 0, (size_t)mlx_panel_bytes((int32_t)format, columns));
  for (int64_t r = 0; r < count; ++r) {
    const uint8_t *row = rows + (size_t)r * row_bytes;
    for (int64_t k = 0; k < columns; ++k)
      memcpy(out + (size_t)(k * ROWS + r) * element, row + (size_t)k * element, element);
  }
}

// |count| numbers of each of 16 rows; gives where the next ones begin.
static uint8_t *put_numbers(const mlx_dtype_info_t *type, const float *values, int count, int64_t row,
                            uint8_t *out) {
  for (int i = 0; i < count; ++i, out += type->block_bytes * ROWS)
    type->from_f32(&values[i], 1, out + (size_t)row * type->block_bytes);
  return out;
}

static void put_nibbles(const int16_t *codes, int less, int64_t row, uint8_t *out) {
  for (int i = 0; i < BLOCK / 8; ++i) {
    uint32_t word = 0;
    for (int k = 0; k < 8; ++k) word |= (uint32_t)(codes[8 * i + k] - less) << 4 * k;
    for (int byte = 0; byte < 4; ++byte) out[(i * ROWS + row) * 4 + byte] = (uint8_t)(word >> 8 * byte);
  }
}

static void put_bytes(const int16_t *codes, int64_t row, uint8_t *out) {
  for (int k = 0; k < BLOCK; ++k) out[k * ROWS + row] = (uint8_t)codes[k];
}

static uint8_t *put_factors(const int16_t *values, int count, int64_t row, uint8_t *out) {
  for (int i = 0; i < count; ++i, out += ROWS) out[row] = (uint8_t)values[i];
  return out;
}

void mlx_panel_put(mlx_panel_format_t format, const mlx_codes_t *c, int64_t row, int64_t nth,
                   uint8_t *panel) {
  const mlx_panel_info_t *info = &infos[format];
  const mlx_dtype_info_t *number = mlx_dtype_info(info->number);
  uint8_t *at = panel + mlx_panel_block_at((int32_t)format, nth);
  if (info->grouped) {
    uint8_t *group = panel + mlx_panel_block_at((int32_t)format, nth / MLX_PANEL_GROUP * MLX_PANEL_GROUP) -
                     mlx_panel_group_bytes((int32_t)format);
    group = put_numbers(number, &c->block_scale, 1, row, group);
    put_numbers(number, &c->block_offset, info->offsets ? 1 : 0, row, group);
    at = put_factors(c->scale_factor, info->scales, row, at);
    at = put_factors(c->offset_factor, info->offsets, row, at);
  } else {
    at = put_numbers(number, c->scale, info->scales, row, at);
    at = put_numbers(number, c->offset, info->offsets, row, at);
  }
  if (info->code_bits == 4) {
    put_nibbles(c->code, info->least_code, row, at);
  } else {
    put_bytes(c->code, row, at);
  }
}
