// Chooses tile sizes, split factors and shared memory. All thresholds were measured on an H200.
#include "compiler/cuda_launch.h"

static int64_t tile_count(int64_t m, int64_t n, int64_t bm, int64_t bn) {
  return mlx_ceil_div(m, bm) * mlx_ceil_div(n, bn);
}

static int64_t tokens_of(int64_t m) { return m <= 16 ? 16 : m <= 32 ? 32 : m <= 64 ? 64 : 128; }

// Too few tiles to fill the GPU: clusters divide K (split-K) until there are |blocks| blocks.
static int64_t split_of(int64_t tiles, int64_t k, int64_t blocks) {
  int64_t split = 1;
  while (split < 8 && tiles * split * 2 <= blocks && k >= split * 2 * 256) split *= 2;
  return split;
}

// Average share of busy multiprocessors, in percent, if each block occupies one.
static int64_t fill_of(int64_t blocks, int64_t processors) {
  return 100 * blocks / (mlx_ceil_div(blocks, processors) * processors);
}

// A tile of 128 tokens fills a multiprocessor, so clusters of four and more such blocks cannot all be
// resident. Tiles of 64 tokens then allow two blocks per multiprocessor. Up to 32 tokens the kernel waits for
// memory, and small blocks hide that latency best.
//
// Rows of 16-bit weights take more registers than tiles of codes, so that a warp has one group of 16 rows.
static mlx_quantized_tile_t hopper_tile(int64_t m, int64_t n, int64_t k, bool pair, bool rows16,
                                        int64_t processors) {
  mlx_quantized_tile_t t = {.m = tokens_of(m), .n = 128, .split = 1, .stages = 4, .warps = 8};
  if (t.m == 128) {
    if (!pair && !rows16 && tile_count(m, n, 128, 256) >= processors) t.n = 256;
    t.split = split_of(tile_count(m, n, 128, t.n), k, processors);
    // Three warpgroups.
    const mlx_quantized_tile_t three = {.m = 128, .n = 192, .split = 2, .stages = 4, .warps = 12};
    const int64_t busy = fill_of(tile_count(m, n, 128, t.n) * t.split, processors);
    if (!pair && !rows16 && k >= 512 && fill_of(tile_count(m, n, 128, 192) * 2, processors) > busy + 10)
      return three;
    if (t.split <= 2) return t;
    t.m = 64;
  }
  const bool few_codes = t.m == 16 && !rows16;
  if (few_codes || (t.m <= 32 && !pair)) {
    t.n = 64, t.warps = 4;
    // A seventh more blocks than are resident at once cost less than half as many.
    const int64_t resident = processors * (few_codes && !pair ? 4 : 3);
    t.split = split_of(tile_count(m, n, t.m, 64), k, few_codes ? resident * 8 / 7 : resident);
  } else {
    const int64_t tiles = tile_count(m, n, t.m, 128);
    const bool codes64 = m <= 64 && !rows16 && !pair;
    t.split = split_of(tiles, k, codes64 && k >= 8192 ? processors * 16 / 7 : processors * 3 / 2);
    // Three rounds of quarters instead of one in which some multiprocessors have one block and others two.
    if (codes64 && tiles > processors && tiles < processors * 3 / 2) t.split = split_of(1, k, 4);
  }
  return t;
}

int64_t mlx_partial_split(int64_t m, int64_t n, int64_t k, int64_t processors) {
  const int64_t split = mlx_min(processors / tile_count(m, n, tokens_of(m), 128), mlx_ceil_div(k, 256));
  return m > 64 && split > 1 ? split : 0;
}

// For GPUs with mma.sync, without clusters, with 99 KB of shared memory.
static mlx_quantized_tile_t portable_tile(int64_t m, int64_t n, bool pair, int64_t processors) {
  mlx_quantized_tile_t t = {.m = m <= 16   ? 16
                                 : m <= 32 ? 32
                                           : 64,
                            .n = 64,
                            .split = 1,
                            .stages = 3,
                            .warps = 4};
  if (!pair && t.m == 64 && tile_count(m, n, 64, 128) >= processors) t.n = 128;
  return t;
}

mlx_quantized_tile_t mlx_quantized_tile(int64_t m, int64_t n, int64_t k, bool pair, bool rows16, bool hopper,
                                        int64_t processors) {
  return hopper ? hopper_tile(m, n, k, pair, rows16, processors) : portable_tile(m, n, pair, processors);
}

int64_t mlx_quantized_tile_shared_bytes(mlx_quantized_tile_t tile, bool rows16) {
  return tile.stages * (tile.m * (rows16 ? 384 : 256) + 16) + (rows16 ? 0 : tile.m * 4);
}

int64_t mlx_quantized_parts_bytes(int64_t m, int64_t k) {
  const int64_t runs = mlx_ceil_div(k, 128);
  return (runs * 2 + mlx_ceil_div(runs, 16)) * mlx_ceil_div(m, 8) * 8 * 384;
}

