// The state of a head of recurrent.cu, a matrix of key_dim rows, in the registers of a block.
#pragma once

#include "config.cuh"
#include "types.cuh"

// A block has 32 columns of a head. Eight threads share a column: each has every eighth of the rows of the
// state, or of the runs of four rows, in registers.
constexpr int KEYS = config.key_dim, COLUMNS = 32, SLICES = THREADS / COLUMNS, WARPS = THREADS / 32;
constexpr int RUN = KEYS % (4 * SLICES) == 0 ? 4 : 1, RUNS = (KEYS + SLICES * RUN - 1) / (SLICES * RUN);
constexpr int PADDED = RUNS * SLICES * RUN;  // rows, with those that are zero
static_assert(KEYS > 0 && KEYS <= MLX_CUDA_MAX_KEY_DIM);

// Shared memory: two chunks of tokens. A token has q, k, the columns of v, and four numbers. DELTA: step and
// beta, which become decay and sigmoid(beta); q . k; and one that is not used. SCAN, whose q, k and v are C,
// B and x: step, which becomes decay and dt; two are not used. SCAN with |state_rates|: the steps of all
// columns.
constexpr int CHUNK = KEYS <= 128 ? 16 : 8;  // tokens
constexpr int V_AT = 2 * PADDED, NUMBERS_AT = V_AT + COLUMNS, NUMBERS = config.state_rates ? COLUMNS : 4;
constexpr int TOKEN = NUMBERS_AT + NUMBERS;
constexpr int SHARED_BYTES = 2 * CHUNK * TOKEN * 4;
static_assert(SHARED_BYTES <= 48 << 10 && TOKEN % 4 == 0 && PADDED % 4 == 0);

// The numbers of a head that all tokens share. |skip|: of SCAN. |rates|: of this thread's rows of its column,
// with |state_rates|.
struct Head {
  float rate, bias, skip;
  float rates[config.state_rates ? RUNS : 1][RUN];
};

// The column of this thread in its block.
__device__ __forceinline__ int own_column() { return threadIdx.x / 32 * 4 + threadIdx.x % 4; }

// log(1 + e^x)
__device__ __forceinline__ float softplus(float x) { return x > 20 ? x : log1pf(expf(x)); }

__device__ __forceinline__ void load_run(float (&v)[RUN], const float *from) {
  if constexpr (RUN == 4) {
    const float4 four = *(const float4 *)from;
    v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
  } else {
    v[0] = *from;
  }
}

// The sum over the runs and over the threads of a column, in all of them.
__device__ __forceinline__ float sum_column(const float (&sums)[RUN]) {
  float sum = sums[0];
  if constexpr (RUN == 4) sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
#pragma unroll
  for (int i = 4; i < 32; i *= 2) sum += __shfl_xor_sync(~0u, sum, i);
  return sum;
}

// This thread's part of the state of a head: |at| is its first row and column, |stride| the distance of two
// rows.
struct Columns {
  u64 at;
  int stride, slice;
  bool active;
  __device__ __forceinline__ bool has(int j, int i) const {
    return active && (j * SLICES + slice) * RUN + i < KEYS;
  }
  __device__ __forceinline__ u64 row(int j, int i) const { return at + (u64)(j * SLICES * RUN + i) * stride; }
  __device__ __forceinline__ void load(float (&state)[RUNS][RUN], const float *from) const {
#pragma unroll
    for (int j = 0; j < RUNS; j++)
#pragma unroll
      for (int i = 0; i < RUN; i++) state[j][i] = from && has(j, i) ? from[row(j, i)] : 0;
  }
  __device__ __forceinline__ void store(const float (&state)[RUNS][RUN], float *to) const {
#pragma unroll
    for (int j = 0; j < RUNS; j++)
#pragma unroll
      for (int i = 0; i < RUN; i++)
        if (has(j, i)) to[row(j, i)] = state[j][i];
  }
};
