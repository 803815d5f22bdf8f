// Decode: the shared expert of a mixture, which every token uses.
//
// Its work is where a block would otherwise wait. The rows of gate and up are multiplied between publishing
// the scores of experts and receiving those of all experts. The rows of down are multiplied before those of
// the chosen experts, whose hidden values other blocks still compute. The weight of the shared expert is
// known after the choice, so it multiplies the hidden values when they are received.
#pragma once

#include "decode_experts.cuh"

// The hidden values of the shared expert.
template <int = 0>
static __device__ __forceinline__ void compute_shared(const Model &m, Consumer &c, int l, int parity,
                                                      const SharedGateInput &h) {
  Shared *s = c.s;
  c.pairs<SharedGateFormat, SharedGateFormat2, SHARED_PAIR_ROWS>(
      h, s->shared[0], uses_second(l, SECOND_SHARED_GATE), [] {}, [](int) { return float2{0, 0}; },
      [&](int row, float gate, float up, float2, bool) {
        const float scale = layer_scale(s);
        publish(&m.scratch->shared[parity][row], gated(l, gate * scale, up * scale));
      });
}

// Receives the input of the MLP as |h|, publishes the scores of this block's experts and the hidden values of
// the shared expert.
template <typename A>
static __device__ __forceinline__ void score_and_compute_shared(const Model &m, Consumer &c, int l,
                                                                int parity, A &h) {
  if constexpr (Same<A, SharedGateInput>::value) {
    receive_and_score(m, c.s, l, parity, h);
    compute_shared(m, c, l, parity, h);
  } else {  // each has its own form of the input
    SharedGateInput own;
    receive_and_score(m, c.s, l, parity, own);
    compute_shared(m, c, l, parity, own);
    receive_and_normalize(c.s, m.scratch->x1[parity], nullptr,
                          Norm{optional_weight<BEFORE_MLP>(m, l), optional_weight<BEFORE_MLP_BIAS>(m, l)},
                          nullptr, h);
  }
}

template <typename A>
static __device__ __forceinline__ void receive_shared(Shared *s, const float *words, A &x) {
  constexpr int K = A::columns;
  float4 value[Tiling<K>::runs];
  receive_all<K>(words, value);
  const float weight = s->shared_weight[0];
#pragma unroll
  for (int i = 0; i < Tiling<K>::runs; ++i)
    value[i] = {value[i].x * weight, value[i].y * weight, value[i].z * weight, value[i].w * weight};
  stage_all(s, x, value);
}

// Multiplies |count| rows of the shared expert's down projection, from this part of its columns to the last.
template <int PART>
static __device__ __forceinline__ void multiply_shared(Consumer &c, const float *words, int count,
                                                       bool second) {
  {
    SharedDownFormat::Activations<part_of(SHARED_FFN, PART)> x;
    receive_shared(c.s, words, x);
    c.multiply_batch<SharedDownFormat, SharedDownFormat2, (PART > 0), 1>(x, ceil_div(count, TILE),
                                                                         [=](int) { return second; });
  }
  if constexpr (PART + 1 < SHARED_PARTS) multiply_shared<PART + 1>(c, words, count, second);
}

// Consumer::rows for the down projections of the shared expert and of the chosen ones.
template <typename Before, typename Done>
static __device__ __forceinline__ void rows_of_all_experts(const Model &m, Consumer &c, int l, int parity,
                                                           Before before, Done done) {
  Shared *s = c.s;
  const bool second = uses_second(l, SECOND_DOWN);
#pragma unroll 1
  for (int begin = s->width.begin; begin < s->width.end; begin += BATCH * TILE) {
    const int count = min(BATCH * TILE, s->width.end - begin), row = begin + (int)threadIdx.x;
    const float old = (int)threadIdx.x < count ? before(row) : 0.0f;
    multiply_shared<0>(c, m.scratch->shared[parity], count, uses_second(l, SECOND_SHARED_DOWN));
    {
      DownInput hidden;
      receive_activations(s, m.scratch->hidden[parity], nullptr, hidden);
      c.multiply_batch<DownFormat, DownFormat2, true, 1>(hidden, ceil_div(count, TILE),
                                                         [=](int) { return second; });
    }
    sync_consumers();
    if ((int)threadIdx.x < count) done(row, c.total(threadIdx.x), old);
    c.buffer ^= 1;
  }
}
