// Decode: 16-bit numbers, and global words that are their own ready flag.
#pragma once

#include "activate.cuh"
#include "decode_shape.cuh"
#include "ptx.cuh"

using Number =
    Select<config.dtype == Dtype::F16, F16, Bf16>::Type;            // of weights, and of parts of activations
using KvNumber = Select<config.kv == Dtype::F16, F16, Bf16>::Type;  // of a 16-bit KV pool

static __device__ __forceinline__ u32 component(uint4 v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// Attention that computes in f32 must have f32 accuracy; the fast exponential does not.
static __device__ __forceinline__ float exp_of(float x) {
  if constexpr (KV_16) return __expf(x);
  return expf(x);
}

// The activation of the MLP of layer |l|.
static __device__ __forceinline__ float activate(int l, float x) {
  if constexpr (config.act == Activation::SILU) {
    return x / (1.0f + exp_of(-x));
  } else if constexpr (config.act_has_numbers) {
    ActNumbers numbers;
#pragma unroll
    for (int i = 0; i < MLX_ACT_NUMBERS; i++)
      numbers.values[i] = constant_at<Tables::act_numbers>(l * MLX_ACT_NUMBERS + i);
    return activate<config.act>(x, numbers);
  } else {
    return activate<config.act>(x, ActNumbers{});
  }
}

// The hidden value of the MLP of layer |l|. Without a gate, |gate| is the output of up.
static __device__ __forceinline__ float gated(int l, float gate, float up) {
  if constexpr (MLP_MATRICES == 1) return activate(l, gate);
  if constexpr (config.limit != 0) {
    constexpr float limit = config.limit;
    gate = gate > limit ? limit : gate;
    up = up > limit ? limit : up < -limit ? -limit : up;
    return (up + 1.0f) * (gate / (1.0f + expf(-config.slope * gate)));
  }
  return activate(l, gate) * up;
}

static __device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int i = 16; i; i >>= 1) x += __shfl_xor_sync(~0u, x, i);
  return x;
}

// ----------------------------------------------------------------------------------------------------------
// Words that are their own ready flag: EMPTY until a value is published

static __device__ __forceinline__ void mark_empty(float *word) { publish(word, __uint_as_float(EMPTY)); }

static __device__ __forceinline__ bool is_empty(float value) { return __float_as_uint(value) == EMPTY; }

static __device__ __forceinline__ float receive(const float *word) {
  float value;
  do value = load_relaxed(word);
  while (is_empty(value));
  return value;
}

static __device__ __forceinline__ bool any_empty(float4 v) {
  return is_empty(v.x) || is_empty(v.y) || is_empty(v.z) || is_empty(v.w);
}

// Two neighbouring words, published in any order.
static __device__ __forceinline__ float2 receive2(const float *words) {
  float2 v;
  do v = load_relaxed2(words);
  while (is_empty(v.x) || is_empty(v.y));
  return v;
}
