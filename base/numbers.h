// Numbers: arithmetic that several rooms need.
#ifndef MLXCEL_BASE_NUMBERS_H_
#define MLXCEL_BASE_NUMBERS_H_

#include <stdint.h>

static inline int64_t mlx_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t mlx_max(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t mlx_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

#endif  // MLXCEL_BASE_NUMBERS_H_
