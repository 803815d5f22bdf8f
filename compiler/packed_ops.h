// How products with packed weights are cut between blocks: the tile macros of kernels/cuda/packed.cu.
#ifndef MLXCEL_COMPILER_PACKED_OPS_H_
#define MLXCEL_COMPILER_PACKED_OPS_H_

#include <stdbool.h>
#include <stdint.h>

typedef struct mlx_packed_tile {
  int64_t m, n, split, stages, warps;  // BM, BN, SPLIT, STAGES and WARPS
} mlx_packed_tile_t;

// For y[m, n] over k columns; |pair| with EPILOGUE 2, |hopper| where there are wgmma, clusters and 227 KB of
// shared memory, |processors| how many multiprocessors the GPU has.
mlx_packed_tile_t mlx_packed_tile(int64_t m, int64_t n, int64_t k, bool pair, bool hopper,
                                  int64_t processors);

// Dynamic shared memory of a block, and bytes of what the CUT kernel writes.
int64_t mlx_packed_shared_bytes(mlx_packed_tile_t tile);
int64_t mlx_packed_parts_bytes(int64_t m, int64_t k);

// How the streaming kernel is launched for y[m, n] over k columns.
typedef struct mlx_packed_stream {
  int64_t groups, warps, blocks, shared_bytes;  // GEMV_GROUPS, GEMV_WARPS, the grid, dynamic shared memory
} mlx_packed_stream_t;

mlx_packed_stream_t mlx_packed_stream(int64_t m, int64_t n, int64_t k, int64_t processors);

// How attention_f32.cu is cut and launched.
typedef struct mlx_attend_f32_tile {
  int64_t queries, step, split, stages, threads,
      shared_bytes;  // QUERIES, STEP, SPLIT, STAGES, THREADS, dynamic shared memory
} mlx_attend_f32_tile_t;

mlx_attend_f32_tile_t mlx_attend_f32_tile(int64_t rows, int64_t tokens, int64_t heads, int64_t kv_heads,
                                          int64_t head_dim, bool hopper, int64_t processors);

#endif  // MLXCEL_COMPILER_PACKED_OPS_H_
