// Connection: one client's socket. It reads requests one after the other, hands each to the handler, and
// writes its response before it reads the next one, so that pipelined requests are answered in order.
//
// Threads: the loop thread only.
#ifndef MLXCEL_SERVER_HTTP_CONNECTION_H_
#define MLXCEL_SERVER_HTTP_CONNECTION_H_

#include "server/http/exchange.h"
#include "server/http/tls.h"

typedef struct mlx_http_connection mlx_http_connection_t;

// The connections of a server, and what they share.
typedef struct mlx_http_connections {
  const mlx_http_server_options_t *options;
  uv_loop_t *loop;
  mlx_exchange_queue_t *queue;
  mlx_tls_context_t *tls;  // NULL: no TLS
  int64_t max, max_per_address;
  int64_t open, extra;  // connections that are not closed: within the limits, and above them
  atomic_llong count;   // that are not released
  mlx_http_connection_t *first;
  void (*on_closed)(struct mlx_http_connections *connections);  // a connection was released
  void (*on_large)(struct mlx_http_connections *connections);   // an exchange of many bytes has ended
  char buffer[65536];                                           // libuv reads into it
} mlx_http_connections_t;

// Accepts a connection from |listener|. Above a limit, the oldest connection without a request is closed for
// it. If all are busy, only its reserved requests are handled; others are answered with 503. Returns false if
// there is no memory for it; it then waits in the listener.
bool mlx_http_connection_accept(mlx_http_connections_t *connections, uv_stream_t *listener);
// Writes what the handler has added to the response. Does nothing if the exchange has no connection any more.
void mlx_http_connection_flush(mlx_exchange_t *exchange);
void mlx_http_connections_close_idle(
    mlx_http_connections_t *connections);  // those that have sent no part of a request
void mlx_http_connections_close(
    mlx_http_connections_t *connections);  // all; handlers see that their clients left

#endif  // MLXCEL_SERVER_HTTP_CONNECTION_H_
