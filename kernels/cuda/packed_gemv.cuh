// Quantized linear layers (packed.cu): few rows of x; bound by reading the weights once.

// A team of GEMV_WARPS warps computes GEMV_GROUPS groups of 16 rows, then advances by the whole grid to its
// next groups. The tiles along K are assigned to the warps of a team round-robin, so that many loads are in
// flight even with few rows. x is split into bf16 parts in shared memory, a panel of K at a time, in the
// layout of tensor-core fragments.
#if !defined(EXPERTS) && !defined(TOKEN)
constexpr int TEAMS = 8 / GEMV_WARPS;
constexpr int STEPS = (N + 16 * GEMV_GROUPS * TEAMS - 1) / (16 * GEMV_GROUPS * TEAMS);
constexpr int AHEAD = 4;  // runs of a warp that are prefetched into L2, besides the one loaded to registers
#endif
#ifdef EXPERTS
constexpr int FIT = 96;  // runs
#else
constexpr int FIT =
    65536 / (M * 784) / 8 * 8;  // runs; a multiple of 8, so a warp has the same runs for any M
#endif
#ifndef GEMV_UNITS
#define GEMV_UNITS RUNS  // runs of all matrices that a sum is over
#endif
constexpr int PANEL = GEMV_UNITS < FIT ? GEMV_UNITS : FIT;
static_assert(M <= 8 && GEMV_GROUPS <= GEMV_WARPS,
              "one fragment of columns, and one warp per group in the epilogue");

// If the three parts of x fit into the 8 columns of a fragment, one instruction multiplies them: column n is
// row n % M of part n / M.
constexpr int PASSES = 3 * M <= 8 ? 1 : 3, COLUMNS = 3 * M / PASSES;

struct Panel {
  uint2 part[PANEL][8][PASSES][COLUMNS][4];  // per 16 columns of x: {2*quad, +1}, {2*quad + 8, +1}
  float sum[PANEL][4][M];                    // sum of each piece
};
struct Memory {
  float4 sums[2][8][GEMV_GROUPS][32];
  Panel panel;
};

// One x: |sum| is that of the four columns of |item|; 8 neighbouring lanes have a piece of 32.
__device__ __forceinline__ void store_sum(Panel &panel, int item, float sum) {
#pragma unroll
  for (int i = 1; i < 8; i *= 2) sum += __shfl_xor_sync(~0u, sum, i);
  if (item % 8 == 0) panel.sum[item / 32][item / 8 % 4][0] = sum;
}

__device__ __forceinline__ void stage(Panel &panel, const float *__restrict__ x, int base, int count) {
  for (int i = threadIdx.x; i < count * 32 * M; i += 256) {
    const int quad = i % 4, m = i / 4 % M, step = i / 4 / M, k = base * 128 + step * 16 + quad * 2;
    const bool inside = k < K;  // K is a multiple of 16, so all 16 columns are inside or outside
    const float2 a = inside ? *(const float2 *)(x + (u64)m * K + k) : make_float2(0, 0);
    const float2 b = inside ? *(const float2 *)(x + (u64)m * K + k + 8) : make_float2(0, 0);
    u32 low[3], high[3];
    split_bf16(low, a.x, a.y);
    split_bf16(high, b.x, b.y);
#pragma unroll
    for (int p = 0; p < 3; p++)
      panel.part[step / 8][step % 8][PASSES == 1 ? 0 : p][PASSES == 1 ? p * M + m : m][quad] =
          make_uint2(low[p], high[p]);
  }
  if (SUMS)
    for (int i = threadIdx.x; i < count * 4 * M; i += 256) {
      const int m = i % M, piece = i / M, k = base * 128 + piece * 32;
      float sum = 0;
      for (int j = 0; k < K && j < 32; j += 4) {
        const float4 v = *(const float4 *)(x + (u64)m * K + k + j);
        sum += (v.x + v.y) + (v.z + v.w);
      }
      panel.sum[piece / 4][piece % 4][m] = sum;
    }
}

// A lane's part of one run: two tiles of each group.
struct Run {
  u32 words[GEMV_GROUPS][2][Format::loads][Format::words];
  Format::Scale scale[GEMV_GROUPS][2];
  Format::Offset offset[GEMV_GROUPS][2];
};

