// Linear layers with f32 accuracy (packed.cu): many rows of x, on tensor cores.

#ifndef EPILOGUE
#define EPILOGUE 0
#endif
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) && WARPS % 4 == 0
#define WGMMA 1
#else
#define WGMMA 0
#endif

constexpr int WEIGHTS = EPILOGUE == 2 ? 2 : 1;
constexpr int THREADS = 32 * WARPS;
constexpr int PLANE = BM * 128, STAGE_BYTES = 3 * PLANE;

// A product has rows of weights as its rows and tokens as its columns. A warp computes FR groups of 16 rows
// for WT tokens. The groups are assigned round-robin to the DOWN warps that share these tokens. With EPILOGUE
// 2 a warp computes its groups of both matrices. The sums of a group are FT fragments of 16 x 8, in which a
// lane holds {row lane/4, row lane/4 + 8} x {token 2*(lane%4), the next}.
constexpr int ACROSS = WGMMA || WARPS < 4 || BM < 32 ? 1 : 2;
constexpr int DOWN = WARPS / ACROSS;
constexpr int FR = BN / (16 * DOWN);
constexpr int GROUPS = FR * WEIGHTS;
constexpr int WT = BM / ACROSS, FT = WT / 8;
static_assert(FR * 16 * DOWN == BN && WT % 16 == 0 && STAGES >= 3, "tile");

#if EPILOGUE == 4  // no cluster: the blocks of a tile store a sum each
#define RUNS_EACH ((RUNS + (int)gridDim.z - 1) / (int)gridDim.z)
static_assert(SPLIT == 1, "the grid divides K");
#else
#define RUNS_EACH ((RUNS + SPLIT - 1) / SPLIT)  // runs of one block of a cluster
#endif
constexpr int FRAGMENTS = FR * FT;
constexpr int FRAGMENTS_EACH = (FRAGMENTS + SPLIT - 1) / SPLIT;  // fragments that a thread completes
static_assert(SPLIT == 1 || BM * BN * WEIGHTS * 4 <= STAGES * STAGE_BYTES,
              "the partial sums must fit in the memory of the stages");

// The chunks that a block reads for `runs` runs, starting at `first`: with SUMS the chunks of the sums,
// then those of x.
struct Chunks {
  int first, runs;

  __device__ __forceinline__ int lead() const {
    return SUMS && runs > 0 ? (first + runs - 1) / 16 - first / 16 + 1 : 0;
  }
  __device__ __forceinline__ int count() const { return lead() + runs * 2; }
  __device__ __forceinline__ int at(int nth) const {
    return nth < lead() ? CHUNKS + first / 16 + nth : first * 2 + nth - lead();
  }
};

#if WGMMA

// ---- with wgmma: d[64 rows, BM tokens] (+)= a[64, 16] . b[BM, 16]^T, b in shared memory ----

// wgmma matrix descriptor of a tile: address, 1024 bytes from 8 rows to the next 8, 128-byte swizzle.
__device__ __forceinline__ u64 matrix_descriptor(u32 tile) {
  return (u64)(tile >> 4) | (u64)1 << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}

#define D8(i)                                                                                       \
  "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3]), "+f"(d[i + 1][0]), "+f"(d[i + 1][1]), \
      "+f"(d[i + 1][2]), "+f"(d[i + 1][3])
#define L8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define L16 L8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define L24 L16 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define L32 L16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define L64                                                              \
  L32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47" \
      ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define MULTIPLY(shape, list, a0, a1, a2, a3, b, more, ...)                                      \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, " more ", 0; wgmma.mma_async.sync.aligned." shape \
               ".f32.bf16.bf16 {" list                                                           \
               "}, "                                                                             \
               "{" a0 "," a1 "," a2 "," a3 "}, " b ", p, 1, 1, 0; }"                             \
               : __VA_ARGS__                                                                     \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(tile), "r"((int)add))

