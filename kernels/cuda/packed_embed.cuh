// Quantized linear layers (packed.cu): dequantize rows of an embedding table. A token past the table has its
// first row.
#pragma once

#include "overlap.cuh"
#include "packed_sizes.cuh"
#include "packed_tiles.cuh"

__device__ __forceinline__ float factor() { return __int_as_float(size_parameter<3>()); }

// A thread has 8 columns of a piece: those of one quad.
extern "C" __global__ void __launch_bounds__(256)
    NAME(const int *__restrict__ tokens, const u8 *__restrict__ table, float *__restrict__ y, int, int, int,
         int) {
  start_next_kernel();
  wait_for_previous_kernel();
  tokens = after_wait(tokens);
  const u32 index = blockIdx.x * 256 + threadIdx.x;
  const int m = index / (run_count() * 16), run = index / 16 % run_count(), piece = index / 4 % 4,
            quad = index % 4;
  if (m >= size_m() || run * 128 + piece * 32 >= size_k()) return;
  const int token = (u32)tokens[m] < (u32)size_n() ? tokens[m] : 0;
  const u8 *tile = table + ((u64)(token / 8) * run_count() + run) * TILE_BYTES;
  float *to = y + (u64)m * size_k() + run * 128 + piece * 32 + quad * 2;
#pragma unroll
  for (int j = 0; j < 4; j++) {
    const float2 v = Format::load_pair<Plain>(tile, run, token % 8, quad, piece, j);
    *(float2 *)(to + j % 2 * 16 + j / 2 * 8) = make_float2(v.x * factor(), v.y * factor());
  }
}