// Loads this lane's part of tile |nth| of a run.
__device__ __forceinline__ void load_tile(Run &to, int nth, const u8 *tile, int run) {
#pragma unroll
  for (int i = 0; i < Format::loads; i++) load_codes(to.words[nth / 2][nth % 2][i], tile, i);
  load_scale(to.scale[nth / 2][nth % 2], tile, run);
  if (OFFSET) load_offset(to.offset[nth / 2][nth % 2], tile, run);
}

__device__ __forceinline__ void multiply_run(float (&acc)[GEMV_GROUPS][4], const Run &run, const Panel &panel,
                                             int nth) {
  const int lane = threadIdx.x % 32, column = lane / 4, quad = lane % 4;
  float scales[GEMV_GROUPS][2][1 + HALVES], offsets[GEMV_GROUPS][2][OFFSET + 1];  // of piece `quad`
#pragma unroll
  for (int i = 0; i < GEMV_GROUPS * 2; i++) {
#pragma unroll
    for (int h = 0; h <= HALVES; h++) scales[i / 2][i % 2][h] = scale_of(run.scale[i / 2][i % 2], h);
#pragma unroll
    for (int h = 0; h < OFFSET; h++) offsets[i / 2][i % 2][h] = offset_of(run.offset[i / 2][i % 2], h);
  }
#pragma unroll
  for (int piece = 0; piece < 4; piece++) {
    uint2 b[2][PASSES];
#pragma unroll
    for (int i = 0; i < 2 * PASSES; i++)
      b[i / PASSES][i % PASSES] =
          column < COLUMNS
              ? panel.part[nth][piece * 2 + i / PASSES][i % PASSES][column < COLUMNS ? column : 0][quad]
              : make_uint2(0, 0);
    float2 sum[2] = {};  // of 32 columns, or with OFFSET 2 of each 16
    if (SUMS && quad * 2 < M)
      sum[0] = make_float2(panel.sum[nth][piece][quad * 2],
                           quad * 2 + 1 < M ? panel.sum[nth][piece][quad * 2 + 1] : 0);
#pragma unroll
    for (int half = 0; OFFSET == 2 && half < 2; half++) {
      float d[4] = {};
#pragma unroll
      for (int p = PASSES - 1; p >= 0; p--)
        mma(d, {Format::ones, Format::ones, Format::ones, Format::ones}, b[half][p].x, b[half][p].y);
      sum[half] = make_float2(d[0], d[1]);
    }
#pragma unroll
    for (int g = 0; g < GEMV_GROUPS; g++) {
      float d[2][4] = {};
#pragma unroll
      for (int half = 0; half < 2; half++) {
        u32 a[4];
        Format::unpack(a, run.words[g][0][piece / PIECES], run.words[g][1][piece / PIECES], piece, half);
#pragma unroll
        for (int p = PASSES - 1; p >= 0; p--) mma(d[HALVES ? half : 0], a, b[half][p].x, b[half][p].y);
      }
#pragma unroll
      for (int t = 0; t < 2; t++) {
#pragma unroll
        for (int h = 0; h <= HALVES; h++) {
          const float scale = broadcast_number(scales[g][t][h], piece);
          acc[g][t * 2] = fmaf(scale, d[h][t * 2], acc[g][t * 2]);
          acc[g][t * 2 + 1] = fmaf(scale, d[h][t * 2 + 1], acc[g][t * 2 + 1]);
        }
#pragma unroll
        for (int h = 0; h < OFFSET; h++) {
          const float offset = broadcast_number(offsets[g][t][h], piece);
          acc[g][t * 2] = fmaf(offset, sum[h].x, acc[g][t * 2]);
          acc[g][t * 2 + 1] = fmaf(offset, sum[h].y, acc[g][t * 2 + 1]);
        }
      }
    }
  }
}

#if !defined(EXPERTS) && !defined(TOKEN)  // experts_gemv.cuh and packed_token.cuh have their own kernels

// Position of a warp in its runs. It visits all its runs of one step, then those of the next step.
struct Cursor {
  int step, run;

  __device__ __forceinline__ void advance() {
    run += GEMV_WARPS;
    if (run < RUNS) return;
    run = threadIdx.x / 32 % GEMV_WARPS;
    step += gridDim.x;
  }

