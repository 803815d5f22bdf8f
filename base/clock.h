// Seconds on a clock that never goes back, for measuring, and naps.
#ifndef MLXCEL_BASE_CLOCK_H_
#define MLXCEL_BASE_CLOCK_H_

#include <time.h>

static inline double mlx_seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

// A signal may end it early.
static inline void mlx_nap(int milliseconds) {
  nanosleep(&(struct timespec){.tv_sec = milliseconds / 1000, .tv_nsec = milliseconds % 1000 * 1000000L},
            NULL);
}

#endif  // MLXCEL_BASE_CLOCK_H_
