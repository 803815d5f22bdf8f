// Matrix products on AMX tiles: bf16 matrix units that give f32 accuracy.
//
// An f32 number is exactly the sum of three bf16 parts, because its 24-bit significand is three times 8 bits.
// Of the nine products of the parts of two numbers, the six largest are summed in f32. The other three are
// smaller than the rounding error of f32. So this is no approximate mode: it is f32 on a unit with eight
// times the multipliers. Weights with fewer bits have fewer parts; bf16 has one. Quantized weights are
// dequantized to f32 first: scaling the products of their codes per block takes longer than three more
// products.
#include "dequantize.h"
#include "epilogue.h"
#include "products_by.h"
#include "tile_amx.h"

#if HAS_TILES

#define TILED_BLOCKS 8  // AMX: blocks of columns split into parts at a time
#define FEW_AHEAD 512   // AMX, few rows: bf16 values that each panel is prefetched ahead
_Static_assert(TILED_BLOCKS % MLX_PANEL_GROUP == 0, "blocks are split in whole super-blocks");
#define B_BLOCK (2 * PARTS * TILE)  // bf16 values in the tiles of two panels x 32 columns
#define FEW_PANELS 4                // panels multiplied together with few tokens

// Configures eight tiles of 64 bytes: |rows| rows in tiles 0 to 6, 16 rows in tile 7.
static void configure_tiles(int rows) {
  _Alignas(64) uint8_t config[64];
  for (int i = 0; i < 64; ++i) config[i] = 0;
  config[0] = 1;
  for (int i = 0; i < 8; ++i) {
    config[16 + 2 * i] = 64;
    config[48 + i] = (uint8_t)(i < 7 ? rows : 16);
  }
  __asm__ volatile("ldtilecfg %0" ::"m"(config) : "memory");
}

// Adds to the four sums: tiles 0 and 1 for tokens 0-15 with two panels, tiles 2 and 3 for tokens 16-31. The
// tokens 16-31 start |second| values after |a|.
INLINE void multiply_part(const uint16_t *a, int64_t second) {
  TILE_LOAD(4, a, 64);
  TILE_LOAD(5, a + second, 64);
  TILE_MULTIPLY(0, 4, 6);
  TILE_MULTIPLY(1, 4, 7);
  TILE_MULTIPLY(2, 5, 6);
  TILE_MULTIPLY(3, 5, 7);
}

// The b tiles of two panels, for consecutive blocks of columns.
typedef struct tile_pair {
  const uint16_t *panel[2];
  int64_t step;  // from one block to the next
} tile_pair_t;

// sums [32 tokens][32 rows] (+)= a [2][blocks] times b [blocks]. b has |parts| parts; |second| is the
// distance from the first 16 tokens of a to the second 16; |first| clears the sums.
INLINE void multiply_tiles(const uint16_t *a, int64_t second, tile_pair_t b, int parts, int blocks,
                           bool first, float *sums) {
  const int64_t stride = 128;
  if (first) {
    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_ZERO(2);
    TILE_ZERO(3);
  } else {
    TILE_LOAD(0, sums, stride);
    TILE_LOAD(1, sums + 16, stride);
    TILE_LOAD(2, sums + 512, stride);
    TILE_LOAD(3, sums + 528, stride);
  }
  for (int k = 0; k < blocks; ++k, a += A_BLOCK) {
    for (int part = 0; part < parts; ++part) {
      TILE_LOAD(6, b.panel[0] + k * b.step + part * TILE, 64);
      TILE_LOAD(7, b.panel[1] + k * b.step + part * TILE, 64);
      for (int other = 0; other + part < PARTS; ++other) multiply_part(a + other * TILE, second);
    }
  }
  TILE_STORE(0, sums, stride);
  TILE_STORE(1, sums + 16, stride);
  TILE_STORE(2, sums + 512, stride);
  TILE_STORE(3, sums + 528, stride);
}

// Up to 16 tokens with FEW_PANELS panels: one block of columns. Tiles 0 to 3 are the sums, 4 to 6 the parts
// of a. Each sum adds the products in the order of multiply_tiles, so the results have the same bits.
#define MULTIPLY_FEW(sum, from)              \
  for (int part = 0; part < parts; ++part) { \
    TILE_LOAD(7, (from) + part * TILE, 64);  \
    TILE_MULTIPLY(sum, 4, 7);                \
    if (part < 2) TILE_MULTIPLY(sum, 5, 7);  \
    if (part < 1) TILE_MULTIPLY(sum, 6, 7);  \
  }
