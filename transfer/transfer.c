// Runs transfer jobs on worker threads. See transfer.h.
#include "transfer/transfer.h"

#include <pthread.h>

#include "base/memory.h"
#include "base/parallel.h"

#define MAX_THREADS 16
#define TICK 0.2  // seconds between two progress reports

typedef struct worker_pool {
  const mlx_transfer_t *transfer;
  mlx_http_options_t http;
  atomic_bool stop;
  mlx_progress_t progress;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  // Protected by |lock|:
  size_t next;     // index of the next job
  size_t working;  // running workers
  mlx_status_t failure;
} worker_pool_t;

// Keeps the first failure. Any other failure replaces MLX_CANCELLED, which may only be its effect.
static void keep_failure(worker_pool_t *pool, mlx_status_t failure) {
  pthread_mutex_lock(&pool->lock);
  if (!pool->failure ||
      (mlx_status_code(pool->failure) == MLX_CANCELLED && mlx_status_code(failure) != MLX_CANCELLED)) {
    mlx_status_t old = pool->failure;
    pool->failure = failure;
    failure = old;
  }
  pthread_mutex_unlock(&pool->lock);
  mlx_status_free(failure);
  atomic_store(&pool->stop, true);
}

static bool next_job(worker_pool_t *pool, size_t *out_index) {
  pthread_mutex_lock(&pool->lock);
  const bool found = pool->next < pool->transfer->count && !pool->failure;
  if (found) *out_index = pool->next++;
  pthread_mutex_unlock(&pool->lock);
  return found;
}

static void *work(void *user) {
  worker_pool_t *pool = user;
  mlx_http_t *http;
  size_t index;
  mlx_status_t status = mlx_http_open(&pool->http, &http);
  while (!status && next_job(pool, &index))
    status = pool->transfer->job(pool->transfer->user, index, http, &pool->progress);
  mlx_http_close(http);
  if (status) keep_failure(pool, status);
  pthread_mutex_lock(&pool->lock);
  --pool->working;
  pthread_cond_signal(&pool->changed);
  pthread_mutex_unlock(&pool->lock);
  return NULL;
}

static void wait_for_workers(worker_pool_t *pool) {
  const atomic_bool *cancelled = pool->transfer->http->cancelled;
  mlx_meter_t meter;
  mlx_meter_begin(&meter, pool->transfer->report, pool->transfer->title, pool->transfer->bytes);
  pthread_mutex_lock(&pool->lock);
  while (pool->working) {
    mlx_wait_for(&pool->changed, &pool->lock, TICK);
    pthread_mutex_unlock(&pool->lock);
    if (cancelled && atomic_load(cancelled)) atomic_store(&pool->stop, true);
    mlx_meter_show(&meter, atomic_load(&pool->progress));
    pthread_mutex_lock(&pool->lock);
  }
  pthread_mutex_unlock(&pool->lock);
  mlx_meter_end(&meter);
}

mlx_status_t mlx_transfer_run(const mlx_transfer_t *transfer) {
  worker_pool_t pool = {.transfer = transfer,
                        .http = *transfer->http,
                        .lock = PTHREAD_MUTEX_INITIALIZER,
                        .changed = PTHREAD_COND_INITIALIZER};
  pool.http.cancelled = &pool.stop;
  size_t count = transfer->parallel < transfer->count ? transfer->parallel : transfer->count;
  if (count > MAX_THREADS) count = MAX_THREADS;
  pthread_t threads[MAX_THREADS];
  size_t started = 0;
  for (; started < count; ++started) {
    pthread_mutex_lock(&pool.lock);
    ++pool.working;
    pthread_mutex_unlock(&pool.lock);
    if (!pthread_create(&threads[started], NULL, work, &pool)) continue;
    keep_failure(&pool, mlx_error(MLX_OUT_OF_MEMORY, "the system has no resources for a transfer thread"));
    pthread_mutex_lock(&pool.lock);
    --pool.working;
    pthread_mutex_unlock(&pool.lock);
    break;
  }
  wait_for_workers(&pool);
  for (size_t i = 0; i < started; ++i) pthread_join(threads[i], NULL);
  pthread_cond_destroy(&pool.changed);
  pthread_mutex_destroy(&pool.lock);
  return pool.failure;
}
