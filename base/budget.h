// Budget: limits the time and memory of the work on one untrusted input, such as a file or a text.
//
// The time is wall time, because a user waits for it. Code counts steps, and the budget reads the clock after
// every MLX_BUDGET_STEPS of them. The memory is what the code declares before it allocates.
//
// Threads: a budget belongs to one thread at a time.
#ifndef MLXCEL_BASE_BUDGET_H_
#define MLXCEL_BASE_BUDGET_H_

#include <stdint.h>

#include "base/status.h"

#define MLX_BUDGET_STEPS 32768  // a step takes less than 1 us, so a deadline is missed by less than 33 ms

// The budget of a foreign file (docs/formats.md): a model's metadata, its tokenizer or a grammar.
#define MLX_FILE_SECONDS 10                   // and 1 s more for each MLX_FILE_BYTES_PER_SECOND
#define MLX_FILE_BYTES_PER_SECOND (4u << 20)  // bytes of the file
#define MLX_FILE_MEMORY ((size_t)256 << 20)   // bytes, and MLX_FILE_MEMORY_FACTOR more for each byte
#define MLX_FILE_MEMORY_FACTOR 32

typedef struct mlx_budget {
  const char *name;     // borrowed: the input, for errors; NULL if it has no name
  const char *work;     // borrowed: the work, for errors: "reading the file"
  int64_t deadline_ns;  // of the monotonic clock
  int64_t seconds;
  uint64_t steps_left;  // until the clock is read
  size_t memory, memory_left;
} mlx_budget_t;

void mlx_budget_begin(mlx_budget_t *budget, const char *work, int64_t seconds, size_t memory);
// The budget of the foreign file |name| of |size| bytes.
void mlx_budget_begin_file(mlx_budget_t *budget, const char *name, size_t size);

// Limits the budgets that this thread begins from now on. None has its deadline later than |total| seconds
// from now, and none has more than |each| seconds. 0: no limit. A thread begins without limits. For threads
// that do work of untrusted clients, so that one client cannot keep the thread.
void mlx_budget_limit_thread(int64_t total, int64_t each);

// Reads the clock. Fails with MLX_TIMEOUT after the deadline.
mlx_status_t mlx_budget_check(mlx_budget_t *budget) MLX_MUST_USE;
// Counts |steps|, each an operation of constant time, and reads the clock when it is time to.
static inline mlx_status_t mlx_budget_step(mlx_budget_t *budget, uint64_t steps) {
  if (steps >= budget->steps_left) return mlx_budget_check(budget);
  budget->steps_left -= steps;
  return NULL;
}
bool mlx_budget_is_over(const mlx_budget_t *budget);  // reads the clock

// Declares an allocation of |bytes|. Fails with MLX_UNSUPPORTED if it exceeds the budget.
mlx_status_t mlx_budget_take(mlx_budget_t *budget, size_t bytes) MLX_MUST_USE;

// Replaces the clock, which returns nanoseconds; NULL restores the system's. For tests, before any thread
// starts.
void mlx_budget_set_clock(int64_t (*clock_ns)(void));

#endif  // MLXCEL_BASE_BUDGET_H_
