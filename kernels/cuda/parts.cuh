// The bf16 parts of f32 numbers (split_f16 of ptx.cuh has two f16 parts), which tensor cores multiply by
// weights (packed.cu). A product of 16-bit weights can read them from the kernel that computes its x.

#pragma once

#include "ptx.cuh"

// Splits a pair of floats into three pairs of bf16. The remainder after each rounding is exact, and after the
// third it is zero.
__device__ __forceinline__ void split_bf16(u32 (&part)[3], float low, float high) {
#pragma unroll
  for (int i = 0; i < 3; i++) {
    part[i] = Bf16::narrow2(low, high);
    low -= Bf16::low(part[i]);
    high -= Bf16::high(part[i]);
  }
}

// Where part |i| of |row| has columns |column| and |column| + 1, an even number, in the order of 16-bit
// weights (packed.cu). Columns 8 further, in the same 32, are in the next word. |rows| is MP.
__device__ __forceinline__ u32 *part_word(void *parts, u32 rows, int i, u32 row, u32 column) {
  const u32 piece = column % 64 / 32 * 4 + column % 8 / 2;
  return (u32 *)((char *)parts + ((u64)(column / 64 * 3 + i) * rows + row) * 128 + (piece ^ row % 8) * 16 +
                 column % 32 / 8 * 4);
}
