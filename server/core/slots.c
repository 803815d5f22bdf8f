// The table of slots.
#include "server/core/slots.h"

#include <string.h>
#include <uv.h>

#include "base/memory.h"
#include "runtime/rooms.h"

struct mlx_slots {
  uv_mutex_t mutex;
  mlx_slot_t *slots;
  size_t count;
  int64_t tasks;  // that had a slot
  // Scheduler thread only.
  bool *kept;  // [count]
};

mlx_status_t mlx_slots_create(int64_t count, mlx_slots_t **out_slots) {
  mlx_slots_t *s;
  *out_slots = NULL;
  MLX_TRY(mlx_alloc(1, sizeof *s, &s));
  uv_mutex_init(&s->mutex);
  s->count = (size_t)count;
  mlx_status_t status = mlx_alloc(s->count, sizeof *s->slots, &s->slots);
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
  mlx_free(s->kept);
  uv_mutex_destroy(&s->mutex);
  mlx_free(s);
}

// Tasks keep their slots while they run. Other slots become free.
static void keep(mlx_slots_t *s, mlx_task_t *active) {
  memset(s->kept, 0, s->count * sizeof *s->kept);
  for (mlx_task_t *task = active; task; task = task->next) {
    if (task->slot && mlx_request_is_running(task->request))
      s->kept[task->slot - 1] = true;
    else
      task->slot = 0;
  }
  for (size_t i = 0; i < s->count; ++i) {
    if (!s->kept[i]) s->slots[i] = (mlx_slot_t){0};
  }
}

static void take(mlx_slots_t *s, mlx_task_t *task, size_t *inout_free) {
  while (*inout_free < s->count && s->slots[*inout_free].task) ++*inout_free;
  if (*inout_free == s->count) return;
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

void mlx_slots_update(mlx_slots_t *s, mlx_task_t *active) {
  size_t first_free = 0;
  uv_mutex_lock(&s->mutex);
  keep(s, active);
  for (mlx_task_t *task = active; task; task = task->next) {
    if (!task->request || !mlx_request_is_running(task->request)) continue;
    if (!task->slot) take(s, task, &first_free);
    if (!task->slot) continue;
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
  memcpy(out_slots, s->slots, (count < capacity ? count : capacity) * sizeof *out_slots);
  uv_mutex_unlock(&s->mutex);
  return count;
}
