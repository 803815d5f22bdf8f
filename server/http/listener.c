// Resolves the host, binds and listens.
#include "server/http/listener.h"

#include <stdio.h>
#include <string.h>

#include "server/http/socket.h"

#define BACKLOG 1024

void mlx_http_listener_close(mlx_http_listener_t *listener) {
  for (size_t i = 0; i < listener->count; ++i) {
    if (!uv_is_closing(&listener->sockets[i].handle)) uv_close(&listener->sockets[i].handle, NULL);
  }
}

static mlx_status_t listen_unix(uv_loop_t *loop, const char *path, uv_connection_cb on_connection, void *user,
                                mlx_http_listener_t *listener) {
  uv_pipe_t *pipe = &listener->sockets[0].pipe;
  MLX_TRY(mlx_socket_prepare_path(path));
  uv_pipe_init(loop, pipe, 0);
  pipe->data = user;
  listener->count = 1;
  int error = uv_pipe_bind2(pipe, path, strlen(path), UV_PIPE_NO_TRUNCATE);
  if (!error) MLX_TRY(mlx_socket_make_private(path));  // no client can connect before uv_listen
  if (!error) error = uv_listen(&listener->sockets[0].stream, BACKLOG, on_connection);
  if (!error) return NULL;
  return mlx_status_hint(mlx_error(MLX_IO, "cannot listen on %s: %s", path, uv_strerror(error)),
                         "give a path in a folder that exists and that you may write");
}

static mlx_status_t tcp_error(const char *host, int port, int error) {
  mlx_status_t status = mlx_error(MLX_IO, "cannot listen on %s port %d: %s", host, port, uv_strerror(error));
  switch (error) {
    case UV_EADDRINUSE:
      return mlx_status_hint(status,
                             "another program uses the port; choose another one, for example --port %d",
                             port < 65535 ? port + 1 : 8080);
    case UV_EACCES:
      return mlx_status_hint(status, "ports below 1024 need a privilege; choose another one with --port");
    case UV_EADDRNOTAVAIL:
      return mlx_status_hint(status,
                             "--host must be an address of this machine, such as 127.0.0.1 or 0.0.0.0");
    default: return status;
  }
}

static int port_of(const uv_tcp_t *tcp) {
  struct sockaddr_storage address;
  int length = sizeof address;
  if (uv_tcp_getsockname(tcp, (struct sockaddr *)&address, &length)) return 0;
  const uint16_t port = address.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&address)->sin6_port
                                                      : ((struct sockaddr_in *)&address)->sin_port;
  return ntohs(port);
}

// Listens on one address. With port 0, further addresses get the port of the first.
static int listen_address(uv_loop_t *loop, struct sockaddr *address, int port, uv_connection_cb on_connection,
                          void *user, mlx_http_listener_t *listener) {
  uv_tcp_t *tcp = &listener->sockets[listener->count].tcp;
  if (address->sa_family == AF_INET6)
    ((struct sockaddr_in6 *)address)->sin6_port = htons((uint16_t)port);
  else
    ((struct sockaddr_in *)address)->sin_port = htons((uint16_t)port);
  int error = uv_tcp_init(loop, tcp);
  if (error) return error;
  tcp->data = user;
  error = uv_tcp_bind(tcp, address, 0);  // sets SO_REUSEADDR except on Windows, where it means something else
  if (!error) error = uv_listen((uv_stream_t *)tcp, BACKLOG, on_connection);
  ++listener->count;
  return error;
}

static mlx_status_t listen_addresses(uv_loop_t *loop, const char *host, int port, struct addrinfo *list,
                                     uv_connection_cb on_connection, void *user,
                                     mlx_http_listener_t *listener) {
  int listening = 0, last_error = UV_EADDRNOTAVAIL;
  for (struct addrinfo *at = list; at && listener->count < MLX_LISTENER_MAX; at = at->ai_next) {
    if (at->ai_family != AF_INET && at->ai_family != AF_INET6) continue;
    const int error = listen_address(loop, at->ai_addr, listener->port ? listener->port : port, on_connection,
                                     user, listener);
    if (!error) {
      ++listening;
      if (!listener->port) listener->port = port_of(&listener->sockets[listener->count - 1].tcp);
    } else if (error != UV_EADDRNOTAVAIL && error != UV_EAFNOSUPPORT) {
      return tcp_error(host, listener->port ? listener->port : port, error);
    } else {
      last_error = error;  // the system has no IPv6, but "localhost" has an IPv6 address
    }
  }
  return listening ? NULL : tcp_error(host, port, last_error);
}

static mlx_status_t listen_tcp(uv_loop_t *loop, const char *host, int port, uv_connection_cb on_connection,
                               void *user, mlx_http_listener_t *listener) {
  const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
  uv_getaddrinfo_t request;
  char name[256];
  const size_t length = strlen(host);
  if (port < 0 || port > 65535) return mlx_error(MLX_USAGE, "%d is not a port: expected 0 to 65535", port);
  if (!length || length >= sizeof name) return mlx_error(MLX_USAGE, "'%s' is not a host to listen on", host);
  const bool has_brackets = host[0] == '[' && host[length - 1] == ']';  // [::1]
  snprintf(name, sizeof name, "%.*s", (int)(has_brackets ? length - 2 : length),
           has_brackets ? host + 1 : host);
  const int error = uv_getaddrinfo(loop, &request, NULL, name, NULL, &hints);
  if (error)
    return mlx_status_hint(
        mlx_error(MLX_NOT_FOUND, "cannot find the host '%s': %s", host, uv_strerror(error)),
        "--host must be an address or a name of this machine, such as 127.0.0.1");
  mlx_status_t status = listen_addresses(loop, host, port, request.addrinfo, on_connection, user, listener);
  uv_freeaddrinfo(request.addrinfo);
  return status;
}

mlx_status_t mlx_http_listener_open(uv_loop_t *loop, const mlx_http_server_options_t *options,
                                    uv_connection_cb on_connection, void *user,
                                    mlx_http_listener_t *listener) {
  memset(listener, 0, sizeof *listener);
  if (options->unix_path) return listen_unix(loop, options->unix_path, on_connection, user, listener);
  return listen_tcp(loop, options->host, options->port, on_connection, user, listener);
}
