// Products (packed.cu): sizes that are parameters of the kernel, after all others, so that one image serves
// all steps and all matrices of a format. Functions outside the kernel cannot name its parameters, but all of
// them are inlined, and in PTX a parameter is KERNEL_param_INDEX. A parameter is an operand in constant
// memory, so reading one costs nothing.
#pragma once

#include "packed_weights.cuh"

// The index of the first size: the number of buffers.
#if defined(EMBED)
constexpr int FIRST_SIZE = 3, SIZE_K = 2;
#elif defined(SPLIT_INPUT)
constexpr int FIRST_SIZE = 2 + GAIN + LAYERNORM + PARTIALS + MIXTURE, SIZE_K = 1;  // it has no N
#elif defined(FEW)
constexpr int FIRST_SIZE = 4 + GAIN, SIZE_K = 2;
#else
constexpr int FIRST_SIZE = (EPILOGUE == MLX_EPILOGUE_PARTIAL ? 3
                            : EPILOGUE == MLX_EPILOGUE_GROUP ? 1 + 2 * MATRICES
                            : EPILOGUE                       ? 4
                                                             : 3 + !MIXTURE) +
                           (MIXTURE ? 1 + BIAS * (EPILOGUE == MLX_EPILOGUE_GATED ? 2 : 1) : 0),
              SIZE_K = 2;
#endif

#define SIZE_TEXT_OF(name) #name
#define SIZE_TEXT(name) SIZE_TEXT_OF(name)
#define SIZE_AT(index)                     \
  if constexpr (FIRST_SIZE + NTH == index) \
  asm("ld.param.u32 %0, [" SIZE_TEXT(NAME) "_param_" #index "];" : "=r"(value))
// The index is text, not an operand: then the compiler moves the load like any other number.
template <int NTH>
__device__ __forceinline__ int size_parameter() {
  int value = 0;
  static_assert(FIRST_SIZE + NTH >= 2 && FIRST_SIZE + NTH <= 11, "an index below");
  SIZE_AT(2);
  SIZE_AT(3);
  SIZE_AT(4);
  SIZE_AT(5);
  SIZE_AT(6);
  SIZE_AT(7);
  SIZE_AT(8);
  SIZE_AT(9);
  SIZE_AT(10);
  SIZE_AT(11);
  return value;
}
#undef SIZE_AT
#undef SIZE_TEXT
#undef SIZE_TEXT_OF

__device__ __forceinline__ int size_m() { return size_parameter<0>(); }
__device__ __forceinline__ int size_n() { return size_parameter<1>(); }
__device__ __forceinline__ int size_k() { return size_parameter<SIZE_K>(); }

__device__ __forceinline__ int run_count() { return (size_k() + 127) / 128; }  // tiles along K
__device__ __forceinline__ int chunk_count() { return run_count() * 2; }  // of 64 columns, 128 bytes of bf16

// x is three bf16 parts for 16-bit weights, and two f16 parts for tiles of codes.
constexpr int PARTS = ROWS16 ? 3 : 2, PART_CHUNK = PARTS * 128;  // bytes of a row in a chunk

// Rows of the parts of x. SPLIT_INPUT with MIXTURE has them as a parameter.
__device__ __forceinline__ int part_rows() {
#if defined(SPLIT_INPUT) && MIXTURE
  return size_parameter<2>();
#else
  return (size_m() + 7) / 8 * 8;
#endif
}

// The power of two that brings the numbers of a row just below 2^15. They are then sums of two f16 numbers,
// split_f16(), of 11 bits each, with an error of at most 2^-23 of a number that is more than 2^-16 of
// |largest|, and else of 2^-39 of |largest|. |largest|: of the absolute values.
__device__ __forceinline__ float scale_below(float largest) {
  const int exponent = __float_as_int(largest) >> 23;
  return __int_as_float((127 + 127 + 14 - (exponent < 16 ? 16 : exponent)) << 23);
}
// 1 / |scale|, a power of two.
__device__ __forceinline__ float inverse_of(float scale) {
  return __int_as_float((254 << 23) - __float_as_int(scale));
}

// The sum of 32 columns of a row is scaled with the row, and by this, so that it is an f16 number too.
constexpr float SUM_SCALE = 0x1p-5f;

// With f16 parts a row of x is multiplied by a power of two. This is 1 / that power for each row of the
// parts, after all chunks.
__device__ __forceinline__ float *row_scales(const u8 *parts) {
  return (float *)(parts + (u64)(chunk_count() + (run_count() + 15) / 16) * part_rows() * PART_CHUNK);
}
