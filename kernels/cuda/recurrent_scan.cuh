// One token of SCAN (recurrent.cu): C is q, B is k, and x is v.
#pragma once

#include "recurrent_state.cuh"

struct Inputs {
  const float *xbc, *step;
  int groups, heads, head_dim;
  int group, head, column;  // of this block: its first column
};

// The number |at| of token |row| in shared memory; null: it is zero.
__device__ __forceinline__ const float *find_input(const Inputs &in, u64 row, int at) {
  const int inner = in.heads * in.head_dim;
  const float *from = in.xbc + row * (inner + 2 * in.groups * KEYS);
  if (at < PADDED) return at < KEYS ? from + inner + (in.groups + in.group) * KEYS + at : nullptr;
  if (at < V_AT) return at - PADDED < KEYS ? from + inner + in.group * KEYS + at - PADDED : nullptr;
  if (at < NUMBERS_AT) {
    const int column = in.column + at - V_AT;
    return column < in.head_dim ? from + in.head * in.head_dim + column : nullptr;
  }
  if constexpr (config.state_rates) {
    const int column = in.column + at - NUMBERS_AT;
    return column < in.head_dim ? in.step + row * in.head_dim + column : nullptr;
  }
  return at == NUMBERS_AT ? in.step + row * in.heads + in.head : nullptr;
}

__device__ __forceinline__ float limited_step(float sum) {
  return fminf(fmaxf(softplus(sum), config.min_step), config.max_step);
}

// Computes the numbers of a token. All lanes of a warp.
__device__ __forceinline__ void prepare(float *token, const Head &head) {
  float *numbers = token + NUMBERS_AT;
  if (config.state_rates || threadIdx.x % 32) return;  // the steps of columns have biases of their own
  const float dt = limited_step(numbers[0] + head.bias);
  numbers[0] = expf(dt * head.rate);
  numbers[1] = dt;
}

// One token, whose q and k are those of this thread's slice; returns the result of its column.
__device__ __forceinline__ float step(const float *q, const float *k, const float *numbers, float value,
                                      const Head &head, float (&state)[RUNS][RUN]) {
  float decay = numbers[0], dt = numbers[1];
  if constexpr (config.state_rates) dt = limited_step(numbers[own_column()] + head.bias);
  const float change = dt * value;
  float asked[RUN] = {};
#pragma unroll
  for (int j = 0; j < RUNS; j++) {
    float keys[RUN], query[RUN];
    load_run(keys, k + j * SLICES * RUN);
    load_run(query, q + j * SLICES * RUN);
#pragma unroll
    for (int i = 0; i < RUN; i++) {
      if constexpr (config.state_rates) decay = expf(dt * head.rates[j][i]);
      state[j][i] = fmaf(keys[i], change, decay * state[j][i]);
      asked[i] = fmaf(state[j][i], query[i], asked[i]);
    }
  }
  return fmaf(head.skip, value, sum_column(asked));
}
