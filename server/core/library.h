// Library: Ollama's /api/pull, /api/copy and /api/delete, which change the models of a server. The user of
// the server must allow each.
#ifndef MLXCEL_SERVER_CORE_LIBRARY_H_
#define MLXCEL_SERVER_CORE_LIBRARY_H_

#include "server/core/library_rules.h"
#include "server/core/site.h"

mlx_status_t mlx_library_create(const mlx_library_rules_t *rules, mlx_library_t **out_library) MLX_MUST_USE;
void mlx_library_free(mlx_library_t *library);  // NULL is fine

// Loop thread: begins the stages of a pull. One runs at a time; it goes on if its client leaves.
mlx_status_t mlx_library_start_pull(mlx_job_t *job) MLX_MUST_USE;
// Loop thread: begins the stages of a deletion. Requests of the model that run go on.
mlx_status_t mlx_library_start_delete(mlx_job_t *job) MLX_MUST_USE;
// Loop thread, which is the only one that reads lists of names: answers at once.
void mlx_library_copy(mlx_site_t *site, mlx_exchange_t *exchange);

#endif  // MLXCEL_SERVER_CORE_LIBRARY_H_