__device__ __forceinline__ void multiply(float (&d)[FT][4], const u32 (&a)[4], u64 tile, bool add) {
#if BM == 16
  MULTIPLY("m64n16k16", L8, "%8", "%9", "%10", "%11", "%12", "%13", D8(0));
#elif BM == 32
  MULTIPLY("m64n32k16", L16, "%16", "%17", "%18", "%19", "%20", "%21", D8(0), D8(2));
#elif BM == 64
  MULTIPLY("m64n64k16", L32, "%32", "%33", "%34", "%35", "%36", "%37", D8(0), D8(2), D8(4), D8(6));
#elif BM == 128
  MULTIPLY("m64n128k16", L64, "%64", "%65", "%66", "%67", "%68", "%69", D8(0), D8(2), D8(4), D8(6), D8(8),
           D8(10), D8(12), D8(14));
#else
#error "BM is 16, 32, 64 or 128"
#endif
}

// The three parts of 16 tokens at once: their planes follow each other in shared memory. An instruction with
// few columns takes as long as one with 48.
__device__ __forceinline__ void multiply(float (&d)[6][4], const u32 (&a)[4], u64 tile, bool add) {
  MULTIPLY("m64n48k16", L24, "%24", "%25", "%26", "%27", "%28", "%29", D8(0), D8(2), D8(4));
}

#endif

#include "packed_operands.cuh"

#ifdef ROWS16
#include "packed_linear_rows16.cuh"
#else
#include "packed_linear_tiles.cuh"
#endif

#if WGMMA

// Multiplies all chunks of a block, whose tokens are |rows| rows of |parts| from |top| on, a multiple of 8.
// Rows past the end keep their old contents, which are never used. One thread keeps STAGES - 1 stages filled
// or in flight, including the current one. The stage that it refills was released one chunk ago, so it rarely
// waits. The barrier `full` completes when the bytes of a stage have arrived, `empty` when every warp has
// read it.
__device__ __forceinline__ void multiply_all(float (&acc)[GROUPS][FT][4], Weights &v, const u8 *parts,
                                             u32 stages, int top, u32 rows, Chunks chunks) {
  const u32 full = stages + STAGES * STAGE_BYTES, empty = full + STAGES * 8;
  auto fill = [&](int chunk) {
    const int stage = chunk % STAGES;
    if (chunk >= STAGES) wait_barrier(empty + stage * 8, chunk / STAGES % 2 ^ 1);
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(full + stage * 8),
                 "r"(rows * 384)
                 : "memory");
    for (int p = 0; p < 3; p++)
      copy_bulk(stages + stage * STAGE_BYTES + p * PLANE,
                parts + (((u64)chunks.at(chunk) * 3 + p) * MP + top) * 128, rows * 128, full + stage * 8);
  };
  auto enter = [&](int chunk) {  // releases the previous chunk and waits for this one
    if (chunk > 0) {
      if (threadIdx.x % 32 == 0)
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(empty + (chunk - 1) % STAGES * 8)
                     : "memory");
      if (threadIdx.x == 0 && chunk + STAGES - 2 < chunks.count()) fill(chunk + STAGES - 2);
      __syncwarp();
    }
    wait_barrier(full + chunk % STAGES * 8, chunk / STAGES % 2);
    return stages + chunk % STAGES * STAGE_BYTES;
  };

  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(full + i * 8) : "memory");
      asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(empty + i * 8), "r"(WARPS) : "memory");
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    for (int chunk = 0; chunk < STAGES - 1 && chunk < chunks.count(); chunk++) fill(chunk);
  }
  __syncthreads();
  multiply_chunks(acc, v, chunks, enter);
}

#else

