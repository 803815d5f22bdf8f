// Decode: weights that are rows of 16-bit numbers.
//
// One tensor-core instruction multiplies a 16 x 16 matrix with a 16 x 8 one. Eight rows of weights, 32
// columns of them, fill the first: lane 4 * row + quad holds eight neighbouring weights of that row, of which
// the instruction takes pairs 0 and 2 for its row |row| and pairs 1 and 3 for its row |row| + 8. The second
// matrix's column |part| holds that part of the activations that meet pairs 0 and 2, its column 4 + |part|
// those that meet pairs 1 and 3. So a lane needs two words of activations a piece.

#define SHARE_UNIT 1  // rows that must stay together
#define OFFSETS 0

struct Sixteen {
  struct Sum {
    float part[4][4];
  };

  template <int K>
  struct Stage {
    static constexpr int stride =
        Cut<K>::columns * 2 + 64;  // bytes of a row: eight rows' 64 bytes fall into different banks
    static constexpr int bytes = TILE * stride;
  };

  template <int K>
  static __device__ __forceinline__ u64 row_offset(int row) {
    return (u64)row * K * 2;
  }

  // |count| rows from |first| on; at(row) is where a row begins.
  template <int K, typename P, typename At>
  static __device__ __forceinline__ void put_tile(P &p, int first, int count, At at) {
    using C = Cut<K>;
    const int lane = threadIdx.x & 31;
    const u8 *from = lane < count ? at(first + lane) : nullptr;
#pragma unroll 1
    for (int segment = 0; segment < C::segments; ++segment) {
      const int bytes = min(C::columns, K - segment * C::columns) * 2;
      u8 *to = p.begin(count * bytes) + lane * Stage<K>::stride;
      if (from) copy_bytes(to, from + segment * C::columns * 2, bytes, 0, 1, p.full());
      p.end();
    }
  }

  // One stage: this warp multiplies its runs of it into the tile's sums.
  template <int K, typename S>
  static __device__ __forceinline__ void take(const S *s, const u8 *stage, int segment,
                                              const Activations<K> &x, Sum &sum) {
    using C = Cut<K>;
    const int lane = threadIdx.x & 31, row = lane >> 2, quad = lane & 3;
    const u8 *weights = stage + row * Stage<K>::stride + (threadIdx.x >> 5) * 256 + quad * 16;
    uint4 a[C::turns * 4];
#pragma unroll
    for (int i = 0; i < C::turns * 4; ++i) {
      const int run = segment * C::turns + i / 4;
      const bool there = C::has(run, C::column(run) + i % 4 * 32 + quad * 8);
      a[i] = there ? *(const uint4 *)(weights + i / 4 * WARPS * 256 + i % 4 * 64) : uint4{0, 0, 0, 0};
    }
#pragma unroll
    for (int i = 0; i < C::turns * 4; ++i)
      multiply(sum.part[i & 3], a[i], words_of<K>(s, x, segment * C::turns + i / 4, i % 4));
  }

  // Of this lane: quads 0 and 1 hold the row's sums with the first half of the parts' columns, 2 and 3 the
  // other.
  static __device__ __forceinline__ float total(const Sum &sum, bool other) {
    float total = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      total += other ? sum.part[i][2] + sum.part[i][3] : sum.part[i][0] + sum.part[i][1];
    return total;
  }

  template <int K>
  static __device__ __forceinline__ float4 four(const u8 *table, int row, int column) {
    const uint2 raw = *(const uint2 *)(table + row_offset<K>(row) + column * 2);
    return {low16(raw.x), high16(raw.x), low16(raw.y), high16(raw.y)};
  }

  template <int K>
  static __device__ __forceinline__ float one(const u8 *table, int row, int column) {
    return from16(*(const u16 *)(table + row_offset<K>(row) + column * 2));
  }
};

using QkvFormat = Sixteen;
using OFormat = Sixteen;
using GateFormat = Sixteen;
using DownFormat = Sixteen;
using HeadFormat = Sixteen;
using EmbedFormat = Sixteen;

// Where in a staged piece the two pairs of activations go that lane |lane| of its run has: see stage().
static __device__ __forceinline__ int staged_at(int lane, int pair) {
  const int quad = lane >> 1 & 3, word = lane & 1;
  return (pair * 4 + quad) * PARTS * 8 + word * 4;
}
