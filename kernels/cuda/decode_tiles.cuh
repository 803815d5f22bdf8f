// Decode: quantized weights, in tiles of 8 rows x 128 columns, one after the other. packed_tiles.cuh
// describes a tile.
//
// As with 16-bit rows, an instruction processes eight rows x 32 columns, a piece. Lane 4 * row + quad holds
// the column pairs that start at 2 * quad and 2 * quad + 8 in each half of the piece. The halves are the two
// rows of the instruction. Codes are exact in bf16, so the sum of a piece has f32 accuracy. The scale of the
// row in this piece multiplies that sum.
//
// A macro per role (QKV_TILES ...) gives the template arguments.

#define SHARE_UNIT TILE  // a block's share of rows is a multiple of this

static __device__ __forceinline__ float half_to_float(u32 bits) {
  float y;
  asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l; }" : "=f"(y) : "r"(bits));
  return y;
}

// a - b for two pairs of bf16
static __device__ __forceinline__ u32 sub_bf16x2(u32 a, u32 b) {
  u32 y;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(b), "r"(0xbf80bf80u), "r"(a));
  return y;
}

// WIDE: scales and offsets are f32, else f16. CENTER is subtracted from the codes.
template <int BITS, bool WIDE, bool OFFSET, bool HALVES, int CENTER>
struct Tiles {
  static constexpr int number = WIDE ? 4 : 2, scales = 128 * BITS,
                       offsets = scales + 32 * (1 + HALVES) * number;
  static constexpr int bytes = offsets + (OFFSET ? 32 * number : 0);

  struct Sum {
    float part[4], offset;
  };

  template <int K>
  struct Stage {
    static constexpr int bytes = Tiling<K>::columns / 128 * Tiles::bytes;
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

  template <int COUNT>
  static __device__ __forceinline__ void read_numbers(const u8 *from, float (&out)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i += 4) {
      if constexpr (WIDE) {
        const float4 v = *(const float4 *)(from + i * 4);
        out[i] = v.x, out[i + 1] = v.y, out[i + 2] = v.z, out[i + 3] = v.w;
      } else {
        const uint2 v = *(const uint2 *)(from + i * 2);
        out[i] = half_to_float(v.x), out[i + 1] = half_to_float(v.x >> 16);
        out[i + 2] = half_to_float(v.y), out[i + 3] = half_to_float(v.y >> 16);
      }
    }
  }

  static __device__ __forceinline__ float read_number(const u8 *from, int nth) {
    if constexpr (WIDE) return ((const float *)from)[nth];
    return half_to_float(((const u16 *)from)[nth]);
  }

  static __device__ __forceinline__ uint4 unpack(const uint4 (&codes)[BITS / 4], int piece) {
    if constexpr (BITS == 4) {
      const u32 fragment = component(codes[0], piece), center = 0x43004300u + CENTER * 0x00010001u;
      return {sub_bf16x2((fragment & 0x000f000fu) | 0x43004300u, center),
              sub_bf16x2((fragment >> 4 & 0x000f000fu) | 0x43004300u, center),
              sub_bf16x2((fragment >> 8 & 0x000f000fu) | 0x43004300u, center),
              sub_bf16x2((fragment >> 12 & 0x000f000fu) | 0x43004300u, center)};
    } else {
      const u32 low = component(codes[piece / 2], piece % 2 * 2),
                high = component(codes[piece / 2], piece % 2 * 2 + 1);
      return {signed_pair(low), signed_pair(low >> 8), signed_pair(high), signed_pair(high >> 8)};
    }
  }

  // Bytes 0 and 2 as signed numbers: (128 + low seven bits) - (128 or 256).
  static __device__ __forceinline__ u32 signed_pair(u32 fragment) {
    return sub_bf16x2((fragment & 0x007f007fu) | 0x43004300u, (fragment & 0x00800080u) | 0x43004300u);
  }

  template <int K, typename S>
  static __device__ __forceinline__ void multiply_stage(const S *s, const u8 *stage, int segment,
                                                        const Activations<K> &x, Sum &sum) {
    using C = Tiling<K>;
    const int lane = threadIdx.x & 31, row = lane >> 2, quad = lane & 3;
#pragma unroll
    for (int parity = 0; parity < C::segment_runs; ++parity) {
      const int run = segment * C::segment_runs + parity;
      if (!C::has(run, C::column(run))) break;
      const u8 *tile = stage + (parity * WARPS + (int)(threadIdx.x >> 5)) * bytes;
      uint4 codes[BITS / 4];
      float scale[4 * (1 + HALVES)], piece[4][4];
#pragma unroll
      for (int i = 0; i < BITS / 4; ++i) codes[i] = *(const uint4 *)(tile + i * 512 + lane * 16);
      read_numbers(tile + scales + row * 4 * (1 + HALVES) * number, scale);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        Bf16::multiply_once(piece[i], unpack(codes, i), fragment_of<K>(s, x, run, i));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float first = scale[i * (1 + HALVES)], second = scale[i * (1 + HALVES) + HALVES];
        sum.part[0] += first * piece[i][0];
        sum.part[1] += first * piece[i][1];
        sum.part[2] += second * piece[i][2];
        sum.part[3] += second * piece[i][3];
      }
      if constexpr (OFFSET) sum.offset += read_number(tile + offsets, row * 4 + quad) * x.sum[run];
    }
  }

  static __device__ __forceinline__ float total(const Sum &sum, bool other) {
    return (other ? sum.part[2] + sum.part[3] : sum.part[0] + sum.part[1]) + sum.offset;
  }

  template <int K>
  static __device__ __forceinline__ float load1(const u8 *table, int row, int column) {
    const u8 *tile = table + row_offset<K>(row) + column / 128 * bytes;
    const int nth = row % TILE, piece = column / 32 % 4, half = column / 16 % 2,
              lane = nth * 4 + column / 2 % 4;
    const int pair = half + column / 8 % 2 * 2, odd = column % 2;
    int code;
    if constexpr (BITS == 4) {
      code = (int)(*(const u32 *)(tile + lane * 16 + piece * 4) >> (pair + odd * 4) * 4 & 15) - CENTER;
    } else {
      code = ((const signed char *)
                  tile)[piece / 2 * 512 + lane * 16 + piece % 2 * 8 + pair / 2 * 4 + pair % 2 + odd * 2];
    }
    const float value = __fmul_rn(
        read_number(tile + scales, HALVES ? (nth * 4 + piece) * 2 + half : nth * 4 + piece), (float)code);
    return OFFSET ? __fadd_rn(value, read_number(tile + offsets, nth * 4 + piece)) : value;
  }

  template <int K>
  static __device__ __forceinline__ float4 load4(const u8 *table, int row, int column) {
    return {load1<K>(table, row, column), load1<K>(table, row, column + 1), load1<K>(table, row, column + 2),
            load1<K>(table, row, column + 3)};
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
