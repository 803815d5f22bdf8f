// Quantized linear layers (packed.cu): reading a tile of weights from global memory.
#pragma once

#include "packed_weights.cuh"
#include "tile_format.cuh"

#ifdef PRODUCT
// Two matrices at once need registers. The parts of x are f16.
constexpr bool FEW_REGISTERS = EPILOGUE == MLX_EPILOGUE_GATED, IN_F16 = true;
#else
constexpr bool FEW_REGISTERS = false, IN_F16 = false;
#endif
using Format = TileFormat<BITS, NUMBERS, OFFSET, HALVES, CENTER, FEW_REGISTERS, IN_F16>;
constexpr int TILE_BYTES = Format::bytes;
constexpr int PIECES = Format::pieces;  // pieces of 32 columns in one load of codes

// Weights are only read. Codes are read once, so they bypass L1; a cache line of scales has those of many
// lanes.
struct Global {
  static __device__ __forceinline__ u32 load8(const u8 *from) { return load_constant8(from); }
  static __device__ __forceinline__ u32 load16(const u8 *from) { return load_constant16(from); }
  static __device__ __forceinline__ u32 load32(const u8 *from) { return load_constant32(from); }
  static __device__ __forceinline__ uint2 load64(const u8 *from) { return load_constant64(from); }
  static __device__ __forceinline__ uint4 load128(const u8 *from) { return load_once128(from); }
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
