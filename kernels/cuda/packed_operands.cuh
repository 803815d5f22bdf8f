// Linear layers (packed.cu): loads and operands of tensor-core instructions.
#pragma once

#include "packed_weights.cuh"
#include "ptx.cuh"

// The B operand of two fragments of 8 tokens: 16 columns, starting at 16-byte piece `at`.
__device__ __forceinline__ void load_tokens(u32 (&b)[4], u32 plane, int token, int at) {
  const int lane = threadIdx.x % 32, row = token + lane % 8 + lane / 16 * 8;
  load_matrices(b, plane + row * 128 + ((at + lane / 8 % 2) ^ row % 8) * 16);
}

// A bf16 weight is used as it is. An f16 weight is the sum of two bf16 parts; the product of the two smallest
// parts is below 2^-24 and left out.
constexpr int WEIGHT_PARTS = IS_F16 ? 2 : 1;

// The two bf16 parts of a pair of f16 numbers.
__device__ __forceinline__ void split_weight(u32 &large, u32 &small, u32 pair) {
  const float2 v = F16::widen2(pair);
  large = Bf16::narrow2(v.x, v.y);
  small = Bf16::narrow2(v.x - Bf16::low(large), v.y - Bf16::high(large));
}

// The parts of a pair of weights.
__device__ __forceinline__ void weight_parts(u32 (&part)[WEIGHT_PARTS], u32 pair) {
  if constexpr (IS_F16)
    split_weight(part[0], part[WEIGHT_PARTS - 1], pair);
  else
    part[0] = pair;
}
