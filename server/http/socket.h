// Socket: the few calls of the HTTP server that differ between operating systems and that libuv lacks.
#ifndef MLXCEL_SERVER_HTTP_SOCKET_H_
#define MLXCEL_SERVER_HTTP_SOCKET_H_

#include <stdint.h>

#include "base/status.h"
#include "uv.h"

// Prepares |path| for a new Unix socket. The socket file of a server that has ended without removing it is
// removed. A live server's socket and any other file are errors.
mlx_status_t mlx_socket_prepare_path(const char *path) MLX_MUST_USE;
// Restricts a bound Unix socket that does not listen yet to its owner.
mlx_status_t mlx_socket_make_private(const char *path) MLX_MUST_USE;

// Bytes that were written to a connected socket and that its peer has not acknowledged; 0 if unknown.
size_t mlx_socket_unacknowledged(const uv_stream_t *stream);

// Raises the process's limit of open files for |connections| sockets and returns how many fit.
int64_t mlx_socket_reserve(int64_t connections);
// Call in each turn of the loop. Out of file descriptors, libuv needs a spare one to refuse connections, and
// would poll without end if another thread had taken it. This function reopens it, or waits a little.
void mlx_socket_check_spare(uv_loop_t *loop);

// The signals that ask a program to end: SIGINT, SIGTERM and SIGHUP. Windows has Ctrl-C, Ctrl-Break and the
// closing of the console, which libuv calls SIGHUP.
#define MLX_SOCKET_END_SIGNALS 3
extern const int mlx_socket_end_signals[MLX_SOCKET_END_SIGNALS];
// True if the parent process made this process ignore |signal|, as nohup does with SIGHUP.
bool mlx_socket_ignores(int signal);

// Blocks SIGPIPE in this thread, so that a write to a client that has left is an error of that write only.
typedef struct mlx_socket_signals {
  uint64_t saved[16];  // room for sigset_t
} mlx_socket_signals_t;
void mlx_socket_block_sigpipe(mlx_socket_signals_t *out_signals);
void mlx_socket_restore_signals(const mlx_socket_signals_t *signals);

#endif  // MLXCEL_SERVER_HTTP_SOCKET_H_
