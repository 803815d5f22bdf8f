// CUDA launch shapes: tile sizes, split factors and shared memory of kernels/cuda/packed.cu and
// attention_f32.cu. Includes no other header of mlxcel, so that tests/parity/packed_probe.py can load it as a
// shared library.
#ifndef MLXCEL_COMPILER_CUDA_LAUNCH_H_
#define MLXCEL_COMPILER_CUDA_LAUNCH_H_

#include <stdbool.h>
#include <stdint.h>

// A product of up to this many tokens is bound by memory bandwidth: a matrix-vector kernel computes it.
#define MLX_GEMV_TOKENS 8
static inline bool mlx_cuda_uses_gemv(int64_t tokens) { return tokens <= MLX_GEMV_TOKENS; }

typedef struct mlx_quantized_tile {
  int64_t m, n, split, stages, warps;  // BM, BN, SPLIT, STAGES and WARPS
} mlx_quantized_tile_t;

// Tile of the product y[m, n] over k columns. |pair|: two weights (EPILOGUE 2). |rows16|: the weights are
// rows of 16-bit numbers (ROWS16). |hopper|: the GPU has wgmma, clusters and 227 KB of shared memory.
// |processors|: number of multiprocessors.
mlx_quantized_tile_t mlx_quantized_tile(int64_t m, int64_t n, int64_t k, bool pair, bool rows16, bool hopper,
                                        int64_t processors);

int64_t mlx_quantized_tile_shared_bytes(mlx_quantized_tile_t tile);  // dynamic shared memory of a block
int64_t mlx_quantized_parts_bytes(int64_t m, int64_t k);             // output of the CUT kernel for x[m, k]

// Launch of the matrix-vector kernel for y[m, n] over k columns.
typedef struct mlx_quantized_gemv {
  int64_t groups, warps, blocks, shared_bytes;  // GEMV_GROUPS, GEMV_WARPS, the grid, dynamic shared memory
} mlx_quantized_gemv_t;

mlx_quantized_gemv_t mlx_quantized_gemv(int64_t m, int64_t n, int64_t k, int64_t processors);

// Launch of attention_f32.cu.
typedef struct mlx_attend_f32_tile {
  int64_t queries, step, split, stages, threads;  // QUERIES, STEP, SPLIT, STAGES, THREADS
  int64_t shared_bytes;                           // dynamic shared memory
} mlx_attend_f32_tile_t;

mlx_attend_f32_tile_t mlx_attend_f32_tile(int64_t sequences, int64_t tokens, int64_t heads, int64_t kv_heads,
                                          int64_t head_dim, bool hopper, int64_t processors);

#endif  // MLXCEL_COMPILER_CUDA_LAUNCH_H_
