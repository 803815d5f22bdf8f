// Linear layers (packed.cu): loads and operands of tensor-core instructions.

#if __CUDA_ARCH__ >= 900

__device__ __forceinline__ void wait_barrier(u32 barrier, u32 parity) {
  u32 done;
  do {
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
  } while (!done);
}

__device__ __forceinline__ void copy_bulk(u32 to, const u8 *from, u32 bytes, u32 barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

#endif

__device__ __forceinline__ void load_matrices(u32 (&v)[4], u32 from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
               : "r"(from)
               : "memory");
}

// The B operand of two fragments of 8 tokens: 16 columns, starting at 16-byte piece `at`.
__device__ __forceinline__ void load_tokens(u32 (&b)[4], u32 plane, int token, int at) {
  const int lane = threadIdx.x % 32, row = token + lane % 8 + lane / 16 * 8;
  load_matrices(b, plane + row * 128 + ((at + lane / 8 % 2) ^ row % 8) * 16);
}

#ifdef ROWS16

// A bf16 weight is used as it is. An f16 weight is the sum of two bf16 parts; the product of the two smallest
// parts is below 2^-24 and left out.
#ifdef DTYPE_F16
constexpr int WEIGHT_PARTS = 2;
#else
constexpr int WEIGHT_PARTS = 1;
#endif

// The parts of a pair of weights.
__device__ __forceinline__ void weight_parts(u32 (&part)[WEIGHT_PARTS], u32 pair) {
#ifdef DTYPE_F16
  float low, high;
  asm("{ .reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h; }"
      : "=f"(low), "=f"(high)
      : "r"(pair));
  part[0] = bf16_pair(low, high);
  part[1] = bf16_pair(low - __uint_as_float(part[0] << 16), high - __uint_as_float(part[0] & 0xffff0000u));
#else
  part[0] = pair;
#endif
}

__device__ __forceinline__ void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#endif
