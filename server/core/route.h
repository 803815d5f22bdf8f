// Route: finds the endpoint of a request, after the checks that all requests pass: API key and CORS.
#ifndef MLXCEL_SERVER_CORE_ROUTE_H_
#define MLXCEL_SERVER_CORE_ROUTE_H_

#include "server/core/site.h"

// Loop thread: answers |exchange|, or passes it on to another thread.
void mlx_route_request(mlx_site_t *site, mlx_exchange_t *exchange);
// Loop thread: answers a request that the HTTP layer refuses.
void mlx_route_refuse(mlx_site_t *site, mlx_exchange_t *exchange, int status, const char *message);
// True for requests that are answered although there are too many connections: those of monitors.
bool mlx_route_is_reserved(const mlx_exchange_t *exchange);
// Loop thread: the exchange has ended. Writes the access log, counts it, and releases its job.
void mlx_route_ended(mlx_site_t *site, const mlx_exchange_t *exchange, double seconds, uint64_t sent_bytes,
                     bool gone);

#endif  // MLXCEL_SERVER_CORE_ROUTE_H_
