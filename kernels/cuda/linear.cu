// Linear layers: y[M,N] = x[M,K] . w[N,K]^T with 16-bit weights and f32 sums.
//
// Not the product of packed.cu with one part instead of three. There, weights are the first operand of an
// instruction, in registers, because they are unpacked or split there; x is the second one, in shared memory.
// A warpgroup then multiplies 64 rows of weights by at most 128 tokens, and its registers hold the weights,
// the next weights, and a sum for each 64 columns. Here both operands are 16-bit rows that need no change, so
// wgmma reads both from shared memory: no weights in registers, one sum for all columns, up to 256 rows of w
// in one instruction, and four warps that do nothing but copy. With mma.sync the difference is the same:
// ldmatrix against loads of each lane.
//
// Two kernels, one per NVRTC compilation, with all sizes as constants:
//   the tensor-core kernel, for the many rows of a prefill, and
//   with the macro GEMV the streaming kernel, for 1 to 8 rows, which is bound by reading w once.
// All sums run in a fixed order without atomics: the same input gives the same bits on every run.
//
// Macros: NAME (symbol), and for the tensor-core kernel EPILOGUE, MATRICES (2 or 3 with EPILOGUE 3) and
// SPLIT. linear_config.cuh has the other constants, here in capital letters.
//
// Tensor-core kernel
//   EPILOGUE 0  (x[M,K], w[N,K], y[M,N] f32)                     y = x.w^T
//   EPILOGUE 1  (x[M,K], w[N,K], residual[M,N] f32, y[M,N] f32)  y = residual + x.w^T; y may be the
//                                                                residual: one thread reads and writes
//                                                                each element
//   EPILOGUE 2  (x[M,K], w[N,K], w2[N,K], y[M,N] 16-bit)         y = act(x.w^T) * (x.w2^T), rounded once
//   EPILOGUE 3  (x[M,K], w, w2, [w3,] y, y2 [, y3])              y = x.w^T, y2 = x.w2^T, y3 = x.w3^T. N, N2
//                                                                and N3 are their rows, multiples of BN; N3
//                                                                is 0 if there is no w3. grid.y counts all
//                                                                tiles
//   The compiler chooses the tile, BM x BN, SPLIT, STAGES and WARPS, and computes the launch:
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
//   Launch:    grid (ceil(N / (WARPS*GEMV_ROWS)), 1, 1), block (32*WARPS, 1, 1)
//              no dynamic shared memory

#include "activate.cuh"
#include "cluster.cuh"
#include "config.cuh"
#include "overlap.cuh"

using Number = Select<config.dtype == Dtype::F16, F16, Bf16>::Type;  // of x and w
constexpr int M = config.m, N = config.n, K = config.k, WARPS = config.warps;

#if defined(GEMV)

