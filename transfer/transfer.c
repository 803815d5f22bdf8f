// Runs transfer jobs on worker threads. See transfer.h.
#include "transfer/transfer.h"

#include <pthread.h>
#include <stdio.h>
#include <time.h>

#include "base/clock.h"
#include "base/memory.h"

#define MAX_THREADS 16
#define TICK 0.2       // seconds between two progress reports
#define SMOOTHING 0.1  // weight of the newest sample in the reported speed

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

mlx_bytes_text_t mlx_bytes_show(uint64_t bytes) {
  static const char *const units[] = {"bytes", "kB", "MB", "GB", "TB"};
  double value = (double)bytes;
  size_t unit = 0;
  while (value >= 1000 && unit + 1 < sizeof units / sizeof *units) value /= 1000, ++unit;
  mlx_bytes_text_t out;
  snprintf(out.text, sizeof out.text, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
  return out;
}

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

// ----------------------------------------------------------------------------------------------------------
// Progress reports

typedef struct meter {
  uint64_t last;  // progress at the last report
  double when;    // time of the last report, in seconds
  double speed;   // bytes per second, smoothed
} meter_t;

static void report_progress(worker_pool_t *pool, meter_t *meter) {
  const mlx_transfer_t *t = pool->transfer;
  const uint64_t done = atomic_load(&pool->progress);
  const double now = mlx_seconds(), elapsed = now - meter->when;
  if (elapsed > 0 && done >= meter->last) {
    const double speed = (double)(done - meter->last) / elapsed;
    meter->speed = meter->speed > 0 ? meter->speed + SMOOTHING * (speed - meter->speed) : speed;
  }
  meter->last = done;
  meter->when = now;
  if (!t->bytes || done >= t->bytes) {
    mlx_report_progress(t->report, "%s: %s", t->title, mlx_bytes_show(done).text);
    return;
  }
  char left[48] = "";
  const double seconds = meter->speed > 0 ? (double)(t->bytes - done) / meter->speed : 0;
  if (seconds >= 120)
    snprintf(left, sizeof left, ", %.0f min left", seconds / 60);
  else if (seconds > 0)
    snprintf(left, sizeof left, ", %.0f s left", seconds);
  mlx_report_progress(t->report, "%s: %s of %s, %s/s%s", t->title, mlx_bytes_show(done).text,
                      mlx_bytes_show(t->bytes).text, mlx_bytes_show((uint64_t)meter->speed).text, left);
}

static void wait_for_workers(worker_pool_t *pool) {
  const atomic_bool *cancelled = pool->transfer->http->cancelled;
  meter_t meter = {.when = mlx_seconds()};
  pthread_mutex_lock(&pool->lock);
  while (pool->working) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += (long)(TICK * 1e9);
    if (until.tv_nsec >= 1000000000) until.tv_nsec -= 1000000000, ++until.tv_sec;
    pthread_cond_timedwait(&pool->changed, &pool->lock, &until);
    pthread_mutex_unlock(&pool->lock);
    if (cancelled && atomic_load(cancelled)) atomic_store(&pool->stop, true);
    report_progress(pool, &meter);
    pthread_mutex_lock(&pool->lock);
  }
  pthread_mutex_unlock(&pool->lock);
  mlx_report_done(pool->transfer->report);
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
