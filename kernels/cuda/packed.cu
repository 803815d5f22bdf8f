// Linear layers with f32 accuracy: y[M,N] = x[M,K] . w[N,K]^T. w is codes of 2 to 8 bits with a scale, and
// perhaps an offset, for every 32 or 16 columns (docs/internals/cuda-kernels.md has the layout), or rows of
// 16-bit numbers. The results are those of converting w to f32 and multiplying in f32, up to rounding: x is
// split into three bf16 parts whose sum is exact, codes are exact in bf16, and tensor cores sum the products
// of a block of columns in f32. Only that sum is multiplied by the scale of the block.
//
// Five kernels, one per NVRTC compilation:
//   with -DCUT, split x into bf16 parts, once for all matrices that multiply it;
//   without a macro, the tensor-core kernel, for the many rows of a prefill;
//   with -DFEW, a tensor-core kernel for 9 to 16 rows, which is bound by reading the weights once;
//   with -DGEMV, the streaming kernel, for 1 to 8 rows;
//   with -DEMBED, dequantize rows of an embedding table.
// All sums run in a fixed order without atomics: the same input gives the same bits on every run. The bits of
// a row depend on the number of rows only through SPLIT, the number of parts in which K is summed.
//
// Always:    NAME (symbol), M, K (numbers; K % 32 == 0). Instead of them, and of N, the first two kernels may
//            have SIZES: then the sizes are parameters (packed_sizes.cuh).
// Weights:   N, and the arguments of TileFormat (tile_format.cuh): BITS, NUMBERS, OFFSET, HALVES, CENTER; or
//            for the first two kernels ROWS16 with DTYPE_BF16 or DTYPE_F16: w[N,K] is rows of 16-bit numbers.
//
// CUT        (x[M,K] f32, parts)
//   parts, (2 * RUNS + ceil(RUNS/16)) * MP * 384 bytes; RUNS is ceil(K/128), MP is M rounded up to 8:
//     bf16 [chunks of 64 columns][3: high, middle, low][MP][64]. The 16-byte pieces of a row are permuted by
//     the last three bits of its index. The first 2 * RUNS chunks hold x, with zeros past column K. The
//     remaining chunks hold the sums of x over each block of 32 columns, also as three parts. Such a chunk
//     has 16 runs of 4 blocks; the sum of block b of run r is at column r/2*8 + b*2 + r%2.
//     With ROWS16 there are no sums, and pair i of 8 neighbouring columns, number q of a piece of 32 columns,
//     is at column 8 * i + 2 * q of the piece.
//   Launch:    grid (ceil(MP * ceil(RUNS/4) * 64 / 256), 1, 1), block (256, 1, 1), no dynamic shared memory
//   With NORM_EPS: (x[M,K] f32, gain[K] f32, parts): the parts of x's RMS norm; K % 8 == 0; grid (MP, 1, 1)
//   With NORM_EPS and LAYERNORM: (x, gain[K] f32, bias[K] f32, parts): the parts of x's layer norm. HAS, with
//   SIZES the last parameter: 1 if there is a gain, plus 2 if there is a bias; else they are not read
//   With PARTIALS: (gain, partials[PARTIALS,M,K] f32, x in/out, parts): first adds the partial sums of
//   EPILOGUE 4 to x. Needs SIZES; the number of partial sums is the last parameter With SIZES, M and K are
//   the last parameters; grid without NORM_EPS (ceil(ceil(RUNS/4) * 64 / 256), MP, 1)
//
// Tensor-core kernel
//   EPILOGUE 0  (parts, w, [batch,] y[M,N] f32)            y = x.w^T; batch: only with SIZES
//   EPILOGUE 1  (parts, w, residual[M,N] f32, y[M,N] f32)  y = residual + x.w^T; y may be the residual: one
//                                                          thread reads and writes each element
//   EPILOGUE 2  (parts, w, w2, y[M,N] f32)                 y = act(x.w^T) * (x.w2^T)
//   EPILOGUE 3  (parts, w, w2, [w3,] y, y2 [, y3])         y = x.w^T, y2 = x.w2^T, y3 = x.w3^T. N, N2
//                                                          and N3 are their rows; N3 is 0 if there is no w3.
//                                                          N and N2 are multiples of BN. grid.y counts all
//                                                          tiles
//     EPILOGUE 4  (parts, w, y[grid.z,M,N] f32)              y = partial sums of x.w^T: grid.z divides K,
//     SPLIT
//                                                          is 1. CUT with PARTIALS adds them
//   With SIZES, M, N and K are the last parameters, and of EPILOGUE 1 and 2 also ADDS: EPILOGUE 1 leaves the
//   residual out if it is 0. Of EPILOGUE 0 it is COUNT_AT: the word of |batch| with the number of rows of x
//   that are used. Tiles after them are not computed: an LM head reads and writes only wanted tokens.
//   Of EPILOGUE 3 they are M, N, K, N2 and N3, and MATRICES is 2 or 3. WHOLE_RUNS is 1 if K % 128 is 0 for
//   all products of the image.
//
//   Tile macros, set by the compiler: BM x BN (a block's part of y; BM 16, 32, 64, 128), SPLIT, STAGES, WARPS
//   Launch:    grid  (ceil(M/BM), ceil(N/BN), SPLIT), block (32*WARPS, 1, 1)
//              dynamic shared memory  STAGES * (BM * 384 + 16) bytes
//   SPLIT > 1 (sm_90 and later, not sm_12x) divides K among the SPLIT blocks of a cluster, which add their
//   sums in order through each other's shared memory. The cluster size is part of the kernel and needs no
//   launch attribute. Compiled for sm_90a with WARPS a multiple of 4 the kernel uses wgmma, else mma.sync.
//
// FEW (sm_90 and later, not sm_12x; only ROWS16; 8 < M <= 16; N % 16 == 0)
//   EPILOGUE 1, 2 and 3 as above, with x[M,K] f32 in place of parts: the kernel splits x itself. With
//   NORM_EPS (x, gain[K] f32, w, ...): the product is with the RMS norm of x. Macros: GROUPS (of 16 rows) of
//   a tile, SPLIT blocks of a cluster, TALL tiles of a cluster, ALONG warps of a tile, DEPTH pieces of 32
//   columns in flight. With EPILOGUE 3, N and N2 are multiples of 16 * GROUPS. Launch:    grid  (1, clusters,
//   SPLIT), block (32*TALL*ALONG, 1, 1), dynamic shared memory
//                TALL*ALONG*DEPTH*GROUPS*1024 + ceil(ceil(K/128)/SPLIT) * 2 * (16*384 + 64) + 64 bytes
//
// GEMV
//   (x[M,K] f32, w, y[M,N] f32)   y = x.w^T, M <= 8; GEMV_WARPS (1, 2, 4, 8) of a block's 8 warps share
//                                 GEMV_GROUPS groups of 16 rows
//   Launch:    grid (up to ceil(N / (16*GEMV_GROUPS*8/GEMV_WARPS)), 1, 1), block (256, 1, 1)
//              dynamic shared memory
//                min(ceil(K/128), 65536 / (784*M) / 8 * 8) * 784*M + 8192*GEMV_GROUPS bytes
//
// EMBED
//   (tokens[M] i32, table[N,K], y[M,K] f32)   y = rows of the table, bit-identical to the reader on the CPU,
//                                             times a factor. Needs SIZES: M, N, K and the bits of the
//                                             factor, f32, are the last parameters
//   Launch:    grid (ceil(M * ceil(K/128) * 16 / 256), 1, 1), block (256, 1, 1), no dynamic shared memory