INLINE void multiply_few(const uint16_t *a, const uint16_t *const b[FEW_PANELS], int parts) {
  TILE_LOAD(4, a, 64);
  TILE_LOAD(5, a + TILE, 64);
  TILE_LOAD(6, a + 2 * TILE, 64);
  MULTIPLY_FEW(0, b[0])
  MULTIPLY_FEW(1, b[1])
  MULTIPLY_FEW(2, b[2])
  MULTIPLY_FEW(3, b[3])
}
INLINE void clear_few(void) {
  TILE_ZERO(0);
  TILE_ZERO(1);
  TILE_ZERO(2);
  TILE_ZERO(3);
}
// sums [FEW_PANELS][tokens][16]
INLINE void store_few(float *sums, int tokens) {
  TILE_STORE(0, sums, 64);
  TILE_STORE(1, sums + 16 * tokens, 64);
  TILE_STORE(2, sums + 32 * tokens, 64);
  TILE_STORE(3, sums + 48 * tokens, 64);
}

// Number of bf16 parts that hold a weight of this format exactly.
INLINE int parts_of(int32_t format) {
  return format == MLX_PANEL_BF16 ? 1 : format == MLX_PANEL_F16 ? 2 : PARTS;
}

INLINE void split_q4(int32_t format, const uint8_t *panel, int nth, uint16_t *to) {
  const table_t table = codes_table(format);
  const uint8_t *block = panel + mlx_panel_block_at(format, nth);
  const v16 scale = load_scale(format, block, nth),
            offset = has_offsets(format) ? load_second(format, block, nth) : v_zero();
#define WIDE_COLUMN(nth) v_fma(CODES_COLUMN(table, codes, nth), scale, offset)
  for (int i = 0; i < 4; ++i, to += 128) {
    const codes_t codes = codes_load(block + scale_bytes(format) + 64 * i);
    split_pair(WIDE_COLUMN(0), WIDE_COLUMN(1), PARTS, to);
    split_pair(WIDE_COLUMN(2), WIDE_COLUMN(3), PARTS, to + 32);
    split_pair(WIDE_COLUMN(4), WIDE_COLUMN(5), PARTS, to + 64);
    split_pair(WIDE_COLUMN(6), WIDE_COLUMN(7), PARTS, to + 96);
  }
#undef WIDE_COLUMN
}

// An f32 panel has its columns one after the other.
INLINE void split_f32(const uint8_t *panel, int block, uint16_t *to) {
  for (int i = 0; i < 16; ++i) {
    const int column = block * MLX_PANEL_BLOCK + 2 * i;
    split_pair(load_column(MLX_PANEL_F32, panel, column), load_column(MLX_PANEL_F32, panel, column + 1),
               PARTS, to + 32 * i);
  }
}

// Splits a block of a format other than those above.
INLINE void split_block(int32_t format, const uint8_t *panel, int parts, int block, uint16_t *to) {
  float wide[MLX_PANEL_BLOCK * 16];
  mlx_dequantize_panel(format, panel, block * MLX_PANEL_BLOCK, MLX_PANEL_BLOCK, wide, 16);
  for (int i = 0; i < 16; ++i)
    split_pair(v_load(wide + 32 * i), v_load(wide + 32 * i + 16), parts, to + 32 * i);
}

// Splits |blocks| blocks of a panel, starting at |block|, into b tiles, |step| values apart.
static void split_panel(int32_t format, const uint8_t *panel, int parts, int block, int blocks, int64_t step,
                        uint16_t *b) {
  for (int k = block; k < block + blocks; ++k, b += step) {
    switch (format) {
      case MLX_PANEL_F32: split_f32(panel, k, b); break;
      case MLX_PANEL_F16: split_block(MLX_PANEL_F16, panel, parts, k, b); break;
      case MLX_PANEL_Q4_0: split_q4(MLX_PANEL_Q4_0, panel, k, b); break;
      case MLX_PANEL_Q4_1: split_q4(MLX_PANEL_Q4_1, panel, k, b); break;
      case MLX_PANEL_Q4_WIDE: split_q4(MLX_PANEL_Q4_WIDE, panel, k, b); break;
      case MLX_PANEL_Q4_BF16: split_q4(MLX_PANEL_Q4_BF16, panel, k, b); break;
      case MLX_PANEL_Q4_K: split_q4(MLX_PANEL_Q4_K, panel, k, b); break;
      default: split_block(format, panel, parts, k, b); break;
    }
  }
}

// ----------------------------------------------------------------------------------------------------------
// Products

INLINE int parts_of_product(const product_t *p) {
  return p->up ? max_int(parts_of(p->format), parts_of(p->up_format)) : parts_of(p->format);
}
// Panels of bf16 are tiles already.
INLINE bool is_direct(const product_t *p) {
  return p->format == MLX_PANEL_BF16 && (!p->up || p->up_format == MLX_PANEL_BF16);
}
INLINE const uint8_t *panel_at(const product_t *p, bool up, int panel, int32_t *out_format) {
  *out_format = up ? p->up_format : p->format;
  return (up ? p->up : p->weight) + panel * mlx_panel_bytes(*out_format, p->columns);
}

