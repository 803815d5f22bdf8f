// The scheduler thread of an engine.
#include "server/core/serving.h"

#include <stdio.h>
#include <uv.h>

#include "base/budget.h"
#include "base/clock.h"
#include "base/memory.h"
#include "runtime/rooms.h"
#include "server/core/slots.h"

#define MAX_FAILURES 3     // failed steps in a row, after which new tasks are refused
#define MOST_TASKS 65536   // of all requests together
#define GRAMMAR_SECONDS 2  // most time of one call of a grammar's matcher; it should return in 10 ms
#define RETRY_SECONDS 5.0  // until a task is accepted again, to see whether the device works

struct mlx_serving {
  mlx_engine_t *engine;         // owned
  mlx_chat_t *chat;             // owned; NULL: the engine's
  mlx_scheduler_t *scheduler;   // owned
  mlx_slots_t *slots;           // owned
  int64_t limit;                // most requests
  int64_t parallel;             // most tasks that run
  size_t index;                 // among the servings of the model
  mlx_serving_end_fn_t on_end;  // NULL: no function hears of the end of tasks
  void *end_user;
  uv_thread_t thread;
  bool has_thread;
  uv_mutex_t tables;  // held while the engine's tables for grammars are built

  uv_mutex_t mutex;  // for the fields of this block
  uv_cond_t wake;
  mlx_task_t *inbox, **inbox_end;
  bool cancels;  // a task was cancelled since the last step
  bool stopping, paused;
  bool trims;  // a thread waits in mlx_serving_trim
  uv_cond_t trimmed;
  double idle_seconds;
  bool worked;              // scheduler thread: it ran a step since the memory was given back
  int64_t tasks, requests;  // submitted and not done
  mlx_scheduler_stats_t stats;
  double progress, failed;  // times: of the last step, and of the last failed step
  int64_t failed_steps, failures, forgotten;
  char reason[256];

  // Scheduler thread only.
  mlx_task_t *active;  // submitted to the scheduler, or waiting for |after|
  mlx_after_step_t *after;
};

// ----------------------------------------------------------------------------------------------------------
// Tasks, on the scheduler thread

static void link_task(mlx_serving_t *s, mlx_task_t *task) {
  task->previous = NULL;
  task->next = s->active;
  if (s->active) s->active->previous = task;
  s->active = task;
}

static void unlink_task(mlx_serving_t *s, mlx_task_t *task) {
  if (task->next) task->next->previous = task->previous;
  if (task->previous)
    task->previous->next = task->next;
  else
    s->active = task->next;
}

// Ends a task. |status| goes to the callback, which may free the task.
static void end_task(mlx_serving_t *s, mlx_task_t *task, mlx_status_t status) {
  mlx_request_t *request = task->request;
  unlink_task(s, task);
  for (mlx_task_t *other = s->active; other; other = other->next) {
    if (other->after == task) other->after = NULL;
  }
  const bool is_last = !--task->first->left;  // after the last callback, the first task may be freed
  const mlx_generation_t *generation = request ? mlx_request_generation(request) : NULL;
  if (s->on_end && generation && !status) s->on_end(s->end_user, s, task, generation->ids, generation->count);
  task->on_done(task, generation, status);
  mlx_request_free(request);
  uv_mutex_lock(&s->mutex);
  --s->tasks;
  s->requests -= is_last;
  uv_mutex_unlock(&s->mutex);
}

static bool on_text(void *user, const char *text, size_t length) {
  mlx_task_t *task = user;
  if (!task->started) {
    task->started = true;
    for (mlx_task_t *other = task->serving->active; other; other = other->next) {
      if (other->after == task) other->after = NULL;
    }
  }
  if (atomic_load_explicit(&task->cancelled, memory_order_relaxed)) return false;
  return !task->on_text || task->on_text(task, text, length);
}

static void on_prompt(void *user, size_t done, size_t total) {
  mlx_task_t *task = user;
  task->on_prompt(task, done, total);
}

static void on_done(void *user, mlx_request_t *request) {
  mlx_task_t *task = user;
  end_task(task->serving, task, mlx_request_take_status(request));
}