// A warp computes GEMV_ROWS rows of w, 16 bytes per lane from each. The loads of GEMV_DEPTH rounds are in
// flight before the first one is used. With a small N a warp has few rows, so that all multiprocessors load.
constexpr int GEMV_ROWS = config.gemv_rows, GEMV_DEPTH = M > 4 ? 1 : 2;
constexpr int CHUNK = 256;  // columns that a warp processes in one round
constexpr int CHUNKS = (K + CHUNK - 1) / CHUNK;
constexpr int FIT = 49152 / 4 / M / CHUNK;          // chunks of x that fit in 48 KB of shared memory
constexpr int PANEL = CHUNKS < FIT ? CHUNKS : FIT;  // chunks of x staged at a time

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    NAME(const float *__restrict__ x, const u16 *__restrict__ w, float *__restrict__ y) {
  // A lane reads 8 neighbouring floats. They are stored as two planes of 4, so that the 16-byte reads of a
  // warp have no bank conflicts.
  start_next_kernel();
  __shared__ float4 panel[M][PANEL][2][32];
  const int lane = threadIdx.x % 32;
  const int first = (blockIdx.x * WARPS + threadIdx.x / 32) * GEMV_ROWS;

  const u16 *rows[GEMV_ROWS];  // past the end: the last row again, whose result is not stored
  for (int r = 0; r < GEMV_ROWS; r++) rows[r] = w + (u64)(first + r < N ? first + r : N - 1) * K + lane * 8;

  float sum[M][GEMV_ROWS] = {};
  uint4 next[GEMV_DEPTH][GEMV_ROWS];
  auto load_ahead = [&](int chunk) {  // starts the loads of GEMV_DEPTH chunks
#pragma unroll
    for (int d = 0; d < GEMV_DEPTH; d++)
#pragma unroll
      for (int r = 0; r < GEMV_ROWS; r++)
        next[d][r] = (chunk + d) * CHUNK + lane * 8 < K ? load_once128(rows[r] + (chunk + d) * CHUNK)
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
    for (int i = threadIdx.x; i < M * count * 64; i += 32 * WARPS) {
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
            low = Number::low(now[d][r].x), high = Number::high(now[d][r].x);
            s = fmaf(high, a.y, fmaf(low, a.x, s));
            low = Number::low(now[d][r].y), high = Number::high(now[d][r].y);
            s = fmaf(high, a.w, fmaf(low, a.z, s));
            low = Number::low(now[d][r].z), high = Number::high(now[d][r].z);
            s = fmaf(high, b.y, fmaf(low, b.x, s));
            low = Number::low(now[d][r].w), high = Number::high(now[d][r].w);
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

constexpr int BM = config.bm, BN = config.bn, STAGES = config.stages, BLOCK = config.threads;
constexpr int N2 = config.n2, N3 = config.n3;
constexpr bool WGMMA = HAS_WGMMA && BM % 64 == 0;
constexpr bool ADD = EPILOGUE == MLX_EPILOGUE_ADD, GATED = EPILOGUE == MLX_EPILOGUE_GATED,
               GROUP = EPILOGUE == MLX_EPILOGUE_GROUP;
// Names of parameters that the kernel does not have.
constexpr const u16 *w2 = nullptr, *w3 = nullptr;
constexpr const float *residual = nullptr;
constexpr float *y2 = nullptr, *y3 = nullptr;

constexpr int BK = 64;  // columns of a stage: one row of 128 bytes
constexpr int WEIGHTS = GATED ? 2 : 1;
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
    copy_async16(address_of(tile, row, chunk), source, valid ? 16 : 0);
  }
}

// ---- multiplying one stage ----

// Starts the products of a stage and returns without waiting. Wider instructions read x less often. So if a
// group has all columns of the tile, w and w2, which are adjacent, are multiplied by one instruction.
__device__ __forceinline__ void multiply_wgmma(float (&sum)[WEIGHTS][PARTS][4], u32 stage, int row,
                                               int column) {
  constexpr int RUNS = ACROSS == 1 ? 1 : WEIGHTS, RUN = WEIGHTS * WN / RUNS;
  constexpr int WIDE = RUN % 256 == 0 ? 256 : RUN % 128 == 0 ? 128 : 64;
  const u64 a = matrix_descriptor(stage + row / 64 * 64 * 128);
  const u64 b = matrix_descriptor(stage + (BM + column) * 128);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < BK / 16; k++)  // step of 16 columns: 2 chunks of 16 bytes
#pragma unroll
    for (int w = 0; w < RUNS; w++)
#pragma unroll
      for (int n = 0; n < RUN; n += WIDE) {
        float(*d)[4] = sum[w] + n / 8;
        const u64 ak = a + k * 2, bk = b + (w * BN + n) * 128 / 16 + k * 2;
        wgmma<WIDE>(Number{}, d, ak, bk);
      }
  wgmma_commit();
}

__device__ __forceinline__ void multiply_mma(float (&sum)[WEIGHTS][PARTS][4], u32 stage, int row,
                                             int column) {
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
          Number::multiply(sum[w][i * FN + j], make_uint4(a[i][0], a[i][1], a[i][2], a[i][3]),
                           make_uint2(b[0], b[1]));
          Number::multiply(sum[w][i * FN + j + 1], make_uint4(a[i][0], a[i][1], a[i][2], a[i][3]),
                           make_uint2(b[2], b[3]));
        }
      }
  }
}

// ---- epilogue: residual, activation, store ----

using Output = Select<GATED, u16, float>::Type;

__device__ __forceinline__ float gated(float gate, float up) {
  if constexpr (config.act == Activation::SILU)  // the result has 16 bits
    return __fdividef(gate, 1.0f + __expf(-gate)) * up;
  else
    return activate<config.act>(gate, ActNumbers{}) * up;
}

constexpr bool WHOLE = N % 2 == 0;  // pairs of columns are aligned and never cross the end of a row

__device__ __forceinline__ float2 read_pair(const float *from, int row, int column) {
  if (row >= M || column >= N) return make_float2(0, 0);
  from += (u64)row * N + column;
  if (WHOLE) return *(const float2 *)from;
  return make_float2(from[0], column + 1 < N ? from[1] : 0);
}

// |columns|: of the matrix |to|.
__device__ __forceinline__ void store_pair(Output *to, int columns, int row, int column, float low,
                                           float high) {
  if (row >= M || column >= columns) return;
  to += (u64)row * columns + column;
  if constexpr (GATED) {
    const u32 pair = Number::narrow2(low, high);
    if (WHOLE) {
      *(u32 *)to = pair;
      return;
    }
    to[0] = pair & 0xffff;
    if (column + 1 < columns) to[1] = pair >> 16;
  } else {
    if (WHOLE) {
      *(float2 *)to = make_float2(low, high);
      return;
    }
    to[0] = low;
    if (column + 1 < columns) to[1] = high;
  }
}

