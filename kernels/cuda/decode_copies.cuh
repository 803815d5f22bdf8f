// Decode: asynchronous copies from global to shared memory.
#pragma once

#include "ptx.cuh"

// __CUDA_ARCH__ is a macro: code of newer GPUs must not reach the assembler for older ones.
#if __CUDA_ARCH__ >= 900
constexpr int FULL_ARRIVALS = 1;
#else
constexpr int FULL_ARRIVALS = 32;
#endif

// Copies |bytes| (a multiple of 16) as lane |nth| of |lanes|. The copy signals the barrier |full|.
static __device__ __forceinline__ void copy_bytes(u8 *to, const u8 *from, int bytes, int nth, int lanes,
                                                  u64 *full) {
#if __CUDA_ARCH__ >= 900
  (void)lanes;
  if (nth) return;
  copy_bulk(shared_address(to), from, bytes, shared_address(full));
#else
  (void)full;
#pragma unroll 1
  for (int i = nth * 16; i < bytes; i += lanes * 16) {
    copy_async16(shared_address(to + i), from + i);
  }
#endif
}
