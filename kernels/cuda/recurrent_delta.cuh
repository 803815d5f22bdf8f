// One token of DELTA (recurrent.cu).
#pragma once

#include "recurrent_state.cuh"

struct Inputs {
  const float *qkv, *step, *beta;
  int key_heads, value_heads, value_dim;
  int key_head, head, column;  // of this block: its first column
};

// The number |at| of token |row| in shared memory; null: it is zero.
__device__ __forceinline__ const float *find_input(const Inputs &in, u64 row, int at) {
  const int values = 2 * in.key_heads * KEYS;
  const float *from = in.qkv + row * (values + in.value_heads * in.value_dim);
  if (at < PADDED) return at < KEYS ? from + in.key_head * KEYS + at : nullptr;
  if (at < V_AT)
    return at - PADDED < KEYS ? from + (in.key_heads + in.key_head) * KEYS + at - PADDED : nullptr;
  if (at < NUMBERS_AT) {
    const int column = in.column + at - V_AT;
    return column < in.value_dim ? from + values + in.head * in.value_dim + column : nullptr;
  }
  if (at == NUMBERS_AT) return in.step + row * in.value_heads + in.head;
  return at == NUMBERS_AT + 1 ? in.beta + row * in.value_heads + in.head : nullptr;
}

__device__ __forceinline__ float sum_warp(float value) {
#pragma unroll
  for (int i = 16; i; i >>= 1) value += __shfl_xor_sync(~0u, value, i);
  return value;
}

// Divides q and k by their lengths and computes the numbers of a token. All lanes of a warp.
__device__ __forceinline__ void prepare(float *token, const Head &head) {
  const int lane = threadIdx.x % 32;
  float *q = token, *k = token + PADDED, *numbers = token + NUMBERS_AT;
  float qq = 0, kk = 0, qk = 0;
#pragma unroll
  for (int i = lane; i < KEYS; i += 32) {
    qq = fmaf(q[i], q[i], qq);
    kk = fmaf(k[i], k[i], kk);
    qk = fmaf(q[i], k[i], qk);
  }
  const float q_factor = config.scale / sqrtf(sum_warp(qq) + config.eps),
              k_factor = 1 / sqrtf(sum_warp(kk) + config.eps), product = sum_warp(qk);
#pragma unroll
  for (int i = lane; i < KEYS; i += 32) {
    q[i] *= q_factor;
    k[i] *= k_factor;
  }
  if (lane) return;
  numbers[0] = expf(softplus(numbers[0] + head.bias) * head.rate);
  numbers[1] = config.beta_scale / (1 + expf(-numbers[1]));
  numbers[2] = product * q_factor * k_factor;
}

// One token, whose q and k are those of this thread's slice; returns the result of its column. With S the
// state before the token and d the change:
//   q . (decay * S + k d) = decay * (q . S) + (q . k) d
// so that both products with the state have one reduction.
__device__ __forceinline__ float step(const float *q, const float *k, const float *numbers, float value,
                                      const Head &, float (&state)[RUNS][RUN]) {
  float keys[RUNS][RUN], seen[RUN] = {}, asked[RUN] = {};
#pragma unroll
  for (int j = 0; j < RUNS; j++) {
    float query[RUN];
    load_run(keys[j], k + j * SLICES * RUN);
    load_run(query, q + j * SLICES * RUN);
#pragma unroll
    for (int i = 0; i < RUN; i++) {
      seen[i] = fmaf(state[j][i], keys[j][i], seen[i]);
      asked[i] = fmaf(state[j][i], query[i], asked[i]);
    }
  }
  const float decay = numbers[0], change = numbers[1] * (value - decay * sum_column(seen));
  const float result = fmaf(numbers[2], change, decay * sum_column(asked));
#pragma unroll
  for (int j = 0; j < RUNS; j++)
#pragma unroll
    for (int i = 0; i < RUN; i++) state[j][i] = fmaf(keys[j][i], change, decay * state[j][i]);
  return result;
}
