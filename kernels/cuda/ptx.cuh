// PTX instructions that CUDA C++ has no function for, one function each, and numbers of 16 bits.
//
// Functions without "volatile" may be moved or left out by the compiler; the others stay in their order. An
// address of shared memory is a u32, see shared_address.
#pragma once

#include "types.cuh"

#define PTX __device__ __forceinline__

PTX u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }

// Multiprocessors of the GPU.
PTX u32 processor_count() {
  u32 count;
  asm("mov.u32 %0, %%nsmid;" : "=r"(count));
  return count;
}

PTX u64 nanoseconds() {
  u64 t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}

// ---- numbers of 16 bits ----

// Conversions, rounded to nearest even, of a number or of a pair in one word; and sum += a . b
// for a 16 x 16 and a 16 x 8 matrix.
struct Bf16 {
  static __device__ __forceinline__ u16 narrow(float x) {
    u16 y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
  }
  static __device__ __forceinline__ u32 narrow2(float low, float high) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
  }
  static __device__ __forceinline__ float widen(u16 x) { return __uint_as_float((u32)x << 16); }
  static __device__ __forceinline__ float low(u32 pair) { return __uint_as_float(pair << 16); }
  static __device__ __forceinline__ float high(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }
  static __device__ __forceinline__ float2 widen2(u32 pair) { return make_float2(low(pair), high(pair)); }
  static __device__ __forceinline__ void multiply(float (&sum)[4], uint4 a, uint2 b) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y));
  }
  static __device__ __forceinline__ void multiply_once(float (&product)[4], uint4 a, uint2 b) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %10, %10, %10};"
        : "=f"(product[0]), "=f"(product[1]), "=f"(product[2]), "=f"(product[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y), "f"(0.0f));
  }
};

struct F16 {
  static __device__ __forceinline__ u16 narrow(float x) {
    u16 y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
  }
  static __device__ __forceinline__ u32 narrow2(float low, float high) {
    u32 pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
  }
  static __device__ __forceinline__ float widen(u16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
    return y;
  }
  static __device__ __forceinline__ float low(u32 pair) { return widen((u16)pair); }
  static __device__ __forceinline__ float high(u32 pair) { return widen((u16)(pair >> 16)); }
  static __device__ __forceinline__ float widen_word(u32 word) {  // its low half, without a 16-bit register
    float y;
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l; }" : "=f"(y) : "r"(word));
    return y;
  }
  static __device__ __forceinline__ float2 widen2(u32 pair) {
    float2 v;
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h; }"
        : "=f"(v.x), "=f"(v.y)
        : "r"(pair));
    return v;
  }
  static __device__ __forceinline__ void multiply(float (&sum)[4], uint4 a, uint2 b) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y));
  }
};

// A pair of floats as pairs of f16: |high| + |low| has 22 bits of each.
__device__ __forceinline__ void split_f16(u32 &high, u32 &low, float a, float b) {
  high = F16::narrow2(a, b);
  const float2 rounded = F16::widen2(high);
  low = F16::narrow2(a - rounded.x, b - rounded.y);
}

// ---- arithmetic ----

PTX float power2(float x) {  // results that underflow are zero
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

PTX u32 fma_pair(u32 a, u32 b, u32 c) {  // a * b + c, pairs of bf16
  u32 d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

PTX u32 fma_pair_f16(u32 a, u32 b, u32 c) {  // the same of f16
  u32 d;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
PTX u32 sub_pair_f16(u32 a, u32 b) {
  u32 d;
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}

PTX u32 and_or_once(u32 a, u32 mask, u32 more) {  // a & mask | more
  u32 d;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(a), "r"(mask), "r"(more));
  return d;
}

PTX u32 and_xor(u32 a, u32 mask, u32 flip) {  // a & mask ^ flip
  u32 d;
  asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(d) : "r"(a), "r"(mask), "r"(flip));
  return d;
}

PTX float largest_of(float a, float b) {  // of their absolute values; NaN if one of them is
  float y;
  asm("{ .reg .f32 x, y; abs.f32 x, %1; abs.f32 y, %2; max.NaN.f32 %0, x, y; }" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

// ---- loads and stores in global memory ----

// Numbers that no kernel writes while this one runs.
PTX u32 load_constant8(const void *from) {
  u32 v;
  asm volatile("ld.global.nc.u8 %0, [%1];" : "=r"(v) : "l"(from));
  return v;
}
PTX u32 load_constant16(const void *from) {
  u16 v;
  asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(v) : "l"(from));
  return v;
}
PTX u32 load_constant32(const void *from) {
  u32 v;
  asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(v) : "l"(from));
  return v;
}
PTX uint2 load_constant64(const void *from) {
  uint2 v;
  asm volatile("ld.global.nc.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(from));
  return v;
}
// 16 bytes that are read once: they bypass L1.
PTX uint4 load_once128(const void *from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}
PTX void load_once128(u32 (&v)[4], const void *from) {
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
               : "l"(from));
}
PTX void load_once128_line(u32 (&v)[4], const void *from) {  // also brings the line of 128 bytes into L2
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
               : "l"(from));
}

