// Serving: an engine of a loaded model, and the scheduler thread that owns it and its scheduler.
//
// Other threads pass tasks to the scheduler thread through an inbox. It submits them to the scheduler, steps
// while there is work, and sleeps otherwise. A task is one sequence: its tokens, its options and its
// callbacks, which run on the scheduler thread.
//
// Threads: every function may be called by any thread, unless its comment states otherwise.
#ifndef MLXCEL_SERVER_CORE_SERVING_H_
#define MLXCEL_SERVER_CORE_SERVING_H_

#include <stdatomic.h>

#include "runtime/mlxcel.h"

typedef struct mlx_serving mlx_serving_t;

typedef struct mlx_task {  // zero-initialize
  // Set by the caller before any call, and valid until on_done.
  // Set again when it is submitted: a model may have several servings (server/core/servings.h).
  _Atomic(mlx_serving_t *) serving;
  const int32_t *ids;
  size_t count;
  const mlx_generate_options_t *options;  // its callbacks and |user| are replaced
  // Start this task when that one has its first token, so that it finds the prompt's pages; NULL: at once.
  const struct mlx_task *after;
  // New text. Return false to stop. May be NULL.
  bool (*on_text)(struct mlx_task *task, const char *text, size_t length);
  // The prompt is read: as in mlx_generate_options_t. May be NULL.
  void (*on_prompt)(struct mlx_task *task, size_t done, size_t total);
  // Called once at the end. All tasks of a request may be freed after the last of these calls. If the task
  // failed, |status| is not NULL and belongs to the callee. |generation| is NULL if the scheduler refused the
  // task.
  void (*on_done)(struct mlx_task *task, const mlx_generation_t *generation, mlx_status_t status);
  void *user;

  // Owned by the serving.
  mlx_request_t *request;  // for callbacks: mlx_request_generation has the tokens so far
  struct mlx_task *next, *previous;
  struct mlx_task *first;  // of the request
  size_t left;             // of the first task: tasks of the request that are not done
  size_t slot;             // number of its last slot + 1; 0: none yet
  atomic_bool cancelled;
  bool started;
} mlx_task_t;

// A call that the scheduler thread makes once after its present step.
typedef struct mlx_after_step {
  void (*run)(struct mlx_after_step *after);  // may free it
  bool queued;
  struct mlx_after_step *next;
} mlx_after_step_t;

typedef struct mlx_serving_options {
  mlx_engine_t *engine;        // owned by the serving, also if creating it fails; NULL only in tests
  mlx_chat_t *chat;            // replaces the engine's chat template; owned like |engine|; NULL: the engine's
  mlx_scheduler_t *scheduler;  // tests only: in place of the engine's; owned like |engine|
  int64_t parallel;            // tasks that run at the same time; 0: the engine's sequences
  int64_t queue;               // requests that may wait besides
  double prefill_share;        // as in mlx_scheduler_options_t
  double idle_seconds;         // without a task for so long, give memory back (mlx_scheduler_trim); 0: never
} mlx_serving_options_t;

// Called on the scheduler thread before the on_done of a task that did not fail: its prompt was computed, and
// |output_count| tokens of its answer.
typedef void (*mlx_serving_end_fn_t)(void *user, mlx_serving_t *serving, const mlx_task_t *task,
                                     const int32_t *output, size_t output_count);

// Starts the scheduler thread. Release with mlx_serving_free.
mlx_status_t mlx_serving_create(const mlx_serving_options_t *options,
                                mlx_serving_t **out_serving) MLX_MUST_USE;
// Cancels all tasks, waits for their callbacks, and closes the engine. NULL is fine.
void mlx_serving_free(mlx_serving_t *serving);

// Before the first task: its number among the servings of its model, and a function that hears of the end of
// tasks.
void mlx_serving_join(mlx_serving_t *serving, size_t index, mlx_serving_end_fn_t on_end, void *user);
size_t mlx_serving_index(const mlx_serving_t *serving);  // 0 if it did not join others

mlx_engine_t *mlx_serving_engine(const mlx_serving_t *serving);
const mlx_chat_t *mlx_serving_chat(const mlx_serving_t *serving);  // NULL: the model has no template
// Before a task with a grammar: builds the engine's tables for grammars, once. Other threads that need them
// wait; those of other models do not.
mlx_status_t mlx_serving_prepare_grammars(mlx_serving_t *serving) MLX_MUST_USE;

// Adds the |count| tasks of a request, at least one, all or none. *|out_full| is true, and nothing is added,
// if too many requests wait. Fails with MLX_UNAVAILABLE if the device failed repeatedly, or if the serving is
// being freed.
mlx_status_t mlx_serving_submit(mlx_serving_t *serving, mlx_task_t *tasks, size_t count,
                                bool *out_full) MLX_MUST_USE;
// Ends a task within one step, also if it is submitted only later. on_done is called as always. The task must
// not be freed yet.
void mlx_serving_cancel(mlx_task_t *task);
// Ends all tasks as mlx_serving_cancel does, and refuses new ones with MLX_UNAVAILABLE until
// mlx_serving_resume.
void mlx_serving_pause(mlx_serving_t *serving);
void mlx_serving_resume(mlx_serving_t *serving);
// While it has no tasks: waits until the scheduler has given the memory of the KV pool back
// (mlx_scheduler_trim).
void mlx_serving_trim(mlx_serving_t *serving);
// Scheduler thread only, in a callback: calls |after| once when the present step is done.
void mlx_serving_after_step(mlx_serving_t *serving, mlx_after_step_t *after);

typedef struct mlx_serving_stats {
  mlx_scheduler_stats_t scheduler;
  int64_t tasks;         // submitted and not done
  int64_t limit;         // most requests
  int64_t parallel;      // most tasks that run at the same time
  double stalled;        // seconds since the last step, if there are tasks; else 0
  int64_t failed_steps;  // since the start
  int64_t failures;      // failed steps since the last one that succeeded
  double since_failure;  // seconds since the last failed step, if there was one
  int64_t forgotten;     // how often the KV cache was dropped: after a failed step, or to give memory back
  bool is_failing;       // so many that new tasks are refused, except one from time to time
  char reason[256];      // of the last failed step; "" if there was none
} mlx_serving_stats_t;
mlx_serving_stats_t mlx_serving_stats(mlx_serving_t *serving);
// Sequences that wait, also those of requests that the scheduler has not taken yet.
int64_t mlx_serving_waiting(const mlx_serving_stats_t *stats);
// Used part of the KV cache, 0 to 1: of pages or of window pages, the larger one.
double mlx_serving_pool_usage(const mlx_serving_stats_t *stats);

// A place for a sequence that runs, as after the last step.
typedef struct mlx_slot {
  int64_t task;  // number of the task, from 1; 0: the slot is free, and the rest is 0
  int64_t prompt_tokens, read_tokens, cached_tokens, generated;
  int64_t max_tokens;  // -1: no limit
  bool ignore_eos;
  mlx_sampling_t sampling;  // without biases and breakers
} mlx_slot_t;
typedef struct mlx_slots mlx_slots_t;
// Copies at most |capacity| slots. Returns how many there are.
size_t mlx_serving_slots(mlx_serving_t *serving, mlx_slot_t *out_slots, size_t capacity);

#endif  // MLXCEL_SERVER_CORE_SERVING_H_
