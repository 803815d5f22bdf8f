// Windows has no SIGPIPE and no limit of open sockets. Unix sockets are not supported there: libuv's pipes
// are named pipes, which HTTP clients cannot use.
#include "server/http/socket.h"

#include <signal.h>

const int mlx_socket_end_signals[MLX_SOCKET_END_SIGNALS] = {SIGINT, SIGBREAK, SIGHUP};

bool mlx_socket_ignores(int signal) { return (void)signal, false; }

mlx_status_t mlx_socket_prepare_path(const char *path) {
  return mlx_status_hint(mlx_error(MLX_UNSUPPORTED, "cannot listen on %s: no Unix sockets on Windows", path),
                         "listen on an address with --host and --port");
}

mlx_status_t mlx_socket_make_private(const char *path) {
  (void)path;
  return NULL;
}

size_t mlx_socket_unacknowledged(const uv_stream_t *stream) { return (void)stream, 0; }
int64_t mlx_socket_reserve(int64_t connections) { return connections; }
void mlx_socket_check_spare(uv_loop_t *loop) { (void)loop; }
void mlx_socket_block_sigpipe(mlx_socket_signals_t *out_signals) { (void)out_signals; }
void mlx_socket_restore_signals(const mlx_socket_signals_t *signals) { (void)signals; }
