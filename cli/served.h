// Served: a model of the command line in a server, and its engines. For serve and batch.
#ifndef MLXCEL_CLI_SERVED_H_
#define MLXCEL_CLI_SERVED_H_

#include "cli/open.h"
#include "server/core/server.h"

// Adds |model|, any name of open/locate.h, and pulls it if it is not here: a wrong name is an error at the
// start, not at the first request. |given| is the public name; NULL: one made from |model|.
mlx_status_t mlx_cli_add_served(mlx_server_t *server, const char *model, const char *given) MLX_MUST_USE;

// Sets the devices and the number of engines of a server: those of --gpu, each with |engines|. A wrong number
// is an error at the start.
mlx_status_t mlx_cli_use_engines(const mlx_open_flags_t *open, int64_t engines,
                                 mlx_server_options_t *out_options) MLX_MUST_USE;

#endif  // MLXCEL_CLI_SERVED_H_
