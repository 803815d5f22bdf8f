// Quantized linear layers (packed.cu), few rows of x: tiles that are read once, times parts of x in shared
// memory.
#pragma once

#include "packed_shape.cuh"
#include "packed_tiles.cuh"
#include "parts.cuh"

// The sum of the products of one x's three parts for rows lane/4 and lane/4 + 8, smallest first, for
// accuracy. In a group of four lanes, the first has columns 0 and 1 of the fragment, the second column 2.
__device__ __forceinline__ float2 sum_parts(float4 v) {
  const int second = threadIdx.x % 32 / 4 * 4 + 1;
  const float upper = __shfl_sync(~0u, v.x, second), lower = __shfl_sync(~0u, v.z, second);
  return make_float2((upper + v.y) + v.x, (lower + v.w) + v.z);
}

// Products of |TOKENS| rows of x with |GROUPS| groups of 16 rows of weights. x is split into bf16 parts in
// shared memory, a panel of PANEL runs at a time, in the layout of tensor-core fragments.
template <int TOKENS, int GROUPS, int PANEL>
struct TileStream {
  // If the three parts of x fit into the 8 columns of a fragment, one instruction multiplies them: column n
  // is row n % TOKENS of part n / TOKENS.
  static constexpr int PASSES = 3 * TOKENS <= 8 ? 1 : 3, COLUMNS = 3 * TOKENS / PASSES;

  struct Panel {
    uint2 part[PANEL][8][PASSES][COLUMNS][4];  // per 16 columns of x: {2*quad, +1}, {2*quad + 8, +1}
    float sum[PANEL][4][TOKENS];               // sum of each piece
  };

  // One x: |sum| is that of the four columns of |item|; 8 neighbouring lanes have a piece of 32.
  static __device__ __forceinline__ void store_sum(Panel &panel, int item, float sum) {
#pragma unroll
    for (int i = 1; i < 8; i *= 2) sum += __shfl_xor_sync(~0u, sum, i);
    if (item % 8 == 0) panel.sum[item / 32][item / 8 % 4][0] = sum;
  }

  static __device__ __forceinline__ void stage(Panel &panel, const float *__restrict__ x, int base,
                                               int count) {
    for (int i = threadIdx.x; i < count * 32 * TOKENS; i += 256) {
      const int quad = i % 4, m = i / 4 % TOKENS, step = i / 4 / TOKENS,
                k = base * 128 + step * 16 + quad * 2;
      const bool inside = k < K;  // K is a multiple of 16, so all 16 columns are inside or outside
      const float2 a = inside ? *(const float2 *)(x + (u64)m * K + k) : make_float2(0, 0);
      const float2 b = inside ? *(const float2 *)(x + (u64)m * K + k + 8) : make_float2(0, 0);
      u32 low[3], high[3];
      split_bf16(low, a.x, a.y);
      split_bf16(high, b.x, b.y);
#pragma unroll
      for (int p = 0; p < 3; p++)
        panel.part[step / 8][step % 8][PASSES == 1 ? 0 : p][PASSES == 1 ? p * TOKENS + m : m][quad] =
            make_uint2(low[p], high[p]);
    }
    if (SUMS)
      for (int i = threadIdx.x; i < count * 4 * TOKENS; i += 256) {
        const int m = i % TOKENS, piece = i / TOKENS, k = base * 128 + piece * 32;
        float sum = 0;
        for (int j = 0; k < K && j < 32; j += 4) {
          const float4 v = *(const float4 *)(x + (u64)m * K + k + j);
          sum += (v.x + v.y) + (v.z + v.w);
        }
        panel.sum[piece / 4][piece % 4][m] = sum;
      }
  }

  // A lane's part of one run: two tiles of each group.
  struct Run {
    u32 words[GROUPS][2][Format::loads][Format::words];
    Format::Scale scale[GROUPS][2];
    Format::Offset offset[GROUPS][2];
  };

  // Loads this lane's part of tile |nth| of a run.
  static __device__ __forceinline__ void load(Run &to, int nth, const u8 *tile, int run) {
#pragma unroll
    for (int i = 0; i < Format::loads; i++) load_codes(to.words[nth / 2][nth % 2][i], tile, i);
    load_scale(to.scale[nth / 2][nth % 2], tile, run);
    if (OFFSET) load_offset(to.offset[nth / 2][nth % 2], tile, run);
  }

  static __device__ __forceinline__ void multiply_run(float (&acc)[GROUPS][4], const Run &run,
                                                      const Panel &panel, int nth) {
    const int lane = threadIdx.x % 32, column = lane / 4, quad = lane % 4;
    float scales[GROUPS][2][1 + HALVES], offsets[GROUPS][2][OFFSET + 1];  // of piece `quad`
#pragma unroll
    for (int i = 0; i < GROUPS * 2; i++) {
#pragma unroll
      for (int h = 0; h <= HALVES; h++) scales[i / 2][i % 2][h] = scale_of(run.scale[i / 2][i % 2], h);
#pragma unroll
      for (int h = 0; h < OFFSET; h++) offsets[i / 2][i % 2][h] = offset_of(run.offset[i / 2][i % 2], h);
    }
#pragma unroll
    for (int piece = 0; piece < 4; piece++) {
      uint2 b[2][PASSES];
#pragma unroll
      for (int i = 0; i < 2 * PASSES; i++)
        b[i / PASSES][i % PASSES] =
            column < COLUMNS
                ? panel.part[nth][piece * 2 + i / PASSES][i % PASSES][column < COLUMNS ? column : 0][quad]
                : make_uint2(0, 0);
      float2 sum[2] = {};  // of 32 columns, or with OFFSET 2 of each 16
      if (SUMS && quad * 2 < TOKENS)
        sum[0] = make_float2(panel.sum[nth][piece][quad * 2],
                             quad * 2 + 1 < TOKENS ? panel.sum[nth][piece][quad * 2 + 1] : 0);
#pragma unroll
      for (int half = 0; OFFSET == 2 && half < 2; half++) {
        float d[4] = {};
#pragma unroll
        for (int p = PASSES - 1; p >= 0; p--)
          mma(d, {Format::ones, Format::ones, Format::ones, Format::ones}, b[half][p].x, b[half][p].y);
        sum[half] = make_float2(d[0], d[1]);
      }
#pragma unroll
      for (int g = 0; g < GROUPS; g++) {
        float d[2][4] = {};
#pragma unroll
        for (int half = 0; half < 2; half++) {
          u32 a[4];
          Format::unpack(a, run.words[g][0][piece / PIECES], run.words[g][1][piece / PIECES], piece, half);
#pragma unroll
          for (int p = PASSES - 1; p >= 0; p--) mma(d[HALVES ? half : 0], a, b[half][p].x, b[half][p].y);
        }
#pragma unroll
        for (int t = 0; t < 2; t++) {
#pragma unroll
          for (int h = 0; h <= HALVES; h++) {
            const float scale = broadcast_number(scales[g][t][h], piece);
            acc[g][t * 2] = fmaf(scale, d[h][t * 2], acc[g][t * 2]);
            acc[g][t * 2 + 1] = fmaf(scale, d[h][t * 2 + 1], acc[g][t * 2 + 1]);
          }
#pragma unroll
          for (int h = 0; h < OFFSET; h++) {
            const float offset = broadcast_number(offsets[g][t][h], piece);
            acc[g][t * 2] = fmaf(offset, sum[h].x, acc[g][t * 2]);
            acc[g][t * 2 + 1] = fmaf(offset, sum[h].y, acc[g][t * 2 + 1]);
          }
        }
      }
    }
  }
};
