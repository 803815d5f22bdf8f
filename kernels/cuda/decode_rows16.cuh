// Decode: weights that are rows of 16-bit numbers.
//
// One tensor-core instruction multiplies a 16 x 16 matrix with a 16 x 8 matrix. Eight rows x 32 columns of
// weights fill the first one: lane 4 * row + quad holds eight neighbouring weights of its row. The
// instruction uses pairs 0 and 2 as its row |row| and pairs 1 and 3 as its row |row| + 8. Column |part| of
// the second matrix holds that part of the activations for pairs 0 and 2, column 4 + |part| for pairs 1
// and 3. So a lane needs two registers of activations per piece.

#define SHARE_UNIT 1  // a block's share of rows is a multiple of this

#define PARTS 3  // 16-bit numbers that add up to an activation: three bf16 parts hold all 24 bits
#define PIECE_BYTES (PARTS * 64)  // of staged activations

// Activations of a warp's columns: the two-register B fragment of the instruction, per piece of each run.
template <int K>
struct Activations {
  uint2 fragment[Tiling<K>::in_registers ? Tiling<K>::runs : 1][4];
  float unscale;  // factor of the row sums, with f16 parts
};

template <int K, typename S>
static __device__ __forceinline__ uint2 fragment_of(const S *s, const Activations<K> &x, int run, int piece);

struct Rows16 {
  struct Sum {
    float part[4][4];
  };

  template <int K, int ROWS = 1>
  struct Stage {
    // Bytes of a row. The padding of 64 bytes puts eight rows into different banks.
    static constexpr int stride = Tiling<K>::columns * 2 + 64;
    static constexpr int bytes = TILE * stride;
    static constexpr int row_bytes = bytes, count = 1;  // stages of a segment
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
    const u8 *from = lane < count ? at(first + lane) : nullptr;
#pragma unroll 1
    for (int segment = 0; segment < C::segments; ++segment) {
      const int bytes = C::segment_columns(segment) * 2;
      u8 *to = p.begin(count * bytes);
      if (!to) return;
      if (from)
        copy_bytes(to + lane * Stage<K>::stride, from + (C::first + segment) * C::columns * 2, bytes, 0, 1,
                   p.full());
      p.end();
    }
  }

  // Copies |count| rows of each chosen expert: at.row<F>(slot, row) is the address of a row. See GROUPED.
  template <int K, typename P, typename At>
  static __device__ __forceinline__ void copy_grouped(P &p, int first, int count, At at) {
    using C = Tiling<K>;
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

  template <int K, int ROWS>
  static __device__ constexpr bool is_empty_stage(int, int) {
    return false;
  }

  // Multiplies this warp's runs of one stage and adds them to the sums of the tile.
  template <int K, int ROWS, typename S>
  static __device__ __forceinline__ void multiply_stage(const S *s, const u8 *stage, int segment, int,
                                                        const Activations<K> &x, Sum &sum) {
    using C = Tiling<K>;
    const int lane = threadIdx.x & 31, row = lane >> 2, quad = lane & 3;
    const u8 *weights = stage + row * Stage<K>::stride + (threadIdx.x >> 5) * 256 + quad * 16;
    uint4 a[C::segment_runs * 4];
#pragma unroll
    for (int i = 0; i < C::segment_runs * 4; ++i) {
      const int run = segment * C::segment_runs + i / 4;
      const bool valid = C::has(run, C::column(run) + i % 4 * 32 + quad * 8);
      a[i] = valid ? *(const uint4 *)(weights + i / 4 * WARPS * 256 + i % 4 * 64) : uint4{0, 0, 0, 0};
    }
#pragma unroll
    for (int i = 0; i < C::segment_runs * 4; ++i)
      Number::multiply(sum.part[i & 3], a[i], fragment_of<K>(s, x, segment * C::segment_runs + i / 4, i % 4));
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

using QkvFormat = Rows16;
using OFormat = Rows16;
using GateFormat = Rows16;
using DownFormat = Rows16;
using HeadFormat = Rows16;
using EmbedFormat = Rows16;