static void start_task(mlx_serving_t *s, mlx_task_t *task) {
  mlx_generate_options_t options = *task->options;
  options.on_text = on_text;
  options.on_prompt = task->on_prompt ? on_prompt : NULL;
  options.on_done = on_done;
  options.user = task;
  mlx_status_t status = mlx_scheduler_submit(s->scheduler, task->ids, task->count, &options, &task->request);
  if (status) end_task(s, task, status);
}

// Starts the tasks that wait for no other one. Starting can end a task, and so allow further ones.
static void start_tasks(mlx_serving_t *s) {
  for (bool again = true; again;) {
    again = false;
    for (mlx_task_t *task = s->active, *next; task && !again; task = next) {
      next = task->next;
      if (task->request || task->after) continue;
      if (atomic_load(&task->cancelled))
        end_task(s, task, mlx_error(MLX_CANCELLED, "the request was cancelled"));
      else
        start_task(s, task);
      again = true;  // the list may have changed
    }
  }
}

static void cancel_tasks(mlx_serving_t *s, bool all) {
  for (mlx_task_t *task = s->active; task; task = task->next) {
    if (all) atomic_store(&task->cancelled, true);
    if (!atomic_load(&task->cancelled)) continue;
    if (task->request)
      mlx_request_cancel(task->request);
    else
      task->after = NULL;  // start_tasks ends it
  }
}

// ----------------------------------------------------------------------------------------------------------
// The thread

static void run_after_step(mlx_serving_t *s) {
  while (s->after) {
    mlx_after_step_t *after = s->after;
    s->after = after->next;
    after->queued = false;
    after->run(after);
  }
}

void mlx_serving_after_step(mlx_serving_t *s, mlx_after_step_t *after) {
  if (after->queued) return;
  after->queued = true;
  after->next = s->after;
  s->after = after;
}

// Stores what other threads ask for.
static void publish(mlx_serving_t *s, mlx_status_t status) {
  const mlx_scheduler_stats_t stats = mlx_scheduler_stats(s->scheduler);
  mlx_slots_update(s->slots, s->scheduler);
  uv_mutex_lock(&s->mutex);
  s->stats = stats;
  s->progress = mlx_seconds();
  if (status) {
    ++s->failed_steps;
    ++s->failures;
    ++s->forgotten;
    s->failed = s->progress;
    snprintf(s->reason, sizeof s->reason, "%s", mlx_status_message(status));
  } else {
    s->failures = 0;
  }
  uv_mutex_unlock(&s->mutex);
}

static void trim_locked(mlx_serving_t *s) {
  s->worked = false;
  uv_mutex_unlock(&s->mutex);
  mlx_scheduler_trim(s->scheduler);
  mlx_memory_trim();
  const mlx_scheduler_stats_t stats = mlx_scheduler_stats(s->scheduler);
  uv_mutex_lock(&s->mutex);
  s->stats = stats;
  ++s->forgotten;
  s->trims = false;
  uv_cond_broadcast(&s->trimmed);
}

// Without work for so long, the memory of the KV pool goes back to the system, once. The mutex is held.
static void wait_for_work(mlx_serving_t *s) {
  while (!s->inbox && !s->cancels && !s->stopping) {
    if (s->trims)
      trim_locked(s);
    else if (!s->idle_seconds || !s->worked)
      uv_cond_wait(&s->wake, &s->mutex);
    else if (uv_cond_timedwait(&s->wake, &s->mutex, (uint64_t)(s->idle_seconds * 1e9)) && !s->inbox)
      trim_locked(s);
  }
}

// Waits for work and takes the inbox. Returns false at the end.
static bool take_inbox(mlx_serving_t *s, bool idle) {
  uv_mutex_lock(&s->mutex);
  if (idle) wait_for_work(s);
  mlx_task_t *task = s->inbox;
  const bool cancels = s->cancels, stopping = s->stopping, all = stopping || s->paused;
  s->inbox = NULL;
  s->inbox_end = &s->inbox;
  s->cancels = false;
  uv_mutex_unlock(&s->mutex);
  mlx_task_t *first = NULL;
  for (mlx_task_t *next; task; task = next) {  // start_tasks begins with the last one that is linked
    next = task->next;
    task->next = first;
    first = task;
  }
  for (mlx_task_t *next; first; first = next) {
    next = first->next;
    link_task(s, first);
  }
  if (cancels || stopping) cancel_tasks(s, all);
  return !stopping || s->active;
}

