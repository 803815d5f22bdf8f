// Several f32 panels times several vectors: as many sums as fit in registers.
#ifndef MLXCEL_KERNELS_CPU_TILE_F32_H_
#define MLXCEL_KERNELS_CPU_TILE_F32_H_

#include "layout.h"
#include "vector.h"

#if defined(__AVX512F__)
#define TILE_PANELS 4
#define TILE_TOKENS 6
#elif defined(__AVX2__) || defined(__aarch64__)
#define TILE_PANELS 2
#define TILE_TOKENS 3
#else
#define TILE_PANELS 2
#define TILE_TOKENS 1
#endif
#define TILE_ROWS (TILE_PANELS * MLX_PANEL_ROWS)

// sums [TOKENS][TILE_ROWS] += wide [columns][TILE_ROWS] times x[token][column]
INLINE void multiply_tokens(int TOKENS, const float *wide, const float *const *x, int columns, float *sums) {
  v16 sum[TILE_TOKENS][TILE_PANELS];
  for (int t = 0; t < TOKENS; ++t) {
    for (int p = 0; p < TILE_PANELS; ++p) sum[t][p] = v_load(sums + t * TILE_ROWS + 16 * p);
  }
  for (int k = 0; k < columns; ++k, wide += TILE_ROWS) {
    v16 w[TILE_PANELS];
    for (int p = 0; p < TILE_PANELS; ++p) w[p] = v_load(wide + 16 * p);
    for (int t = 0; t < TOKENS; ++t) {
      const v16 each = v_all(x[t][k]);
      for (int p = 0; p < TILE_PANELS; ++p) sum[t][p] = v_fma(w[p], each, sum[t][p]);
    }
  }
  for (int t = 0; t < TOKENS; ++t) {
    for (int p = 0; p < TILE_PANELS; ++p) v_store(sums + t * TILE_ROWS + 16 * p, sum[t][p]);
  }
}

// The same for up to TILE_TOKENS tokens. |x| has TILE_TOKENS vectors, and |sums| room for them.
INLINE void multiply_tile(int tokens, const float *wide, const float *const *x, int columns, float *sums) {
  if (3 * tokens <= TILE_TOKENS)
    multiply_tokens((TILE_TOKENS + 2) / 3, wide, x, columns, sums);
  else if (3 * tokens <= 2 * TILE_TOKENS)
    multiply_tokens((2 * TILE_TOKENS + 2) / 3, wide, x, columns, sums);
  else
    multiply_tokens(TILE_TOKENS, wide, x, columns, sums);
}

#endif  // MLXCEL_KERNELS_CPU_TILE_F32_H_
