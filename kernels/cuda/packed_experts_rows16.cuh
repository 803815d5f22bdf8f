// Mixture of experts, few tokens (packed_experts.cuh): weights that are rows of bf16 or f16.
//
// As in packed_linear_rows16.cuh a lane loads 8 neighbouring columns of a row, and x has the same order. A
// bf16 weight is used as it is; an f16 weight is the sum of two bf16 parts.
//
// Not a format of the tiles of quantized weights: their codes have scales and offsets, for which x has sums;
// these weights are operands as they are loaded.
#pragma once

#include "packed_operands.cuh"
#include "packed_shape.cuh"

// Products of one x with |GROUPS| groups of 16 rows of weights. A panel of x has PANEL units of 64 columns.
template <int GROUPS, int PANEL>
struct RowStream {
  struct Panel {
    uint2 part[PANEL][4][1][3][4];  // per 16 columns of x, in the order of tensor-core fragments
  };

  static __device__ __forceinline__ void store_sum(Panel &, int, float) {}  // only tiles need sums

  // A lane's part of one unit of 64 columns.
  struct Run {
    u32 words[GROUPS][2][2][4];  // rows lane/4 and lane/4 + 8, two pieces of 32 columns
  };

  // The rows of unit |unit| from |from| on.
  static __device__ __forceinline__ void load(Run &to, int nth, const u8 *from, int unit) {
    const bool both = K % 64 == 0 || unit + 1 < (K + 63) / 64;  // the second piece is inside the row
#pragma unroll
    for (int piece = 0; piece < 2; piece++) {
      u32(&v)[4] = to.words[nth / 2][nth % 2][piece];
      v[0] = v[1] = v[2] = v[3] = 0;
      if (piece == 0 || both) load_once128(v, from + piece * 64);
    }
  }

  // Column n of the product is with part n of x. The sum of a piece is added in f32, because tensor cores do
  // not round sums to nearest.
  static __device__ __forceinline__ void multiply_run(float (&acc)[GROUPS][4], const Run &run,
                                                      const Panel &panel, int nth) {
    const int lane = threadIdx.x % 32, column = lane / 4, quad = lane % 4;
#pragma unroll
    for (int piece = 0; piece < 2; piece++) {
      uint2 b[2];
#pragma unroll
      for (int half = 0; half < 2; half++)
        b[half] = column < 3 ? panel.part[nth][piece * 2 + half][0][column < 3 ? column : 0][quad]
                             : make_uint2(0, 0);
#pragma unroll
      for (int g = 0; g < GROUPS; g++) {
        float d[4] = {};
#pragma unroll
        for (int half = 0; half < 2; half++) {
          u32 a[4];
#pragma unroll
          for (int i = 0; i < 4; i++) a[i] = run.words[g][i % 2][piece][half * 2 + i / 2];
          if constexpr (IS_F16) {
            u32 rest[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
              const u32 pair = a[i];
              split_weight(a[i], rest[i], pair);
            }
            mma(d, rest, b[half].x, b[half].y);
          }
          mma(d, a, b[half].x, b[half].y);
        }
#pragma unroll
        for (int e = 0; e < 4; e++) acc[g][e] += d[e];
      }
    }
  }
};
