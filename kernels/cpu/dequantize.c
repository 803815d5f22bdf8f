// Converts panels of every format to f32.
#include "dequantize.h"

#include "panel_codes.h"

// The product is rounded before the sum, as the reference dequantizers do. With scales in f32 a fused
// multiply-add would give other values.
INLINE v16 scale_codes(v16 codes, v16 scale, v16 offset) { return v_add(v_mul(codes, scale), offset); }

INLINE void dequantize_q4(int32_t format, const uint8_t *block, int nth, float *out, int64_t step) {
  const table_t table = codes_table(format);
  v16 scale = load_scale(format, block, nth),
      offset = has_offsets(format) ? load_second(format, block, nth) : v_zero();
  if (has_two_scales(format)) offset = load_scale_or_offset(format, block, nth, 2);
  for (int i = 0; i < 4; ++i, out += 8 * step) {
    const codes_t codes = codes_load(block + scale_bytes(format) + 64 * i);
    if (has_two_scales(format) && i == 2) {
      scale = load_scale_or_offset(format, block, nth, 1);
      offset = load_scale_or_offset(format, block, nth, 3);
    }
    v_store(out, scale_codes(CODES_COLUMN(table, codes, 0), scale, offset));
    v_store(out + step, scale_codes(CODES_COLUMN(table, codes, 1), scale, offset));
    v_store(out + 2 * step, scale_codes(CODES_COLUMN(table, codes, 2), scale, offset));
    v_store(out + 3 * step, scale_codes(CODES_COLUMN(table, codes, 3), scale, offset));
    v_store(out + 4 * step, scale_codes(CODES_COLUMN(table, codes, 4), scale, offset));
    v_store(out + 5 * step, scale_codes(CODES_COLUMN(table, codes, 5), scale, offset));
    v_store(out + 6 * step, scale_codes(CODES_COLUMN(table, codes, 6), scale, offset));
    v_store(out + 7 * step, scale_codes(CODES_COLUMN(table, codes, 7), scale, offset));
  }
}

// Formats other than those of dequantize_q4().
INLINE void dequantize_other(int32_t format, const uint8_t *block, int nth, float *out, int64_t step) {
  const uint8_t *codes = block + scale_bytes(format);
  const v16 first = load_scale(format, block, nth),
            second = has_two_scales(format) ? load_second(format, block, nth) : first;
  const v16 offset = has_offsets(format) ? load_second(format, block, nth) : v_zero();
  for (int i = 0; is_q8(format) && i < MLX_PANEL_BLOCK; ++i)
    v_store(out + i * step, scale_codes(load_bytes(format, codes + 16 * i), i < 16 ? first : second, offset));
  for (int i = 0; !is_q8(format) && i < 8; ++i) {
    const codes_t four = load_narrow(format, codes, i / 2, i % 2);
    const v16 scale = i < 4 ? first : second;
    float *to = out + (8 * (i / 2) + i % 2) * step;
    v_store(to, scale_codes(narrow_column(format, four, 0), scale, offset));
    v_store(to + 2 * step, scale_codes(narrow_column(format, four, 1), scale, offset));
    v_store(to + 4 * step, scale_codes(narrow_column(format, four, 2), scale, offset));
    v_store(to + 6 * step, scale_codes(narrow_column(format, four, 3), scale, offset));
  }
}

// A function of its own for each format, as in panels_by_vectors_integer.c.
#define DEFINE(format)                                                                                  \
  static NOT_INLINE void dequantize_##format(const uint8_t *block, int nth, float *out, int64_t step) { \
    is_q4(MLX_PANEL_##format) ? dequantize_q4(MLX_PANEL_##format, block, nth, out, step)                \
                              : dequantize_other(MLX_PANEL_##format, block, nth, out, step);            \
  }
CODE_FORMATS(DEFINE)
DEFINE(Q2_K)
#undef DEFINE

void mlx_dequantize_panel(int32_t format, const uint8_t *panel, int from, int count, float *out,
                          int64_t step) {
  if (format == MLX_PANEL_BF16) {  // |from| is even
    for (int k = 0; k < count; k += 2) {
      v_store(out + k * step, load_column(MLX_PANEL_BF16, panel, from + k));
      if (k + 1 < count) v_store(out + (k + 1) * step, load_column(MLX_PANEL_BF16, panel, from + k + 1));
    }
    return;
  }
  if (format <= MLX_PANEL_F16) {
    for (int k = 0; k < count; ++k) v_store(out + k * step, load_column(format, panel, from + k));
    return;
  }
  for (int k = 0; k < count; k += MLX_PANEL_BLOCK, out += MLX_PANEL_BLOCK * step) {
    const int nth = (from + k) / MLX_PANEL_BLOCK;
    const uint8_t *block = panel + mlx_panel_block_at(format, nth);
#define CASE(format) \
  case MLX_PANEL_##format: dequantize_##format(block, nth, out, step); break;
    switch (format) {
      CODE_FORMATS(CASE)
      CASE(Q2_K)
      default: break;
    }
#undef CASE
  }
}

void mlx_dequantize_row(int32_t format, const uint8_t *matrix, int row, int columns, float *out) {
  const uint8_t *panel = matrix + row / MLX_PANEL_ROWS * mlx_panel_bytes(format, columns);
  if (format == MLX_PANEL_F32) {
    const float *from = (const float *)(const void *)panel + row % MLX_PANEL_ROWS;
    for (int k = 0; k < columns; ++k) out[k] = from[k * MLX_PANEL_ROWS];
    return;
  }
  float wide[MLX_PANEL_BLOCK][16];
  for (int k = 0; k < columns; k += MLX_PANEL_BLOCK) {
    const int count = columns - k < MLX_PANEL_BLOCK ? columns - k : MLX_PANEL_BLOCK;
    mlx_dequantize_panel(format, panel, k, count, wide[0], 16);
    for (int i = 0; i < count; ++i) out[k + i] = wide[i][row % MLX_PANEL_ROWS];
  }
}
