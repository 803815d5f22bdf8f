// Linear layers: y[M,N] = x[M,K] . w[N,K]^T with 16-bit weights and f32 sums.
//
// Two kernels, one per NVRTC compilation, with all sizes as macros:
//   the tensor-core kernel, for the many rows of a prefill, and
//   with -DGEMV the streaming kernel, for 1 to 8 rows, which is bound by reading w once.
// All sums run in a fixed order without atomics: the same input gives the same bits on every run.
//
// Always:    NAME (symbol), M, N, K (numbers; K % 8 == 0), DTYPE_BF16 or DTYPE_F16 (of x and w).
//
// Tensor-core kernel
//   EPILOGUE 0  (x[M,K], w[N,K], y[M,N] f32)                     y = x.w^T
//   EPILOGUE 1  (x[M,K], w[N,K], residual[M,N] f32, y[M,N] f32)  y = residual + x.w^T; y may be the
//                                                                residual: one thread reads and writes
//                                                                each element
//   EPILOGUE 2  (x[M,K], w[N,K], w2[N,K], y[M,N] 16-bit)         y = act(x.w^T) * (x.w2^T), rounded once
//   EPILOGUE 3  (x[M,K], w, w2, [w3,] y, y2 [, y3])              y = x.w^T, y2 = x.w2^T, y3 = x.w3^T. N, N2
//   and
//                                                                N3 are their rows, multiples of BN; N3 is 0
//                                                                if there is no w3. grid.y counts all tiles
//   Tile macros: BM x BN (a block's part of y), SPLIT, STAGES, WARPS, BLOCK. The compiler chooses them and
//   computes the launch:
//              grid  (ceil(M/BM), ceil(N/BN), SPLIT)
//              block (BLOCK, 1, 1): 32*WARPS, with wgmma (below) 32*WARPS + 128. The PTX that accompanies a
//              wgmma cubin is launched the same way on later GPUs, which do not need these 128 threads: they
//              exit
//              dynamic shared memory  STAGES * ((BM + BN * (EPILOGUE == 2 ? 2 : 1)) * 128 + 16) bytes
//   SPLIT > 1 (sm_90 and later, not sm_12x) divides K among the SPLIT blocks of a cluster, which add their
//   sums in order through each other's shared memory. The cluster size is part of the kernel and needs no
//   launch attribute. Compiled for sm_90a with BM a multiple of 64 the kernel uses wgmma, and four more warps
//   do the copying; else it uses mma.sync.
//
// GEMV
//   (x[M,K] f32, w[N,K], y[M,N] f32)   y = x.w^T, x not rounded, M <= 8
//   Launch:    grid (ceil(N / (GEMV_WARPS*GEMV_ROWS)), 1, 1), block (32*GEMV_WARPS, 1, 1)
//              no dynamic shared memory

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#include "overlap.cuh"

#if defined(DTYPE_BF16)
#define TYPE "bf16"
#elif defined(DTYPE_F16)
#define TYPE "f16"
#else
#error "define DTYPE_BF16 or DTYPE_F16"
#endif

#if defined(GEMV)

// A warp computes GEMV_ROWS rows of w, 16 bytes per lane from each. The loads of GEMV_DEPTH rounds are in
// flight before the first one is used. With a small N a warp has few rows, so that all multiprocessors load.
#ifndef GEMV_ROWS
#define GEMV_ROWS (N >= 16384 ? 4 : N >= 8192 ? 2 : 1)
#endif
#ifndef GEMV_WARPS
#define GEMV_WARPS 8
#endif
#ifndef GEMV_DEPTH
#define GEMV_DEPTH (M > 4 ? 1 : 2)
#endif

constexpr int CHUNK = 256;  // columns that a warp processes in one round
constexpr int CHUNKS = (K + CHUNK - 1) / CHUNK;
constexpr int FIT = 49152 / 4 / M / CHUNK;          // chunks of x that fit in 48 KB of shared memory
constexpr int PANEL = CHUNKS < FIT ? CHUNKS : FIT;  // chunks of x staged at a time

