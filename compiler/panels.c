#include "compiler/panels.h"

#include <string.h>

#include "models/codes.h"

#define ROWS MLX_PANEL_ROWS
#define BLOCK MLX_PANEL_BLOCK

bool mlx_panel_format(mlx_dtype_t dtype, mlx_panel_format_t *out_format) {
  static const struct {
    mlx_dtype_t dtype;
    mlx_panel_format_t format;
  } pairs[] = {{MLX_F32, MLX_PANEL_F32},       {MLX_F16, MLX_PANEL_F16},       {MLX_BF16, MLX_PANEL_BF16},
               {MLX_Q4_0, MLX_PANEL_Q4_0},     {MLX_Q4_1, MLX_PANEL_Q4_1},     {MLX_Q5_0, MLX_PANEL_Q8_HALVES},
               {MLX_Q5_1, MLX_PANEL_Q8_WIDE},  {MLX_Q8_0, MLX_PANEL_Q8_0},     {MLX_Q3_K, MLX_PANEL_Q8_HALVES},
               {MLX_Q4_K, MLX_PANEL_Q4_WIDE},  {MLX_Q5_K, MLX_PANEL_Q8_WIDE},  {MLX_Q6_K, MLX_PANEL_Q8_HALVES}};
  for (size_t i = 0; i < sizeof pairs / sizeof *pairs; ++i) {
    if (pairs[i].dtype != dtype) continue;
    *out_format = pairs[i].format;
    return true;
  }
  return false;
}

uint64_t mlx_panels_bytes(mlx_panel_format_t format, int64_t rows, int64_t columns) {
  return (uint64_t)((rows + ROWS - 1) / ROWS) * (uint64_t)mlx_panel_bytes((int32_t)format, columns);
}

static void pack_plain(size_t element, const uint8_t *rows, size_t row_bytes, int64_t count, int64_t columns, uint8_t *out) {
  for (int64_t r = 0; r < count; ++r) {
    const uint8_t *row = rows + (size_t)r * row_bytes;
    for (int64_t k = 0; k < columns; ++k) memcpy(out + (size_t)(k * ROWS + r) * element, row + (size_t)k * element, element);
  }
}

static void put_half(uint8_t *out, int64_t row, float value) { mlx_dtype_info(MLX_F16)->from_f32(&value, 1, out + 2 * row); }
static void put_float(uint8_t *out, int64_t row, float value) { memcpy(out + 4 * row, &value, sizeof value); }

// Of Q4_0 the codes are stored as they are in the file, 8 more than they mean.
static void put_nibbles(const int8_t *codes, int more, int64_t row, uint8_t *out) {
  for (int i = 0; i < BLOCK / 8; ++i) {
    uint32_t word = 0;
    for (int k = 0; k < 8; ++k) word |= (uint32_t)(codes[8 * i + k] + more) << 4 * k;
    for (int byte = 0; byte < 4; ++byte) out[(i * ROWS + row) * 4 + byte] = (uint8_t)(word >> 8 * byte);
  }
}

static void put_bytes(const int8_t *codes, int64_t row, uint8_t *out) {
  for (int k = 0; k < BLOCK; ++k) out[k * ROWS + row] = (uint8_t)codes[k];
}

static void put_block(mlx_panel_format_t format, const mlx_codes_t *c, int64_t row, uint8_t *out) {
  switch (format) {
    case MLX_PANEL_Q4_0:
      put_half(out, row, c->scale[0]);
      put_nibbles(c->code, 8, row, out + 2 * ROWS);
      break;
    case MLX_PANEL_Q4_1:
      put_half(out, row, c->scale[0]);
      put_half(out + 2 * ROWS, row, c->offset);
      put_nibbles(c->code, 0, row, out + 4 * ROWS);
      break;
    case MLX_PANEL_Q8_0:
      put_half(out, row, c->scale[0]);
      put_bytes(c->code, row, out + 2 * ROWS);
      break;
    case MLX_PANEL_Q4_WIDE:
      put_float(out, row, c->scale[0]);
      put_float(out + 4 * ROWS, row, c->offset);
      put_nibbles(c->code, 0, row, out + 8 * ROWS);
      break;
    default:
      put_float(out, row, c->scale[0]);
      put_float(out + 4 * ROWS, row, format == MLX_PANEL_Q8_HALVES ? c->scale[1] : c->offset);
      put_bytes(c->code, row, out + 8 * ROWS);
      break;
  }
}

void mlx_panel_pack(mlx_dtype_t dtype, const uint8_t *rows, size_t row_bytes, int64_t count, int64_t columns, uint8_t *out) {
  mlx_panel_format_t format = MLX_PANEL_F32;
  mlx_panel_format(dtype, &format);
  memset(out, 0, (size_t)mlx_panel_bytes((int32_t)format, columns));
  const size_t block = (size_t)mlx_panel_block_bytes((int32_t)format);
  mlx_codes_t codes;
  if (!mlx_codes_read(dtype, rows, 0, &codes)) {
    pack_plain(mlx_dtype_info(dtype)->block_bytes, rows, row_bytes, count, columns, out);
    return;
  }
  for (int64_t r = 0; r < count; ++r) {
    for (int64_t b = 0; b < columns / BLOCK; ++b) {
      mlx_codes_read(dtype, rows + (size_t)r * row_bytes, (size_t)b, &codes);
      put_block(format, &codes, r, out + (size_t)b * block);
    }
  }
}
