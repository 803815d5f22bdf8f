// Sampling of wanted tokens.
#ifndef MLXCEL_KERNELS_CPU_SAMPLING_H_
#define MLXCEL_KERNELS_CPU_SAMPLING_H_

#include "call.h"

// One item of the phase: every MLX_CPU_SAMPLERS-th wanted token.
void mlx_run_sample(const call_t *c, int item, int step);

#endif  // MLXCEL_KERNELS_CPU_SAMPLING_H_
