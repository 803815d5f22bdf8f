// KV batch: collects the changes of a prefix cache, and writes those of a step in the form of vLLM's KV
// events (docs/kv-events.md).
//
// MessagePack, arrays throughout: the form that all consumers read. The newest vLLM writes maps.
//   [seconds since 1970, [event, …], rank]
//   ["BlockStored", [hash, …], parent's hash or nil, [token, …], 16, nil, "GPU", nil]
//   ["BlockRemoved", [hash, …], "GPU"]
//   ["AllBlocksCleared"]
//
// Threads: one at a time, that of the engine's scheduler.
#ifndef MLXCEL_SERVER_EVENTS_KV_BATCH_H_
#define MLXCEL_SERVER_EVENTS_KV_BATCH_H_

#include "base/text.h"
#include "runtime/page_watcher.h"

typedef struct mlx_kv_batch mlx_kv_batch_t;

// Called with the events of each step; owns |payload| (mlx_free). NULL: there was not enough memory.
typedef void (*mlx_kv_batch_fn_t)(void *user, char *payload, size_t length);

// For one engine at a time. Release with mlx_kv_batch_free.
mlx_status_t mlx_kv_batch_create(int rank, mlx_kv_batch_fn_t on_batch, void *user,
                                 mlx_kv_batch_t **out_batch) MLX_MUST_USE;
void mlx_kv_batch_free(mlx_kv_batch_t *batch);  // NULL is fine
// What collects the changes of an engine's pages (runtime/page_watcher.h).
mlx_page_watcher_t mlx_kv_batch_watcher(mlx_kv_batch_t *batch);

#endif  // MLXCEL_SERVER_EVENTS_KV_BATCH_H_
