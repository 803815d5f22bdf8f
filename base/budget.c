// Deadlines and declared memory of work on untrusted input.
#include "base/budget.h"

#include <time.h>

#define SECOND_NS INT64_C(1000000000)

static int64_t system_clock_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * SECOND_NS + now.tv_nsec;
}

static int64_t (*clock_ns)(void) = system_clock_ns;

void mlx_budget_set_clock(int64_t (*new_clock_ns)(void)) {
  clock_ns = new_clock_ns ? new_clock_ns : system_clock_ns;
}

static _Thread_local struct {
  int64_t deadline_ns, total;  // total 0: none
  int64_t each;                // seconds; 0: none
} thread_limit;

void mlx_budget_limit_thread(int64_t total, int64_t each) {
  thread_limit.deadline_ns = clock_ns() + total * SECOND_NS;
  thread_limit.total = total;
  thread_limit.each = each;
}

void mlx_budget_begin(mlx_budget_t *budget, const char *work, int64_t seconds, size_t memory) {
  if (thread_limit.each && seconds > thread_limit.each) seconds = thread_limit.each;
  *budget = (mlx_budget_t){.work = work,
                           .deadline_ns = clock_ns() + seconds * SECOND_NS,
                           .seconds = seconds,
                           .steps_left = MLX_BUDGET_STEPS,
                           .memory = memory,
                           .memory_left = memory};
  if (!thread_limit.total || budget->deadline_ns <= thread_limit.deadline_ns) return;
  budget->deadline_ns = thread_limit.deadline_ns;
  budget->seconds = thread_limit.total;
}

void mlx_budget_begin_file(mlx_budget_t *budget, const char *name, size_t size) {
  const size_t most = (SIZE_MAX - MLX_FILE_MEMORY) / MLX_FILE_MEMORY_FACTOR;
  mlx_budget_begin(budget, "reading the file", MLX_FILE_SECONDS + (int64_t)(size / MLX_FILE_BYTES_PER_SECOND),
                   MLX_FILE_MEMORY + (size < most ? size : most) * MLX_FILE_MEMORY_FACTOR);
  budget->name = name;
}

bool mlx_budget_is_over(const mlx_budget_t *budget) { return clock_ns() > budget->deadline_ns; }

mlx_status_t mlx_budget_check(mlx_budget_t *budget) {
  budget->steps_left = MLX_BUDGET_STEPS;
  if (!mlx_budget_is_over(budget)) return NULL;
  budget->steps_left = 0;  // every later step fails too
  return mlx_error(MLX_TIMEOUT, "%s%s%s takes longer than the limit of %lld s",
                   budget->name ? budget->name : "", budget->name ? ": " : "", budget->work,
                   (long long)budget->seconds);
}

mlx_status_t mlx_budget_take(mlx_budget_t *budget, size_t bytes) {
  if (bytes > budget->memory_left) {
    return mlx_error(MLX_UNSUPPORTED, "%s%s%s needs more than the limit of %zu MiB of memory",
                     budget->name ? budget->name : "", budget->name ? ": " : "", budget->work,
                     budget->memory >> 20);
  }
  budget->memory_left -= bytes;
  return NULL;
}
