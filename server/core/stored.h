// Stored: GET and DELETE of /v1/responses/ID, and GET of its input_items (server/api/stored_responses.h).
#ifndef MLXCEL_SERVER_CORE_STORED_H_
#define MLXCEL_SERVER_CORE_STORED_H_

#include "server/core/job.h"

// True if |path|, without /v1, is that of a stored response. *|out_allow| are its methods.
bool mlx_stored_is_path(const char *path, const char **out_allow);
// Loop thread: begins the stages of |job|, whose exchange has such a path. |path| is borrowed from it.
mlx_status_t mlx_stored_start(mlx_job_t *job, const char *path) MLX_MUST_USE;

#endif  // MLXCEL_SERVER_CORE_STORED_H_
