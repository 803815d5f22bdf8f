// How products with packed weights are cut between blocks. The thresholds are measurements on an H200.
#include "compiler/packed_ops.h"

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

static int64_t tile_count(int64_t m, int64_t n, int64_t bm, int64_t bn) { return ceil_div(m, bm) * ceil_div(n, bn); }

static int64_t tokens_of(int64_t m) { return m <= 16 ? 16 : m <= 32 ? 32 : m <= 64 ? 64 : 128; }

// Too few tiles to fill the GPU: clusters of blocks divide K.
static int64_t split_of(int64_t tiles, int64_t k, int64_t processors) {
  int64_t split = 1;
  while (split < 8 && tiles * split * 2 <= processors && k >= split * 2 * 256) split *= 2;
  return split;
}

static mlx_packed_tile_t hopper_tile(int64_t m, int64_t n, int64_t k, bool pair, int64_t processors) {
  mlx_packed_tile_t t = {.m = tokens_of(m), .n = 128, .split = 1, .stages = 4, .warps = 8};
  if (!pair && t.m == 128 && tile_count(m, n, 128, 256) >= processors) t.n = 256;
  if (tile_count(m, n, t.m, t.n) * 2 <= processors && t.m < 128) t.n = 64, t.warps = 4;
  t.split = split_of(tile_count(m, n, t.m, t.n), k, processors);
  return t;
}

// mma.sync, no clusters, 99 KB of shared memory.
static mlx_packed_tile_t portable_tile(int64_t m, int64_t n, bool pair, int64_t processors) {
  mlx_packed_tile_t t = {.m = m <= 16 ? 16 : m <= 32 ? 32 : 64, .n = 64, .split = 1, .stages = 3, .warps = 4};
  if (!pair && t.m == 64 && tile_count(m, n, 64, 128) >= processors) t.n = 128;
  return t;
}

mlx_packed_tile_t mlx_packed_tile(int64_t m, int64_t n, int64_t k, bool pair, bool hopper, int64_t processors) {
  return hopper ? hopper_tile(m, n, k, pair, processors) : portable_tile(m, n, pair, processors);
}

int64_t mlx_packed_shared_bytes(mlx_packed_tile_t tile, bool offset) { return tile.stages * (tile.m * (offset ? 392 : 384) + 16); }

int64_t mlx_packed_parts_bytes(int64_t m, int64_t k) { return ceil_div(k, 128) * 2 * ceil_div(m, 8) * 8 * 392; }

int64_t mlx_packed_gemv_groups(int64_t n, int64_t processors) {
  const int64_t groups = ceil_div(n, 16);
  return groups >= processors * 16 ? 4 : groups >= processors * 4 ? 2 : 1;
}

int64_t mlx_packed_gemv_shared_bytes(int64_t m, int64_t k, int64_t groups) {
  const int64_t run = 784 * m, fit = 65536 / run / 8 * 8, runs = ceil_div(k, 128), panel = (runs < fit ? runs : fit) * run;
  return panel > 4096 * groups ? panel : 4096 * groups;
}