__device__ __forceinline__ uint4 load_weights(const u16 *from) {
  uint4 v;  // read once: bypass L1, which holds x
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

__device__ __forceinline__ void to_float(u32 pair, float &low, float &high) {
#if defined(DTYPE_BF16)
  low = __uint_as_float(pair << 16);
  high = __uint_as_float(pair & 0xffff0000u);
#else
  asm("{ .reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h; }"
      : "=f"(low), "=f"(high)
      : "r"(pair));
#endif
}

extern "C" __global__ void __launch_bounds__(32 * GEMV_WARPS)
    NAME(const float *__restrict__ x, const u16 *__restrict__ w, float *__restrict__ y) {
  // A lane reads 8 neighbouring floats. They are stored as two planes of 4, so that the 16-byte reads of a
  // warp have no bank conflicts.
  start_next_kernel();
  __shared__ float4 panel[M][PANEL][2][32];
  const int lane = threadIdx.x % 32;
  const int first = (blockIdx.x * GEMV_WARPS + threadIdx.x / 32) * GEMV_ROWS;

  const u16 *rows[GEMV_ROWS];  // past the end: the last row again, whose result is not stored
  for (int r = 0; r < GEMV_ROWS; r++) rows[r] = w + (u64)(first + r < N ? first + r : N - 1) * K + lane * 8;

  float sum[M][GEMV_ROWS] = {};
  uint4 next[GEMV_DEPTH][GEMV_ROWS];
  auto load_ahead = [&](int chunk) {  // starts the loads of GEMV_DEPTH chunks
#pragma unroll
    for (int d = 0; d < GEMV_DEPTH; d++)
#pragma unroll
      for (int r = 0; r < GEMV_ROWS; r++)
        next[d][r] = (chunk + d) * CHUNK + lane * 8 < K ? load_weights(rows[r] + (chunk + d) * CHUNK)
                                                        : make_uint4(0, 0, 0, 0);
  };

  for (int base = 0; base < CHUNKS; base += PANEL) {
    const int count = CHUNKS - base < PANEL ? CHUNKS - base : PANEL;
    load_ahead(base);  // the loads overlap with the staging of x
    if (base) {
      __syncthreads();
    } else {
      wait_for_previous_kernel();
      x = after_wait(x);
    }
    for (int i = threadIdx.x; i < M * count * 64; i += 32 * GEMV_WARPS) {
      const int m = i / (count * 64), quad = i % (count * 64), k = base * CHUNK + quad * 4;
      panel[m][quad / 64][quad % 2][quad / 2 % 32] =
          k < K ? *(const float4 *)(x + (u64)m * K + k) : make_float4(0, 0, 0, 0);
    }
    __syncthreads();

    for (int chunk = 0; chunk < count; chunk += GEMV_DEPTH) {
      uint4 now[GEMV_DEPTH][GEMV_ROWS];
#pragma unroll
      for (int d = 0; d < GEMV_DEPTH; d++)
#pragma unroll
        for (int r = 0; r < GEMV_ROWS; r++) now[d][r] = next[d][r];
      if (chunk + GEMV_DEPTH < count) load_ahead(base + chunk + GEMV_DEPTH);
#pragma unroll
      for (int d = 0; d < GEMV_DEPTH; d++) {
        if (chunk + d >= count) break;
#pragma unroll
        for (int m = 0; m < M; m++) {
          const float4 a = panel[m][chunk + d][0][lane], b = panel[m][chunk + d][1][lane];
#pragma unroll
          for (int r = 0; r < GEMV_ROWS; r++) {
            float low, high, s = sum[m][r];
            to_float(now[d][r].x, low, high);
            s = fmaf(high, a.y, fmaf(low, a.x, s));
            to_float(now[d][r].y, low, high);
            s = fmaf(high, a.w, fmaf(low, a.z, s));
            to_float(now[d][r].z, low, high);
            s = fmaf(high, b.y, fmaf(low, b.x, s));
            to_float(now[d][r].w, low, high);
            s = fmaf(high, b.w, fmaf(low, b.z, s));
            sum[m][r] = s;
          }
        }
      }
    }
  }

#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int r = 0; r < GEMV_ROWS; r++) {
      float s = sum[m][r];
#pragma unroll
      for (int step = 16; step; step /= 2) s += __shfl_xor_sync(~0u, s, step);
      if (lane == 0 && first + r < N) y[(u64)m * N + first + r] = s;
    }
}