// Up to 16 rows with FEW_PANELS panels of one matrix, or half of them from |up|.
static void multiply_few_panels(const call_t *c, const product_t *p, int first, int count) {
  _Alignas(64) uint16_t split[FEW_PANELS][PARTS * TILE];
  _Alignas(64) float sums[FEW_PANELS * FEW_TOKENS * 16];
  const uint8_t *panel[FEW_PANELS];
  const uint16_t *b[FEW_PANELS];
  int32_t format[FEW_PANELS];
  const int half = p->up ? FEW_PANELS / 2 : FEW_PANELS, parts = parts_of_product(p);
  for (int i = 0; i < FEW_PANELS; ++i)  // sums past |count| are discarded
    panel[i] = panel_at(p, i >= half, first + min_int(i % half, count - 1), &format[i]);
  clear_few();
  for (int k = 0; k < p->columns / MLX_PANEL_BLOCK; ++k) {
    for (int i = 0; i < FEW_PANELS; ++i) {
      b[i] = (const uint16_t *)(const void *)panel[i] + (int64_t)k * TILE;
      if (is_direct(p)) {
        for (int at = 0; i % half < count && at < TILE; at += 32) __builtin_prefetch(b[i] + FEW_AHEAD + at);
        continue;
      }
      split_panel(format[i], panel[i], parts, k, 1, 0, split[i]);
      b[i] = split[i];
    }
    multiply_few(p->parts + (int64_t)k * A_BLOCK, b, parts);
  }
  store_few(sums, p->tokens);
  for (int i = 0; i < count; ++i) {
    for (int t = 0; t < p->tokens; ++t) {
      const float *sum = sums + (i * p->tokens + t) * 16;
      mlx_finish_product(c, p, t, first + i, v_load(sum),
                         p->up ? v_load(sum + half * p->tokens * 16) : v_zero());
    }
  }
}

void mlx_multiply_by_few_tiles(const call_t *c, const product_t *p, int from, int to) {
  const int step = p->up ? FEW_PANELS / 2 : FEW_PANELS;
  configure_tiles(p->tokens);
  for (int panel = from; panel < to; panel += step)
    multiply_few_panels(c, p, panel, min_int(step, to - panel));
  release_tiles();
}

// The b tiles of pair |nth|: from the weights, or split into |b|.
INLINE tile_pair_t make_pair(const product_t *p, int first, int nth, int parts, int k, int count,
                             uint16_t *b) {
  const int panels = panel_count(p);
  tile_pair_t pair = {{b, b + PARTS * TILE}, B_BLOCK};
  if (is_direct(p)) pair.step = TILE;
  for (int i = 0; i < 2; ++i) {
    const int panel = min_int(first + (p->up ? nth : 2 * nth + i), panels - 1);  // past the last: discarded
    int32_t format;
    const uint8_t *from = panel_at(p, p->up && i, panel, &format);
    if (is_direct(p))
      pair.panel[i] = (const uint16_t *)(const void *)from + (int64_t)k * TILE;
    else
      split_panel(format, from, parts, k, count, B_BLOCK, b + i * PARTS * TILE);
  }
  return pair;
}

// One item of an AMX product. A pair of panels is two panels of one matrix, or one of gate and one of up. All
// pairs of the item use a part of x while it is in the cache.
void mlx_multiply_by_tiles(const call_t *c, const product_t *p, int item) {
  _Alignas(64) uint16_t b[TILED_PAIRS][TILED_BLOCKS * B_BLOCK];
  _Alignas(64) float sums[TILED_PAIRS][TILED_TOKENS * 32];
  tile_pair_t pair[TILED_PAIRS];
  const int groups = tiled_groups(p), token = item / groups * TILED_TOKENS,
            tokens = min_int(TILED_TOKENS, p->tokens - token);
  const int first = item % groups * tiled_panels(p), panels = panel_count(p),
            blocks = p->columns / MLX_PANEL_BLOCK;
  const int pairs = min_int(TILED_PAIRS, divide_up(panels - first, p->up ? 1 : 2)),
            parts = parts_of_product(p);
  const int64_t group_parts = parts_stride(p->columns);
  configure_tiles(16);
  for (int k = 0; k < blocks; k += TILED_BLOCKS) {
    const int count = min_int(TILED_BLOCKS, blocks - k);
    for (int i = 0; i < pairs; ++i) pair[i] = make_pair(p, first, i, parts, k, count, b[i]);
    for (int t = 0; t < tokens; t += 32) {
      const uint16_t *a = p->parts + (token + t) / 16 * group_parts + (int64_t)k * A_BLOCK;
      for (int i = 0; i < pairs; ++i)
        multiply_tiles(a, group_parts, pair[i], parts, count, k == 0, sums[i] + 32 * t);
    }
  }
  release_tiles();
  for (int i = 0; i < pairs; ++i) {
    const int panel = first + (p->up ? i : 2 * i);
    mlx_finish_rows(c, p, token, tokens, panel, sums[i], sums[i] + 16, 32);
    if (!p->up && panel + 1 < panels)
      mlx_finish_rows(c, p, token, tokens, panel + 1, sums[i] + 16, sums[i] + 16, 32);
  }
}

#endif
