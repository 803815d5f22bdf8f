// Mixture of experts: a warp chooses the experts of a token by their scores.

#pragma once

#include "experts_shape.cuh"
#include "ptx.cuh"
#include "step.h"

constexpr int PER = (EXPERTS + 31) / 32;  // scores of a lane: those of experts lane, lane + 32, ...

// Whether |token| of |batch| (kernels/step.h) is padding. Without BATCHED there is no batch, and no padding
// is known.
template <bool BATCHED>
__device__ __forceinline__ bool is_padding(const int *batch, int token) {
  if constexpr (BATCHED) return batch[batch[MLX_STEP_AT_POSITIONS] + token] < 0;
  return false;
}

// Integers in the order of the floats; 0 is below all of them.
__device__ __forceinline__ u32 key_of(float v) {
  const u32 bits = __float_as_uint(v);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float value_of(u32 key) {
  return __uint_as_float(key >> 31 ? key & 0x7fffffffu : ~key);
}

// Reads a score from L2: the kernel may have started before the one that wrote it ended (experts_gemv.cuh).
__device__ __forceinline__ float load_score(const float *from) { return load_relaxed_in_order(from); }

// The expert of the largest key, the lowest on a tie. *|out_key|: its key.
__device__ __forceinline__ int best_of_warp(const u32 (&keys)[PER], u32 *out_key) {
  u32 best = keys[0];
  int at = threadIdx.x % 32;
#pragma unroll
  for (int i = 1; i < PER; i++)
    if (keys[i] > best) best = keys[i], at = threadIdx.x % 32 + i * 32;
  *out_key = __reduce_max_sync(~0u, best);
  return __reduce_min_sync(~0u, best == *out_key ? at : 1 << 30);
}

struct Choice {
  int expert;    // lane i: the expert with the i-th largest score
  float weight;  // lane i: its weight; other lanes: 0
};

// The keys of this lane's experts: key_of(their score), 0 past the last expert. |load|: the score of an
// expert.
template <typename Load>
__device__ __forceinline__ void load_keys(u32 (&keys)[PER], Load load) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < PER; i++) keys[i] = lane + i * 32 < EXPERTS ? key_of(load(lane + i * 32)) : 0;
}

// The first |count| experts by their keys, USED at most. The weights are the softmax over all experts or,
// with SUM_TO_ONE, divided by its sum over the USED ones.
__device__ __forceinline__ Choice choose_by_keys(u32 (&keys)[PER], int count) {
  const int lane = threadIdx.x % 32;
  u32 best_key;
  Choice mine = {-1, 0};
  float peak = 0, sum = 0, total = 0;
  for (int nth = 0; nth < count; nth++) {
    const int best = best_of_warp(keys, &best_key);
    if (nth == 0) {
      peak = value_of(best_key);
#pragma unroll
      for (int i = 0; i < PER; i++) sum += keys[i] ? expf(value_of(keys[i]) - peak) : 0;
#pragma unroll
      for (int i = 16; i; i /= 2) sum += __shfl_xor_sync(~0u, sum, i);
    }
    const float its = expf(value_of(best_key) - peak) / sum;
    total += its;
    if (lane == nth) mine = {best, its};
#pragma unroll
    for (int i = 0; i < PER; i++)
      if (best == lane + i * 32) keys[i] = 0;
  }
  if (SUM_TO_ONE) mine.weight /= total;
  return mine;
}

// The same for the token whose scores are |scores| [EXPERTS].
__device__ __forceinline__ Choice choose(const float *scores, int count) {
  u32 keys[PER];
  load_keys(keys, [=](int expert) { return load_score(scores + expert); });
  return choose_by_keys(keys, count);
}

// Where the experts of |token| are reported in |results|, if the batch asks for them (step.h); NULL: nowhere.
// A token has |width| routes, those of the layer from |at| on. Without BATCHED there are no results.
template <bool BATCHED>
__device__ __forceinline__ int *routes_of(const int *batch, int *results, int token, int width, int at) {
  if constexpr (BATCHED) {
    const int first = batch[MLX_STEP_AT_ROUTES];
    return first > 0 ? results + first + token * width + at : nullptr;
  }
  return nullptr;
}
