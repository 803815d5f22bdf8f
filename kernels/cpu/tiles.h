// Products on AMX: 16-bit matrix units, made to compute as f32 does.
//
// A float is the sum of three bf16 parts, exactly: its 24 bits are three times 8. Of the nine products of two floats' parts the six
// largest are summed in f32; what is left out is below what f32 would round away. So this is no faster mode with other results: it is
// f32 on a unit that has eight times the multipliers. Weights that have fewer bits have fewer parts, bf16 one. So have the codes of packed
// weights: three products of codes and parts, whose sum is then scaled block by block.
//
// Weights: |b| tiles, 32 columns of 16 rows as pairs of neighbouring columns. Tokens: |a| tiles, 16 tokens' 32 columns. A tile is 1 KB
// without gaps, and the tiles of a block's three parts are neighbours: [16 tokens][block][part]. After those of tokens come their sums over
// the block's first and second 16 columns.
#ifndef MLXCEL_KERNELS_CPU_TILES_H_
#define MLXCEL_KERNELS_CPU_TILES_H_

#include "panels.h"

#define PARTS 3
#define TILE 512       // numbers of 16 bits in a tile
#define A_BLOCK (PARTS * TILE + 64)  // and in 16 tokens' tiles of a block with their sums
#define B_BLOCK (2 * PARTS * TILE)   // and in those of a block of two panels
#define LEAST_TILED 8  // tokens for which it is worth it

#if defined(__AMX_BF16__)
#define HAS_TILES 1

INLINE __m512i bits_of(v16 x) { return _mm512_castps_si512(x); }
INLINE v16 upper_half(v16 x) { return _mm512_castsi512_ps(_mm512_and_si512(bits_of(x), _mm512_set1_epi32((int)0xffff0000))); }

// 16 columns of a token as parts; |at| is the place in the first part's tile.
INLINE void split_columns(v16 x, uint16_t *at, float *sum) {
  *sum = v_sum(x);
  for (int i = 0; i < PARTS; ++i, at += TILE) {
    const v16 part = upper_half(x);
    _mm256_storeu_si256((void *)at, _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits_of(part), 16)));
    x = v_sub(x, part);
  }
}

// Two neighbouring columns of 16 rows as parts: a row of as many |b| tiles.
INLINE void split_pair(v16 even, v16 odd, int parts, uint16_t *at) {
  for (int i = 0; i < parts; ++i, at += TILE) {
    const v16 low = upper_half(even), high = upper_half(odd);
    _mm512_storeu_si512(at, _mm512_or_si512(_mm512_srli_epi32(bits_of(low), 16), bits_of(high)));
    even = v_sub(even, low);
    odd = v_sub(odd, high);
  }
}