// Requests the weights of the first steps while the previous kernel runs.
__device__ __forceinline__ void prefetch_weights(const u16 *w, int rows, int left, int begin, int steps) {
  const int lines = steps < STAGES - 1 ? steps : STAGES - 1;  // of BK columns, 128 bytes, per row
  for (int i = threadIdx.x; i < BN * lines; i += THREADS) {
    const int row = left + i / lines, k = (begin + i % lines) * BK;
    if (row < rows && k < K) prefetch_l2(w + (u64)row * K + k);
  }
}

// Multiplies all steps of a block; |fill| copies a step as one of the COPIERS. |row| and |column|: of a
// warp's part of the tile. Returns false for threads that only copy.
//
// With wgmma the copiers run ahead as far as the stages allow. The barrier `full` of a stage completes when
// all copiers have filled it, `empty` when every warp has read it. Step s is phase s / STAGES of its
// barriers.
template <typename Fill>
__device__ __forceinline__ bool multiply_steps_wgmma(float (&sum)[WEIGHTS][PARTS][4], u32 stages, int row,
                                                     int column, int steps, int warp, int lane, Fill fill) {
  const u32 full = stages + STAGES * STAGE_BYTES, empty = full + STAGES * 8;
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++) {
      barrier_init(full + i * 8, COPIERS);
      barrier_init(empty + i * 8, WARPS);
    }
  }
  __syncthreads();
  if (warp >= WARPS) {
    for (int step = 0; step < steps; step++) {
      barrier_wait(empty + step % STAGES * 8, step / STAGES % 2 ^ 1);
      fill(step, threadIdx.x - WORKERS);
      barrier_arrive_after_copies(full + step % STAGES * 8);
    }
    wait_all_copies();
    if constexpr (SPLIT > 1) {
      wait_cluster();
      wait_cluster();
    }
    return false;
  }
  for (int step = 0; step < steps; step++) {
    barrier_wait(full + step % STAGES * 8, step / STAGES % 2);
    fence_async_proxy();  // makes cp.async writes visible to wgmma
    multiply_wgmma(sum, stages + step % STAGES * STAGE_BYTES, row, column);
    wgmma_wait<1>();
    if (step > 0 && lane == 0)  // the products of the previous step are complete
      barrier_arrive(empty + (step - 1) % STAGES * 8);
  }
  wgmma_wait<0>();
  return true;
}

template <typename Fill>
__device__ __forceinline__ void multiply_steps_mma(float (&sum)[WEIGHTS][PARTS][4], u32 stages, int row,
                                                   int column, int steps, Fill fill) {
  for (int step = 0; step < STAGES - 1; step++) {  // one group of copies per step, empty past the end
    if (step < steps) fill(step, threadIdx.x);
    commit_copies();
  }
  for (int step = 0; step < steps; step++) {
    wait_copies<STAGES - 2>();
    __syncthreads();  // this stage is filled, and all warps have read the one that is refilled next
    if (step + STAGES - 1 < steps) fill(step + STAGES - 1, threadIdx.x);
    commit_copies();
    multiply_mma(sum, stages + step % STAGES * STAGE_BYTES, row, column);
  }
}

// A warp's part of y.
struct Part {
  int top, row;      // first row of the tile, and of the part in the tile
  int left, column;  // the same for columns
  int rows;          // of the matrix, which are the columns of y
};

