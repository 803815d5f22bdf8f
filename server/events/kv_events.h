// KV events: publishes what the prefix cache of a model holds, for routers that send a request to the replica
// that has its prompt (docs/kv-events.md).
#ifndef MLXCEL_SERVER_EVENTS_KV_EVENTS_H_
#define MLXCEL_SERVER_EVENTS_KV_EVENTS_H_

#include "runtime/mlxcel.h"

typedef struct mlx_kv_events_options {
  const char *endpoint;  // tcp://ADDRESS:PORT of the PUB socket; NULL: no events
  const char *replay;    // of the ROUTER socket; NULL: none
  const char *topic;     // NULL: kv@HOSTNAME@MODEL
} mlx_kv_events_options_t;

typedef struct mlx_kv_events mlx_kv_events_t;

// Listens. Release with mlx_kv_events_free.
mlx_status_t mlx_kv_events_create(const mlx_kv_events_options_t *options,
                                  mlx_kv_events_t **out_events) MLX_MUST_USE;
// After the engine has been closed. NULL is fine.
void mlx_kv_events_free(mlx_kv_events_t *events);
int mlx_kv_events_port(const mlx_kv_events_t *events);
int mlx_kv_events_replay_port(const mlx_kv_events_t *events);  // 0: none
// Publishes the pages of |engine|, which has no requests yet, until it is closed. One engine at a time.
// |model| is the model's name.
mlx_status_t mlx_kv_events_watch(mlx_kv_events_t *events, mlx_engine_t *engine,
                                 const char *model) MLX_MUST_USE;

#endif  // MLXCEL_SERVER_EVENTS_KV_EVENTS_H_
