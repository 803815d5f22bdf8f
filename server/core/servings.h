// Servings: the engines of a loaded model, one serving for each, and the placement of requests on them.
//
// All sequences of a request run on one engine. Of the engines that work, and that have at most 1/8 of their
// slots (at least 4) more sequences than the one with the fewest, it is the one with the smallest cost:
//
//   tokens of the prompts that it must compute + 32 x its sequences
//
// Which prefixes an engine has is an estimate (server/core/prefix_index.h). An engine whose last step failed
// gets no requests for 5 s, then one; each further failure in a row doubles the time, up to 320 s. If no
// engine works, requests go to one that does not, which refuses them with the reason.
//
// Threads: any thread, except create, add and free.
#ifndef MLXCEL_SERVER_CORE_SERVINGS_H_
#define MLXCEL_SERVER_CORE_SERVINGS_H_

#include "server/core/serving.h"

#define MLX_MOST_ENGINES 64  // of a model

typedef struct mlx_servings mlx_servings_t;

// Without engines. An engine with tasks that completes no step for |stall_seconds| does not work; 0: no
// limit. Release with mlx_servings_free.
mlx_status_t mlx_servings_create(double stall_seconds, mlx_servings_t **out_servings) MLX_MUST_USE;
// Adds a serving without tasks, at most MLX_MOST_ENGINES. Takes it, also if this fails. Fails with
// MLX_OUT_OF_MEMORY if its context is not that of the others, because its device had less memory.
mlx_status_t mlx_servings_add(mlx_servings_t *servings, mlx_serving_t *serving) MLX_MUST_USE;
// Cancels all tasks, waits for their callbacks, and closes the engines. NULL is fine.
void mlx_servings_free(mlx_servings_t *servings);

size_t mlx_servings_count(const mlx_servings_t *servings);
mlx_serving_t *mlx_servings_at(const mlx_servings_t *servings, size_t index);
// Bytes that all engines may use, with their KV caches at full size. Engines on a CPU share their weights.
uint64_t mlx_servings_bytes(const mlx_servings_t *servings);
// The weights of an engine cannot be read any more (mlx_engine_is_damaged).
bool mlx_servings_is_damaged(const mlx_servings_t *servings);

// Chooses an engine and submits the tasks of a request to it (mlx_serving_submit). If it refuses them, tries
// the others. *|out_full| is true, and nothing is added, if no engine takes them and too many requests wait.
mlx_status_t mlx_servings_submit(mlx_servings_t *servings, mlx_task_t *tasks, size_t count,
                                 bool *out_full) MLX_MUST_USE;
// Of all engines: mlx_serving_pause and so on.
void mlx_servings_pause(mlx_servings_t *servings);
void mlx_servings_resume(mlx_servings_t *servings);
void mlx_servings_trim(mlx_servings_t *servings);
// Adds what the schedulers of all engines did to |inout_work|.
void mlx_servings_add_work(const mlx_servings_t *servings, mlx_scheduler_stats_t *inout_work);
// Why no engine works, as text in |out_problem|; "" if one does. |name| is the model's.
void mlx_servings_problem(const mlx_servings_t *servings, const char *name, char *out_problem, size_t size);
// Whether the engine is one that requests are placed on.
bool mlx_servings_works(const mlx_servings_t *servings, const mlx_serving_stats_t *stats);

#endif  // MLXCEL_SERVER_CORE_SERVINGS_H_