#else  // the tensor-core kernel

#ifndef EPILOGUE
#define EPILOGUE 0
#endif
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) && (BM) % 64 == 0
#define WGMMA 1
#else
#define WGMMA 0
#endif

constexpr int BK = 64;  // columns of a stage: one row of 128 bytes
constexpr int WEIGHTS = EPILOGUE == 2 ? 2 : 1;
constexpr int STAGE_BYTES = (BM + BN * WEIGHTS) * 128;
constexpr int WORKERS = 32 * WARPS;             // threads that multiply
constexpr int COPIERS = WGMMA ? 128 : WORKERS;  // threads that copy: extra ones, or the same
constexpr int THREADS = WGMMA ? WORKERS + COPIERS : WORKERS;

// How warps divide a tile. With wgmma a group of four warps has 64 rows, 16 per warp; the groups are arranged
// first down, then across. With mma.sync a warp has a nearly square part. In both cases a warp's part is FM x
// FN fragments of 16 x 8, in which a lane holds {row lane/4, row lane/4 + 8} x {column 2*(lane%4), the next}.
constexpr int DOWN = WGMMA ? BM / 64 : BM >= 64 ? 2 : 1;  // groups (wgmma) or warps (mma.sync) down the tile
constexpr int ACROSS = (WGMMA ? WARPS / 4 : WARPS) / DOWN;
constexpr int WN = BN / ACROSS;  // columns of a warp's part
constexpr int FM = WGMMA ? 1 : BM / DOWN / 16;
constexpr int FN = WN / 8;
static_assert(K % 8 == 0 && STAGES >= 2 && DOWN * ACROSS * (WGMMA ? 4 : 1) == WARPS, "tile");
static_assert(WN % (WGMMA ? 64 : 16) == 0 && ACROSS * WN == BN, "tile");
static_assert(BM % (COPIERS / 8) == 0 && BN % (COPIERS / 8) == 0,
              "each thread copies the same chunk of some rows");

constexpr int STEPS = (K + BK - 1) / BK;                     // stages along K
constexpr int STEPS_EACH = (STEPS + SPLIT - 1) / SPLIT;      // stages of one block of a cluster
constexpr int PARTS = FM * FN;                               // fragments that a thread multiplies
constexpr int FRAGMENTS_EACH = (PARTS + SPLIT - 1) / SPLIT;  // fragments that a thread completes
static_assert(SPLIT == 1 || BM * BN * WEIGHTS * 4 <= STAGES * STAGE_BYTES,
              "the partial sums must fit in the memory of the stages");

// ---- shared memory ----
// A tile is rows of 128 bytes whose 16-byte chunks are permuted by the last three bits of the row index.
// Reading one chunk of 8 neighbouring rows then uses all banks. This is also the 128-byte swizzle that wgmma
// reads.

__device__ __forceinline__ u32 address_of(u32 tile, int row, int chunk) {
  return tile + row * 128 + (chunk ^ row % 8) * 16;
}

