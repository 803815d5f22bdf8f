// Record: what the access log and the metrics say about one request. Shared by the loop thread, which logs
// it, and the thread that answers.
#ifndef MLXCEL_SERVER_RECORD_H_
#define MLXCEL_SERVER_RECORD_H_

#include <stdatomic.h>
#include <stdint.h>

#include "base/status.h"

typedef struct mlx_record {
  const char *endpoint;         // constant: "chat"
  double start;                 // mlx_seconds
  _Atomic(const char *) model;  // the model's name; NULL: none
  _Atomic int64_t prompt_tokens, cached_tokens, output_tokens;
  _Atomic int64_t first_token_us;  // microseconds until the first token; 0: none
  atomic_int users;
} mlx_record_t;

// With one user.
mlx_status_t mlx_record_create(const char *endpoint, mlx_record_t **out_record) MLX_MUST_USE;
void mlx_record_retain(mlx_record_t *record);
void mlx_record_release(mlx_record_t *record);  // NULL is fine

#endif  // MLXCEL_SERVER_RECORD_H_