// A load that the compiler repeats instead of keeping its result in registers.
PTX int4 load_again(const int *from) {
  int4 v;
  asm volatile("ld.global.v4.s32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

PTX void prefetch_l2(const void *from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); }

// Words that other blocks store while this kernel runs: from L2, in no order with other accesses.
PTX float load_relaxed(const float *word) {
  float value;
  asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(value) : "l"(word));
  return value;
}
PTX float2 load_relaxed2(const float *words) {
  float2 v;
  asm volatile("ld.relaxed.gpu.global.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "l"(words));
  return v;
}
PTX float4 load_relaxed4(const float *words) {
  float4 v;
  asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(words));
  return v;
}
PTX u32 load_relaxed_word(const void *from) {
  u32 word;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(word) : "l"(from));
  return word;
}
PTX int load_relaxed_s8(const void *from) {
  int code;
  asm volatile("ld.relaxed.gpu.global.s8 %0, [%1];" : "=r"(code) : "l"(from));
  return code;
}
PTX uint4 load_relaxed128(const u16 *from) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}
// The compiler moves no other access across it.
PTX float load_relaxed_in_order(const float *word) {
  float value;
  asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(value) : "l"(word) : "memory");
  return value;
}
PTX u32 load_acquire(const u32 *word) {
  u32 value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}
PTX void publish(float *word, float value) {
  asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" ::"l"(word), "f"(value) : "memory");
}

// ---- asynchronous copies from global to shared memory ----

PTX void copy_async16(u32 to, const void *from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
// |count| of the bytes; the others become zero.
PTX void copy_async16(u32 to, const void *from, int count) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(count) : "memory");
}
PTX void copy_async16_line(u32 to, const void *from,
                           int count) {  // also brings the line of 128 bytes into L2
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(count)
               : "memory");
}
template <int BYTES>  // 4 or 8
PTX void copy_async(u32 to, const void *from, int count) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(to), "l"(from), "r"(count), "n"(BYTES)
               : "memory");
}
PTX void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING>  // groups of copies that may be incomplete
PTX void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
PTX void wait_all_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// sm_90 and later. One thread copies |bytes|, a multiple of 16, and signals |barrier|.
PTX void copy_bulk(u32 to, const void *from, u32 bytes, u32 barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
// Makes writes of this thread to shared memory visible to bulk copies and wgmma.
PTX void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- barriers ----

// mbarriers: 8 bytes of shared memory.
PTX void barrier_init(u32 barrier, int count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
template <int COUNT>
PTX void barrier_init(u32 barrier) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "n"(COUNT) : "memory");
}
PTX void barrier_arrive(u32 barrier) {
  asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(barrier) : "memory");
}
PTX void barrier_expect(u32 barrier, u32 bytes) {  // sm_90 and later: arrives, and waits for bulk copies too
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
PTX void barrier_arrive_after_copies(u32 barrier) {  // after the copy_async of this thread
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}
PTX bool barrier_passed(u32 barrier, u32 parity) {
  u32 passed;
  asm volatile(
#if __CUDA_ARCH__ >= 900
      "{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
#else
      "{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
#endif
      : "=r"(passed)
      : "r"(barrier), "r"(parity)
      : "memory");
  return passed;
}
PTX void barrier_wait(u32 barrier, u32 parity) {
  while (!barrier_passed(barrier, parity)) {}
}

PTX void barrier_init(u64 *barrier, int count) { barrier_init(shared_address(barrier), count); }
PTX void barrier_arrive(u64 *barrier) { barrier_arrive(shared_address(barrier)); }
PTX void barrier_expect(u64 *barrier, u32 bytes) { barrier_expect(shared_address(barrier), bytes); }
PTX void barrier_arrive_after_copies(u64 *barrier) { barrier_arrive_after_copies(shared_address(barrier)); }
PTX bool barrier_passed(u64 *barrier, u32 parity) { return barrier_passed(shared_address(barrier), parity); }
PTX void barrier_wait(u64 *barrier, u32 parity) {
  while (!barrier_passed(barrier, parity)) {}
}

// The first COUNT threads of a block, a multiple of 32. __syncthreads() is barrier 0.
template <int COUNT>
PTX void sync_threads() {
  asm volatile("barrier.sync 1, %0;" ::"n"(COUNT) : "memory");
}

// COUNT threads that use the barrier |nth|, from 1 on.
template <int COUNT>
PTX void sync_group(int nth) {
  asm volatile("barrier.sync %0, %1;" ::"r"(nth), "n"(COUNT) : "memory");
}

// ---- clusters (sm_90 and later) ----

// Address of |mine| in the shared memory of block |rank| of the cluster.
PTX u32 cluster_address(const void *mine, u32 rank) {
  u32 address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(mine)), "r"(rank));
  return address;
}
PTX float read_cluster(const float *mine, u32 rank) {
  float v;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(cluster_address(mine, rank)) : "memory");
  return v;
}
PTX float2 read_cluster2(const float *mine, u32 rank) {
  float2 v;
  asm volatile("ld.shared::cluster.v2.f32 {%0,%1}, [%2];"
               : "=f"(v.x), "=f"(v.y)
               : "r"(cluster_address(mine, rank))
               : "memory");
  return v;
}
PTX float4 read_cluster4(u32 address, u32 rank) {  // |address| in shared memory
  float4 v;
  asm volatile(
      "{ .reg .u32 cluster_address; mapa.shared::cluster.u32 cluster_address, %4, %5;"
      " ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [cluster_address]; }"
      : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
      : "r"(address), "r"(rank)
      : "memory");
  return v;
}
PTX void wait_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// ---- programmatic dependent launch (sm_90 and later), see overlap.cuh ----

