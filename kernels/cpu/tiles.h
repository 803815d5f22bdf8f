// Matrix products on AMX tiles: bf16 matrix units that give f32 accuracy.
//
// An f32 number is exactly the sum of three bf16 parts, because its 24-bit significand is three times 8 bits.
// Of the nine products of the parts of two numbers, the six largest are summed in f32. The other three are
// smaller than the rounding error of f32. So this is no approximate mode: it is f32 on a unit with eight
// times the multipliers. Weights with fewer bits have fewer parts; bf16 has one. Quantized weights are
// dequantized to f32 first: scaling the products of their codes per block takes longer than three more
// products.
//
// Weights are |b| tiles: 32 columns of 16 rows, as pairs of neighbouring columns. A block of a bf16 panel is
// such a tile and is not copied. Activations are |a| tiles:
// 32 columns of 16 tokens. A tile is 1 KB without gaps. The tiles of a block's three parts are contiguous:
// [16 tokens][block][part].
#ifndef MLXCEL_KERNELS_CPU_TILES_H_
#define MLXCEL_KERNELS_CPU_TILES_H_

#include "panels.h"

#define PARTS 3
#define TILE 512                    // bf16 values in a tile
#define A_BLOCK (PARTS * TILE)      // bf16 values in the tiles of 16 tokens x 32 columns
#define B_BLOCK (2 * PARTS * TILE)  // bf16 values in the tiles of two panels x 32 columns
#define FEW_PANELS 4                // panels multiplied together with few tokens

#if defined(__AMX_BF16__)
#define HAS_TILES 1

INLINE __m512i bits_of(v16 x) { return _mm512_castps_si512(x); }
INLINE v16 upper_half(v16 x) {
  return _mm512_castsi512_ps(_mm512_and_si512(bits_of(x), _mm512_set1_epi32((int)0xffff0000)));
}

// Splits 16 columns of a token into parts; |at| points into the tile of the first part.
INLINE void split_columns(v16 x, uint16_t *at) {
  for (int i = 0; i < PARTS; ++i, at += TILE) {
    _mm256_storeu_si256((void *)at, _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits_of(x), 16)));
    x = v_sub(x, upper_half(x));
  }
}

// Splits two neighbouring columns of 16 rows into parts: one row of |parts| b tiles.
INLINE void split_pair(v16 even, v16 odd, int parts, uint16_t *at) {
  for (int i = 0; i < parts; ++i, at += TILE) {
    _mm512_storeu_si512(
        at, _mm512_mask_blend_epi16(0x55555555, bits_of(odd), _mm512_srli_epi32(bits_of(even), 16)));
    even = v_sub(even, upper_half(even));
    odd = v_sub(odd, upper_half(odd));
  }
}

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
INLINE void release_tiles(void) { __asm__ volatile("tilerelease"); }

#define TILE_LOAD(tile, from, stride) \
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile ::"r"(from), "r"((int64_t)(stride)) : "memory")
#define TILE_STORE(tile, to, stride) \
  __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)" ::"r"(to), "r"((int64_t)(stride)) : "memory")
#define TILE_ZERO(tile) __asm__ volatile("tilezero %tmm" #tile)
#define TILE_MULTIPLY(sum, a, b) __asm__ volatile("tdpbf16ps %tmm" #b ", %tmm" #a ", %tmm" #sum)

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

// Splits a block of a format other than those of split_q4.
INLINE void split_block(int32_t format, const uint8_t *panel, int parts, int block, uint16_t *to) {
  float wide[MLX_PANEL_BLOCK * 16];
  dequantize_panel(format, panel, block * MLX_PANEL_BLOCK, MLX_PANEL_BLOCK, wide, 16);
  for (int i = 0; i < 16; ++i)
    split_pair(v_load(wide + 32 * i), v_load(wide + 32 * i + 16), parts, to + 32 * i);
}

// Splits |blocks| blocks of a panel, starting at |block|, into b tiles, |step| values apart.
static void split_panel(int32_t format, const uint8_t *panel, int parts, int block, int blocks, int64_t step,
                        uint16_t *b) {
  for (int k = block; k < block + blocks; ++k, b += step) {
    switch (format) {
      case MLX_PANEL_F32: split_block(MLX_PANEL_F32, panel, parts, k, b); break;
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

#else
#define HAS_TILES 0
INLINE void split_columns(v16 x, uint16_t *at) {
  (void)x;
  (void)at;
}
#endif

#endif  // MLXCEL_KERNELS_CPU_TILES_H_
