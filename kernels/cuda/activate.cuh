// The activations of kernels/activations.h.
#pragma once

#include "config_types.cuh"

struct ActNumbers {
  float values[MLX_ACT_NUMBERS];  // not used by an activation without numbers
};

template <Activation act>
static __device__ __forceinline__ float activate(float x, const ActNumbers &numbers) {
  if constexpr (act == Activation::SILU) return x / (1.0f + expf(-x));
  if constexpr (act == Activation::GELU) return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
  if constexpr (act == Activation::GELU_TANH)
    return 0.5f * x * (1.0f + tanhf(0.79788456080286536f * (x + 0.044715f * (x * x * x))));
  if constexpr (act == Activation::RELU) return fmaxf(x, 0.0f);
  if constexpr (act == Activation::RELU2) return fmaxf(x, 0.0f) * fmaxf(x, 0.0f);
  if constexpr (act == Activation::XIELU) {
    const float p = numbers.values[0], n = numbers.values[1], beta = numbers.values[2];
    return (x > 0.0f ? p * x * x : (expm1f(fminf(x, numbers.values[3])) - x) * n) + beta * x;
  }
}
