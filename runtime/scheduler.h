// A scheduler on any stepper: the engine's, or a simulated one in tests. runtime/mlxcel.h has the rest.
#ifndef MLXCEL_RUNTIME_SCHEDULER_H_
#define MLXCEL_RUNTIME_SCHEDULER_H_

#include "runtime/pool.h"
#include "runtime/sequence_sampler.h"
#include "runtime/stepper.h"

// What a scheduler runs on. The pointers are borrowed and must outlive the scheduler.
typedef struct mlx_scheduler_parts {
  mlx_stepper_t *stepper;
  mlx_pool_t *pool;  // has the stepper's pages and slots
  mlx_language_t language;
  int64_t prompt_chunk;  // the default of options.max_prompt_chunk
  double (*now)(void);   // the clock of the prefill budget, in seconds; NULL: mlx_seconds
} mlx_scheduler_parts_t;
// Release with mlx_scheduler_delete.
mlx_status_t mlx_scheduler_create_on(const mlx_scheduler_parts_t *parts,
                                     const mlx_scheduler_options_t *options,
                                     mlx_scheduler_t **out_scheduler) MLX_MUST_USE;
// All requests and sessions must be freed before. NULL is fine.
void mlx_scheduler_delete(mlx_scheduler_t *scheduler);
// Waits for all queued steps, sets the options and clears the statistics.
void mlx_scheduler_configure(mlx_scheduler_t *scheduler, const mlx_scheduler_options_t *options);

#endif  // MLXCEL_RUNTIME_SCHEDULER_H_