static void serve(void *user) {
  mlx_serving_t *s = user;
  bool idle = true;
  mlx_budget_limit_thread(0, GRAMMAR_SECONDS);
  while (take_inbox(s, idle && !s->active)) {
    start_tasks(s);
    if (s->active) {
      mlx_status_t status = mlx_scheduler_step(s->scheduler, &idle);
      s->worked = true;
      publish(s, status);
      mlx_status_free(status);
    }
    run_after_step(s);
  }
}

// ----------------------------------------------------------------------------------------------------------
// Other threads

mlx_status_t mlx_serving_create(const mlx_serving_options_t *o, mlx_serving_t **out_serving) {
  mlx_scheduler_options_t scheduling;
  mlx_serving_t *s;
  *out_serving = NULL;
  mlx_status_t status = mlx_alloc(1, sizeof *s, &s);
  if (status) {
    mlx_scheduler_free(o->scheduler);
    mlx_chat_free(o->chat);
    mlx_engine_close(o->engine);
    return status;
  }
  s->engine = o->engine;
  s->chat = o->chat;
  s->scheduler = o->scheduler;
  s->inbox_end = &s->inbox;
  const int64_t parallel = o->parallel || !o->engine ? o->parallel : mlx_engine_info(o->engine).sequences;
  s->limit = parallel + o->queue;
  s->parallel = parallel;
  s->idle_seconds = o->idle_seconds;
  uv_mutex_init(&s->tables);
  uv_mutex_init(&s->mutex);
  uv_cond_init(&s->wake);
  uv_cond_init(&s->trimmed);
  mlx_scheduler_options_initialize(&scheduling);
  scheduling.max_running = parallel;
  scheduling.prefill_share = o->prefill_share;
  if (!s->scheduler) status = mlx_scheduler_create(s->engine, &scheduling, &s->scheduler);
  if (!status) status = mlx_slots_create(parallel, &s->slots);
  if (!status) s->stats = mlx_scheduler_stats(s->scheduler);
  const int error = status ? 0 : uv_thread_create(&s->thread, serve, s);
  if (error) status = mlx_error(MLX_OUT_OF_MEMORY, "cannot start a thread: %s", uv_strerror(error));
  s->has_thread = !status;
  if (status) {
    mlx_serving_free(s);
    return status;
  }
  *out_serving = s;
  return NULL;
}

void mlx_serving_free(mlx_serving_t *s) {
  if (!s) return;
  uv_mutex_lock(&s->mutex);
  s->stopping = true;
  uv_cond_signal(&s->wake);
  uv_mutex_unlock(&s->mutex);
  if (s->has_thread) uv_thread_join(&s->thread);
  mlx_scheduler_free(s->scheduler);
  mlx_slots_free(s->slots);
  mlx_chat_free(s->chat);
  mlx_engine_close(s->engine);
  uv_cond_destroy(&s->wake);
  uv_cond_destroy(&s->trimmed);
  uv_mutex_destroy(&s->mutex);
  uv_mutex_destroy(&s->tables);
  mlx_free(s);
}

void mlx_serving_join(mlx_serving_t *s, size_t index, mlx_serving_end_fn_t on_end, void *user) {
  s->index = index;
  s->on_end = on_end;
  s->end_user = user;
}

size_t mlx_serving_index(const mlx_serving_t *s) { return s->index; }

mlx_engine_t *mlx_serving_engine(const mlx_serving_t *s) { return s->engine; }

const mlx_chat_t *mlx_serving_chat(const mlx_serving_t *s) {
  return s->chat ? s->chat : s->engine ? mlx_engine_chat(s->engine) : NULL;
}

mlx_status_t mlx_serving_prepare_grammars(mlx_serving_t *s) {
  uv_mutex_lock(&s->tables);
  mlx_status_t status = mlx_engine_prepare_grammars(s->engine);
  uv_mutex_unlock(&s->tables);
  return status;
}

