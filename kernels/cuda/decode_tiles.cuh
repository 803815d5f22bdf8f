// Decode: quantized weights, in tiles of 8 rows x 128 columns, one after the other. tile_format.cuh
// describes a tile.
//
// Activations are four signed bytes each (decode_parts8.cuh). One tensor-core instruction multiplies eight
// rows x two pieces of 32 columns: lane 4 * row + quad holds its codes of the first piece in row |row| of the
// instruction, those of the second piece in row |row| + 8. Columns 0 to 3 of the other operand are the four
// parts of the first piece's activations, columns 4 to 7 those of the second piece. Sums of integers are
// exact; the scale of the row multiplies the sum of a piece.
//
// decode_rows16.cuh says why weights of 16 bits are apart.
//
// A field of the configuration per role (qkv_tiles ...) has the template arguments.
#pragma once

#include "decode_copies.cuh"
#include "decode_shape.cuh"
#include "tile_format.cuh"

constexpr int PIECE8_BYTES = 160;  // of staged activations
constexpr int RUN8_BYTES = 4 * PIECE8_BYTES;

// Activations of a warp's columns. |fragment|: the two-register B fragment of the instruction, per two pieces
// of each run. |unit|: of the products with it, in this lane.
template <int K>
struct Activations8 {
  using C = Tiling<K>;
  static constexpr int columns = K;
  static constexpr int staged = C::in_registers ? min_of(C::runs, 4) : C::runs;  // runs at a time
  static constexpr int staged_bytes = ceil_div(staged, 2) * 2 * RUN8_BYTES;
  static constexpr int kept = C::in_registers ? C::runs : 1;
  uint2 fragment[kept][2];
  float unit[kept][2];
  float sum[config.offsets ? C::runs : 1];  // sum over piece |quad|: multiplied with offsets

  __device__ __forceinline__ float rescale(float sum) const { return sum; }
};

template <int K, typename S>
static __device__ __forceinline__ uint2 fragment_of(const S *s, const Activations8<K> &x, int run, int pair);
template <int K, typename S>
static __device__ __forceinline__ float unit_of(const S *s, const Activations8<K> &x, int run, int pair);

// The sum of two parts of the activations times the codes, from the instruction's result.
static __device__ __forceinline__ float two_parts(const int (&sum)[4]) {
  const bool upper = threadIdx.x & 2;
  return (float)((upper ? sum[3] : sum[1]) * 256 + (upper ? sum[2] : sum[0]));
}

// Eight rows x two pieces of 32 columns.
static __device__ __forceinline__ float multiply_bytes(uint4 a, uint2 x) {
  int sum[4];
  mma_s8(sum, a, x);
  return two_parts(sum);
}

// The same for 16 columns of each piece.
static __device__ __forceinline__ float multiply_half(u32 first, u32 second, u32 x) {
  int sum[4];
  mma_s8(sum, make_uint2(first, second), x);
  return two_parts(sum);
}

template <int BITS, int NUMBERS, int OFFSET, bool HALVES, int CENTER>
struct Tiles : TileFormat<BITS, NUMBERS, OFFSET, HALVES, CENTER> {
  using Format = TileFormat<BITS, NUMBERS, OFFSET, HALVES, CENTER>;
  using Format::bytes;
  template <int K>
  using Activations = Activations8<K>;

  struct Sum {
    float part[2], offset;
  };

  // A stage has as many runs of each warp as fit into STAGE_LIMIT: a segment may need several stages. |ROWS|:
  // tile rows of a stage, of different matrices.
  template <int K, int ROWS = 1>
  struct Stage {
    static constexpr int segment = Tiling<K>::columns / 128;  // tiles
    static constexpr int warp_runs = ROWS * segment * Format::bytes <= STAGE_LIMIT
                                         ? Tiling<K>::segment_runs
                                         : max_of(1, STAGE_LIMIT / (ROWS * WARPS * Format::bytes));
    static constexpr int tiles = min_of(segment, warp_runs *WARPS), row_bytes = tiles * Format::bytes;
    static constexpr int bytes = ROWS * row_bytes;
    static constexpr int count = ceil_div(Tiling<K>::segment_runs, warp_runs);  // stages of a segment
  };

  template <int K>
  static __device__ __forceinline__ u64 row_offset(int row) {
    return (u64)(row / TILE) * (ceil_div(K, 128) * bytes);
  }

  // Copies tile rows |from|[0] to |from|[ROWS - 1].
  template <int K, int ROWS, typename P>
  static __device__ __forceinline__ void copy_tiles(P &p, const u8 *const (&from)[ROWS]) {
    using C = Tiling<K>;
    using S = Stage<K, ROWS>;
#pragma unroll 1
    for (int segment = 0; segment < C::segments; ++segment) {
      const int begin = (C::first + segment) * S::segment,
                end = min(begin + S::segment, ceil_div(C::width, 128));
#pragma unroll 1
      for (int tile = begin; tile < end; tile += S::tiles) {
        const int size = min(S::tiles, end - tile) * bytes;
        u8 *to = p.begin(ROWS * size);
        if (!to) return;
#pragma unroll
        for (int i = 0; i < ROWS; ++i)
          copy_bytes(to + i * S::row_bytes, from[i] + tile * bytes, size, threadIdx.x & 31, 32, p.full());
        p.end();
      }
    }
  }

