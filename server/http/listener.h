// Listener: the sockets on which a server accepts connections: one Unix socket, or one TCP socket for each
// address of a host.
//
// Threads: the loop thread, or the thread that creates the server before it runs.
#ifndef MLXCEL_SERVER_HTTP_LISTENER_H_
#define MLXCEL_SERVER_HTTP_LISTENER_H_

#include "server/http/http.h"
#include "uv.h"

#define MLX_LISTENER_MAX 8

typedef struct mlx_http_listener {
  union {
    uv_handle_t handle;
    uv_stream_t stream;
    uv_tcp_t tcp;
    uv_pipe_t pipe;
  } sockets[MLX_LISTENER_MAX];
  size_t count;
  int port;  // 0 for a Unix socket
} mlx_http_listener_t;

// Binds and listens. |user| is the data of each handle. Also after an error, the caller closes the listener.
mlx_status_t mlx_http_listener_open(uv_loop_t *loop, const mlx_http_server_options_t *options,
                                    uv_connection_cb on_connection, void *user,
                                    mlx_http_listener_t *out_listener) MLX_MUST_USE;
// Closes the sockets and removes the Unix socket's file. May be called again.
void mlx_http_listener_close(mlx_http_listener_t *listener);

#endif  // MLXCEL_SERVER_HTTP_LISTENER_H_