mlx_status_t mlx_serving_submit(mlx_serving_t *s, mlx_task_t *tasks, size_t count, bool *out_full) {
  mlx_status_t status = NULL;
  const double now = mlx_seconds();
  uv_mutex_lock(&s->mutex);
  *out_full = s->requests >= s->limit || (s->tasks > 0 && s->tasks + (int64_t)count > MOST_TASKS);
  if (s->stopping) {
    status = mlx_error(MLX_UNAVAILABLE, "the model is being unloaded");
  } else if (s->paused) {
    status = mlx_error(MLX_UNAVAILABLE, "the model is going to sleep");
  } else if (s->failures >= MAX_FAILURES && now - s->failed < RETRY_SECONDS) {
    status = mlx_error(MLX_UNAVAILABLE, "the device failed: %s", s->reason);
  } else if (!*out_full) {
    tasks[0].left = count;
    for (size_t i = 0; i < count; ++i) {
      tasks[i].first = tasks;
      tasks[i].serving = s;
      if (atomic_load(&tasks[i].cancelled)) s->cancels = true;  // before, perhaps for another serving
      *s->inbox_end = &tasks[i];
      s->inbox_end = &tasks[i].next;
    }
    if (!s->tasks) s->progress = now;
    s->tasks += (int64_t)count;
    ++s->requests;
    uv_cond_signal(&s->wake);
  }
  uv_mutex_unlock(&s->mutex);
  return status;
}

// mlx_serving_submit sets |serving| before it reads |cancelled|, so one of the two wakes the right thread.
void mlx_serving_cancel(mlx_task_t *task) {
  atomic_store(&task->cancelled, true);
  mlx_serving_t *s = task->serving;
  uv_mutex_lock(&s->mutex);
  s->cancels = true;
  uv_cond_signal(&s->wake);
  uv_mutex_unlock(&s->mutex);
}

void mlx_serving_pause(mlx_serving_t *s) {
  uv_mutex_lock(&s->mutex);
  s->paused = s->cancels = true;
  uv_cond_signal(&s->wake);
  uv_mutex_unlock(&s->mutex);
}

void mlx_serving_resume(mlx_serving_t *s) {
  uv_mutex_lock(&s->mutex);
  s->paused = false;
  uv_mutex_unlock(&s->mutex);
}

void mlx_serving_trim(mlx_serving_t *s) {
  uv_mutex_lock(&s->mutex);
  s->trims = true;
  uv_cond_signal(&s->wake);
  while (s->trims) uv_cond_wait(&s->trimmed, &s->mutex);
  uv_mutex_unlock(&s->mutex);
}

mlx_serving_stats_t mlx_serving_stats(mlx_serving_t *s) {
  uv_mutex_lock(&s->mutex);
  mlx_serving_stats_t stats = {.scheduler = s->stats,
                               .tasks = s->tasks,
                               .limit = s->limit,
                               .parallel = s->parallel,
                               .forgotten = s->forgotten,
                               .since_failure = s->failed_steps ? mlx_seconds() - s->failed : 0,
                               .stalled = s->tasks ? mlx_seconds() - s->progress : 0,
                               .failed_steps = s->failed_steps,
                               .failures = s->failures,
                               .is_failing = s->failures >= MAX_FAILURES};
  snprintf(stats.reason, sizeof stats.reason, "%s", s->reason);
  uv_mutex_unlock(&s->mutex);
  return stats;
}

// The numbers of the scheduler are those of the last step: tasks that have ended since are not running.
int64_t mlx_serving_waiting(const mlx_serving_stats_t *s) {
  return s->tasks > s->scheduler.running ? s->tasks - s->scheduler.running : 0;
}

static double used_part(int64_t used, int64_t cached, int64_t free) {
  const int64_t total = used + cached + free;
  return total ? (double)used / (double)total : 0;
}

// Of the kind of page that is nearer to its end: a sequence waits if either kind has no page for it.
double mlx_serving_pool_usage(const mlx_serving_stats_t *stats) {
  const mlx_scheduler_stats_t *s = &stats->scheduler;
  const double pages = used_part(s->pages_used, s->pages_cached, s->pages_free);
  const double windows = used_part(s->window_pages_used, s->window_pages_cached, s->window_pages_free);
  return pages > windows ? pages : windows;
}

size_t mlx_serving_slots(mlx_serving_t *s, mlx_slot_t *out_slots, size_t capacity) {
  return mlx_slots_copy(s->slots, out_slots, capacity);
}
