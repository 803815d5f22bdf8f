// Parallel: runs independent pieces of work on several threads.
#ifndef MLXCEL_BASE_PARALLEL_H_
#define MLXCEL_BASE_PARALLEL_H_

#include <pthread.h>
#include <stdint.h>

#include "base/status.h"

// Does piece |index|. |worker| is below mlx_parallel_workers: no two threads have the same one at a time.
typedef mlx_status_t (*mlx_work_t)(void *user, int worker, uint64_t index);

// The number of threads for |count| pieces of work, at least 1. |threads| is the most; 0: one per CPU.
int mlx_parallel_workers(uint64_t count, int threads);

// Calls |work| once for each index below |count|, from |workers| threads; the calling thread is worker 0. If
// a thread cannot be started, the others do its work. After a failure no further piece is begun, and the
// first error is returned.
mlx_status_t mlx_parallel(uint64_t count, int workers, mlx_work_t work, void *user) MLX_MUST_USE;

// Waits for |changed|, |seconds| (below 1) at most. The caller holds |mutex| before and after.
void mlx_wait_for(pthread_cond_t *changed, pthread_mutex_t *mutex, double seconds);

#endif  // MLXCEL_BASE_PARALLEL_H_
