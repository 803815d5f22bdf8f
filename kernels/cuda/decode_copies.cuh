// Decode: mbarriers in shared memory, and asynchronous copies from global to shared memory.

static __device__ __forceinline__ u32 shared_address(const void *p) {
  return (u32)__cvta_generic_to_shared(p);
}

static __device__ __forceinline__ void barrier_init(u64 *barrier, int count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count) : "memory");
}

static __device__ __forceinline__ void barrier_arrive(u64 *barrier) {
  asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(shared_address(barrier))
               : "memory");
}

static __device__ __forceinline__ bool barrier_passed(u64 *barrier, u32 parity) {
  u32 passed;
  asm volatile(
#if __CUDA_ARCH__ >= 900
      "{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
#else
      "{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
#endif
      : "=r"(passed)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
  return passed;
}

static __device__ __forceinline__ void barrier_wait(u64 *barrier, u32 parity) {
  while (!barrier_passed(barrier, parity)) {}
}

#if __CUDA_ARCH__ >= 900
#define FULL_ARRIVALS 1
#else
#define FULL_ARRIVALS 32
#endif

// Copies |bytes| (a multiple of 16) as lane |nth| of |lanes|. The copy signals the barrier |full|.
static __device__ __forceinline__ void copy_bytes(u8 *to, const u8 *from, int bytes, int nth, int lanes,
                                                  u64 *full) {
#if __CUDA_ARCH__ >= 900
  (void)lanes;
  if (nth) return;
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(full))
      : "memory");
#else
  (void)full;
#pragma unroll 1
  for (int i = nth * 16; i < bytes; i += lanes * 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to + i)), "l"(from + i)
                 : "memory");
  }
#endif
}
