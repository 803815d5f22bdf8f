// Seconds on a clock that never goes back, for measuring.
#ifndef MLXCEL_BASE_CLOCK_H_
#define MLXCEL_BASE_CLOCK_H_

#include <time.h>

static inline double mlx_seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

#endif  // MLXCEL_BASE_CLOCK_H_
