// AMX tiles: bf16 matrix units. A tile is 1 KB without gaps: 16 rows of 32 bf16 values.
//
// Weights are |b| tiles: 32 columns of 16 rows, as pairs of neighbouring columns. A block of a bf16 panel is
// such a tile and is not copied. Activations are |a| tiles: 32 columns of 16 tokens. An f32 number is the sum
// of three bf16 parts. The tiles of a block's three parts are contiguous: [16 tokens][block][part].
#ifndef MLXCEL_KERNELS_CPU_TILE_AMX_H_
#define MLXCEL_KERNELS_CPU_TILE_AMX_H_

#include "vector.h"

#define PARTS 3
#define TILE 512                // bf16 values in a tile
#define A_BLOCK (PARTS * TILE)  // bf16 values in the tiles of 16 tokens x 32 columns

#if HAS_TILES

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

INLINE void release_tiles(void) { __asm__ volatile("tilerelease"); }

#define TILE_LOAD(tile, from, stride) \
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile ::"r"(from), "r"((int64_t)(stride)) : "memory")
#define TILE_STORE(tile, to, stride) \
  __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)" ::"r"(to), "r"((int64_t)(stride)) : "memory")
#define TILE_ZERO(tile) __asm__ volatile("tilezero %tmm" #tile)
#define TILE_MULTIPLY(sum, a, b) __asm__ volatile("tdpbf16ps %tmm" #b ", %tmm" #a ", %tmm" #sum)

#else

INLINE void split_columns(v16 x, uint16_t *at) {
  (void)x;
  (void)at;
}

#endif

#endif  // MLXCEL_KERNELS_CPU_TILE_AMX_H_
