// Sleep: vLLM's /sleep, /wake_up and /is_sleeping. The user of the server must allow the first two.
#ifndef MLXCEL_SERVER_CORE_SLEEP_H_
#define MLXCEL_SERVER_CORE_SLEEP_H_

#include "server/core/site.h"

// Loop thread: begin the stages of these requests. A worker waits until the models are asleep or awake.
mlx_status_t mlx_sleep_start(mlx_job_t *job) MLX_MUST_USE;
mlx_status_t mlx_sleep_start_wake(mlx_job_t *job) MLX_MUST_USE;
void mlx_sleep_info(mlx_site_t *site, mlx_exchange_t *exchange);

#endif  // MLXCEL_SERVER_CORE_SLEEP_H_
