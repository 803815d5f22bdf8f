// Products of many rows in f32: a block of rows with a group of panels, whose weights are converted to f32.
#include "dequantize.h"
#include "epilogue.h"
#include "products_by.h"

#define WIDE_COLUMNS 128  // columns converted to f32 at a time: four panels of them fit in the L1 cache

void mlx_multiply_by_block(const call_t *c, const product_t *p, int item) {
  float wide[WIDE_COLUMNS * TILE_ROWS], sums[BLOCK_TOKENS * TILE_ROWS];
  const int blocks = block_count(p), panels = panel_count(p), step = group_panels(p);
  const int first = item / blocks * step, token = item % blocks * BLOCK_TOKENS,
            tokens = min_int(BLOCK_TOKENS, p->tokens - token);
  for (int i = 0; i < BLOCK_TOKENS * TILE_ROWS; i += 16) v_store(sums + i, v_zero());
  for (int k = 0; k < p->columns; k += WIDE_COLUMNS) {
    const int count = min_int(WIDE_COLUMNS, p->columns - k);
    for (int i = 0; i < TILE_PANELS; ++i) {
      const int32_t format = i < step ? p->format : p->up_format;
      const int panel = min_int(first + i % step, panels - 1);  // sums of panels past the last are discarded
      const uint8_t *from = (i < step ? p->weight : p->up) + panel * mlx_panel_bytes(format, p->columns);
      mlx_dequantize_panel(format, from, k, count, wide + 16 * i, TILE_ROWS);
    }
    for (int t = 0; t < tokens; t += TILE_TOKENS) {
      const float *x[TILE_TOKENS];
      for (int i = 0; i < TILE_TOKENS; ++i) x[i] = input_row(c, p, token + min_int(t + i, tokens - 1)) + k;
      multiply_tile(wide, x, count, sums + t * TILE_ROWS);
    }
  }
  for (int t = 0; t < tokens; ++t) {
    for (int i = 0; i < step && first + i < panels; ++i) {
      const float *sum = sums + t * TILE_ROWS + 16 * i;
      mlx_finish_product(c, p, token + t, first + i, v_load(sum), p->up ? v_load(sum + 16 * step) : v_zero());
    }
  }
}
