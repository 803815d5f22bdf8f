// Bandwidth: measures how fast this machine reads its memory, which limits decoding on a CPU.
#ifndef MLXCEL_CLI_BANDWIDTH_H_
#define MLXCEL_CLI_BANDWIDTH_H_

#include "base/status.h"

// Bytes per second that |threads| threads read together: the best of several slices of a buffer larger than
// any cache.
mlx_status_t mlx_bandwidth_measure(int threads, double *out_bandwidth) MLX_MUST_USE;

#endif  // MLXCEL_CLI_BANDWIDTH_H_
