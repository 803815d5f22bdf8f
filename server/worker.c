// A queue of work and the threads that take from it.
#include "server/worker.h"

#include <uv.h>

#include "base/memory.h"

#define STACK_BYTES ((size_t)8 << 20)  // templates and JSON nest deeply

struct mlx_workers {
  uv_mutex_t mutex;
  uv_cond_t wake;
  mlx_work_t *first, **end;  // the queue
  bool stopping, ended;      // ended: there are no threads
  uv_thread_t *threads;
  int count;
};

static void work(void *user) {
  mlx_workers_t *w = user;
  uv_mutex_lock(&w->mutex);
  for (;;) {
    while (!w->first && !w->stopping) uv_cond_wait(&w->wake, &w->mutex);
    mlx_work_t *next = w->first;
    if (!next) break;
    w->first = next->next;
    if (!w->first) w->end = &w->first;
    uv_mutex_unlock(&w->mutex);
    next->run(next);
    uv_mutex_lock(&w->mutex);
  }
  uv_mutex_unlock(&w->mutex);
}

mlx_status_t mlx_workers_create(int threads, mlx_workers_t **out_workers) {
  const uv_thread_options_t options = {.flags = UV_THREAD_HAS_STACK_SIZE, .stack_size = STACK_BYTES};
  mlx_workers_t *w;
  *out_workers = NULL;
  MLX_TRY(mlx_alloc(1, sizeof *w, &w));
  mlx_status_t status = mlx_alloc((size_t)threads, sizeof *w->threads, &w->threads);
  if (status) {
    mlx_free(w);
    return status;
  }
  w->end = &w->first;
  uv_mutex_init(&w->mutex);
  uv_cond_init(&w->wake);
  for (; w->count < threads && !status; w->count += !status) {
    const int error = uv_thread_create_ex(&w->threads[w->count], &options, work, w);
    if (error) status = mlx_error(MLX_OUT_OF_MEMORY, "cannot start a thread: %s", uv_strerror(error));
  }
  if (status) {
    mlx_workers_free(w);
    return status;
  }
  *out_workers = w;
  return NULL;
}

void mlx_workers_push(mlx_workers_t *w, mlx_work_t *item) {
  item->next = NULL;
  uv_mutex_lock(&w->mutex);
  if (w->ended) {
    uv_mutex_unlock(&w->mutex);
    item->run(item);
    return;
  }
  *w->end = item;
  w->end = &item->next;
  uv_cond_signal(&w->wake);
  uv_mutex_unlock(&w->mutex);
}

void mlx_workers_stop(mlx_workers_t *w) {
  if (!w || w->ended) return;
  uv_mutex_lock(&w->mutex);
  w->stopping = true;
  uv_cond_broadcast(&w->wake);
  uv_mutex_unlock(&w->mutex);
  for (int i = 0; i < w->count; ++i) uv_thread_join(&w->threads[i]);
  uv_mutex_lock(&w->mutex);
  mlx_work_t *left = w->first;  // pushed after the last thread looked
  w->ended = true;
  uv_mutex_unlock(&w->mutex);
  for (mlx_work_t *next; left; left = next) {
    next = left->next;
    left->run(left);
  }
}

void mlx_workers_free(mlx_workers_t *w) {
  if (!w) return;
  mlx_workers_stop(w);
  uv_cond_destroy(&w->wake);
  uv_mutex_destroy(&w->mutex);
  mlx_free(w->threads);
  mlx_free(w);
}
