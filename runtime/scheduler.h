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
} mlx_scheduler_parts_t;
// Release with mlx_scheduler_free.
mlx_status_t mlx_scheduler_create_on(const mlx_scheduler_parts_t *parts,
                                     const mlx_scheduler_options_t *options,
                                     mlx_scheduler_t **out_scheduler) MLX_MUST_USE;

// A sequence that belongs to a session. Its KV holds |length| tokens.
typedef struct mlx_held_sequence {
  int32_t slot;
  int32_t *pages;  // [page_capacity], enough for every position
  size_t page_count, page_capacity;
  const int32_t *ids;  // [length]
  size_t length;
} mlx_held_sequence_t;
// The same as mlx_scheduler_submit, but the request continues |held|, which it uses until it is freed. When
// it is done, *|out_request| has the new number of pages, and the tokens whose KV is written (request.h).
mlx_status_t mlx_scheduler_submit_held(mlx_scheduler_t *scheduler, const mlx_held_sequence_t *held,
                                       const int32_t *ids, size_t count,
                                       const mlx_generate_options_t *options,
                                       mlx_request_t **out_request) MLX_MUST_USE;

#endif  // MLXCEL_RUNTIME_SCHEDULER_H_