// Copies columns [k, k + BK) of ROWS rows, starting at row `first`, as copier thread `self`. Elements outside
// the matrix become zero.
template <int ROWS, int TOTAL>
__device__ __forceinline__ void copy_tile(u32 tile, const u16 *__restrict__ from, int first, int k,
                                          int self) {
  const int chunk = self % 8;
  const bool inside = K % BK == 0 || k + chunk * 8 < K;
#pragma unroll
  for (int i = 0; i < ROWS / (COPIERS / 8); i++) {
    const int row = self / 8 + i * (COPIERS / 8);
    const bool valid = inside && (TOTAL % ROWS == 0 || first + row < TOTAL);
    const u16 *source = valid ? from + (u64)(first + row) * K + k + chunk * 8 : from;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address_of(tile, row, chunk)),
                 "l"(source), "r"(valid ? 16 : 0)
                 : "memory");
  }
}

// ---- multiplying one stage ----

#if WGMMA

// wgmma matrix descriptor of a tile: address, 1024 bytes from 8 rows to the next 8, 128-byte swizzle.
__device__ __forceinline__ u64 matrix_descriptor(u32 tile) {
  return (u64)(tile >> 4) | (u64)1 << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}

#define D8(d, i)                                                                                    \
  "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3]), "+f"(d[i + 1][0]), "+f"(d[i + 1][1]), \
      "+f"(d[i + 1][2]), "+f"(d[i + 1][3])

__device__ __forceinline__ void wgmma64(float (*d)[4], u64 a, u64 b) {  // d[64,64] += a[64,16] . b[64,16]^T
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE
               " {"
               "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
               "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, %32, %33, 1, 1, 1, 0, 0;"
               : D8(d, 0), D8(d, 2), D8(d, 4), D8(d, 6)
               : "l"(a), "l"(b));
}

__device__ __forceinline__ void wgmma128(float (*d)[4], u64 a,
                                         u64 b) {  // d[64,128] += a[64,16] . b[128,16]^T
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE
               " {"
               "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
               "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
               "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
               "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, %64, %65, 1, 1, 1, 0, 0;"
               : D8(d, 0), D8(d, 2), D8(d, 4), D8(d, 6), D8(d, 8), D8(d, 10), D8(d, 12), D8(d, 14)
               : "l"(a), "l"(b));
}

__device__ __forceinline__ void wgmma256(float (*d)[4], u64 a,
                                         u64 b) {  // d[64,256] += a[64,16] . b[256,16]^T
  asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32." TYPE "." TYPE
               " {"
               "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
               "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
               "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
               "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,"
               "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,"
               "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,"
               "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,"
               "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127},"
               " %128, %129, 1, 1, 1, 0, 0;"
               : D8(d, 0), D8(d, 2), D8(d, 4), D8(d, 6), D8(d, 8), D8(d, 10), D8(d, 12), D8(d, 14), D8(d, 16),
                 D8(d, 18), D8(d, 20), D8(d, 22), D8(d, 24), D8(d, 26), D8(d, 28), D8(d, 30)
               : "l"(a), "l"(b));
}

// Starts the products of a stage and returns without waiting. Wider instructions read x less often. So if a
// group has all columns of the tile, w and w2, which are adjacent, are multiplied by one instruction.
__device__ __forceinline__ void multiply(float (&sum)[WEIGHTS][PARTS][4], u32 stage, int row, int column) {
  constexpr int RUNS = ACROSS == 1 ? 1 : WEIGHTS, RUN = WEIGHTS * WN / RUNS;
  constexpr int WIDE = RUN % 256 == 0 ? 256 : RUN % 128 == 0 ? 128 : 64;
  const u64 a = matrix_descriptor(stage + row / 64 * 64 * 128);
  const u64 b = matrix_descriptor(stage + (BM + column) * 128);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
  for (int k = 0; k < BK / 16; k++)  // step of 16 columns: 2 chunks of 16 bytes
#pragma unroll
    for (int w = 0; w < RUNS; w++)
#pragma unroll
      for (int n = 0; n < RUN; n += WIDE) {
        float(*d)[4] = sum[w] + n / 8;
        const u64 ak = a + k * 2, bk = b + (w * BN + n) * 128 / 16 + k * 2;
        if constexpr (WIDE == 256)
          wgmma256(d, ak, bk);
        else if constexpr (WIDE == 128)
          wgmma128(d, ak, bk);
        else
          wgmma64(d, ak, bk);
      }
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

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

#else

__device__ __forceinline__ void load_matrices(u32 (&v)[4], u32 from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
               : "r"(from)
               : "memory");
}

