// The function of an MLP between its products: act(gate) * up.
//
// ACT is a value of mlx_act_t (graph/ops.h): 0 SiLU (default), 1 GELU, 2 GELU with tanh, 3 ReLU, 4 squared
// ReLU. With LIMIT (gpt-oss) gate and up are clamped, and the sigmoid has the factor SLOPE; ACT is not used.

#ifndef ACT
#define ACT 0
#endif

__device__ __forceinline__ float gated(float gate, float up) {
#ifdef LIMIT
  gate = gate > LIMIT ? LIMIT : gate;
  up = up > LIMIT ? LIMIT : up < -LIMIT ? -LIMIT : up;
  return (up + 1.0f) * (gate / (1.0f + expf(-SLOPE * gate)));
#elif ACT == 0
  return gate / (1.0f + expf(-gate)) * up;
#elif ACT == 1
  return 0.5f * gate * (1.0f + erff(gate * 0.70710678118654752f)) * up;
#elif ACT == 2
  return 0.5f * gate * (1.0f + tanhf(0.79788456080286536f * (gate + 0.044715f * gate * gate * gate))) * up;
#elif ACT == 3
  return fmaxf(gate, 0.0f) * up;
#else
  return fmaxf(gate, 0.0f) * fmaxf(gate, 0.0f) * up;
#endif
}
