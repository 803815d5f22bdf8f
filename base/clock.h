// Clocks for measurements, and sleep.
#ifndef MLXCEL_BASE_CLOCK_H_
#define MLXCEL_BASE_CLOCK_H_

#include <time.h>

static inline double mlx_clock_seconds(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static inline double mlx_seconds(void) { return mlx_clock_seconds(CLOCK_MONOTONIC); }

// CPU time of the calling thread, and of all threads of the process: user and system.
static inline double mlx_thread_cpu_seconds(void) { return mlx_clock_seconds(CLOCK_THREAD_CPUTIME_ID); }
static inline double mlx_process_cpu_seconds(void) { return mlx_clock_seconds(CLOCK_PROCESS_CPUTIME_ID); }

// Sleeps; a signal may end the sleep early.
static inline void mlx_sleep_ms(int milliseconds) {
  nanosleep(&(struct timespec){.tv_sec = milliseconds / 1000, .tv_nsec = milliseconds % 1000 * 1000000L},
            NULL);
}

#endif  // MLXCEL_BASE_CLOCK_H_
