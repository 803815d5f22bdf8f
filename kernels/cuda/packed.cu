// Linear layers with f32 accuracy: y[M,N] = x[M,K] . w[N,K]^T. w is codes of 2 to 8 bits with a scale, and
// perhaps an offset, for every 32 or 16 columns (docs/internals/quantized-tiles.md has the layout), or rows
// of 16-bit numbers. The results are those of converting w to f32 and multiplying in f32, up to rounding: x
// is split into three bf16 parts whose sum is exact, or for codes into two f16 parts of 11 bits each; codes
// are exact in both types, and tensor cores sum the products of a block of columns in f32. Only that sum is
// multiplied by the scale of the block.
//
// Seven kernels, one per NVRTC compilation. A macro says which one:
//   SPLIT_INPUT, split x into parts, once for all matrices that multiply it;
//   PRODUCT, the tensor-core kernel, for the many rows of a prefill;
//   FEW, a tensor-core kernel for 9 to 16 rows, which is bound by reading the weights once;
//   GEMV, the streaming kernel, for 1 to 8 rows;
//   EXPERTS_GEMV (packed_experts.cuh), the same for the matrices of experts;
//   TOKEN (packed_token.cuh), products of one token, with a norm before and a bias or residual after them;
//   EMBED, dequantize rows of an embedding table.
// All sums run in a fixed order without atomics: the same input gives the same bits on every run. The bits of
// a row depend on the number of rows only through SPLIT, the number of parts in which K is summed.
//
// Other macros: NAME (symbol), SPLIT (blocks of a cluster), and those that say which parameters a kernel has:
// EPILOGUE, MATRICES (1 to 3), and 0 or 1 for GAIN, BIAS, RESIDUAL, BATCH, LAYERNORM, PARTIALS and MIXTURE.
// packed_config.cuh has the other constants, here in capital letters. M, N and K (K % 32 == 0) are parameters
// of SPLIT_INPUT, PRODUCT, FEW and EMBED (packed_sizes.cuh), and constants of the other kernels.
//
// SPLIT_INPUT (x[M,K] f32, parts, M, K)
//   parts, at most (2 * RUNS + ceil(RUNS/16)) * MP * 384 bytes; RUNS is ceil(K/128), MP is M rounded up to 8:
//     [chunks of 64 columns][high, (middle,) low][MP][64]. The 16-byte pieces of a row are permuted by the
//     last three bits of its index. The first 2 * RUNS chunks hold x, with zeros past column K.
//     For tiles of codes: two f16 parts of a row that is multiplied by a power of two, so that its largest
//     number is just below 2^15. The remaining chunks hold the sums of x over each block of 32 columns, also
//     as two parts, multiplied by that power and 2^-5. Such a chunk has 16 runs of 4 blocks; the sum of block
//     b of run r is at column r/2*8 + b*2 + r%2. After all chunks: f32 [MP], 1 / that power of each row.
//     For rows of 16 bits: three bf16 parts, no sums, and pair i of 8 neighbouring columns, number q of a
//     piece of 32 columns, is at column 8 * i + 2 * q of the piece.
//   Launch:    grid (MP, 1, 1), block (256, 1, 1), no dynamic shared memory
//   With GAIN: (x[M,K] f32, gain[K] f32, parts, M, K): the parts of x's RMS norm; K % 8 == 0; grid (MP, 1, 1)
//   With GAIN and LAYERNORM: (x, gain[K] f32, bias[K] f32, parts, M, K, HAS): the parts of x's layer norm.
//   HAS: MLX_HAS_... of what there is; else it is not read
//   With GAIN and PARTIALS: (gain, partials[COUNT,M,K] f32, x in/out, parts, M, K, COUNT): first adds the
//   partial sums of EPILOGUE 4 to x
//
// PRODUCT
//   EPILOGUE 0  (parts, w, batch, y[M,N] f32)              y = x.w^T
//   EPILOGUE 1  (parts, w, residual[M,N] f32, y[M,N] f32)  y = residual + x.w^T; y may be the residual: one
//                                                          thread reads and writes each element
//   EPILOGUE 2  (parts, w, w2, y[M,N] f32)                 y = act(x.w^T) * (x.w2^T)
//   EPILOGUE 3  (parts, w, w2, [w3,] y, y2 [, y3])         y = x.w^T, y2 = x.w2^T, y3 = x.w3^T. N, N2
//                                                          and N3 are their rows; N3 is 0 if there is no w3.
//                                                          N and N2 are multiples of BN. grid.y counts all
//                                                          tiles
//   EPILOGUE 4  (parts, w, y[grid.z,M,N] f32)              y = partial sums of x.w^T: grid.z divides K,
//                                                          SPLIT is 1. SPLIT_INPUT with PARTIALS adds them
//   M, N and K are the last parameters, and of EPILOGUE 1 and 2 also ADDS: EPILOGUE 1 leaves the residual out
//   if it is 0. Of EPILOGUE 0 it is COUNT_AT: the word of |batch| with the number of rows of x that are used.
//   Tiles after them are not computed: an LM head reads and writes only wanted tokens. Of EPILOGUE 3 they are
//   M, N, K, N2 and N3, and MATRICES is 2 or 3.
//
//   The compiler chooses the tile: BM x BN (a block's part of y; BM 16, 32, 64, 128), SPLIT, STAGES, WARPS
//   Launch:    grid  (ceil(M/BM), ceil(N/BN), SPLIT), block (32*WARPS, 1, 1)
//              dynamic shared memory  STAGES * (BM * 384 + 16) bytes; for tiles of codes
//                STAGES * (BM * 256 + 16) + BM * 4
//   SPLIT > 1 (sm_90 and later, not sm_12x) divides K among the SPLIT blocks of a cluster, which add their
//   sums in order through each other's shared memory. The cluster size is part of the kernel and needs no
//   launch attribute. Compiled for sm_90a with WARPS a multiple of 4 the kernel uses wgmma, else mma.sync.
//
// FEW (sm_90 and later, not sm_12x; only rows of 16 bits; 8 < M <= 16; N % 16 == 0)
//   EPILOGUE 1 and 2 as above, with x[M,K] f32 in place of parts: the kernel splits x itself. With GAIN
//   (x, gain[K] f32, w, ...): the product is with the RMS norm of x. GROUPS (of 16 rows) of a tile, SPLIT
//   blocks of a cluster, TALL tiles of a cluster, ALONG warps of a tile, DEPTH pieces of 32 columns in flight
//   Launch:    grid  (1, clusters, SPLIT), block (32*TALL*ALONG, 1, 1), dynamic shared memory
//                TALL*ALONG*DEPTH*GROUPS*1024 + ceil(ceil(K/128)/SPLIT) * 2 * (16*384 + 64) + 64 bytes
//
// GEMV
//   (x[M,K] f32, w, y[M,N] f32)   y = x.w^T, M <= 8; WARPS (1, 2, 4, 8) of a block's 8 warps share
//                                 GROUPS groups of 16 rows
//   Launch:    grid (up to ceil(N / (16*GROUPS*8/WARPS)), 1, 1), block (256, 1, 1)
//              dynamic shared memory
//                min(ceil(K/128), 65536 / (784*M) / 8 * 8) * 784*M + 8192*GROUPS bytes
//
// EMBED
//   (tokens[M] i32, table[N,K], y[M,K] f32)   y = rows of the table, bit-identical to the reader on the CPU,
//                                             times a factor. M, N, K and the bits of the factor, f32, are
//                                             the last parameters
//   Launch:    grid (ceil(M * ceil(K/128) * 16 / 256), 1, 1), block (256, 1, 1), no dynamic shared memory
//
// Experts (experts.cu has the other kernels of a mixture of experts)
//   With MIXTURE, w is the matrices of all experts one after the other. |groups| is the result of experts.cu
//   with GROUP.
//   SPLIT_INPUT (x, groups, parts): parts has ROWS rows, row r for the pair groups[LIST_AT + r]. M is the
//              number of tokens, and with SORTED the number of rows: x then has the rows of parts. M, K,
//              ROWS, LIST_AT and USED, the number of experts of a token, are the last parameters. Launch:
//              grid (ROWS, 1, 1), block (256, 1, 1)
//   PRODUCT: M is ROWS, SPLIT is 1. Row r of y is for the pair in row r of parts.
//              EPILOGUE 2  (parts, w, w2, [bias, bias2,] groups, y)  y = act(x.w^T + bias) * (x.w2^T + bias2)
//              EPILOGUE 0  (parts, w, [bias,] groups, y)             y = x.w^T + bias
//              M, N and K are the last parameters; grid.x is the most tiles of a batch

#if defined(SPLIT_INPUT)
#include "packed_split.cuh"
#elif defined(FEW)
#include "packed_linear_few.cuh"
#elif defined(EMBED)
#include "packed_embed.cuh"
#elif defined(EXPERTS_GEMV)
#include "packed_experts.cuh"
#elif defined(TOKEN)
#include "packed_token.cuh"
#elif defined(GEMV)
#include "packed_gemv.cuh"
#else
#include "packed_linear.cuh"
#endif
