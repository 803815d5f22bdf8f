// Parts of a server, for requests of this program itself (local.h).
#ifndef MLXCEL_SERVER_CORE_SERVER_PARTS_H_
#define MLXCEL_SERVER_CORE_SERVER_PARTS_H_

#include "server/core/server.h"
#include "server/core/site.h"

mlx_site_t *mlx_server_site(mlx_server_t *server);
// Ends all jobs: each answers its request, with an error if it is not done. mlx_server_free must follow.
void mlx_server_end(mlx_server_t *server);

#endif  // MLXCEL_SERVER_CORE_SERVER_PARTS_H_
