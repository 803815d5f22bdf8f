// The table of slots.
#include "server/core/slots.h"

#include <uv.h>

#include "base/memory.h"
#include "runtime/rooms.h"

struct mlx_slots {
  uv_mutex_t mutex;
  mlx_slot_t *slots;
  size_t count;
  int64_t tasks;  // that had a slot
  // Scheduler thread only.
  const mlx_task_t **owners;  // [count] NULL: the slot is free. Not dereferenced: the task may have ended
  void **running;             // [count] scratch
  bool *kept;                 // [count] scratch
};

mlx_status_t mlx_slots_create(int64_t count, mlx_slots_t **out_slots) {
  mlx_slots_t *s;
  *out_slots = NULL;
  MLX_TRY(mlx_alloc(1, sizeof *s, &s));
  uv_mutex_init(&s->mutex);
  s->count = (size_t)count;
  mlx_status_t status = mlx_alloc(s->count, sizeof *s->slots, &s->slots);
  if (!status) status = mlx_alloc(s->count, sizeof *s->owners, &s->owners);
  if (!status) status = mlx_alloc(s->count, sizeof *s->running, &s->running);
  if (!status) status = mlx_alloc(s->count, sizeof *s->kept, &s->kept);
  if (status)
    mlx_slots_free(s);
  else
    *out_slots = s;
  return status;
}

void mlx_slots_free(mlx_slots_t *s) {
  if (!s) return;
  mlx_free(s->slots);
  mlx_free(s->owners);
  mlx_free(s->running);
  mlx_free(s->kept);
  uv_mutex_destroy(&s->mutex);
  mlx_free(s);
}

static bool has_slot(const mlx_slots_t *s, const mlx_task_t *task) {
  return task->slot && s->owners[task->slot - 1] == task;
}

// Tasks keep their slots while they run. Other slots become free.
static void keep(mlx_slots_t *s, size_t running) {
  for (size_t i = 0; i < s->count; ++i) s->kept[i] = false;
  for (size_t i = 0; i < running; ++i) {
    const mlx_task_t *task = s->running[i];
    if (has_slot(s, task)) s->kept[task->slot - 1] = true;
  }
  for (size_t i = 0; i < s->count; ++i) {
    if (s->kept[i]) continue;
    s->owners[i] = NULL;
    s->slots[i] = (mlx_slot_t){0};
  }
}

static void take(mlx_slots_t *s, mlx_task_t *task, size_t *inout_free) {
  while (s->owners[*inout_free]) ++*inout_free;  // no more tasks run than there are slots
  s->owners[*inout_free] = task;
  task->slot = *inout_free + 1;
  mlx_slot_t *slot = &s->slots[*inout_free];
  *slot = (mlx_slot_t){
      .task = ++s->tasks, .max_tokens = task->options->max_tokens, .ignore_eos = task->options->ignore_eos};
  if (task->options->sampling)
    slot->sampling = *task->options->sampling;
  else
    mlx_sampling_initialize_greedy(&slot->sampling);
  slot->sampling.biases = NULL;  // they belong to the task
  slot->sampling.bias_count = 0;
  slot->sampling.dry_breakers = NULL;
  slot->sampling.dry_breaker_count = 0;
}

void mlx_slots_update(mlx_slots_t *s, const mlx_scheduler_t *scheduler) {
  size_t first_free = 0;
  uv_mutex_lock(&s->mutex);
  const size_t all = mlx_scheduler_running(scheduler, s->running, s->count),
               running = all < s->count ? all : s->count;
  keep(s, running);
  for (size_t i = 0; i < running; ++i) {
    mlx_task_t *task = s->running[i];
    if (!has_slot(s, task)) take(s, task, &first_free);
    const mlx_generation_t *generation = mlx_request_generation(task->request);
    mlx_slot_t *slot = &s->slots[task->slot - 1];
    slot->prompt_tokens = (int64_t)task->count;
    slot->read_tokens = (int64_t)mlx_request_read_tokens(task->request);
    slot->cached_tokens = generation->cached_tokens;
    slot->generated = (int64_t)generation->count;
  }
  uv_mutex_unlock(&s->mutex);
}

size_t mlx_slots_copy(mlx_slots_t *s, mlx_slot_t *out_slots, size_t capacity) {
  uv_mutex_lock(&s->mutex);
  const size_t count = s->count;
  for (size_t i = 0; i < count && i < capacity; ++i) out_slots[i] = s->slots[i];
  uv_mutex_unlock(&s->mutex);
  return count;
}
