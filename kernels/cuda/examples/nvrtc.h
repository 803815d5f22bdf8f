// What NVRTC declares before every source, as far as the kernels use it: for editors, which have no CUDA
// toolkit. CMakeLists.txt writes build/cuda/compile_commands.json, whose commands include this file first.
#pragma once

#ifndef __CUDACC__
#define __CUDACC__ 1
#endif
#define __host__ __attribute__((host))
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...) __attribute__((launch_bounds(__VA_ARGS__)))
#define __cluster_dims__(...)

typedef decltype(sizeof 0) size_t;
struct uint2 {
  unsigned x, y;
};
struct __align__(16) uint4 {
  unsigned x, y, z, w;
};
struct __align__(8) int2 {
  int x, y;
};
struct __align__(16) int4 {
  int x, y, z, w;
};
struct __align__(8) float2 {
  float x, y;
};
struct __align__(16) float4 {
  float x, y, z, w;
};
struct __align__(16) ulonglong2 {
  unsigned long long x, y;
};
struct uint3 {
  unsigned x, y, z;
};
extern __device__ const uint3 threadIdx, blockIdx, blockDim, gridDim;

__device__ uint2 make_uint2(unsigned x, unsigned y);
__device__ uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w);
__device__ int4 make_int4(int x, int y, int z, int w);
__device__ float2 make_float2(float x, float y);
__device__ float4 make_float4(float x, float y, float z, float w);

__device__ void __syncthreads();
__device__ int __syncthreads_count(int predicate);
__device__ int __syncthreads_or(int predicate);
__device__ void __syncwarp(unsigned mask = ~0u);
__device__ void __threadfence();
__device__ void __threadfence_block();
__device__ void __trap();
__device__ int __any_sync(unsigned mask, int x);
__device__ int __all_sync(unsigned mask, int x);
__device__ unsigned __ballot_sync(unsigned mask, int x);
template <typename T>
__device__ T __shfl_sync(unsigned mask, T x, int lane, int width = 32);
template <typename T>
__device__ T __shfl_xor_sync(unsigned mask, T x, int lanes, int width = 32);
template <typename T>
__device__ T __shfl_up_sync(unsigned mask, T x, unsigned lanes, int width = 32);
template <typename T>
__device__ T __shfl_down_sync(unsigned mask, T x, unsigned lanes, int width = 32);
template <typename T>
__device__ T __reduce_max_sync(unsigned mask, T x);
template <typename T>
__device__ T __reduce_min_sync(unsigned mask, T x);
template <typename T>
__device__ T __reduce_add_sync(unsigned mask, T x);
template <typename T>
__device__ T __ldg(const T *from);
template <typename T>
__device__ T atomicAdd(T *to, decltype(T() + 0) x);
template <typename T>
__device__ T atomicMin(T *to, T x);
template <typename T>
__device__ T atomicMax(T *to, T x);
template <typename T>
__device__ T atomicExch(T *to, T x);
template <typename T>
__device__ T atomicOr(T *to, T x);

__device__ int min(int a, int b);
__device__ int max(int a, int b);
__device__ unsigned min(unsigned a, unsigned b);
__device__ unsigned max(unsigned a, unsigned b);
__device__ unsigned long long min(unsigned long long a, unsigned long long b);
__device__ unsigned long long max(unsigned long long a, unsigned long long b);
__device__ float fmaf(float a, float b, float c);
__device__ float fmaxf(float a, float b);
__device__ float fminf(float a, float b);
__device__ float fabsf(float x);
__device__ float ceilf(float x);
__device__ float sqrtf(float x);
__device__ float rsqrtf(float x);
__device__ float expf(float x);
__device__ float __expf(float x);
__device__ float __fdividef(float x, float y);
__device__ float expm1f(float x);
__device__ float exp2f(float x);
__device__ float logf(float x);
__device__ float log1pf(float x);
__device__ float erff(float x);
__device__ float tanhf(float x);
__device__ float rintf(float x);
__device__ void sincosf(float x, float *sine, float *cosine);
__device__ float __fadd_rn(float a, float b);
__device__ float __fsub_rn(float a, float b);
__device__ float __fmul_rn(float a, float b);
__device__ float __fdiv_rn(float a, float b);
__device__ double __dadd_rn(double a, double b);
__device__ double __dsub_rn(double a, double b);
__device__ double __dmul_rn(double a, double b);
__device__ double __ddiv_rn(double a, double b);
__device__ float __fmaf_rn(float a, float b, float c);
__device__ float __int2float_rn(int x);
__device__ float __uint2float_rn(unsigned x);
__device__ int __float2int_rn(float x);
__device__ float __uint_as_float(unsigned x);
__device__ unsigned __float_as_uint(float x);
__device__ float __int_as_float(int x);
__device__ int __float_as_int(float x);
__device__ unsigned __byte_perm(unsigned a, unsigned b, unsigned selector);
__device__ long long __double_as_longlong(double x);
__device__ double __longlong_as_double(long long x);
__device__ int __ffs(int x);
__device__ int __clz(int x);
__device__ int __popc(unsigned x);
__device__ unsigned long long __umul64hi(unsigned long long a, unsigned long long b);
__device__ unsigned __umulhi(unsigned a, unsigned b);
__device__ size_t __cvta_generic_to_shared(const void *p);
