// Job: a request that generates text, from its body to the end of its answer.
#ifndef MLXCEL_SERVER_JOB_H_
#define MLXCEL_SERVER_JOB_H_

#include "server/errand.h"
#include "server/shape.h"

// Loop thread: starts a job for |exchange|, in the form of |shape|.
mlx_status_t mlx_job_start(mlx_service_t *service, const mlx_shape_t *shape,
                           mlx_exchange_t *exchange) MLX_MUST_USE;
// Fails, and fills |failure|, if |count| tokens and one more do not fit into the context of |engine|.
mlx_status_t mlx_job_check_context(const mlx_engine_t *engine, size_t count,
                                   mlx_failure_t *inout_failure) MLX_MUST_USE;

#endif  // MLXCEL_SERVER_JOB_H_
