// Two queues of work, long and other, and the threads that take from them.
#include "server/core/worker.h"

#include <uv.h>

#include "base/memory.h"

#define STACK_BYTES ((size_t)8 << 20)  // templates and JSON nest deeply

typedef struct queue {
  mlx_workers_item_t *first, **end;
} queue_t;

struct mlx_workers {
  uv_mutex_t mutex;
  uv_cond_t wake;
  queue_t queues[2];     // [is_long]
  int long_count;        // threads that run long work
  bool stopping, ended;  // ended: there are no threads
  uv_thread_t *threads;
  int count, wanted;  // threads that run, and that will
  int next_index;     // of the next thread that begins
};

// The next work of a thread; NULL if there is none. One thread takes long work first, so that short work,
// however much there is, cannot keep it waiting.
static mlx_workers_item_t *take(mlx_workers_t *w, bool prefers_long) {
  const bool long_fits = w->long_count < (w->wanted + 1) / 2;
  for (int turn = 0; turn < 2; ++turn) {
    const bool is_long = (turn == 0) == prefers_long;
    queue_t *queue = &w->queues[is_long];
    mlx_workers_item_t *work = queue->first;
    if (!work || (is_long && !long_fits)) continue;
    queue->first = work->next;
    if (!queue->first) queue->end = &queue->first;
    return work;
  }
  return NULL;
}

static void work(void *user) {
  mlx_workers_t *w = user;
  uv_mutex_lock(&w->mutex);
  const bool prefers_long = w->next_index++ == 0 && w->wanted > 1;
  for (;;) {
    mlx_workers_item_t *next = take(w, prefers_long);
    if (!next) {
      if (w->stopping && !w->queues[0].first && !w->queues[1].first) break;
      uv_cond_wait(&w->wake, &w->mutex);
      continue;
    }
    const bool is_long = next->is_long;
    w->long_count += is_long;
    uv_mutex_unlock(&w->mutex);
    next->run(next);
    uv_mutex_lock(&w->mutex);
    w->long_count -= is_long;
    if (is_long) uv_cond_broadcast(&w->wake);  // other long work may run now
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
  w->wanted = threads;
  for (int i = 0; i < 2; ++i) w->queues[i].end = &w->queues[i].first;
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

void mlx_workers_push(mlx_workers_t *w, mlx_workers_item_t *item) {
  item->next = NULL;
  uv_mutex_lock(&w->mutex);
  if (w->ended) {
    uv_mutex_unlock(&w->mutex);
    item->run(item);
    return;
  }
  queue_t *queue = &w->queues[item->is_long];
  *queue->end = item;
  queue->end = &item->next;
  uv_cond_broadcast(&w->wake);  // not every thread may take it
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
  w->ended = true;
  uv_mutex_unlock(&w->mutex);
  for (int i = 0; i < 2; ++i) {  // what was pushed after the last thread looked
    for (mlx_workers_item_t *left = w->queues[i].first, *next; left; left = next) {
      next = left->next;
      left->run(left);
    }
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