// Experts (experts.cu has the other kernels of a mixture of experts)
//   With EXPERTS, w is the matrices of all experts one after the other. |groups| is the result of experts.cu
//   with -DGROUP. CUT and the tensor-core kernel need SIZES.
//   CUT        (x, groups, parts): parts has ROWS rows, row r for the pair groups[LIST_AT + r]. M is the
//              number of tokens, and with SORTED the number of rows: x then has the rows of parts. M, K,
//              ROWS, LIST_AT and USED, the number of experts of a token, are the last parameters. Launch:
//              grid (ceil(ceil(K/512) * 64 / 256), ROWS, 1), block (256, 1, 1)
//   Tensor-core kernel: M is ROWS, SPLIT is 1. Row r of y is for the pair in row r of parts.
//              EPILOGUE 2  (parts, w, w2, [bias, bias2,] groups, y)  y = act(x.w^T + bias) * (x.w2^T + bias2)
//              EPILOGUE 0  (parts, w, [bias,] groups, y)             y = x.w^T + bias
//              M, N and K are the last parameters. BIAS (0, 1), ACT, LIMIT and SLOPE as in activation.cuh;
//              grid.x is the most tiles of a batch
//   GEMV       experts_gemv.cuh. EXPERTS is their number, USED the number of experts of a token
//
// TOKEN        packed_token.cuh: products of one token, with a norm before and a bias or residual after them

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#include "overlap.cuh"
#include "packed_sizes.cuh"
#include "parts.cuh"

#define RUNS ((K + 127) / 128)  // tiles along K
#define CHUNKS (RUNS * 2)       // chunks of 64 columns, 128 bytes of bf16
#ifdef ROWS
#define MP ROWS
#else
#define MP ((M + 7) / 8 * 8)
#endif
#ifndef SIZES
static_assert(K % 32 == 0, "blocks of 32 columns");
#endif

#if defined(GEMV) || defined(TOKEN)
// The sum of the products of one x's three parts for rows lane/4 and lane/4 + 8, smallest first, for
// accuracy. In a group of four lanes, the first has columns 0 and 1 of the fragment, the second column 2.
__device__ __forceinline__ float2 sum_parts(float4 v) {
  const int second = threadIdx.x % 32 / 4 * 4 + 1;
  const float upper = __shfl_sync(~0u, v.x, second), lower = __shfl_sync(~0u, v.z, second);
  return make_float2((upper + v.y) + v.x, (lower + v.w) + v.z);
}
#endif

#if defined(ROWS16) || defined(ROWS32)
#define SUMS 0
#endif

#if defined(CUT)
#include "packed_split.cuh"
#elif defined(FEW)
#include "packed_linear_few.cuh"
#elif defined(ROWS16) && !defined(GEMV) && !defined(TOKEN)
#include "packed_linear.cuh"
#else
#if defined(EPILOGUE) && EPILOGUE == 2
#define FEW_REGISTERS  // two matrices at once
#endif
#if !defined(ROWS16) && !defined(ROWS32)
#include "packed_tiles.cuh"
#endif
#if defined(EMBED)
#include "packed_embed.cuh"
#elif defined(EXPERTS) && defined(GEMV)
#include "experts_gemv.cuh"
#elif defined(TOKEN)
#include "packed_token.cuh"
#elif defined(GEMV)
#include "packed_gemv.cuh"
#else
#include "packed_linear.cuh"
#endif
#endif
