// Generate: a request that generates text, from its body to the end of its answer.
#ifndef MLXCEL_SERVER_CORE_GENERATE_H_
#define MLXCEL_SERVER_CORE_GENERATE_H_

#include "server/core/job.h"

// Loop thread: begins the stages of |job|, in the form of |api|.
mlx_status_t mlx_generate_start(mlx_job_t *job, const mlx_api_t *api) MLX_MUST_USE;

#endif  // MLXCEL_SERVER_CORE_GENERATE_H_
