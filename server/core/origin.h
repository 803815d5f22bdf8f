// Origin: which web pages may use the server.
//
// A page of any site can make a browser send requests to a server on localhost. Three checks refuse them, if
// the server has no API key:
// - Host must be a name of this server. A page whose own name resolves to 127.0.0.1 (DNS rebinding) fails.
// - Origin, which browsers add to requests of pages, must be this server or one of --cors.
// - A body must be JSON. Pages can send other types without asking the server first.
// With a key, a page needs the key, so nothing is checked. docs/server.md describes the rules.
#ifndef MLXCEL_SERVER_CORE_ORIGIN_H_
#define MLXCEL_SERVER_CORE_ORIGIN_H_

#include "server/core/failure.h"
#include "server/core/site.h"

// Fails if the request may come from a web page that may not use the server. |out_kind| is then the failure.
mlx_status_t mlx_origin_check(const mlx_site_t *site, const mlx_exchange_t *exchange,
                              mlx_failure_kind_t *out_kind) MLX_MUST_USE;
// Sets the CORS headers of a response, if --cors has the origin of the request.
void mlx_origin_allow(const mlx_site_t *site, mlx_exchange_t *exchange);
// Answers OPTIONS: browsers ask with it what a page of another origin may send.
void mlx_origin_respond_options(const mlx_site_t *site, mlx_exchange_t *exchange);

#endif  // MLXCEL_SERVER_CORE_ORIGIN_H_
