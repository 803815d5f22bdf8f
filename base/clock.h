// A monotonic clock for measurements, and sleep.
#ifndef MLXCEL_BASE_CLOCK_H_
#define MLXCEL_BASE_CLOCK_H_

#include <time.h>

static inline double mlx_seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

// Sleeps; a signal may end the sleep early.
static inline void mlx_sleep_ms(int milliseconds) {
  nanosleep(&(struct timespec){.tv_sec = milliseconds / 1000, .tv_nsec = milliseconds % 1000 * 1000000L},
            NULL);
}

#endif  // MLXCEL_BASE_CLOCK_H_
