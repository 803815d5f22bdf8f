// Served: a model of the command line in a server. For serve and batch.
#ifndef MLXCEL_CLI_SERVED_H_
#define MLXCEL_CLI_SERVED_H_

#include "server/core/server.h"

// Adds |model|, any name of open/locate.h, and pulls it if it is not here: a wrong name is an error at the
// start, not at the first request. |given| is the public name; NULL: one made from |model|.
mlx_status_t mlx_cli_add_served(mlx_server_t *server, const char *model, const char *given) MLX_MUST_USE;

#endif  // MLXCEL_CLI_SERVED_H_