__device__ __forceinline__ void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE
               ".f32 "
               "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void multiply(float (&sum)[WEIGHTS][PARTS][4], u32 stage, int row, int column) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int k = 0; k < BK / 8; k += 2) {  // chunks k and k + 1: 16 elements
    u32 a[FM][4];
#pragma unroll
    for (int i = 0; i < FM; i++)
      load_matrices(a[i], address_of(stage, row + i * 16 + lane % 16, k + lane / 16));
#pragma unroll
    for (int w = 0; w < WEIGHTS; w++)
#pragma unroll
      for (int j = 0; j < FN; j += 2) {  // two fragments of 8 columns at a time
        u32 b[4];
        load_matrices(b, address_of(stage + BM * 128, w * BN + column + j * 8 + lane % 8 + lane / 16 * 8,
                                    k + lane / 8 % 2));
#pragma unroll
        for (int i = 0; i < FM; i++) {
          mma(sum[w][i * FN + j], a[i], b[0], b[1]);
          mma(sum[w][i * FN + j + 1], a[i], b[2], b[3]);
        }
      }
  }
}

#endif

// ---- epilogue: residual, activation, store ----

#if EPILOGUE == 2
typedef u16 output;
#if defined(ACT) && ACT
#include "activation.cuh"
#else
__device__ __forceinline__ float gated(float gate, float up) {  // the result has 16 bits
  return __fdividef(gate, 1.0f + __expf(-gate)) * up;
}
#endif
__device__ __forceinline__ u32 narrow(float low, float high) {
  u32 pair;
  asm("cvt.rn." TYPE "x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
#else
typedef float output;
#endif

constexpr bool WHOLE = N % 2 == 0;  // pairs of columns are aligned and never cross the end of a row

__device__ __forceinline__ float2 read_pair(const float *from, int row, int column) {
  if (row >= M || column >= N) return make_float2(0, 0);
  from += (u64)row * N + column;
  if (WHOLE) return *(const float2 *)from;
  return make_float2(from[0], column + 1 < N ? from[1] : 0);
}

// |columns|: of the matrix |to|.
__device__ __forceinline__ void store_pair(output *to, int columns, int row, int column, float low,
                                           float high) {
  if (row >= M || column >= columns) return;
  to += (u64)row * columns + column;
#if EPILOGUE == 2
  const u32 pair = narrow(low, high);
  if (WHOLE) {
    *(u32 *)to = pair;
    return;
  }
  to[0] = pair & 0xffff;
  if (column + 1 < columns) to[1] = pair >> 16;
#else
  if (WHOLE) {
    *(float2 *)to = make_float2(low, high);
    return;
  }
  to[0] = low;
  if (column + 1 < columns) to[1] = high;
#endif
}

#include "cluster.cuh"

// Requests the weights of the first steps while the previous kernel runs.
__device__ __forceinline__ void prefetch_weights(const u16 *w, int rows, int left, int begin, int steps) {
  const int lines = steps < STAGES - 1 ? steps : STAGES - 1;  // of BK columns, 128 bytes, per row
  for (int i = threadIdx.x; i < BN * lines; i += THREADS) {
    const int row = left + i / lines, k = (begin + i % lines) * BK;
    if (row < rows && k < K) asm volatile("prefetch.global.L2 [%0];" ::"l"(w + (u64)row * K + k));
  }
}

extern "C" __global__ void CLUSTER __launch_bounds__(BLOCK, 1)
    NAME(const u16 *__restrict__ x, const u16 *__restrict__ w,
#if EPILOGUE == 2
         const u16 *__restrict__ w2,
#elif EPILOGUE == 3
         const u16 *__restrict__ w2,
#if N3
         const u16 *__restrict__ w3,
#endif
#elif EPILOGUE == 1
         const float *residual,  // no __restrict__: it may be y
#endif
         output *y
#if EPILOGUE == 3
         ,
         output *y2
#if N3
         ,
         output *y3
#endif
#endif
    ) {
  start_next_kernel();
  if (THREADS < BLOCK && threadIdx.x >= THREADS) return;
  extern __shared__ __align__(1024) unsigned char memory[];
  const u32 stages = (u32)__cvta_generic_to_shared(memory);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int top = blockIdx.x * BM;  // neighbouring blocks share w, so it is read once
  int left = blockIdx.y * BN, rows = N;
#if EPILOGUE == 3
  static_assert(N % BN == 0 && N2 % BN == 0 && N3 % BN == 0, "a tile has rows of one matrix");
  if (left >= N + N2) {
#if N3
    w = w3, y = y3, left -= N + N2, rows = N3;
#endif
  } else if (left >= N) {
    w = w2, y = y2, left -= N, rows = N2;
  }
#endif
  const int row = WGMMA ? warp / 4 % DOWN * 64 + warp % 4 * 16 : warp % DOWN * (BM / DOWN);
  const int column = (WGMMA ? warp / 4 : warp) / DOWN * WN;
  const int begin = blockIdx.z * STEPS_EACH;
  // The last blocks of a cluster may have fewer steps, or none.
  const int steps = STEPS - begin < STEPS_EACH ? STEPS - begin : STEPS_EACH;

  auto fill = [&](int step, int self) {
    const u32 stage = stages + step % STAGES * STAGE_BYTES;
    const int k = (begin + step) * BK;
    copy_tile<BM, M>(stage, x, top, k, self);
    copy_tile<BN, N>(stage + BM * 128, w, left, k, self);
#if EPILOGUE == 2
    copy_tile<BN, N>(stage + (BM + BN) * 128, w2, left, k, self);
#endif
  };

  prefetch_weights(w, rows, left, begin, steps);
#if EPILOGUE == 2
  prefetch_weights(w2, rows, left, begin, steps);
#endif
  wait_for_previous_kernel();
  x = after_wait(x);
#if EPILOGUE == 1
  residual = after_wait(residual);
#endif

  float sum[WEIGHTS][PARTS][4] = {};
#if WGMMA
  // The copiers run ahead as far as the stages allow. The barrier `full` of a stage completes when all
  // copiers have filled it, `empty` when every warp has read it. Step s is phase s / STAGES of its barriers.
  const u32 full = stages + STAGES * STAGE_BYTES, empty = full + STAGES * 8;
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(full + i * 8), "r"(COPIERS) : "memory");
      asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(empty + i * 8), "r"(WARPS) : "memory");
    }
  }
  __syncthreads();
  if (warp >= WARPS) {
    for (int step = 0; step < steps; step++) {
      wait_barrier(empty + step % STAGES * 8, step / STAGES % 2 ^ 1);
      fill(step, threadIdx.x - WORKERS);
      asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(full + step % STAGES * 8)
                   : "memory");
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
#if SPLIT > 1
    wait_cluster();
    wait_cluster();
#endif
    return;
  }
  for (int step = 0; step < steps; step++) {
    wait_barrier(full + step % STAGES * 8, step / STAGES % 2);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // makes cp.async writes visible to wgmma
    multiply(sum, stages + step % STAGES * STAGE_BYTES, row, column);
    asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
    if (step > 0 && lane == 0)  // the products of the previous step are complete
      asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(empty + (step - 1) % STAGES * 8)
                   : "memory");
  }
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#else
  for (int step = 0; step < STAGES - 1; step++) {  // one group of copies per step, empty past the end
    if (step < steps) fill(step, threadIdx.x);
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
  for (int step = 0; step < steps; step++) {
    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
    __syncthreads();  // this stage is filled, and all warps have read the one that is refilled next
    if (step + STAGES - 1 < steps) fill(step + STAGES - 1, threadIdx.x);
    asm volatile("cp.async.commit_group;" ::: "memory");
    multiply(sum, stages + step % STAGES * STAGE_BYTES, row, column);
  }
#endif

  // Each block of a cluster completes MINE fragments, starting at `from`.
  const int from = SPLIT == 1 ? 0 : blockIdx.z * FRAGMENTS_EACH;
  auto row_of = [&](int part) { return top + row + part / FN * 16 + lane / 4; };
  auto column_of = [&](int part) { return left + column + part % FN * 8 + lane % 4 * 2; };
#if SPLIT > 1
  // All products are complete: the memory of the stages is free.
  asm volatile("bar.sync 1, %0;" ::"n"(WORKERS) : "memory");
  float4 *parts = (float4 *)memory;
#pragma unroll
  for (int i = 0; i < WEIGHTS * PARTS; i++) {
    const float(&s)[4] = sum[i / PARTS][i % PARTS];
    parts[i * WORKERS + threadIdx.x] = make_float4(s[0], s[1], s[2], s[3]);
  }
#endif
#if EPILOGUE == 1
  float2 add[FRAGMENTS_EACH][2];  // all reads are issued before the first write, so that they overlap
#pragma unroll
  for (int i = 0; i < FRAGMENTS_EACH; i++)
#pragma unroll
    for (int half = 0; half < 2; half++)
      add[i][half] = from + i < PARTS ? read_pair(residual, row_of(from + i) + half * 8, column_of(from + i))
                                      : make_float2(0, 0);
#endif
#if SPLIT > 1
  wait_cluster();
#endif

  float4 total[FRAGMENTS_EACH][WEIGHTS];
#pragma unroll
  for (int i = 0; i < FRAGMENTS_EACH; i++)
#pragma unroll
    for (int n = 0; n < WEIGHTS; n++) {
#if SPLIT > 1
      total[i][n] = make_float4(0, 0, 0, 0);
      if (from + i >= PARTS) continue;
      const u32 address = stages + ((n * PARTS + from + i) * WORKERS + threadIdx.x) * 16;
#pragma unroll
      for (int rank = 0; rank < SPLIT; rank++) {  // fixed order
        const float4 p = read_cluster4(address, rank);
        total[i][n] =
            make_float4(total[i][n].x + p.x, total[i][n].y + p.y, total[i][n].z + p.z, total[i][n].w + p.w);
      }
#else
      const float(&s)[4] = sum[n][i];
      total[i][n] = make_float4(s[0], s[1], s[2], s[3]);
#endif
    }

#pragma unroll
  for (int i = 0; i < FRAGMENTS_EACH; i++) {
    if (from + i >= PARTS) break;
    float4 v = total[i][0];
#if EPILOGUE == 1
    v = make_float4(add[i][0].x + v.x, add[i][0].y + v.y, add[i][1].x + v.z, add[i][1].y + v.w);
#elif EPILOGUE == 2
    const float4 up = total[i][1];
    v = make_float4(gated(v.x, up.x), gated(v.y, up.y), gated(v.z, up.z), gated(v.w, up.w));
#endif
    store_pair(y, rows, row_of(from + i), column_of(from + i), v.x, v.y);
    store_pair(y, rows, row_of(from + i) + 8, column_of(from + i), v.z, v.w);
  }
#if SPLIT > 1
  wait_cluster();  // a block must not exit while others read its shared memory
#endif
}

#endif