PTX void launch_dependents() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
PTX void wait_for_dependencies() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
// The compiler moves no load through |pointer| before this.
template <typename T>
PTX T *forget(T *pointer) {
  asm volatile("" : "+l"(pointer)::"memory");
  return pointer;
}

// ---- products of a warp: mma.sync ----

// Four matrices of 8 x 8 numbers of 16 bits. Lane i has the address of row i % 8 of matrix i / 8.
PTX void load_matrices(u32 (&v)[4], u32 from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
               : "r"(from)
               : "memory");
}
PTX void load_transposed(u32 (&v)[4], u32 from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
               : "r"(from)
               : "memory");
}

// d[16,8] += a[16,16] . b[16,8]
PTX void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {  // bf16
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
PTX void mma_f16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// d[16,8] += a[16,8] . b[8,8], f32 without the low 13 bits
PTX void mma_tf32(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// d[16,8] = a[16,32] . b[32,8], bytes
PTX void mma_s8(int (&d)[4], uint4 a, uint2 b) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%10, %10, %10, %10};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y), "r"(0));
}
// d[16,8] = a[16,16] . b[16,8], bytes
PTX void mma_s8(int (&d)[4], uint2 a, u32 b) {
  asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %7, %7, %7};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a.x), "r"(a.y), "r"(b), "r"(0));
}

// ---- products of a warpgroup: wgmma (sm_90a) ----

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
constexpr bool HAS_WGMMA = true;
#else
constexpr bool HAS_WGMMA = false;
#endif

PTX void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
PTX void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING>  // groups of products that may be incomplete
PTX void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// The registers of each thread of this warpgroup from now on.
template <int COUNT>
PTX void take_registers() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
#endif
}
template <int COUNT>
PTX void give_registers() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
#endif
}

// Matrix descriptor of a tile: address, 1024 bytes from 8 rows to the next 8, 128-byte swizzle.
PTX u64 matrix_descriptor(u32 tile) {
  return (u64)(tile >> 4) | (u64)1 << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}

#define D8(i)                                                                                       \
  "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3]), "+f"(d[i + 1][0]), "+f"(d[i + 1][1]), \
      "+f"(d[i + 1][2]), "+f"(d[i + 1][3])
#define D32 D8(0), D8(2), D8(4), D8(6)
#define D64 D32, D8(8), D8(10), D8(12), D8(14)
#define D128 D64, D8(16), D8(18), D8(20), D8(22), D8(24), D8(26), D8(28), D8(30)
#define L8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define L16 L8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define L24 L16 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define L32 L24 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define L64                                                              \
  L32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47" \
      ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define L128                                                                         \
  L64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"             \
      ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"             \
      ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111" \
      ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"

