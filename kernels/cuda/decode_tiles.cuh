// Decode: quantized weights, in tiles of 8 rows x 128 columns, one after the other. tile_format.cuh
// describes a tile.
//
// As with 16-bit rows, an instruction processes eight rows x 32 columns, a piece. Lane 4 * row + quad holds
// the column pairs that start at 2 * quad and 2 * quad + 8 in each half of the piece. The halves are the two
// rows of the instruction. Codes are exact in bf16, so the sum of a piece has f32 accuracy. The scale of the
// row in this piece multiplies that sum.
//
// A macro per role (QKV_TILES ...) gives the template arguments.

#define SHARE_UNIT TILE  // a block's share of rows is a multiple of this

#include "tile_format.cuh"

template <int BITS, int NUMBERS, int OFFSET, bool HALVES, int CENTER>
struct Tiles : TileFormat<BITS, NUMBERS, OFFSET, HALVES, CENTER> {
  using Format = TileFormat<BITS, NUMBERS, OFFSET, HALVES, CENTER>;
  using Format::bytes;

  struct Sum {
    float part[4], offset;
  };

  template <int K>
  struct Stage {
    static constexpr int bytes = Tiling<K>::columns / 128 * Format::bytes;
  };

  template <int K>
  static __device__ __forceinline__ u64 row_offset(int row) {
    return (u64)(row / TILE) * (ceil_div(K, 128) * bytes);
  }

  template <int K, typename P, typename At>
  static __device__ __forceinline__ void copy_tile(P &p, int first, int, At at) {
    const u8 *from = at(first);
    constexpr int runs = Tiling<K>::columns / 128;
#pragma unroll 1
    for (int run = 0; run < ceil_div(K, 128); run += runs) {
      const int size = min(runs, ceil_div(K, 128) - run) * bytes;
      u8 *to = p.begin(size);
      if (!to) return;
      copy_bytes(to, from + run * bytes, size, threadIdx.x & 31, 32, p.full());
      p.end();
    }
  }

  static __device__ __forceinline__ uint4 unpack(const u32 (&codes)[Format::words], int piece) {
    return {Format::pair(codes, piece, 0), Format::pair(codes, piece, 1), Format::pair(codes, piece, 2),
            Format::pair(codes, piece, 3)};
  }

  // Adds the offsets of 16 columns each. The sums of x come from a product with ones.
  static __device__ __forceinline__ void add_half_offsets(const u8 *tile, int nth, int row, int piece,
                                                          uint2 x, Sum &sum) {
    typename Format::Offset o;
    float ones[4];
    Format::template load_offset<Plain>(o, tile, nth, row, piece);
    Bf16::multiply_once(ones, {Format::ones, Format::ones, Format::ones, Format::ones}, x);
    const float first = Format::offset_of(o, piece, 0), second = Format::offset_of(o, piece, 1);
    sum.part[0] += first * ones[0];
    sum.part[1] += first * ones[1];
    sum.part[2] += second * ones[2];
    sum.part[3] += second * ones[3];
  }

  template <int K, typename S>
  static __device__ __forceinline__ void multiply_stage(const S *s, const u8 *stage, int segment,
                                                        const Activations<K> &x, Sum &sum) {
    using C = Tiling<K>;
    static_assert(C::columns % 256 == 0, "two tiles that share numbers are in one stage");
    const int lane = threadIdx.x & 31, row = lane >> 2, quad = lane & 3;
#pragma unroll
    for (int parity = 0; parity < C::segment_runs; ++parity) {
      const int run = segment * C::segment_runs + parity;
      if (!C::has(run, C::column(run))) break;
      const int nth = parity * WARPS + (int)(threadIdx.x >> 5);
      const u8 *tile = stage + nth * bytes;
      u32 codes[Format::loads][Format::words];
      float scale[Format::row_scales], piece[4][4], offset;
#pragma unroll
      for (int i = 0; i < Format::loads; ++i) Format::template load_codes<Plain>(codes[i], tile, lane, i);
      Format::template load_row<Plain>(scale, offset, tile, nth, row, quad);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        Bf16::multiply_once(piece[i], unpack(codes[i / Format::pieces], i), fragment_of<K>(s, x, run, i));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float first = scale[i * (1 + HALVES)], second = scale[i * (1 + HALVES) + HALVES];
        sum.part[0] += first * piece[i][0];
        sum.part[1] += first * piece[i][1];
        sum.part[2] += second * piece[i][2];
        sum.part[3] += second * piece[i][3];
        if constexpr (OFFSET == 2) add_half_offsets(tile, nth, row, i, fragment_of<K>(s, x, run, i), sum);
      }
      if constexpr (OFFSET == 1) sum.offset += offset * x.sum[run];
    }
  }

  static __device__ __forceinline__ float total(const Sum &sum, bool other) {
    return (other ? sum.part[2] + sum.part[3] : sum.part[0] + sum.part[1]) + sum.offset;
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

using QkvFormat = Tiles<QKV_TILES>;
using OFormat = Tiles<O_TILES>;
using GateFormat = Tiles<GATE_TILES>;
using DownFormat = Tiles<DOWN_TILES>;
using HeadFormat = Tiles<HEAD_TILES>;
using EmbedFormat = Tiles<EMBED_TILES>;

static __device__ __forceinline__ int staged_at(int lane, int pair) {
  const int half = lane >> 2 & 1, fragment = lane >> 1 & 1, quad = (lane & 1) * 2 + pair;
  return (half * 4 + quad) * PARTS * 8 + fragment * 4;
}