__device__ __forceinline__ void multiply_all(float (&acc)[GROUPS][FT][4], Weights &v, const u8 *parts,
                                             u32 stages, int top, int rows, Chunks chunks) {
  const int column = threadIdx.x / 32 / DOWN * WT;
  auto fill = [&](int chunk) {  // one group of copies per chunk, empty past the end
    const u32 stage = stages + chunk % STAGES * STAGE_BYTES;
    const u8 *from = parts + ((u64)chunks.at(chunk) * 3 * MP + top) * 128;
    for (int i = threadIdx.x; chunk < chunks.count() && i < rows * 8; i += THREADS)
#pragma unroll
      for (int p = 0; p < 3; p++)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(stage + p * PLANE + i * 16),
                     "l"(from + ((u64)p * MP * 8 + i) * 16)
                     : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  auto enter = [&](int chunk) {
    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
    __syncthreads();  // this stage is filled, and all warps have read the one that is refilled next
    fill(chunk + STAGES - 1);
    return stages + chunk % STAGES * STAGE_BYTES;
  };
  for (int chunk = 0; chunk < STAGES - 1; chunk++) fill(chunk);
  multiply_chunks(acc, v, column, chunks, enter);
}

#endif

// ---- epilogue: sums of the cluster, residual, activation, store ----

#include "cluster.cuh"

#ifdef EXPERTS
#include "experts_tile.cuh"
#elif EPILOGUE == 2
#include "activation.cuh"
#endif

#ifdef Y_PARTS
// Stores the parts of a fragment of y, which is x of the next product: tokens from |token| on, below |end|,
// and columns from |column| on. Lanes of neighbouring columns exchange a token, so that a lane has two
// columns of one token.
__device__ __forceinline__ void store_fragment(u8 *parts, const float (&v)[4], int token, int end,
                                               int column) {
  const int lane = threadIdx.x % 32;
  const bool odd = lane / 4 % 2;
  float low[2], high[2];
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const float other = __shfl_xor_sync(~0u, odd ? v[i * 2] : v[i * 2 + 1], 4);
    low[i] = odd ? other : v[i * 2], high[i] = odd ? v[i * 2 + 1] : other;
  }
  token += lane % 4 * 2 + odd;
  column += lane / 8 * 2;
  u32 part[2][3];
  split_bf16(part[0], low[0], high[0]);
  split_bf16(part[1], low[1], high[1]);
  if (token >= end || column >= N) return;
#pragma unroll
  for (int i = 0; i < 3; i++)
    *(uint2 *)part_word(parts, MP, i, token, column) = make_uint2(part[0][i], part[1][i]);
}
#endif