// One round of blocks if possible: 128 of them, because the multiprocessors of an H200 do not take more
// clusters of eight. Clusters of more than two blocks that each fill a multiprocessor cannot all be resident.
mlx_few_tile_t mlx_few_tile(int64_t m, int64_t n, int64_t k, bool pair, int64_t processors) {
  const int64_t runs = mlx_ceil_div(k, 128), most_bytes = (pair ? 227 : 113) * 1024;
  const mlx_few_tile_t none = {0};
  mlx_few_tile_t t = {.groups = 2, .split = pair ? 2 : 8, .depth = 4, .along = 1};
  if (m <= MLX_GEMV_TOKENS || m > MLX_FEW_TOKENS || n % 16) return none;
  while (t.split > runs) t.split /= 2;
  const int64_t tiles = pair ? n / 16 : mlx_ceil_div(n, 32), slice = mlx_ceil_div(runs, t.split),
                each = mlx_ceil_div(tiles, processors / 8 * 8 / t.split), rounds = mlx_ceil_div(each, 8);
  t.tall = mlx_ceil_div(each, rounds);
  t.clusters = mlx_ceil_div(tiles, t.tall);
  while (t.along * 2 * t.tall <= 8 && slice >= t.along * 2) t.along *= 2;
  t.shared_bytes = t.tall * t.along * t.depth * t.groups * 1024 + slice * 2 * (16 * 384 + 64) + 64;
  return t.shared_bytes <= most_bytes ? t : none;
}

// Two blocks per multiprocessor. A team of warps computes two groups of 16 rows at a time if every block then
// still has work.
mlx_quantized_gemv_t mlx_quantized_gemv(int64_t m, int64_t n, int64_t k, int64_t processors) {
  const int64_t groups = mlx_ceil_div(n, 16) >= processors * 4 ? 2 : 1, warps = 8, run = 784 * m;
  return (mlx_quantized_gemv_t){
      .groups = groups,
      .warps = warps,
      .blocks = mlx_min(mlx_ceil_div(n, 16 * groups * 8 / warps), processors * 2),
      .shared_bytes = mlx_min(mlx_ceil_div(k, 128), 65536 / run / 8 * 8) * run + 8192 * groups};
}

int64_t mlx_token_shared_bytes(int64_t columns, bool tiles) {
  return tiles ? mlx_ceil_div(columns, 128) * 784 + 4096 : 0;
}

// A tile has room for more tokens than an expert has on average. A partly filled tile costs less than a
// second one, which reads and unpacks the same weights again. Tiles of 128 tokens leave too few registers for
// two matrices, so that they pay off only if most are full.
mlx_quantized_tile_t mlx_experts_tile(int64_t tokens, int64_t used, int64_t experts, bool pair, bool hopper) {
  const int64_t average = mlx_ceil_div(tokens * used, experts);
  mlx_quantized_tile_t t = {.m = tokens_of(average * 5 / 4), .split = 1};
  if (average < 96) t.m = mlx_min(t.m, 64);
  if (hopper) {
    t.n = t.m <= 32 && !pair ? 64 : 128, t.stages = 4, t.warps = t.m <= 32 && !pair ? 4 : 8;
  } else {
    t.m = mlx_min(t.m, 64), t.n = 64, t.stages = 3, t.warps = 4;
  }
  return t;
}

mlx_experts_groups_t mlx_experts_groups(int64_t tokens, int64_t used, int64_t experts, int64_t tile) {
  const int64_t pairs = tokens * used, busy = mlx_min(pairs, experts);  // experts with tokens
  mlx_experts_groups_t g = {
      .pairs = pairs, .tiles = pairs / tile + busy, .rows = mlx_ceil_div(pairs + 7 * busy, 8) * 8};
  g.list_at = 4 + 4 * g.tiles;
  g.rows_at = g.list_at + g.rows;
  g.words = g.rows_at + pairs;
  return g;
}

// Gate and up: all blocks are resident at once, because a second round would choose experts and read x again.
// Down: two blocks of a cluster divide the experts, because there are few groups of rows.
mlx_experts_gemv_t mlx_experts_gemv(bool pair, int64_t pairs, int64_t used, int64_t n, int64_t k, bool rows16,
                                    bool small, bool hopper, int64_t processors) {
  mlx_experts_gemv_t g = {.each = 1, .split = 1, .resident = small ? 3 : 2};
  if (pair) g.each = mlx_min(mlx_ceil_div(mlx_ceil_div(n, 16) * pairs, g.resident * processors), 4);
  if (!pair && hopper && used % 2 == 0 && mlx_ceil_div(n, 16) * 2 <= g.resident * processors) g.split = 2;
  const int64_t units = (pair ? 1 : used / g.split) * mlx_ceil_div(k, rows16 ? 64 : 128);
  g.shared_bytes = mlx_min(units, rows16 ? 192 : 96) * (rows16 ? 384 : 784) +  // FIT of the kernels
                   4096 * (1 + pair) * g.each;
  return g;
}

