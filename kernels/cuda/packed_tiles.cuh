// Quantized linear layers (packed.cu): reading a tile of weights.

// ---- a tile of weights: 8 rows x 128 columns ----
// Lane 4*row + quad has 16 bytes of codes in the order of tensor-core fragments. It also has the scale (two
// with HALVES) and, with OFFSET, the offset of piece `quad` of its row. It gets those of other pieces from
// its neighbours by shuffle.

constexpr int SCALE_BYTES = SCALE_F32 ? 4 : 2;
constexpr int SCALES_AT = 128 * BITS, OFFSETS_AT = SCALES_AT + 32 * (1 + HALVES) * SCALE_BYTES;
constexpr int TILE_BYTES = OFFSETS_AT + OFFSET * 32 * SCALE_BYTES;
#define TILES ((N + 7) / 8)
constexpr int PIECES = BITS == 4 ? 4 : 2;  // pieces of 32 columns in a lane's 16 bytes

// Loads 16 bytes of codes, number `nth`. They are read once, so they bypass L1.
__device__ __forceinline__ void load_codes(u32 (&v)[4], const u8 *tile, int nth) {
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
               : "l"(tile + nth * 512 + threadIdx.x % 32 * 16));
}

// Loads a scale or an offset as stored.
__device__ __forceinline__ u32 load_number(const u8 *from, int nth) {
#if SCALE_F32
  u32 v;
  asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(v) : "l"(from + nth * 4));
#else
  u16 v;
  asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(v) : "l"(from + nth * 2));
#endif
  return v;
}

__device__ __forceinline__ float to_float(u32 number) {
#if SCALE_F32
  return __uint_as_float(number);
#else
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"((u16)number));
  return f;
#endif
}

// Loads this lane's scales of a tile.
__device__ __forceinline__ void load_scales(u32 (&scale)[1 + HALVES], const u8 *tile) {
#pragma unroll
  for (int h = 0; h <= HALVES; h++)
    scale[h] = load_number(tile + SCALES_AT, threadIdx.x % 32 * (1 + HALVES) + h);
}

// The scale or offset of `piece`, from the lane of the same row that holds it.
__device__ __forceinline__ float broadcast_number(u32 number, int piece) {
  return to_float(__shfl_sync(~0u, number, threadIdx.x % 32 / 4 * 4 + piece));
}

__device__ __forceinline__ u32 fma_pair(u32 a, u32 b, u32 c) {  // a * b + c
  u32 d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

// Two neighbouring codes as bf16: pair j of 0..3 is columns 2*quad + {0, 1} + {0, 16, 8, 24}[j] of a piece.
// 0x4300 is 128, whose last mantissa bit is worth 1. So a small integer in the mantissa is added to 128, and
// subtracting 128 is exact.
__device__ __forceinline__ u32 pair_of(const u32 (&words)[4], int piece, int j) {
#if BITS == 4
  return fma_pair(words[piece % 4] >> j * 4 & 0x000f000fu | 0x43004300u, 0x3f803f80u,
                  0xc300c300u | CENTER * 0x10001u);
#else
  const u32 t = words[piece % 2 * 2 + j / 2] >> j % 2 * 8;  // 128 + 7 low bits, minus 128 or 256 for the sign
  return fma_pair(t & 0x00800080u | 0x43004300u, 0xbf80bf80u, t & 0x007f007fu | 0x43004300u);
#endif
}

// The A operand of an m16k16 product: rows g and g + 8 (of the upper and the lower tile), 16 columns of a
// piece starting at 16*half.
__device__ __forceinline__ void unpack(u32 (&a)[4], const u32 (&upper)[4], const u32 (&lower)[4], int piece,
                                       int half) {
  a[0] = pair_of(upper, piece, half);
  a[1] = pair_of(lower, piece, half);
  a[2] = pair_of(upper, piece, half + 2);
  a[3] = pair_of(lower, piece, half + 2);
}

__device__ __forceinline__ void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
