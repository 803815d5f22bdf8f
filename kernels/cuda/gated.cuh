// The function of an MLP between its products, act(gate) * up, for images of packed.cu.
#pragma once

#include "activate.cuh"
#include "config.cuh"

__device__ __forceinline__ float gated(float gate, float up) {
  if constexpr (config.limit != 0) {
    gate = gate > config.limit ? config.limit : gate;
    up = up > config.limit ? config.limit : up < -config.limit ? -config.limit : up;
    return (up + 1.0f) * (gate / (1.0f + expf(-config.slope * gate)));
  } else {
    return activate<config.act>(gate, ActNumbers{}) * up;
  }
}
