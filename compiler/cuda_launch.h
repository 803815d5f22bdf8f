// CUDA launch shapes: tile sizes, split factors and shared memory of kernels/cuda/packed.cu and
// attention_f32.cu. Includes only plain headers of mlxcel, so that tests/parity/packed_probe.py can load it
// as a shared library.
#ifndef MLXCEL_COMPILER_CUDA_LAUNCH_H_
#define MLXCEL_COMPILER_CUDA_LAUNCH_H_

#include <stdbool.h>
#include <stdint.h>

#include "base/numbers.h"
#include "kernels/kernel_tables.h"

// A product of up to this many tokens is bound by memory bandwidth: a matrix-vector kernel computes it.
#define MLX_GEMV_TOKENS 8
static inline bool mlx_cuda_uses_gemv(int64_t tokens) { return tokens <= MLX_GEMV_TOKENS; }

typedef struct mlx_quantized_tile {
  int64_t m, n, split, stages, warps;  // BM, BN, SPLIT, STAGES and WARPS
} mlx_quantized_tile_t;

// Tile of the product y[m, n] over k columns. |pair|: two weights (EPILOGUE 2). |rows16|: the weights are
// rows of 16-bit numbers. |hopper|: the GPU has wgmma, clusters and 227 KB of shared memory.
// |processors|: number of multiprocessors.
mlx_quantized_tile_t mlx_quantized_tile(int64_t m, int64_t n, int64_t k, bool pair, bool rows16, bool hopper,
                                        int64_t processors);

int64_t mlx_quantized_tile_shared_bytes(mlx_quantized_tile_t tile, bool rows16);  // dynamic, of a block
// The blocks that divide K of a product with 16-bit weights (hopper) whose partial sums the next norm adds;
// 0: the product adds them. Without clusters they are all resident.
int64_t mlx_partial_split(int64_t m, int64_t n, int64_t k, int64_t processors);
// Room for the output of packed.cu with SPLIT_INPUT for x[m, k], for any weights.
int64_t mlx_quantized_parts_bytes(int64_t m, int64_t k);

// Launch of packed.cu with FEW: y[m, n] over k columns with rows of 16-bit weights, for more than
// MLX_GEMV_TOKENS and up to MLX_FEW_TOKENS tokens. GROUPS, SPLIT, TALL,
// ALONG and DEPTH, the number of clusters and dynamic shared memory. groups is 0 if the kernel does not take
// the sizes.
#define MLX_FEW_TOKENS 16
typedef struct mlx_few_tile {
  int64_t groups, split, tall, along, depth, clusters, shared_bytes;
} mlx_few_tile_t;

// |pair|: two weights (EPILOGUE 2), else EPILOGUE 1. |processors|: number of multiprocessors.
mlx_few_tile_t mlx_few_tile(int64_t m, int64_t n, int64_t k, bool pair, int64_t processors);

// Launch of the matrix-vector kernel for y[m, n] over k columns.
typedef struct mlx_quantized_gemv {
  int64_t groups, warps, blocks,
      shared_bytes;  // GROUPS and WARPS of packed.cu, the grid, dynamic shared memory
} mlx_quantized_gemv_t;

mlx_quantized_gemv_t mlx_quantized_gemv(int64_t m, int64_t n, int64_t k, int64_t processors);

// Products of one token (packed_token.cuh): |columns| fit shared memory, and there are few enough rows that a
// block for each 8 or 16 of them is no longer than the streaming kernel. Also the limit of a norm that
// packed_experts.cuh computes.
#define MLX_TOKEN_COLUMNS 10240
#define MLX_TOKEN_ROWS 16384
static inline bool mlx_cuda_has_token_product(int64_t rows, int64_t columns) {
  return rows <= MLX_TOKEN_ROWS && columns <= MLX_TOKEN_COLUMNS && columns % 32 == 0;
}
// Rows of a block. |tiles|: the weights are quantized.
static inline int64_t mlx_token_rows(bool tiles) { return tiles ? 16 : 8; }
int64_t mlx_token_shared_bytes(int64_t columns, bool tiles);

// A product with a matrix [rows, columns] of floats that experts.cu computes (SCORES): a router, or another
// small matrix.
static inline bool mlx_cuda_has_scores(int64_t rows, int64_t columns) {
  return rows <= 1024 && columns % 4 == 0;
}

