// Programmatic dependent launch (sm_90 and newer): a kernel starts while the previous kernel of the stream
// still runs, and waits for it before its first access to anything but weights. What comes before that wait
// (launch latency, barriers, the first weights) costs no time of its own.
//
// A kernel that includes this file calls start_next_kernel() first, then wait_for_previous_kernel(), each
// once and in every thread that does not return before. Pointers that the previous kernels write go through
// after_wait(): the compiler must not move loads through a const __restrict__ pointer before the wait.
//
// The variable mlx_overlap tells the CUDA driver of IREE (third_party/iree.patch) to launch the kernels of
// this image so. Kernels without it wait for the end of the previous kernel, as usual.

#pragma once

#include "ptx.cuh"

#if __CUDA_ARCH__ >= 900
extern "C" __device__ int mlx_overlap = 1;

__device__ __forceinline__ void start_next_kernel() { launch_dependents(); }
__device__ __forceinline__ void wait_for_previous_kernel() { wait_for_dependencies(); }
#else
__device__ __forceinline__ void start_next_kernel() {}
__device__ __forceinline__ void wait_for_previous_kernel() {}
#endif

template <typename T>
__device__ __forceinline__ T *after_wait(T *pointer) {
  return forget(pointer);
}