// Adds the sums of the cluster, and the residual or the activation, and stores them.
__device__ __forceinline__ void finish(Output *y, const float (&sum)[WEIGHTS][PARTS][4],
                                       unsigned char *memory, Part at, const float *residual, int lane) {
  // Each block of a cluster completes MINE fragments, starting at `from`.
  const int from = SPLIT == 1 ? 0 : blockIdx.z * FRAGMENTS_EACH;
  auto row_of = [&](int part) { return at.top + at.row + part / FN * 16 + lane / 4; };
  auto column_of = [&](int part) { return at.left + at.column + part % FN * 8 + lane % 4 * 2; };
  if constexpr (SPLIT > 1) {
    // All products are complete: the memory of the stages is free.
    sync_threads<WORKERS>();
    float4 *parts = (float4 *)memory;
#pragma unroll
    for (int i = 0; i < WEIGHTS * PARTS; i++) {
      const float(&s)[4] = sum[i / PARTS][i % PARTS];
      parts[i * WORKERS + threadIdx.x] = make_float4(s[0], s[1], s[2], s[3]);
    }
  }
  float2 add[FRAGMENTS_EACH][2];  // all reads are issued before the first write, so that they overlap
#pragma unroll
  for (int i = 0; ADD && i < FRAGMENTS_EACH; i++)
#pragma unroll
    for (int half = 0; half < 2; half++)
      add[i][half] = from + i < PARTS ? read_pair(residual, row_of(from + i) + half * 8, column_of(from + i))
                                      : make_float2(0, 0);
  if constexpr (SPLIT > 1) wait_cluster();

  float4 total[FRAGMENTS_EACH][WEIGHTS];
#pragma unroll
  for (int i = 0; i < FRAGMENTS_EACH; i++)
#pragma unroll
    for (int n = 0; n < WEIGHTS; n++) {
      if constexpr (SPLIT > 1) {
        total[i][n] = make_float4(0, 0, 0, 0);
        if (from + i >= PARTS) continue;
        const u32 address = shared_address(memory) + ((n * PARTS + from + i) * WORKERS + threadIdx.x) * 16;
#pragma unroll
        for (int rank = 0; rank < SPLIT; rank++) {  // fixed order
          const float4 p = read_cluster4(address, rank);
          total[i][n] =
              make_float4(total[i][n].x + p.x, total[i][n].y + p.y, total[i][n].z + p.z, total[i][n].w + p.w);
        }
      } else {
        const float(&s)[4] = sum[n][i];
        total[i][n] = make_float4(s[0], s[1], s[2], s[3]);
      }
    }

#pragma unroll
  for (int i = 0; i < FRAGMENTS_EACH; i++) {
    if (from + i >= PARTS) break;
    float4 v = total[i][0];
    if constexpr (ADD)
      v = make_float4(add[i][0].x + v.x, add[i][0].y + v.y, add[i][1].x + v.z, add[i][1].y + v.w);
    if constexpr (GATED) {
      const float4 up = total[i][WEIGHTS - 1];
      v = make_float4(gated(v.x, up.x), gated(v.y, up.y), gated(v.z, up.z), gated(v.w, up.w));
    }
    store_pair(y, at.rows, row_of(from + i), column_of(from + i), v.x, v.y);
    store_pair(y, at.rows, row_of(from + i) + 8, column_of(from + i), v.z, v.w);
  }
  if constexpr (SPLIT > 1) wait_cluster();  // a block must not exit while others read its shared memory
}

extern "C" __global__ void CLUSTER __launch_bounds__(BLOCK, 1)
    NAME(const u16 *__restrict__ x, const u16 *__restrict__ w,
#if EPILOGUE == MLX_EPILOGUE_GATED || MATRICES > 1
         const u16 *__restrict__ w2,
#endif
#if MATRICES > 2
         const u16 *__restrict__ w3,
#endif
#if EPILOGUE == MLX_EPILOGUE_ADD
         const float *residual,  // no __restrict__: it may be y
#endif
         Output *y
#if MATRICES > 1
         ,
         float *y2
#endif
#if MATRICES > 2
         ,
         float *y3
#endif
    ) {
  start_next_kernel();
  if (THREADS < BLOCK && threadIdx.x >= THREADS) return;
  extern __shared__ __align__(1024) unsigned char memory[];
  const u32 stages = shared_address(memory);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int top = blockIdx.x * BM;  // neighbouring blocks share w, so it is read once
  int left = blockIdx.y * BN, rows = N;
  static_assert(!GROUP || (N % BN == 0 && N2 % BN == 0 && N3 % BN == 0), "a tile has rows of one matrix");
  if (GROUP && left >= N + N2) {
    if constexpr (N3 > 0) w = w3, y = (Output *)y3, left -= N + N2, rows = N3;
  } else if (GROUP && left >= N) {
    w = w2, y = (Output *)y2, left -= N, rows = N2;
  }
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
    if constexpr (GATED) copy_tile<BN, N>(stage + (BM + BN) * 128, w2, left, k, self);
  };

  prefetch_weights(w, rows, left, begin, steps);
  if constexpr (GATED) prefetch_weights(w2, rows, left, begin, steps);
  wait_for_previous_kernel();
  x = after_wait(x);
  const float *added = nullptr;
  if constexpr (ADD) added = after_wait(residual);

  float sum[WEIGHTS][PARTS][4] = {};
  if constexpr (WGMMA) {
    if (!multiply_steps_wgmma(sum, stages, row, column, steps, warp, lane, fill)) return;
  } else {
    multiply_steps_mma(sum, stages, row, column, steps, fill);
  }
  finish(y, sum, memory, Part{top, row, left, column, rows}, added, lane);
}

#endif
