// Mixture of experts: the experts of a token if their weights are more than a softmax. Fields of the
// configuration: sigmoid, sum_eps, weight_scale, spread, and expert_groups to groups_by_best; with the macro
// CORRECTION, the experts are chosen by their weights plus a correction; with FACTORS, the weight of each is
// multiplied by a factor of its own. mlx_op_experts in graph/ops.h defines the result.
#pragma once

#include "experts_choose.cuh"

#ifndef CORRECTION
#define CORRECTION 0
#endif
#ifndef FACTORS
#define FACTORS 0
#endif

constexpr bool PLAIN_SOFTMAX = !config.sigmoid && !CORRECTION && config.sum_eps == 0 &&
                               config.weight_scale == 1 && config.spread == 0 && config.expert_groups <= 1;

// The weight of the expert with the score |best| among those that have keys and are near it. |scores|: of
// this lane's experts.
__device__ __forceinline__ float weight_among_near(const float (&scores)[PER], const u32 (&keys)[PER],
                                                   float best) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < PER; i++) {
    const float most = fmaxf(fabsf(scores[i]), best);
    if (keys[i] && (best - scores[i]) / most <= config.spread) sum += expf(scores[i] - best);
  }
#pragma unroll
  for (int i = 16; i; i /= 2) sum += __shfl_xor_sync(~0u, sum, i);
  return 1 / sum;
}

// Replaces the scores of this lane's experts by their weights.
__device__ __forceinline__ void weigh(float (&weights)[PER]) {
  if constexpr (config.spread > 0) return;  // weighed when they are chosen
  if constexpr (config.sigmoid) {
#pragma unroll
    for (int i = 0; i < PER; i++) weights[i] = 1 / (1 + expf(-weights[i]));
  } else {
    const int lane = threadIdx.x % 32;
    u32 peak_key = 0;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < PER; i++)
      if (lane + i * 32 < EXPERTS) peak_key = max(peak_key, key_of(weights[i]));
    const float peak = value_of(__reduce_max_sync(~0u, peak_key));
#pragma unroll
    for (int i = 0; i < PER; i++) {
      weights[i] = lane + i * 32 < EXPERTS ? expf(weights[i] - peak) : 0;
      sum += weights[i];
    }
#pragma unroll
    for (int i = 16; i; i /= 2) sum += __shfl_xor_sync(~0u, sum, i);
#pragma unroll
    for (int i = 0; i < PER; i++) weights[i] /= sum;
  }
}

// The experts are in groups of neighbours. Clears the keys of experts outside of the groups that a token
// uses: those whose best expert, or whose two best ones together, are the largest; the lowest on a tie.
__device__ __forceinline__ void keep_groups(u32 (&keys)[PER]) {
  constexpr int GROUPS = config.expert_groups, SIZE = EXPERTS / GROUPS;
  static_assert(GROUPS <= 32 && (GROUPS <= 1 || (EXPERTS % GROUPS == 0 && SIZE > 1)), "groups");
  const int lane = threadIdx.x % 32;
  u32 own = 0, used = 0;  // lane g: the key of group g; the groups that are used
  for (int group = 0; group < GROUPS; group++) {
    u32 members[PER], best, second;
#pragma unroll
    for (int i = 0; i < PER; i++) members[i] = (lane + i * 32) / SIZE == group ? keys[i] : 0;
    const int first = best_of_warp(members, &best);
#pragma unroll
    for (int i = 0; i < PER; i++)
      if (first == lane + i * 32) members[i] = 0;
    best_of_warp(members, &second);
    const float sum = config.groups_by_best ? value_of(best) : value_of(best) + value_of(second);
    if (lane == group) own = key_of(sum);
  }
  for (int i = 0; i < config.groups_used; i++) {
    const u32 best = __reduce_max_sync(~0u, own);
    const int group = __reduce_min_sync(~0u, own == best ? lane : 32);
    used |= 1u << group;
    if (lane == group) own = 0;
  }
#pragma unroll
  for (int i = 0; i < PER; i++)
    if (lane + i * 32 < EXPERTS && !(used >> (lane + i * 32) / SIZE & 1)) keys[i] = 0;
}

// Loads the weights of this lane's experts, and the keys of their choice.
__device__ __forceinline__ void load_weights(float (&weights)[PER], u32 (&keys)[PER], const float *scores,
                                             const float *correction) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < PER; i++) {
    weights[i] = lane + i * 32 < EXPERTS ? load_score(scores + lane + i * 32) : 0;
    keys[i] = lane + i * 32 < EXPERTS ? key_of(weights[i]) : 0;
  }
  weigh(weights);
  if constexpr (CORRECTION) {
#pragma unroll
    for (int i = 0; i < PER; i++)
      if (lane + i * 32 < EXPERTS) keys[i] = key_of(weights[i] + correction[lane + i * 32]);
  }
  if constexpr (config.expert_groups > 1) {
    if constexpr (!CORRECTION) {  // groups are compared by weights, not by scores
#pragma unroll
      for (int i = 0; i < PER; i++)
        if (lane + i * 32 < EXPERTS) keys[i] = key_of(weights[i]);
    }
    keep_groups(keys);
  }
}

// |correction|: [EXPERTS], with CORRECTION.
__device__ __forceinline__ Choice choose_without_factors(const float *scores, const float *correction,
                                                         int count) {
  if constexpr (PLAIN_SOFTMAX) {
    return choose(scores, count);
  } else {
    float weights[PER], total = 0;
    u32 keys[PER], best_key;
    Choice mine = {-1, 0};
    load_weights(weights, keys, scores, correction);
    for (int nth = 0; nth < count; nth++) {
      const int best = best_of_warp(keys, &best_key);
      float its = 0, among_near = 0;
      if constexpr (config.spread > 0) among_near = weight_among_near(weights, keys, value_of(best_key));
#pragma unroll
      for (int i = 0; i < PER; i++)
        if (best == (int)threadIdx.x % 32 + i * 32) its = weights[i], keys[i] = 0;
      its = config.spread > 0 ? among_near : __shfl_sync(~0u, its, best % 32);
      total += its;
      if (threadIdx.x % 32 == nth) mine = {best, its};
    }
    if (SUM_TO_ONE) mine.weight /= total + config.sum_eps;
    mine.weight *= config.weight_scale;
    return mine;
  }
}

// The first |count| experts, USED at most. |factors|: [EXPERTS], with FACTORS.
__device__ __forceinline__ Choice choose_weighed(const float *scores, const float *correction,
                                                 const float *factors, int count) {
  Choice mine = choose_without_factors(scores, correction, count);
  if constexpr (FACTORS)
    if (mine.expert >= 0) mine.weight *= factors[mine.expert];
  return mine;
}