extern "C" __global__ void CLUSTER __launch_bounds__(THREADS, 1)
    NAME(const u8 *__restrict__ parts, const u8 *__restrict__ w,
#if EPILOGUE == 2
         const u8 *__restrict__ w2,
#elif EPILOGUE == 3
         const u8 *__restrict__ w2,
#if MATRICES == 3
         const u8 *__restrict__ w3,
#endif
#elif EPILOGUE == 1
         const float *residual,  // no __restrict__: it may be y
#elif defined(COUNT_AT)
         const int *__restrict__ batch,
#endif
#ifdef EXPERTS
         EXPERT_PARAMETERS
#endif
#ifdef Y_PARTS
         u8 *y  // parts of x of the next product
#else
         float *y
#endif
#if EPILOGUE == 3
         ,
         float *y2
#if MATRICES == 3
         ,
         float *y3
#endif
#endif
             SIZE_PARAMETERS) {
  start_next_kernel();
  extern __shared__ __align__(1024) unsigned char memory[];
  const u32 stages = (u32)__cvta_generic_to_shared(memory);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int left = blockIdx.y * BN;
#if EPILOGUE == 3
  int rows = N;  // of the matrix of this block
  if (left >= N + N2) {
#if MATRICES == 3
    w = w3, y = y3, left -= N + N2, rows = N3;
#endif
  } else if (left >= N) {
    w = w2, y = y2, left -= N, rows = N2;
  }
#else
  const int rows = N;
#endif
#ifdef EXPERTS
  wait_for_previous_kernel();  // which chose the experts
  groups = after_wait(groups);
  if (blockIdx.x >= groups[0]) return;
  const int4 tile = tile_of(groups);
  const int top = tile.y, end = tile.z;
  w += tile.x * MATRIX_BYTES;
#if EPILOGUE == 2
  w2 += tile.x * MATRIX_BYTES;
#endif
#else
  const int top = blockIdx.x * BM, end = M;  // neighbouring blocks share w, so it is read once
#ifdef COUNT_AT
  if (top >= batch[COUNT_AT]) return;  // the host wrote the batch before the step
#endif
#endif
  const int begin = blockIdx.z * RUNS_EACH;
  // The last blocks of a cluster may have fewer runs, or none.
  const int runs = RUNS - begin < RUNS_EACH ? RUNS - begin : RUNS_EACH;

  float acc[GROUPS][FT][4] = {};
  Weights weights;
#pragma unroll
  for (int g = 0; g < GROUPS; g++) {
    const int row = left + (g / WEIGHTS * DOWN + warp % DOWN) * 16;
#if EPILOGUE == 2
    begin_weights(weights, g, g % 2 ? w2 : w, row, begin < RUNS ? begin : 0);
#elif EPILOGUE == 3
    begin_weights(weights, g, w, row, begin < RUNS ? begin : 0, rows);
#else
    begin_weights(weights, g, w, row, begin < RUNS ? begin : 0);
#endif
    preload(weights, g);
  }
#ifndef EXPERTS
  wait_for_previous_kernel();
#endif
  parts = after_wait(parts);
#if EPILOGUE == 1
  residual = after_wait(residual);
#endif
  const int tokens = ((end + 7) / 8 * 8) - top;
  multiply_all(acc, weights, parts, stages, top, tokens < BM ? tokens : BM,
               Chunks{begin, runs > 0 ? runs : 0});

  // Each block of a cluster completes MINE fragments, starting at `from`.
  const int from = SPLIT == 1 ? 0 : blockIdx.z * FRAGMENTS_EACH;
#if SPLIT > 1
  __syncthreads();  // all products are complete: the memory of the stages is free
  float4 *shared = (float4 *)memory;
#pragma unroll
  for (int i = 0; i < GROUPS * FT; i++) {
    const float(&s)[4] = acc[i / FT][i % FT];
    shared[i * THREADS + threadIdx.x] = make_float4(s[0], s[1], s[2], s[3]);
  }
#endif
#ifdef EXPERTS
  const int4 mine = tile_of(groups);  // read again, to free registers
  const int first = mine.y, last = mine.z;
#else
  const int first = top, last = end;
#endif
  constexpr u32 OUTSIDE = ~0u;
  auto row_of = [&](int f, int e) {  // of the matrix: element e of fragment f
    return left + (f / FT * DOWN + warp % DOWN) * 16 + lane / 4 + e / 2 * 8;
  };
  auto index_of = [&](int f, int e) {  // the same in y
    const int token = first + warp / DOWN * WT + f % FT * 8 + lane % 4 * 2 + e % 2, row = row_of(f, e);
    return token < last && row < rows && f < FRAGMENTS ? (u32)token * rows + row : OUTSIDE;
  };
#if EPILOGUE == 4
  y += (u64)blockIdx.z * M * N;
#endif
#if EPILOGUE == 1
  float add[FRAGMENTS_EACH][4];  // all reads are issued before the first write, so that they overlap
#pragma unroll
  for (int i = 0; i < FRAGMENTS_EACH * 4; i++) {
    const u32 at = index_of(from + i / 4, i % 4);
    add[i / 4][i % 4] = ADDS && at != OUTSIDE ? residual[at] : 0;
  }
#endif
#if SPLIT > 1
  wait_cluster();
#endif
#pragma unroll
  for (int i = 0; i < FRAGMENTS_EACH; i++) {
    const int f = from + i, group = f / FT * WEIGHTS, j = f % FT;
    if (f >= FRAGMENTS) break;
    float v[WEIGHTS][4] = {};
#pragma unroll
    for (int n = 0; n < WEIGHTS; n++) {
#if SPLIT > 1
#pragma unroll
      for (int rank = 0; rank < SPLIT; rank++) {  // fixed order
        const float4 p = read_cluster4(stages + (((group + n) * FT + j) * THREADS + threadIdx.x) * 16, rank);
        v[n][0] += p.x, v[n][1] += p.y, v[n][2] += p.z, v[n][3] += p.w;
      }
#else
#pragma unroll
      for (int e = 0; e < 4; e++) v[n][e] = acc[group + n][j][e];
#endif
    }
#ifdef Y_PARTS
    float u[4];
#pragma unroll
    for (int e = 0; e < 4; e++) u[e] = gated(v[0][e], v[1][e]);
    store_fragment(y, u, first + warp / DOWN * WT + j * 8, last, left + (f / FT * DOWN + warp % DOWN) * 16);
#else
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const u32 at = index_of(f, e);
      if (at == OUTSIDE) continue;
#if EPILOGUE == 1
      y[at] = add[i][e] + v[0][e];
#elif defined(EXPERTS)
      y[at] = finish_expert(v, e, EXPERT_BIASES, (u64)mine.x * N + row_of(f, e));
#elif EPILOGUE == 2
      y[at] = gated(v[0][e], v[1][e]);
#else
      y[at] = v[0][e];
#endif
    }
#endif
  }
#if SPLIT > 1
  wait_cluster();  // a block must not exit while others read its shared memory
#endif
}
