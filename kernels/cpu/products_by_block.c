// Products of many rows in f32: a block of rows with a group of panels, whose weights are converted to f32.
#include "dequantize.h"
#include "epilogue.h"
#include "products_by.h"

// Columns converted to f32 at a time: with the panels of a tile they take 24 KB (AVX-512) or 16 KB of an L1
// cache of 32 KB, and leave room for the vectors.
#define WIDE_COLUMNS (TILE_ROWS > 32 ? 96 : 128)

// Panel |i| of the group that starts at panel |first|: of the second matrix after those of the first. Sums of
// panels past the last one are discarded.
INLINE const uint8_t *group_panel(const product_t *p, int first, int i, int32_t *out_format) {
  const int step = group_panels(p), panel = min_int(first + i % step, panel_count(p) - 1);
  *out_format = i < step ? p->format : p->up_format;
  return (i < step ? p->weight : p->up) + panel * mlx_panel_bytes(*out_format, p->columns);
}

// Converts |count| columns of the group to |wide| [columns][TILE_ROWS].
static void widen_panels(const product_t *p, int first, int column, int count, float *wide) {
  for (int i = 0; i < TILE_PANELS; ++i) {
    int32_t format;
    const uint8_t *panel = group_panel(p, first, i, &format);
    mlx_dequantize_panel(format, panel, column, count, wide + 16 * i, TILE_ROWS);
  }
}

// Fetches part |part| of |parts| of |count| columns of the group to the L2 cache.
static void fetch_panels(const product_t *p, int first, int column, int count, int part, int parts) {
  for (int i = 0; i < TILE_PANELS; ++i) {
    int32_t format;
    const uint8_t *panel = group_panel(p, first, i, &format), *at = panel + mlx_panel_bytes(format, column);
    const int lines = (int)(mlx_panel_bytes(format, count) / 64) + 1, from = lines * part / parts;
    prefetch(at + 64 * from, 64 * (lines * (part + 1) / parts - from));
  }
}

// sums [tokens][TILE_ROWS] += |count| columns of |tokens| rows of x times |wide|. Before each tile of rows it
// fetches the rows of the next tile to the L1 cache, and a part of the panels' next columns.
static void multiply_rows(const call_t *c, const product_t *p, int first, int token, int tokens, int column,
                          int count, const float *wide, float *sums) {
  const int tiles = divide_up(tokens, TILE_TOKENS), next = column + count,
            more = min_int(WIDE_COLUMNS, p->columns - next);
  const float *x[2 * TILE_TOKENS];
  for (int i = 0; i < TILE_TOKENS; ++i) x[i] = input_row(c, p, token + min_int(i, tokens - 1)) + column;
  for (int tile = 0; tile < tiles; ++tile, sums += TILE_TOKENS * TILE_ROWS) {
    const int t = tile * TILE_TOKENS;
    if (more > 0) fetch_panels(p, first, next, more, tile, tiles);
    for (int i = TILE_TOKENS; i < 2 * TILE_TOKENS; ++i) {
      x[i] = input_row(c, p, token + min_int(t + i, tokens - 1)) + column;
      for (int k = 0; t + i < tokens && k < count; k += 16) __builtin_prefetch(x[i] + k, 0, 3);
    }
    multiply_tile(min_int(TILE_TOKENS, tokens - t), wide, x, count, sums);
    for (int i = 0; i < TILE_TOKENS; ++i) x[i] = x[TILE_TOKENS + i];
  }
}

void mlx_multiply_by_block(const call_t *c, const product_t *p, int item) {
  _Alignas(64) float wide[WIDE_COLUMNS * TILE_ROWS], sums[MAX_BLOCK_TOKENS * TILE_ROWS];
  const int blocks = block_count(p), panels = panel_count(p), step = group_panels(p);
  const int first = item / blocks * step,
            most = divide_up(divide_up(p->tokens, blocks), TILE_TOKENS) * TILE_TOKENS,
            token = item % blocks * most, tokens = min_int(most, p->tokens - token);
  if (tokens < 1) return;  // rounding may leave nothing for the last blocks
  for (int i = 0; i < most * TILE_ROWS; i += 16) v_store(sums + i, v_zero());
  for (int k = 0; k < p->columns; k += WIDE_COLUMNS) {
    const int count = min_int(WIDE_COLUMNS, p->columns - k);
    widen_panels(p, first, k, count, wide);
    multiply_rows(c, p, first, token, tokens, k, count, wide, sums);
  }
  for (int t = 0; t < tokens; ++t) {
    for (int i = 0; i < step && first + i < panels; ++i) {
      const float *sum = sums + t * TILE_ROWS + 16 * i;
      mlx_finish_product(c, p, token + t, first + i, v_load(sum), p->up ? v_load(sum + 16 * step) : v_zero());
    }
  }
}