  // Copies a tile row of each chosen expert: at.row<F>(slot, row) is its address. See GROUPED.
  template <int K, typename P, typename At>
  static __device__ __forceinline__ void copy_grouped(P &p, int row, int, At at) {
    constexpr int stride = FFN_STRIDE / 128, used = ceil_div(FFN, 128);  // tiles of an expert
    using S = Stage<K>;
#pragma unroll 1
    for (int tile = 0; tile < Tiling<K>::width / 128;) {
      const int segment_end = min((tile / S::segment + 1) * S::segment, Tiling<K>::width / 128),
                end = min(tile + S::tiles, segment_end);
      int count = 0;
#pragma unroll 1
      for (int i = tile; i < end; i = (i / stride + 1) * stride)
        count += max(0, min(end, i / stride * stride + used) - i);
      u8 *to = p.begin(count * bytes);
      if (!to) return;
#pragma unroll 1
      for (int i = tile; i < end; i = (i / stride + 1) * stride) {
        const int size = (min(end, i / stride * stride + used) - i) * bytes;
        if (size > 0)
          copy_bytes(to + (i - tile) * bytes, at.template row<Tiles>(i / stride, row) + i % stride * bytes,
                     size, threadIdx.x & 31, 32, p.full());
      }
      p.end();
      tile = end;
    }
  }

  template <int K, typename P, typename At>
  static __device__ __forceinline__ void copy_tile(P &p, int first, int, At at) {
    const u8 *const from[1] = {at(first)};
    copy_tiles<K>(p, from);
  }

  // Whether stage |nth| of a segment of a part has no tiles: the last segment is narrower.
  template <int K, int ROWS>
  static __device__ constexpr bool is_empty_stage(int segment, int nth) {
    return nth * Stage<K, ROWS>::tiles * 128 >= Tiling<K>::segment_columns(segment);
  }

  // Multiplies the runs of this warp in stage |nth_stage| of a segment and adds them to the sums of the tile.
  template <int K, int ROWS, typename S>
  static __device__ __forceinline__ void multiply_stage(const S *s, const u8 *stage, int segment,
                                                        int nth_stage, const Activations<K> &x, Sum &sum) {
    constexpr int warp_runs = Stage<K, ROWS>::warp_runs;
    using C = Tiling<K>;
    static_assert(C::columns % 256 == 0, "two tiles that share numbers are in one stage");
    const int lane = threadIdx.x & 31, row = lane >> 2, quad = lane & 3;
#pragma unroll
    for (int nth_run = 0; nth_run < warp_runs; ++nth_run) {
      const int in_segment = nth_stage * warp_runs + nth_run, run = segment * C::segment_runs + in_segment;
      if (in_segment >= C::segment_runs) break;
      if (!C::has(run, C::column(run))) {
        if (C::grouped) continue;  // padding after an expert
        break;
      }
      const int nth = nth_run * WARPS + (int)(threadIdx.x >> 5);
      const u8 *tile = stage + nth * bytes;
      u32 codes[Format::loads][Format::words];
      float scale[2][1 + HALVES], offset;
#pragma unroll
      for (int i = 0; i < Format::loads; ++i) Format::template load_codes<Plain>(codes[i], tile, lane, i);
      Format::template load_half_row<Plain>(scale, offset, tile, nth, row, quad);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const auto byte = [&](int piece, int half) {
          return Format::four_bytes(codes[piece / Format::pieces], piece, half);
        };
        const uint4 a = {byte(2 * i, 0), byte(2 * i + 1, 0), byte(2 * i, 1), byte(2 * i + 1, 1)};
        sum.part[i] += unit_of(s, x, run, i) * multiply_pieces(tile, nth, row, 2 * i + (quad >> 1), a,
                                                               scale[i], fragment_of(s, x, run, i));
      }
      if constexpr (OFFSET == 1) sum.offset += offset * x.sum[run];
    }
  }

  // The product with two pieces, in the unit of the activations.
  static __device__ __forceinline__ float multiply_pieces(const u8 *tile, int nth, int row, int piece,
                                                          uint4 a, const float (&scale)[1 + HALVES],
                                                          uint2 x) {
    if constexpr (!HALVES && OFFSET < 2) {
      return scale[0] * multiply_bytes(a, x);
    } else {
      float first = scale[0] * multiply_half(a.x, a.y, x.x),
            second = scale[HALVES] * multiply_half(a.z, a.w, x.y);
      if constexpr (OFFSET == 2) {  // the sums of x are a product with ones
        constexpr u32 ones = 0x01010101u * Format::byte_unit;
        typename Format::Offset o;
        Format::template load_offset<Plain>(o, tile, nth, row, piece);
        first += Format::offset_of(o, piece, 0) * multiply_half(ones, ones, x.x);
        second += Format::offset_of(o, piece, 1) * multiply_half(ones, ones, x.y);
      }
      return first + second;
    }
  }

  // Row sum of this lane.
  static __device__ __forceinline__ float total(const Sum &sum, bool) {
    return (sum.part[0] + sum.part[1]) * (1.0f / Format::byte_unit) + sum.offset;
  }

  // Columns |column| and the next one; |column| is even.
  template <int K>
  static __device__ __forceinline__ float2 load2(const u8 *table, int row, int column) {
    const int run = column / 128, pair = column / 16 % 2 + column / 8 % 2 * 2;
    return Format::template load_pair<Plain>(table + row_offset<K>(row) + run * bytes, run, row % TILE,
                                             column / 2 % 4, column / 32 % 4, pair);
  }

  template <int K>
  static __device__ __forceinline__ float load1(const u8 *table, int row, int column) {
    const float2 v = load2<K>(table, row, column & ~1);
    return column & 1 ? v.y : v.x;
  }

  template <int K>
  static __device__ __forceinline__ float4 load4(const u8 *table, int row, int column) {
    const float2 a = load2<K>(table, row, column), b = load2<K>(table, row, column + 2);
    return {a.x, a.y, b.x, b.y};
  }
};