int64_t mlx_attend_f32_bytes(mlx_attend_f32_tile_t t, int64_t head_dim, int64_t value_dim, int64_t kv_bytes) {
  const int64_t width = mlx_attend_width(head_dim), piece = mlx_attend_piece(head_dim, value_dim);
  const bool odd = piece % 32;
  const int64_t key = kv_bytes == 1 ? piece + 16 : kv_bytes == 2 ? 2 * piece + (odd ? 0 : 32) : 4 * piece;
  const int64_t value = kv_bytes == 1   ? piece + 16
                        : kv_bytes == 2 ? 2 * (piece + 8)
                                        : 4 * (piece + (odd ? 4 : 0));
  const int64_t groups = t.threads / 32 / (t.queries <= 16 ? 1 : t.queries / 16);
  const int64_t part = groups * t.split > 1 ? t.queries * (piece + 4) * 4 : 0;
  const int64_t values = mlx_max(t.stages * t.step * value, part);
  const int64_t keys = mlx_max(t.stages * t.step * key, piece < width ? values : 0);
  return t.queries * 4 * (width + (odd ? 0 : 16)) + groups * (keys + (piece < width ? keys : values)) +
         (part ? 8 * groups * t.queries : 0) + (t.split > 1 ? 4 * groups * t.queries * (piece + 2) : 0);
}

// Shared of attention_warpgroups.cuh, at a multiple of 1024 bytes.
static int64_t warpgroups_bytes(mlx_attend_f32_tile_t t, int64_t head_dim) {
  const int64_t row = mlx_ceil_div(head_dim, 64) * 64 * 4;
  return 1024 + (t.queries + 2 * t.stages * t.step) * row + 4 * (2 * t.queries + 3 * t.stages * t.step) +
         4 * t.stages * 8;
}

// Segments of few tokens: the warps of a block divide the keys. With few blocks each has a multiprocessor of
// its own; with many, several share one and hide latency. A query's result does not depend on the choice,
// except on |step|, which is 64 with warpgroups and else the same for all.
mlx_attend_f32_tile_t mlx_attend_f32_tile(bool is_long, int64_t tokens, int64_t heads, int64_t kv_heads,
                                          int64_t head_dim, int64_t value_dim, int64_t kv_bytes, bool hopper,
                                          int64_t processors) {
  // Room for two blocks per multiprocessor on Hopper; elsewhere the smallest limit of any GPU.
  const int64_t most = hopper ? 227 * 1024 : 99 * 1024, room = hopper ? 113 * 1024 : most,
                share = heads / kv_heads;
  mlx_attend_f32_tile_t t = {.step = head_dim <= 128 ? 32 : 16, .split = 1, .stages = 1};
  if (is_long && hopper && head_dim <= 128 && kv_bytes == 4 && !value_dim) {
    t.warpgroups = true;
    t.queries = 128, t.step = 64, t.stages = 2, t.threads = 512;
    t.shared_bytes = warpgroups_bytes(t, head_dim);
    return t;
  }
  if (is_long && head_dim > MLX_ATTEND_WHOLE) {
    t.queries = 16, t.threads = 128;
    while (t.threads > 64 && mlx_attend_f32_bytes(t, head_dim, value_dim, kv_bytes) > room) t.threads -= 32;
    t.shared_bytes = mlx_attend_f32_bytes(t, head_dim, value_dim, kv_bytes);
    return t;
  }
  if (is_long) {
    t.queries = head_dim <= 128 ? 64 : 16;
    t.threads = 128;
    t.stages = head_dim <= 128 ? 2 : 1;
    if (head_dim <= 128 && mlx_attend_f32_bytes(t, head_dim, value_dim, kv_bytes) > room) t.stages = 1;
    if (mlx_attend_f32_bytes(t, head_dim, value_dim, kv_bytes) > most) t.threads = 64;
    t.shared_bytes = mlx_attend_f32_bytes(t, head_dim, value_dim, kv_bytes);
    return t;
  }
  t.queries = share <= 8 ? 8 : 16;
  const int64_t blocks = kv_heads * mlx_ceil_div(share, t.queries) * tokens;
  const bool few = blocks <= processors;
  while (hopper && t.split < 8 && blocks * t.split * 2 <= processors) t.split *= 2;
  const int64_t least = head_dim > MLX_ATTEND_WHOLE ? 64 : 32;  // warps that share queries merge pieces
  t.threads = few ? 256 : head_dim <= 64 ? 64 : value_dim ? 128 : least;
  while (t.threads > least && mlx_attend_f32_bytes(t, head_dim, value_dim, kv_bytes) > (few ? most : room))
    t.threads -= 32;
  t.shared_bytes = mlx_attend_f32_bytes(t, head_dim, value_dim, kv_bytes);
  return t;
}

// No segment has more tiles per token than the worst one.
int64_t mlx_attend_tiles(int64_t tokens, int64_t shortest, int64_t share, int64_t queries) {
  int64_t most = 0;
  for (int64_t count = shortest; count <= tokens; ++count) {
    const int64_t tiles = tokens * mlx_ceil_div(count * share, queries) / count;
    if (tiles > most) most = tiles;
  }
  return most;
}
