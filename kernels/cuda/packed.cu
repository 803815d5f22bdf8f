// Linear layers over packed weights: y[M,N] = x[M,K] . w[N,K]^T where w is codes of 4 or 8 bits with a scale,
// and perhaps an offset, for every 32 columns (docs/packed-weights.md has the layout). The results are those
// of widening w to f32 and multiplying in f32, to rounding: x is cut into three bf16 parts whose sum has all
// its bits, codes are exact in bf16, tensor cores sum the products of a block of columns in f32, and only
// that sum meets the block's scale.
//
// Four kernels, one per compilation (NVRTC, everything a macro):
//   with -DCUT the one that cuts x into parts, once for all matrices it meets,
//   without the tensor-core kernel, for the many rows of a prefill,
//   with -DGEMV the streaming kernel, for 1 to 8 rows, and
//   with -DEMBED the one that widens rows of a table.
// All sums run in a fixed order, nothing is atomic: the same input gives the same bits on every run. A row's
// bits depend on the other rows only through SPLIT, the number of parts that K is summed in.
//
// Always:    NAME (symbol), M, K (numbers; K % 32 == 0).
// Weights:   N, BITS (4, 8), SCALE_F32, OFFSET, HALVES (0, 1), CENTER (0, 8).
//
// Cut        (x[M,K] f32, parts)
//   parts, (2 * RUNS + ceil(RUNS/16)) * MP * 384 bytes with RUNS = ceil(K/128) and MP = M rounded up to 8:
//     bf16 [chunks of 64 columns][3: high, middle, low][MP][64], the 16-byte pieces of a row permuted by its
//     number's last three bits first the chunks of x, columns past the end zero; then the sums of its blocks
//     of 32 columns, cut likewise: a chunk has those of 16 runs of 4 blocks, and of four runs' 16 sums block
//     b of run r is column r/2*8 + b*2 + r%2
//   Launch:    grid (ceil(MP * ceil(RUNS/4) * 64 / 256), 1, 1), block (256, 1, 1), no dynamic shared memory
//
// Tensor-core kernel
//   EPILOGUE 0  (parts, w, y[M,N] f32)                     y = x.w^T
//   EPILOGUE 1  (parts, w, residual[M,N] f32, y[M,N] f32)  y = residual + x.w^T; y may be the residual
//   itself: each element is
//                                                          read and written by one thread
//   EPILOGUE 2  (parts, w, w2, y[M,N] f32)                 y = silu(x.w^T) * (x.w2^T)
//   Tile macros: BM x BN (a block's part of y; BM 16, 32, 64, 128), SPLIT, STAGES, WARPS;
//   compiler/packed_ops.c chooses them. Launch:    grid  (ceil(M/BM), ceil(N/BN), SPLIT), block (32*WARPS, 1,
//   1)
//              dynamic shared memory  STAGES * (BM * 384 + 16) bytes
//   SPLIT > 1 (sm_90 and later, not sm_12x) cuts K between the SPLIT blocks of a cluster, which add their
//   sums in order through each other's shared memory. The cluster size is part of the kernel: the launch
//   stays a plain one. Compiled for sm_90a with WARPS a multiple of 4 it multiplies with wgmma, elsewhere
//   with mma.sync.
//
// GEMV
//   (x[M,K] f32, w, y[M,N] f32)   y = x.w^T, M <= 8; GEMV_WARPS (1, 2, 4, 8) of a block's 8 warps share
//   GEMV_GROUPS groups of 16 rows Launch:    grid (any number up to ceil(N / (16*GEMV_GROUPS*8/GEMV_WARPS)),
//   1, 1), block (256, 1, 1)
//              dynamic shared memory  min(ceil(K/128), 65536 / (784*M) / 8 * 8) * 784*M + 8192*GEMV_GROUPS
//              bytes
//
// Embed
//   (tokens[M] i32, table[N,K], y[M,K] f32)   y = rows of the table, bit for bit what the CPU's reader gives
//   Launch:    grid (ceil(M * ceil(K/128) * 16 / 256), 1, 1), block (256, 1, 1), no dynamic shared memory

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

constexpr int RUNS = (K + 127) / 128;  // tiles along K
#define CHUNKS (RUNS * 2)              // chunks of 64 columns, 128 bytes of bf16
#define MP ((M + 7) / 8 * 8)
static_assert(K % 32 == 0, "blocks of 32 columns");

__device__ __forceinline__ u32 narrow(float low,
                                      float high) {  // two floats to a pair of bf16, to nearest even
  u32 pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// A pair of floats as three pairs of bf16: what is left after each rounding is exact, and after the third
// nothing is left.
__device__ __forceinline__ void cut(u32 (&part)[3], float low, float high) {
#pragma unroll
  for (int i = 0; i < 3; i++) {
    part[i] = narrow(low, high);
    low -= __uint_as_float(part[i] << 16);
    high -= __uint_as_float(part[i] & 0xffff0000u);
  }
}

#if defined(CUT)
#include "packed_cut.cuh"
#else
#include "packed_tiles.cuh"
#if defined(EMBED)
#include "packed_embed.cuh"
#elif defined(GEMV)
#include "packed_gemv.cuh"
#else
#include "packed_linear.cuh"
#endif
#endif