// Eight tiles of 16 rows of 64 bytes.
static void configure_tiles(void) {
  _Alignas(64) uint8_t config[64];
  for (int i = 0; i < 64; ++i) config[i] = 0;
  config[0] = 1;
  for (int i = 0; i < 8; ++i) {
    config[16 + 2 * i] = 64;
    config[48 + i] = 16;
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

// Four sums: tiles 0 and 1 of the first 16 tokens with two panels, 2 and 3 of the second 16, |second| further.
INLINE void multiply_part(const uint16_t *a, int64_t second) {
  TILE_LOAD(4, a, 64);
  TILE_LOAD(5, a + second, 64);
  TILE_MULTIPLY(0, 4, 6);
  TILE_MULTIPLY(1, 4, 7);
  TILE_MULTIPLY(2, 5, 6);
  TILE_MULTIPLY(3, 5, 7);
}

// sums [32 tokens][32 rows] (+)= a [2][blocks] with b [blocks], of whose parts there are |parts|; |second|: from a's first 16 tokens to the
// others.
INLINE void multiply_tiles(const uint16_t *a, int64_t second, const uint16_t *b, int parts, int blocks, bool first, float *sums) {
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
  for (int k = 0; k < blocks; ++k, a += A_BLOCK, b += B_BLOCK) {
    for (int part = 0; part < parts; ++part) {
      TILE_LOAD(6, b + part * TILE, 64);
      TILE_LOAD(7, b + (PARTS + part) * TILE, 64);
      for (int other = 0; other + part < PARTS; ++other) multiply_part(a + other * TILE, second);
    }
  }
  TILE_STORE(0, sums, stride);
  TILE_STORE(1, sums + 16, stride);
  TILE_STORE(2, sums + 512, stride);
  TILE_STORE(3, sums + 528, stride);
}

// Formats whose codes are multiplied as they are; of the others, how many parts a number has.
INLINE bool is_coded(int32_t format) { return format >= MLX_PANEL_Q4_0 && !is_halves(format); }
INLINE int parts_of(int32_t format) { return format == MLX_PANEL_BF16 ? 1 : format == MLX_PANEL_F16 ? 2 : PARTS; }

// |blocks| blocks of a panel from |block| on, to b's places for panel |nth|.
static void split_panel(int32_t format, const uint8_t *panel, int parts, int block, int blocks, int nth, uint16_t *b) {
  float wide[MLX_PANEL_BLOCK * 16];
  for (int k = 0; k < blocks; ++k) {
    widen_panel(format, panel, (block + k) * MLX_PANEL_BLOCK, MLX_PANEL_BLOCK, wide, 16);
    uint16_t *to = b + k * B_BLOCK + nth * PARTS * TILE;
    for (int i = 0; i < 16; ++i) split_pair(v_load(wide + 32 * i), v_load(wide + 32 * i + 16), parts, to + 32 * i);
  }
}

// The same of codes, not scaled; they have one part.
INLINE void take_codes(int32_t format, const uint8_t *at, uint16_t *to) {
  if (!is_q4(format)) {
    for (int i = 0; i < 16; ++i) split_pair(load_bytes(format, at + 32 * i), load_bytes(format, at + 32 * i + 16), 1, to + 32 * i);
    return;
  }
  const table_t table = codes_table(format);
  for (int i = 0; i < 4; ++i) {
    const codes_t codes = codes_load(at + 64 * i);
    split_pair(CODES_COLUMN(table, codes, 0), CODES_COLUMN(table, codes, 1), 1, to + 128 * i);
    split_pair(CODES_COLUMN(table, codes, 2), CODES_COLUMN(table, codes, 3), 1, to + 128 * i + 32);
    split_pair(CODES_COLUMN(table, codes, 4), CODES_COLUMN(table, codes, 5), 1, to + 128 * i + 64);
    split_pair(CODES_COLUMN(table, codes, 6), CODES_COLUMN(table, codes, 7), 1, to + 128 * i + 96);
  }
}

static void take_panel_codes(int32_t format, const uint8_t *panel, int block, int blocks, int nth, uint16_t *b) {
  const uint8_t *codes = panel + scale_bytes(format);
  for (int k = 0; k < blocks; ++k) take_codes(format, codes + mlx_panel_block_at(format, block + k), b + k * B_BLOCK + nth * PARTS * TILE);
}

// sums [32 tokens][rows of panel |nth|] += scale * made + offset * the tokens' sums; |made| is as sums.
INLINE void add_scaled(int32_t format, const uint8_t *block, int nth, const uint16_t *a, int64_t second, const float *made, float *sums) {
  const v16 scale = load_scale(format, block, nth), offset = has_offsets(format) ? load_second(format, block, nth) : v_zero();
  for (int half = 0; half < 2; ++half) {
    const float *halves = (const float *)(const void *)(a + half * second + PARTS * TILE);
    float whole[16];
    if (has_offsets(format)) v_store(whole, v_add(v_load(halves), v_load(halves + 16)));
    for (int t = 0; t < 16; ++t) {
      float *sum = sums + (16 * half + t) * 32;
      v16 more = v_fma(scale, v_load(made + (16 * half + t) * 32), v_load(sum));
      if (has_offsets(format)) more = v_fma(offset, v_all(whole[t]), more);
      v_store(sum, more);
    }
  }
}

static void add_block(int32_t format, const uint8_t *block, int nth, const uint16_t *a, int64_t second, const float *made, float *sums) {
  switch (format) {
    case MLX_PANEL_Q4_0: add_scaled(MLX_PANEL_Q4_0, block, nth, a, second, made, sums); break;
    case MLX_PANEL_Q4_1: add_scaled(MLX_PANEL_Q4_1, block, nth, a, second, made, sums); break;
    case MLX_PANEL_Q4_WIDE: add_scaled(MLX_PANEL_Q4_WIDE, block, nth, a, second, made, sums); break;
    case MLX_PANEL_Q4_BF16: add_scaled(MLX_PANEL_Q4_BF16, block, nth, a, second, made, sums); break;
    case MLX_PANEL_Q4_K: add_scaled(MLX_PANEL_Q4_K, block, nth, a, second, made, sums); break;
    case MLX_PANEL_Q5_K: add_scaled(MLX_PANEL_Q5_K, block, nth, a, second, made, sums); break;
    case MLX_PANEL_Q8_0: add_scaled(MLX_PANEL_Q8_0, block, nth, a, second, made, sums); break;
    case MLX_PANEL_Q8_1: add_scaled(MLX_PANEL_Q8_1, block, nth, a, second, made, sums); break;
    case MLX_PANEL_Q8_BF16: add_scaled(MLX_PANEL_Q8_BF16, block, nth, a, second, made, sums); break;
    default: add_scaled(MLX_PANEL_Q8_WIDE, block, nth, a, second, made, sums); break;
  }
}

// sums [32 tokens][32 rows] += a with codes b, scaled; |panels|: where each of the two has its blocks, from the start of a group on, and its format.
typedef struct coded {
  const uint8_t *panel[2];
  int32_t format[2];
} coded_t;

static void multiply_coded(const uint16_t *a, int64_t second, const uint16_t *b, const coded_t *coded, int blocks, float *sums) {
  _Alignas(64) float made[2][32 * 32];  // one is scaled while the next one is made
  for (int k = 0; k <= blocks; ++k) {
    if (k < blocks) multiply_tiles(a + (int64_t)k * A_BLOCK, second, b + k * B_BLOCK, 1, 1, true, made[k % 2]);
    for (int i = 0; k && i < 2; ++i) {
      const uint8_t *block = coded->panel[i] + mlx_panel_block_at(coded->format[i], k - 1);
      add_block(coded->format[i], block, k - 1, a + (int64_t)(k - 1) * A_BLOCK, second, made[(k - 1) % 2] + 16 * i, sums + 16 * i);
    }
  }
}

#else
#define HAS_TILES 0
INLINE void split_columns(v16 x, uint16_t *at, float *sum) {
  (void)x;
  (void)at;
  (void)sum;
}
#endif

#endif  // MLXCEL_KERNELS_CPU_TILES_H_
