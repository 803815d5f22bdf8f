#include "compiler/panels.h"

#include <string.h>

#define ROWS MLX_PANEL_ROWS
#define BLOCK MLX_PANEL_BLOCK

bool mlx_panel_format(mlx_dtype_t dtype, mlx_panel_format_t *out_format) {
  static const struct {
    mlx_dtype_t dtype;
    mlx_panel_format_t format;
  } pairs[] = {{MLX_F32, MLX_PANEL_F32},   {MLX_F16, MLX_PANEL_F16},   {MLX_BF16, MLX_PANEL_BF16},
               {MLX_Q4_0, MLX_PANEL_Q4_0}, {MLX_Q4_1, MLX_PANEL_Q4_1}, {MLX_Q8_0, MLX_PANEL_Q8_0}};
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
    for (int64_t k = 0; k < columns; ++k) memcpy(out + (size_t)(k * ROWS + r) * element, rows + (size_t)r * row_bytes + (size_t)k * element, element);
  }
}

// The code of column |k| in a block of Q4_0 or Q4_1: the second half of the columns is in the upper nibbles.
static uint32_t nibble(const uint8_t *codes, int k) { return k < BLOCK / 2 ? codes[k] & 15u : codes[k - BLOCK / 2] >> 4; }

static void pack_nibbles(const uint8_t *codes, uint8_t *out, int64_t row) {
  for (int i = 0; i < BLOCK / 8; ++i) {
    uint32_t word = 0;
    for (int k = 0; k < 8; ++k) word |= nibble(codes, 8 * i + k) << 4 * k;
    for (int byte = 0; byte < 4; ++byte) out[(i * ROWS + row) * 4 + byte] = (uint8_t)(word >> 8 * byte);
  }
}

static void pack_block(mlx_panel_format_t format, const uint8_t *block, int64_t row, uint8_t *out) {
  memcpy(out + 2 * row, block, 2);  // the scale
  switch (format) {
    case MLX_PANEL_Q4_0: pack_nibbles(block + 2, out + 2 * ROWS, row); break;
    case MLX_PANEL_Q4_1:
      memcpy(out + 2 * ROWS + 2 * row, block + 2, 2);  // the offset
      pack_nibbles(block + 4, out + 4 * ROWS, row);
      break;
    default:
      for (int k = 0; k < BLOCK; ++k) out[2 * ROWS + k * ROWS + row] = block[2 + k];
      break;
  }
}

void mlx_panel_pack(mlx_panel_format_t format, const uint8_t *rows, size_t row_bytes, int64_t count, int64_t columns, uint8_t *out) {
  memset(out, 0, (size_t)mlx_panel_bytes((int32_t)format, columns));
  if (format == MLX_PANEL_F32 || format == MLX_PANEL_F16 || format == MLX_PANEL_BF16) {
    pack_plain(format == MLX_PANEL_F32 ? 4 : 2, rows, row_bytes, count, columns, out);
    return;
  }
  const size_t from = row_bytes / (size_t)(columns / BLOCK), to = (size_t)mlx_panel_block_bytes((int32_t)format);
  for (int64_t r = 0; r < count; ++r) {
    for (int64_t b = 0; b < columns / BLOCK; ++b) pack_block(format, rows + (size_t)r * row_bytes + (size_t)b * from, r, out + (size_t)b * to);
  }
}
