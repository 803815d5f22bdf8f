// Activations of an MLP: X(enumerator, name). Plain preprocessor, for C and NVRTC. The functions themselves
// are in compiler/lower_stablehlo.c (the reference), kernels/cpu/activation_functions.h and
// kernels/cuda/activate.cuh. XIELU has four numbers p, n, beta and eps:
//   x > 0 ? p * x * x + beta * x : n * (expm1(min(x, eps)) - x) + beta * x
#ifndef MLXCEL_KERNELS_ACTIVATIONS_H_
#define MLXCEL_KERNELS_ACTIVATIONS_H_

#define MLX_ACTIVATION_TABLE(X) \
  X(SILU, "silu")               \
  X(GELU, "gelu")               \
  X(GELU_TANH, "gelu_tanh")     \
  X(RELU, "relu")               \
  X(RELU2, "relu2")             \
  X(XIELU, "xielu")

// Those with numbers, which may differ from layer to layer: X(enumerator).
#define MLX_ACTIVATION_NUMBERS_TABLE(X) X(XIELU)
#define MLX_ACT_NUMBERS 4  // most numbers of an activation

#endif  // MLXCEL_KERNELS_ACTIVATIONS_H_
