// Ranks: a stepper that passes each call to the steppers of all parts of one model
// (docs/internals/tensor-parallel.md). They compute the same steps at the same time; the results are those of
// rank 0. Private to runtime/.
#ifndef MLXCEL_RUNTIME_RANKS_H_
#define MLXCEL_RUNTIME_RANKS_H_

#include "runtime/stepper.h"

#define MLX_MOST_RANK_ENGINES 8

// |steppers| are those of engines (engine_stepper.h), and are borrowed. Release with mlx_ranks_free.
mlx_status_t mlx_ranks_create(mlx_stepper_t *const *steppers, size_t count,
                              mlx_stepper_t **out_stepper) MLX_MUST_USE;
void mlx_ranks_free(mlx_stepper_t *stepper);  // NULL is fine

#endif  // MLXCEL_RUNTIME_RANKS_H_
