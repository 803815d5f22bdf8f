// Workers: a few threads for work that must block neither the loop thread nor the scheduler: JSON, chat
// templates, tokenizing and grammars.
//
// Threads: any thread may push work.
#ifndef MLXCEL_SERVER_CORE_WORKER_H_
#define MLXCEL_SERVER_CORE_WORKER_H_

#include "base/status.h"

typedef struct mlx_workers mlx_workers_t;

// One piece of work, usually a member of the object that it works on. |run| may free it.
typedef struct mlx_workers_item {
  void (*run)(struct mlx_workers_item *work);
  bool is_long;  // other work may overtake it
  struct mlx_workers_item *next;
} mlx_workers_item_t;

// Release with mlx_workers_free.
mlx_status_t mlx_workers_create(int threads, mlx_workers_t **out_workers) MLX_MUST_USE;
// Runs |work| on a worker, long and other work each in the order of the calls. At most half of the threads,
// or the only one, run long work at a time, so that other work does not wait for it. After mlx_workers_stop:
// at once, on the calling thread.
void mlx_workers_push(mlx_workers_t *workers, mlx_workers_item_t *work);
// Runs what was pushed, then ends the threads. Any thread may still push work. NULL is fine.
void mlx_workers_stop(mlx_workers_t *workers);
// Also stops them. NULL is fine.
void mlx_workers_free(mlx_workers_t *workers);

#endif  // MLXCEL_SERVER_CORE_WORKER_H_
