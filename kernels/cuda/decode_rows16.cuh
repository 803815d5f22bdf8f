// Decode: weights that are rows of 16-bit numbers.
//
// Not a format of decode_tiles.cuh: the weights are operands as they are stored, times activations in three
// parts of 16 bits. Codes of tiles are operands of integer instructions, times activations in four parts of 8
// bits, and a scale multiplies each sum of 32 columns.
//
// One tensor-core instruction multiplies a 16 x 16 matrix with a 16 x 8 matrix. Eight rows x 32 columns of
// weights fill the first one: lane 4 * row + quad holds eight neighbouring weights of its row. The
// instruction uses pairs 0 and 2 as its row |row| and pairs 1 and 3 as its row |row| + 8. Column |part| of
// the second matrix holds that part of the activations for pairs 0 and 2, column 4 + |part| for pairs 1
// and 3. So a lane needs two registers of activations per piece.

#pragma once

#include "decode_copies.cuh"
#include "decode_primitives.cuh"

constexpr int PARTS = 3;  // 16-bit numbers that add up to an activation: three bf16 parts hold all 24 bits
constexpr int PIECE16_BYTES = PARTS * 64;  // of staged activations
constexpr int RUN16_BYTES = 4 * PIECE16_BYTES;

// Activations of a warp's columns: the two-register B fragment of the instruction, per piece of each run.
template <int K>
struct Activations16 {
  using C = Tiling<K>;
  static_assert(!C::in_registers || C::runs <= 8, "compiler/plan.c rejects this width");
  static constexpr int columns = K;
  static constexpr int staged = C::in_registers ? min_of(C::runs, 2) : C::runs;  // runs at a time
  static constexpr int staged_bytes = ceil_div(staged, 2) * 2 * RUN16_BYTES;
  uint2 fragment[C::in_registers ? C::runs : 1][4];
  float unscale;  // factor of the row sums, with f16 parts

  __device__ __forceinline__ float rescale(float sum) const {
    if constexpr (config.dtype == Dtype::F16) return sum * unscale;
    return sum;
  }
};

template <int K, typename S>
static __device__ __forceinline__ uint2 fragment_of(const S *s, const Activations16<K> &x, int run,
                                                    int piece);

struct Rows16 {
  template <int K>
  using Activations = Activations16<K>;

  struct Sum {
    float part[4][4];
  };

  // A stage has a run of each warp. Segments are wider only if other matrices are quantized.
  template <int K, int ROWS = 1>
  struct Stage {
    static constexpr int columns = min_of(Tiling<K>::columns, WARPS * 128);
    // Bytes of a row. The padding of 64 bytes puts eight rows into different banks.
    static constexpr int stride = columns * 2 + 64;
    static constexpr int bytes = TILE * stride;
    static constexpr int row_bytes = bytes, count = Tiling<K>::segment_runs;  // stages of a segment
  };

  template <int K>
  static __device__ __forceinline__ u64 row_offset(int row) {
    return (u64)row * K * 2;
  }

  // Copies |count| rows, starting at |first|; at(row) is the address of a row.
  template <int K, typename P, typename At>
  static __device__ __forceinline__ void copy_tile(P &p, int first, int count, At at) {
    using C = Tiling<K>;
    const int lane = threadIdx.x & 31;
    using S = Stage<K>;
    const u8 *from = lane < count ? at(first + lane) : nullptr;
#pragma unroll 1
    for (int i = 0; i < C::segments * S::count; ++i) {
      const int segment = i / S::count, nth = i % S::count, columns = C::segment_columns(segment);
      if (is_empty_stage<K, 1>(segment, nth)) continue;
      const int bytes = (S::count == 1 ? columns : min(S::columns, columns - nth * S::columns)) * 2;
      u8 *to = p.begin(count * bytes);
      if (!to) return;
      if (from)
        copy_bytes(to + lane * S::stride, from + ((C::first + segment) * C::columns + nth * S::columns) * 2,
                   bytes, 0, 1, p.full());
      p.end();
    }
  }

  // Copies |count| rows of each chosen expert: at.row<F>(slot, row) is the address of a row. See GROUPED.
  template <int K, typename P, typename At>
  static __device__ __forceinline__ void copy_grouped(P &p, int first, int count, At at) {
    using C = Tiling<K>;
    static_assert(Stage<K>::count == 1, "gate, up and down all have 16 bits");
    const int lane = threadIdx.x & 31;
#pragma unroll 1
    for (int segment = 0; segment < C::segments; ++segment) {
      const int begin = segment * C::columns, end = begin + C::segment_columns(segment);
      u8 *to = p.begin(count * (end - begin) * 2);
      if (!to) return;
#pragma unroll 1
      for (int i = begin; lane < count && i < end; i = (i / FFN + 1) * FFN)
        copy_bytes(to + lane * Stage<K>::stride + (i - begin) * 2,
                   at.template row<Rows16>(i / FFN, first + lane) + i % FFN * 2,
                   (min(end, (i / FFN + 1) * FFN) - i) * 2, 0, 1, p.full());
      p.end();
    }
  }

  // Whether stage |nth| of a segment has no columns: the last segment is narrower.
  template <int K, int ROWS>
  static __device__ constexpr bool is_empty_stage(int segment, int nth) {
    using S = Stage<K>;
    return S::count > 1 && nth * S::columns >= Tiling<K>::segment_columns(segment);
  }

  // Multiplies this warp's run of stage |nth| of a segment and adds it to the sums of the tile.
  template <int K, int ROWS, typename S>
  static __device__ __forceinline__ void multiply_stage(const S *s, const u8 *stage, int segment, int nth,
                                                        const Activations<K> &x, Sum &sum) {
    using C = Tiling<K>;
    const int lane = threadIdx.x & 31, row = lane >> 2, quad = lane & 3,
              run = segment * C::segment_runs + nth;
    const u8 *weights = stage + row * Stage<K>::stride + (threadIdx.x >> 5) * 256 + quad * 16;
    uint4 a[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const bool valid = C::has(run, C::column(run) + i * 32 + quad * 8);
      a[i] = valid ? *(const uint4 *)(weights + i * 64) : uint4{0, 0, 0, 0};
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) Number::multiply(sum.part[i], a[i], fragment_of(s, x, run, i));
  }

  // Row sum of this lane: quads 0 and 1 hold the sums with columns 0-3 (|other| false), quads 2 and 3 with
  // columns 4-7.
  static __device__ __forceinline__ float total(const Sum &sum, bool other) {
    float total = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      total += other ? sum.part[i][2] + sum.part[i][3] : sum.part[i][0] + sum.part[i][1];
    return total;
  }

  template <int K>
  static __device__ __forceinline__ float4 load4(const u8 *table, int row, int column) {
    const uint2 raw = *(const uint2 *)(table + row_offset<K>(row) + column * 2);
    return {Number::low(raw.x), Number::high(raw.x), Number::low(raw.y), Number::high(raw.y)};
  }

  template <int K>
  static __device__ __forceinline__ float load1(const u8 *table, int row, int column) {
    return Number::widen(*(const u16 *)(table + row_offset<K>(row) + column * 2));
  }
};
