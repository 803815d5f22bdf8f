// Local: requests of this program itself, without HTTP (mlxcel batch). They pass the same endpoints, workers
// and scheduler threads as those of clients, in a server that does not listen.
//
// Threads: one thread makes all calls.
#ifndef MLXCEL_SERVER_CORE_LOCAL_H_
#define MLXCEL_SERVER_CORE_LOCAL_H_

#include "server/core/server.h"

typedef struct mlx_local mlx_local_t;

// |server| has one model, and outlives the result. Loads the model. Release with mlx_local_free.
mlx_status_t mlx_local_create(mlx_server_t *server, mlx_local_t **out_local) MLX_MUST_USE;
// Ends all requests, and the server's threads. NULL is fine.
void mlx_local_free(mlx_local_t *local);

// Begins a request: POST |path| ("/v1/embeddings") with a body, which is copied.
mlx_status_t mlx_local_post(mlx_local_t *local, const char *path, const char *body, size_t length,
                            void *user) MLX_MUST_USE;

typedef struct mlx_local_response {
  void *user;        // of the request
  int status;        // of HTTP; 0: the response is not complete, because memory was short
  const char *body;  // borrowed until the next call
  size_t length;
} mlx_local_response_t;
// Waits at most |seconds| for the next response. Returns false if none came.
bool mlx_local_wait(mlx_local_t *local, double seconds, mlx_local_response_t *out_response);

typedef struct mlx_local_stats {
  int64_t sequences;  // that run at the same time
  int64_t prompt_tokens, output_tokens, running;
  bool has_chat;  // the model has a chat template
} mlx_local_stats_t;
mlx_local_stats_t mlx_local_stats(mlx_local_t *local);

#endif  // MLXCEL_SERVER_CORE_LOCAL_H_
