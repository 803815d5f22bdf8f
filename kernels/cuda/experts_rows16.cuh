// Mixture of experts, few tokens (experts_gemv.cuh): weights that are rows of bf16 or f16.
//
// As in packed_linear_rows16.cuh a lane loads 8 neighbouring columns of a row, and x has the same order. A
// bf16 weight is used as it is; an f16 weight is the sum of two bf16 parts.

constexpr u64 MATRIX_BYTES = (u64)N * K * 2;
constexpr int FIT = 192;  // units
constexpr int PANEL = GEMV_UNITS < FIT ? GEMV_UNITS : FIT;

struct Panel {
  uint2 part[PANEL][4][1][3][4];  // per 16 columns of x, in the order of tensor-core fragments
};

// A lane's part of one unit of 64 columns.
struct Run {
  u32 words[GEMV_GROUPS][2][2][4];  // rows lane/4 and lane/4 + 8, two pieces of 32 columns
};

// |both|: the second piece is inside the row.
__device__ __forceinline__ void load_rows(Run &to, int nth, const u8 *from, bool both) {
#pragma unroll
  for (int piece = 0; piece < 2; piece++) {
    u32(&v)[4] = to.words[nth / 2][nth % 2][piece];
    v[0] = v[1] = v[2] = v[3] = 0;
    if (piece == 0 || both)
      asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                   : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                   : "l"(from + piece * 64));
  }
}

__device__ __forceinline__ void mma(float (&d)[4], const u32 (&a)[4], uint2 b) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y));
}

// Column n of the product is with part n of x. The sum of a piece is added in f32, because tensor cores do
// not round sums to nearest.
__device__ __forceinline__ void multiply_run(float (&acc)[GEMV_GROUPS][4], const Run &run, const Panel &panel,
                                             int nth) {
  const int lane = threadIdx.x % 32, column = lane / 4, quad = lane % 4;
#pragma unroll
  for (int piece = 0; piece < 2; piece++) {
    uint2 b[2];
#pragma unroll
    for (int half = 0; half < 2; half++)
      b[half] =
          column < 3 ? panel.part[nth][piece * 2 + half][0][column < 3 ? column : 0][quad] : make_uint2(0, 0);
#pragma unroll
    for (int g = 0; g < GEMV_GROUPS; g++) {
      float d[4] = {};
#pragma unroll
      for (int half = 0; half < 2; half++) {
        u32 a[4];
#pragma unroll
        for (int i = 0; i < 4; i++) a[i] = run.words[g][i % 2][piece][half * 2 + i / 2];
#ifdef DTYPE_F16
        u32 rest[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
          float low, high;
          asm("{ .reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h; }"
              : "=f"(low), "=f"(high)
              : "r"(a[i]));
          a[i] = bf16_pair(low, high);
          rest[i] = bf16_pair(low - __uint_as_float(a[i] << 16), high - __uint_as_float(a[i] & 0xffff0000u));
        }
        mma(d, rest, b[half]);
#endif
        mma(d, a, b[half]);
      }
#pragma unroll
      for (int e = 0; e < 4; e++) acc[g][e] += d[e];
    }
  }
}