// d[64, COLUMNS] (+)= a[64,16] . b[COLUMNS,16]^T, bf16 or f16. a is in registers, b in shared memory. Without
// |add|, d is the product.
#define WGMMA_OF(types, order, shape, list, a0, a1, a2, a3, b, more, ...)                        \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, " more ", 0; wgmma.mma_async.sync.aligned." shape \
               ".f32." types " {" list                                                           \
               "}, "                                                                             \
               "{" a0 "," a1 "," a2 "," a3 "}, " b ", p, 1, 1, " order "; }"                     \
               : __VA_ARGS__                                                                     \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(tile), "r"((int)add))
#define WGMMA_REGISTERS(...)                   \
  {                                            \
    if constexpr (IN_F16)                      \
      WGMMA_OF("f16.f16", "0", __VA_ARGS__);   \
    else                                       \
      WGMMA_OF("bf16.bf16", "0", __VA_ARGS__); \
  }
template <bool IN_F16, int FRAGMENTS>  // fragments of 8 columns
PTX void wgmma(float (&d)[FRAGMENTS][4], const u32 (&a)[4], u64 tile, bool add) {
  static_assert(FRAGMENTS == 2 || FRAGMENTS == 4 || FRAGMENTS == 6 || FRAGMENTS == 8 || FRAGMENTS == 16,
                "columns");
  if constexpr (FRAGMENTS == 2)
    WGMMA_REGISTERS("m64n16k16", L8, "%8", "%9", "%10", "%11", "%12", "%13", D8(0))
  else if constexpr (FRAGMENTS == 4)
    WGMMA_REGISTERS("m64n32k16", L16, "%16", "%17", "%18", "%19", "%20", "%21", D8(0), D8(2))
  else if constexpr (FRAGMENTS == 6)
    WGMMA_REGISTERS("m64n48k16", L24, "%24", "%25", "%26", "%27", "%28", "%29", D8(0), D8(2), D8(4))
  else if constexpr (FRAGMENTS == 8)
    WGMMA_REGISTERS("m64n64k16", L32, "%32", "%33", "%34", "%35", "%36", "%37", D32)
  else
    WGMMA_REGISTERS("m64n128k16", L64, "%64", "%65", "%66", "%67", "%68", "%69", D64)
}
#undef WGMMA_REGISTERS

// d[64,64] (+)= a[64,16] . b[16,64], f16: rows of b are rows of the tile.
#define WGMMA_REGISTERS(...) WGMMA_OF("f16.f16", "1", __VA_ARGS__)
PTX void wgmma_columns(float (&d)[8][4], const u32 (&a)[4], u64 tile, bool add) {
  WGMMA_REGISTERS("m64n64k16", L32, "%32", "%33", "%34", "%35", "%36", "%37", D32);
}
#undef WGMMA_REGISTERS
#undef WGMMA_OF

// d[64, WIDE] (+)= a[64,16] . b[WIDE,16]^T, both in shared memory.
#define WGMMA_SHARED(columns, type, list, a_at, b_at, add, ...)                                          \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." type "." type " {" list "}, " a_at \
               ", " b_at ", " add ", 1, 1, 0, 0;"                                                        \
               : __VA_ARGS__                                                                             \
               : "l"(a), "l"(b), "n"((int)ADD))
#define WGMMA_OF_TYPE(number, type)                                     \
  template <int WIDE, bool ADD = true>                                  \
  PTX void wgmma(number, float(*d)[4], u64 a, u64 b) {                  \
    static_assert(WIDE == 64 || WIDE == 128 || WIDE == 256, "columns"); \
    if constexpr (WIDE == 64)                                           \
      WGMMA_SHARED("64", type, L32, "%32", "%33", "%34", D32);          \
    else if constexpr (WIDE == 128)                                     \
      WGMMA_SHARED("128", type, L64, "%64", "%65", "%66", D64);         \
    else                                                                \
      WGMMA_SHARED("256", type, L128, "%128", "%129", "%130", D128);    \
  }
WGMMA_OF_TYPE(Bf16, "bf16")
WGMMA_OF_TYPE(F16, "f16")
#undef WGMMA_OF_TYPE
#undef WGMMA_SHARED
#undef D8
#undef D32
#undef D64
#undef D128
#undef L8
#undef L16
#undef L24
#undef L32
#undef L64
#undef L128

#undef PTX