  // Past the end it returns the last tile again; that result is not stored.
  __device__ __forceinline__ const u8 *tile(const u8 *w, int nth) const {
    const int at = (step * TEAMS + threadIdx.x / 32 / GEMV_WARPS) * GEMV_GROUPS * 2 + nth;
    return w + ((u64)(TILES % (GEMV_GROUPS * TEAMS * 2) == 0 || at < TILES ? at : TILES - 1) * RUNS + run) *
                   TILE_BYTES;
  }

  __device__ __forceinline__ void load(Run &to, const u8 *w) const {
    if (step >= STEPS) return;
#pragma unroll
    for (int i = 0; i < GEMV_GROUPS * 2; i++) load_tile(to, i, tile(w, i), run);
  }

  __device__ __forceinline__ void prefetch(const u8 *w) const {
    constexpr int LINES = (TILE_BYTES + 127) / 128;
    for (int i = threadIdx.x % 32; step < STEPS && i < GEMV_GROUPS * 2 * LINES; i += 32)
      asm volatile("prefetch.global.L2 [%0];" ::"l"(tile(w, i / LINES) + i % LINES * 128));
  }
};

extern "C" __global__ void __launch_bounds__(256, GEMV_GROUPS == 1 && BITS == 4 ? 3 : 2)
    NAME(const float *__restrict__ x, const u8 *__restrict__ w, float *__restrict__ y) {
  start_next_kernel();
  extern __shared__ __align__(16) unsigned char bytes[];
  Memory &memory = *(Memory *)bytes;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  Cursor near = {warp % GEMV_WARPS < RUNS ? (int)blockIdx.x : STEPS, warp % GEMV_WARPS}, far = near;
  for (int i = 0; i < AHEAD; i++) far.prefetch(w), far.advance();
  Run next;
  near.load(next, w);  // overlaps with the staging of x
  wait_for_previous_kernel();
  x = after_wait(x);

  for (int step = blockIdx.x, buffer = 0; step < STEPS; step += gridDim.x, buffer ^= 1) {
    float acc[GEMV_GROUPS][4] = {};
    for (int base = 0; base < RUNS; base += PANEL) {
      const int count = RUNS - base < PANEL ? RUNS - base : PANEL;
      if (PANEL < RUNS || step == blockIdx.x) {
        __syncthreads();
        stage(memory.panel, x, base, count);
        __syncthreads();
      }
      for (int nth = warp % GEMV_WARPS; nth < count; nth += GEMV_WARPS) {
        const Run now = next;
        near.advance();
        near.load(next, w);
        far.prefetch(w);
        far.advance();
        multiply_run(acc, now, memory.panel, nth);
      }
    }
#pragma unroll
    for (int g = 0; g < GEMV_GROUPS; g++)
      memory.sums[buffer][warp][g][lane] = make_float4(acc[g][0], acc[g][1], acc[g][2], acc[g][3]);
    __syncthreads();                            // also: the sums of the previous iteration have been read
    if (warp >= GEMV_GROUPS * TEAMS) continue;  // the first warps complete a group of 16 rows each
    float4 total = make_float4(0, 0, 0, 0);
    for (int i = 0; i < GEMV_WARPS; i++) {
      const float4 s = memory.sums[buffer][warp / GEMV_GROUPS * GEMV_WARPS + i][warp % GEMV_GROUPS][lane];
      total = make_float4(total.x + s.x, total.y + s.y, total.z + s.z, total.w + s.w);
    }
    auto store = [&](int m, int row, float v) {
      if (m < M && row < N) y[(u64)m * N + row] = v;
    };
    const int row = (step * GEMV_GROUPS * TEAMS + warp) * 16 + lane / 4, quad = lane % 4;
    if (PASSES == 1) {
      auto column = [&](int n, float even, float odd) {
        return __shfl_sync(~0u, n % 2 ? odd : even, lane - quad + n / 2);
      };
#pragma unroll
      for (int m = 0; m < M; m++) {  // smallest parts first, for accuracy
        const float upper = (column(2 * M + m, total.x, total.y) + column(M + m, total.x, total.y)) +
                            column(m, total.x, total.y);
        const float lower = (column(2 * M + m, total.z, total.w) + column(M + m, total.z, total.w)) +
                            column(m, total.z, total.w);
        if (quad == 0) store(m, row, upper), store(m, row + 8, lower);
      }
    } else {
      store(quad * 2, row, total.x);
      store(quad * 2 + 1, row, total.y);
      store(quad * 2, row + 8, total.z);
      store(quad * 2 + 1, row + 8, total.w);
    }
  }
}

#endif
