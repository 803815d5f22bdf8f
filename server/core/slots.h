// Slots: which tasks of a model run, for GET /slots. A task has the same slot from its first step until it
// ends or is preempted.
//
// Threads: mlx_slots_update is called by the scheduler thread, mlx_slots_copy by any thread.
#ifndef MLXCEL_SERVER_CORE_SLOTS_H_
#define MLXCEL_SERVER_CORE_SLOTS_H_

#include "server/core/serving.h"

// All slots are free. Release with mlx_slots_free.
mlx_status_t mlx_slots_create(int64_t count, mlx_slots_t **out_slots) MLX_MUST_USE;
void mlx_slots_free(mlx_slots_t *slots);  // NULL is fine
// After a step of |scheduler|, whose requests are those of tasks.
void mlx_slots_update(mlx_slots_t *slots, const mlx_scheduler_t *scheduler);
// Copies the first |capacity| slots. Returns how many there are.
size_t mlx_slots_copy(mlx_slots_t *slots, mlx_slot_t *out_slots, size_t capacity);

#endif  // MLXCEL_SERVER_CORE_SLOTS_H_