// Sizes of the pairs of tokens and experts, sorted by expert (experts.cu, GROUP).
typedef struct mlx_experts_groups {
  int64_t pairs, tiles, rows;       // most tiles and rows
  int64_t list_at, rows_at, words;  // of the result: pair of each row, row of each pair, all words
} mlx_experts_groups_t;

// Tile of the products of experts. |pair|: gate and up.
mlx_quantized_tile_t mlx_experts_tile(int64_t tokens, int64_t used, int64_t experts, bool pair, bool hopper);
mlx_experts_groups_t mlx_experts_groups(int64_t tokens, int64_t used, int64_t experts, int64_t tile);
// Launch of packed_experts.cuh.
typedef struct mlx_experts_gemv {
  int64_t each, split, resident;  // EACH, SPLIT, RESIDENT
  int64_t shared_bytes;           // dynamic shared memory
} mlx_experts_gemv_t;

// |pair|: gate and up of |pairs| of tokens and experts; else down, with |used| experts of a token. |n| rows
// and |k| columns of a matrix. |small|: a group of 16 rows takes few registers, as with 4 bits and a scale.
mlx_experts_gemv_t mlx_experts_gemv(bool pair, int64_t pairs, int64_t used, int64_t n, int64_t k, bool rows16,
                                    bool small, bool hopper, int64_t processors);

// Segments of at least this many tokens are long: a kernel with large tiles computes their attention, in
// functions of at least MLX_LONG_STEP tokens. All other segments are short.
#define MLX_LONG_SEGMENT 8
#define MLX_LONG_STEP 256

// Launch of attention_f32.cu.
typedef struct mlx_attend_f32_tile {
  int64_t queries, step, split, stages, threads;  // QUERIES, STEP, SPLIT, STAGES, THREADS
  int64_t shared_bytes;                           // dynamic shared memory
  bool warpgroups;                                // attention_warpgroups.cuh
} mlx_attend_f32_tile_t;

// |is_long|: for long segments. |value_dim|: of latent attention; 0: other attention. |kv_bytes|: of a number
// in the KV pool: 4, 2 or 1.
mlx_attend_f32_tile_t mlx_attend_f32_tile(bool is_long, int64_t tokens, int64_t heads, int64_t kv_heads,
                                          int64_t head_dim, int64_t value_dim, int64_t kv_bytes, bool hopper,
                                          int64_t processors);

// Columns of a head in shared memory: WIDTH of attention.cu and attention_f32.cu.
static inline int64_t mlx_attend_width(int64_t head_dim) { return (head_dim + 15) / 16 * 16; }

// Columns of keys and values in shared memory at a time: PIECE of attention_f32.cu.
#define MLX_ATTEND_WHOLE 256        // the widest head that is one piece
#define MLX_ATTEND_MOST 512         // the widest head
#define MLX_ATTEND_MOST_LATENT 640  // with latent attention
static inline int64_t mlx_attend_piece(int64_t head_dim, int64_t value_dim) {
  return head_dim <= MLX_ATTEND_WHOLE ? mlx_attend_width(head_dim) : head_dim % 128 && !value_dim ? 64 : 128;
}
// Whether the attention kernels take heads of this size.
static inline bool mlx_attend_has(int64_t head_dim, int64_t value_dim) {
  if (value_dim)
    return value_dim % 4 == 0 && (head_dim - value_dim) % 4 == 0 && head_dim > value_dim &&
           head_dim <= MLX_ATTEND_MOST_LATENT && head_dim % (head_dim <= MLX_ATTEND_WHOLE ? 8 : 32) == 0;
  return head_dim <= MLX_ATTEND_WHOLE ? head_dim % 8 == 0 : head_dim <= MLX_ATTEND_MOST && head_dim % 64 == 0;
}

// Dynamic shared memory of attention_f32.cu. Ignores |shared_bytes|.
int64_t mlx_attend_f32_bytes(mlx_attend_f32_tile_t t, int64_t head_dim, int64_t value_dim, int64_t kv_bytes);

// Most tiles of |queries| queries that segments of |shortest| or more tokens can have in a step of |tokens|
// tokens, if each token has |share| queries.
int64_t mlx_attend_tiles(int64_t tokens, int64_t shortest, int64_t share, int64_t queries);

#endif  // MLXCEL_COMPILER_CUDA_LAUNCH_H_
