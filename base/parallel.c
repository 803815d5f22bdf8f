// Runs independent pieces of work on several threads. See parallel.h.
#include "base/parallel.h"

#include <stdatomic.h>
#include <time.h>

#include "base/cpu.h"

#define MAX_WORKERS 32

typedef struct pieces {
  uint64_t count;
  mlx_work_t work;
  void *user;
  _Atomic uint64_t next;                 // first index that no thread has taken
  _Atomic(struct mlx_status *) failure;  // the first error; NULL if none
} pieces_t;

typedef struct worker {
  pieces_t *pieces;
  int number;
} worker_t;

static void *run_worker(void *user) {
  const worker_t *worker = user;
  pieces_t *pieces = worker->pieces;
  for (uint64_t index; !atomic_load(&pieces->failure);) {
    if ((index = atomic_fetch_add(&pieces->next, 1)) >= pieces->count) break;
    mlx_status_t status = pieces->work(pieces->user, worker->number, index), none = NULL;
    if (status && !atomic_compare_exchange_strong(&pieces->failure, &none, status)) mlx_status_free(status);
  }
  return NULL;
}

int mlx_parallel_workers(uint64_t count, int threads) {
  uint64_t wanted = (uint64_t)(threads > 0 ? threads : mlx_cpu_count());
  if (wanted > count) wanted = count;
  if (wanted > MAX_WORKERS) wanted = MAX_WORKERS;
  return wanted ? (int)wanted : 1;
}

mlx_status_t mlx_parallel(uint64_t count, int workers, mlx_work_t work, void *user) {
  pieces_t pieces = {.count = count, .work = work, .user = user};
  pthread_t threads[MAX_WORKERS];
  worker_t all[MAX_WORKERS];
  int started = 1;
  for (int i = 0; i < MAX_WORKERS; ++i) all[i] = (worker_t){&pieces, i};
  while (started < workers && started < MAX_WORKERS &&
         !pthread_create(&threads[started], NULL, run_worker, &all[started]))
    ++started;
  run_worker(&all[0]);
  for (int i = 1; i < started; ++i) pthread_join(threads[i], NULL);
  return atomic_load(&pieces.failure);
}

void mlx_wait_for(pthread_cond_t *changed, pthread_mutex_t *mutex, double seconds) {
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_nsec += (long)(seconds * 1e9);
  if (until.tv_nsec >= 1000000000) until.tv_nsec -= 1000000000, ++until.tv_sec;
  pthread_cond_timedwait(changed, mutex, &until);
}
