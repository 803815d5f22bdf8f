#include "transfer/transfer.h"

#include <pthread.h>
#include <stdio.h>
#include <time.h>

#include "base/clock.h"
#include "base/memory.h"

#define MAX_THREADS 16
#define TICK 0.2       // seconds between two looks at the tally
#define SMOOTHING 0.1  // weight of the newest look in the speed shown

typedef struct crew {
  const mlx_transfer_t *transfer;
  mlx_http_options_t http;
  atomic_bool stop;
  mlx_tally_t tally;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  size_t next, working;  // under the lock, as is failure
  mlx_status_t failure;
} crew_t;

mlx_bytes_text_t mlx_bytes_show(uint64_t bytes) {
  static const char *const units[] = {"bytes", "kB", "MB", "GB", "TB"};
  double value = (double)bytes;
  size_t unit = 0;
  while (value >= 1000 && unit + 1 < sizeof units / sizeof *units) value /= 1000, ++unit;
  mlx_bytes_text_t out;
  snprintf(out.text, sizeof out.text, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
  return out;
}

// The first failure counts; a transfer that was stopped because of it has nothing to say.
static void keep_failure(crew_t *crew, mlx_status_t failure) {
  pthread_mutex_lock(&crew->lock);
  if (!crew->failure ||
      (mlx_status_code(crew->failure) == MLX_CANCELLED && mlx_status_code(failure) != MLX_CANCELLED)) {
    mlx_status_t old = crew->failure;
    crew->failure = failure;
    failure = old;
  }
  pthread_mutex_unlock(&crew->lock);
  mlx_status_free(failure);
  atomic_store(&crew->stop, true);
}

static bool next_job(crew_t *crew, size_t *out_index) {
  pthread_mutex_lock(&crew->lock);
  const bool is = crew->next < crew->transfer->count && !crew->failure;
  if (is) *out_index = crew->next++;
  pthread_mutex_unlock(&crew->lock);
  return is;
}

static void *work(void *user) {
  crew_t *crew = user;
  mlx_http_t *http;
  size_t index;
  mlx_status_t status = mlx_http_open(&crew->http, &http);
  while (!status && next_job(crew, &index))
    status = crew->transfer->job(crew->transfer->user, index, http, &crew->tally);
  mlx_http_close(http);
  if (status) keep_failure(crew, status);
  pthread_mutex_lock(&crew->lock);
  --crew->working;
  pthread_cond_signal(&crew->changed);
  pthread_mutex_unlock(&crew->lock);
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Watching

typedef struct watch {
  uint64_t last;  // the tally at the last look
  double when;
  double speed;  // bytes a second, smoothed
} watch_t;

static void show(crew_t *crew, watch_t *watch) {
  const mlx_transfer_t *t = crew->transfer;
  const uint64_t done = atomic_load(&crew->tally);
  const double now = mlx_seconds(), gone = now - watch->when;
  if (gone > 0 && done >= watch->last) {
    const double speed = (double)(done - watch->last) / gone;
    watch->speed = watch->speed > 0 ? watch->speed + SMOOTHING * (speed - watch->speed) : speed;
  }
  watch->last = done;
  watch->when = now;
  if (!t->bytes || done >= t->bytes) {
    mlx_report_progress(t->report, "%s: %s", t->title, mlx_bytes_show(done).text);
    return;
  }
  char left[48] = "";
  const double seconds = watch->speed > 0 ? (double)(t->bytes - done) / watch->speed : 0;
  if (seconds >= 120)
    snprintf(left, sizeof left, ", %.0f min left", seconds / 60);
  else if (seconds > 0)
    snprintf(left, sizeof left, ", %.0f s left", seconds);
  mlx_report_progress(t->report, "%s: %s of %s, %s/s%s", t->title, mlx_bytes_show(done).text,
                      mlx_bytes_show(t->bytes).text, mlx_bytes_show((uint64_t)watch->speed).text, left);
}

static void wait_for(crew_t *crew) {
  const atomic_bool *cancelled = crew->transfer->http->cancelled;
  watch_t watch = {.when = mlx_seconds()};
  pthread_mutex_lock(&crew->lock);
  while (crew->working) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += (long)(TICK * 1e9);
    if (until.tv_nsec >= 1000000000) until.tv_nsec -= 1000000000, ++until.tv_sec;
    pthread_cond_timedwait(&crew->changed, &crew->lock, &until);
    pthread_mutex_unlock(&crew->lock);
    if (cancelled && atomic_load(cancelled)) atomic_store(&crew->stop, true);
    show(crew, &watch);
    pthread_mutex_lock(&crew->lock);
  }
  pthread_mutex_unlock(&crew->lock);
  mlx_report_done(crew->transfer->report);
}

mlx_status_t mlx_transfer_run(const mlx_transfer_t *transfer) {
  crew_t crew = {.transfer = transfer,
                 .http = *transfer->http,
                 .lock = PTHREAD_MUTEX_INITIALIZER,
                 .changed = PTHREAD_COND_INITIALIZER};
  crew.http.cancelled = &crew.stop;
  size_t wanted = transfer->parallel < transfer->count ? transfer->parallel : transfer->count;
  if (wanted > MAX_THREADS) wanted = MAX_THREADS;
  pthread_t threads[MAX_THREADS];
  size_t started = 0;
  for (; started < wanted; ++started) {
    pthread_mutex_lock(&crew.lock);
    ++crew.working;
    pthread_mutex_unlock(&crew.lock);
    if (!pthread_create(&threads[started], NULL, work, &crew)) continue;
    keep_failure(&crew, mlx_error(MLX_UNAVAILABLE, "no thread could be started for a transfer"));
    pthread_mutex_lock(&crew.lock);
    --crew.working;
    pthread_mutex_unlock(&crew.lock);
    break;
  }
  wait_for(&crew);
  for (size_t i = 0; i < started; ++i) pthread_join(threads[i], NULL);
  pthread_cond_destroy(&crew.changed);
  pthread_mutex_destroy(&crew.lock);
  return crew.failure;
}
