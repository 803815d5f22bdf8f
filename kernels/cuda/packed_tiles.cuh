// Quantized linear layers (packed.cu): reading a tile of weights from global memory.

#include "tile_format.cuh"

using Format = TileFormat<BITS, NUMBERS, OFFSET, HALVES, CENTER>;
constexpr int TILE_BYTES = Format::bytes;
#define TILES ((N + 7) / 8)
#define PIECES Format::pieces  // pieces of 32 columns in one load of codes
#define SUMS (OFFSET == 1)     // the kernel needs the sums of x over 32 columns

// Weights are only read. Codes are read once, so they bypass L1; a cache line of scales has those of many
// lanes.
struct Global {
  static __device__ __forceinline__ u32 load8(const u8 *from) {
    u32 v;
    asm volatile("ld.global.nc.u8 %0, [%1];" : "=r"(v) : "l"(from));
    return v;
  }
  static __device__ __forceinline__ u32 load16(const u8 *from) {
    u16 v;
    asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(v) : "l"(from));
    return v;
  }
  static __device__ __forceinline__ u32 load32(const u8 *from) {
    u32 v;
    asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(v) : "l"(from));
    return v;
  }
  static __device__ __forceinline__ uint2 load64(const u8 *from) {
    uint2 v;
    asm volatile("ld.global.nc.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(from));
    return v;
  }
  static __device__ __forceinline__ uint4 load128(const u8 *from) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from));
    return v;
  }
};

// A lane loads the codes of its fragments, and the scale and the offset of piece `quad` of its row. It gets
// those of other pieces from its neighbours by shuffle.

__device__ __forceinline__ void load_codes(u32 (&v)[Format::words], const u8 *tile, int nth) {
  Format::load_codes<Global>(v, tile, threadIdx.x % 32, nth);
}

__device__ __forceinline__ void load_scale(Format::Scale &to, const u8 *tile, int run) {
  Format::load_scale<Global>(to, tile, run, threadIdx.x % 32 / 4, threadIdx.x % 4);
}

__device__ __forceinline__ void load_offset(Format::Offset &to, const u8 *tile, int run) {
  Format::load_offset<Global>(to, tile, run, threadIdx.x % 32 / 4, threadIdx.x % 4);
}

// This lane's scale and offset as numbers.
__device__ __forceinline__ float scale_of(const Format::Scale &scale, int half) {
  return Format::scale_of(scale, half);
}

__device__ __forceinline__ float offset_of(const Format::Offset &offset, int half) {
  return Format::offset_of(offset, threadIdx.x % 4, half);
}

// The number of `piece`, from the lane of the same row that holds it.
__device__ __forceinline__ float broadcast_number(float number, int piece) {
  return __shfl_sync(~0u, number, threadIdx.x % 32 / 4 * 4 + piece);
}

__device__ __forceinline__ void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
