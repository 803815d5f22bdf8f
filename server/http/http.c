// The server: its loop, signals, and the requests of other threads to drain and to stop.
#include <string.h>

#include "base/memory.h"
#include "server/http/connection.h"
#include "server/http/exchange.h"
#include "server/http/http.h"
#include "server/http/listener.h"
#include "server/http/socket.h"
#include "server/http/tls.h"

#define RETRY_MS 100  // after memory ran out for a new connection
#define TRIM_MS 1000  // after a large exchange: its handler has released its memory too

struct mlx_http_server {
  mlx_http_server_options_t options;
  char *strings[4];  // copies for |options|
  uv_loop_t loop;
  bool has_loop, has_queue, has_handles, is_closed;
  mlx_exchange_queue_t queue;
  uv_async_t wake;  // bytes to write, drain or stop
  uv_prepare_t turn;
  uv_timer_t timer, retry, trim;
  uv_signal_t signals[MLX_SOCKET_END_SIGNALS];  // mlx_socket_end_signals
  mlx_http_listener_t listener;
  mlx_http_connections_t connections;
  mlx_tls_context_t *tls;
  void (*tick)(void *user);
  void *tick_user;
  atomic_bool drain_wanted, stop_wanted, ready_wanted;
  bool is_draining, is_ready;
};

void mlx_http_server_options_initialize(mlx_http_server_options_t *out_options) {
  *out_options = (mlx_http_server_options_t){
      .host = "127.0.0.1",
      .port = 8080,
      .max_header_bytes = 64 << 10,
      .max_body_bytes = 32 << 20,
      .max_total_body_bytes = (size_t)1 << 30,
      .max_unsent_bytes = 8 << 20,
      .max_connections = 1024,
      .header_seconds = 30,
      .body_seconds = 120,
      .idle_seconds = 75,
      .write_seconds = 60,
  };
}

// ----------------------------------------------------------------------------------------------------------
// The end

static void close_handle(void *handle) {
  if (!uv_is_closing(handle)) uv_close(handle, NULL);
}

// Closes everything. The loop ends when libuv has closed all handles.
static void close_all(mlx_http_server_t *server) {
  if (server->is_closed) return;
  server->is_closed = true;
  mlx_http_listener_close(&server->listener);
  mlx_http_connections_close(&server->connections);
  if (!server->has_handles) return;
  mlx_exchange_queue_set_wake(&server->queue, NULL);
  close_handle(&server->wake);
  close_handle(&server->turn);
  close_handle(&server->timer);
  close_handle(&server->retry);
  close_handle(&server->trim);
  for (int i = 0; i < MLX_SOCKET_END_SIGNALS; ++i) close_handle(&server->signals[i]);
}

static void close_if_drained(mlx_http_server_t *server) {
  if (server->is_draining && !atomic_load(&server->connections.count)) close_all(server);
}

static void start_draining(mlx_http_server_t *server) {
  if (server->is_draining || server->is_closed) return;
  server->is_draining = true;
  mlx_http_listener_close(&server->listener);
  mlx_http_connections_close_idle(&server->connections);
  close_if_drained(server);
}

static void on_closed(mlx_http_connections_t *connections) {
  mlx_http_server_t *server =
      (mlx_http_server_t *)((char *)connections - offsetof(mlx_http_server_t, connections));
  close_if_drained(server);
}

static void on_trim(uv_timer_t *timer) {
  (void)timer;
  mlx_memory_trim();
}

static void on_large(mlx_http_connections_t *connections) {
  mlx_http_server_t *server =
      (mlx_http_server_t *)((char *)connections - offsetof(mlx_http_server_t, connections));
  if (!server->is_closed && !uv_is_active((uv_handle_t *)&server->trim))
    uv_timer_start(&server->trim, on_trim, TRIM_MS, 0);
}

void mlx_http_server_ready(mlx_http_server_t *server) {
  atomic_store(&server->ready_wanted, true);
  mlx_exchange_queue_wake(&server->queue);
}

void mlx_http_server_drain(mlx_http_server_t *server) {
  atomic_store(&server->queue.draining, true);
  atomic_store(&server->drain_wanted, true);
  mlx_exchange_queue_wake(&server->queue);
}

void mlx_http_server_stop(mlx_http_server_t *server) {
  atomic_store(&server->stop_wanted, true);
  mlx_exchange_queue_wake(&server->queue);
}

// ----------------------------------------------------------------------------------------------------------
// Events

static void on_signal(uv_signal_t *handle, int signal) {
  mlx_http_server_t *server = handle->data;
  server->options.on_signal(server->options.user, signal);
}

static void become_ready(mlx_http_server_t *server) {
  if (server->is_ready || server->is_closed) return;
  server->is_ready = true;
  for (int i = 0; server->options.on_signal && i < MLX_SOCKET_END_SIGNALS; ++i) {
    // Only SIGHUP stays ignored: a shell makes background jobs ignore SIGINT, which must still end the
    // server.
    if (mlx_socket_end_signals[i] == SIGHUP && mlx_socket_ignores(SIGHUP)) continue;
    // On an error, the signal ends the process without a drain.
    (void)uv_signal_start(&server->signals[i], on_signal, mlx_socket_end_signals[i]);
  }
  if (server->options.on_ready) server->options.on_ready(server->options.user);
}

static void on_wake(uv_async_t *wake) {
  mlx_http_server_t *server = wake->data;
  for (mlx_exchange_t *exchange; (exchange = mlx_exchange_queue_pop(&server->queue));) {
    mlx_http_connection_flush(exchange);
    mlx_exchange_release(exchange);
  }
  if (atomic_load(&server->ready_wanted)) become_ready(server);
  if (atomic_load(&server->drain_wanted)) start_draining(server);
  if (atomic_load(&server->stop_wanted)) close_all(server);
}

static void on_turn(uv_prepare_t *turn) { mlx_socket_check_spare(turn->loop); }

static void on_retry(uv_timer_t *timer) {
  mlx_http_server_t *server = timer->data;
  for (size_t i = 0; i < server->listener.count; ++i) {
    if (!uv_is_closing(&server->listener.sockets[i].handle) &&
        !mlx_http_connection_accept(&server->connections, &server->listener.sockets[i].stream))
      uv_timer_start(timer, on_retry, RETRY_MS, 0);
  }
}

// libuv accepts no further connection until this one is taken, so a failure for lack of memory is tried
// again.
static void on_connection(uv_stream_t *listener, int error) {
  mlx_http_server_t *server = listener->data;
  if (error || server->is_closed) return;
  if (!mlx_http_connection_accept(&server->connections, listener))
    uv_timer_start(&server->retry, on_retry, RETRY_MS, 0);
}

static void on_tick(uv_timer_t *timer) {
  mlx_http_server_t *server = timer->data;
  server->tick(server->tick_user);
}

mlx_status_t mlx_http_server_set_timer(mlx_http_server_t *server, double seconds, void (*tick)(void *user),
                                       void *user) {
  const uint64_t ms = seconds * 1000 < 1 ? 1 : (uint64_t)(seconds * 1000);
  server->tick = tick;
  server->tick_user = user;
  const int error = uv_timer_start(&server->timer, on_tick, ms, ms);
  return error ? mlx_error(MLX_INTERNAL, "cannot start a timer: %s", uv_strerror(error)) : NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Creation

static mlx_status_t copy_option(mlx_http_server_t *server, int index, const char **inout_text) {
  if (!*inout_text) return NULL;
  MLX_TRY(mlx_copy_text(*inout_text, strlen(*inout_text), &server->strings[index]));
  *inout_text = server->strings[index];
  return NULL;
}

static mlx_status_t copy_options(mlx_http_server_t *server, const mlx_http_server_options_t *options) {
  server->options = *options;
  MLX_TRY(copy_option(server, 0, &server->options.host));
  MLX_TRY(copy_option(server, 1, &server->options.unix_path));
  MLX_TRY(copy_option(server, 2, &server->options.certificate));
  return copy_option(server, 3, &server->options.private_key);
}

static mlx_status_t open_loop(mlx_http_server_t *server) {
  int error = uv_loop_init(&server->loop);
  if (error) return mlx_error(MLX_OUT_OF_MEMORY, "cannot create an event loop: %s", uv_strerror(error));
  server->has_loop = true;
  error = uv_async_init(&server->loop, &server->wake, on_wake);
  if (error) return mlx_error(MLX_OUT_OF_MEMORY, "cannot create an event loop: %s", uv_strerror(error));
  uv_prepare_init(&server->loop, &server->turn);
  uv_timer_init(&server->loop, &server->timer);
  uv_timer_init(&server->loop, &server->retry);
  uv_timer_init(&server->loop, &server->trim);
  for (int i = 0; i < MLX_SOCKET_END_SIGNALS; ++i) {
    uv_signal_init(&server->loop, &server->signals[i]);
    server->signals[i].data = server;
  }
  server->wake.data = server->turn.data = server->timer.data = server->retry.data = server;
  server->has_handles = true;
  uv_prepare_start(&server->turn, on_turn);
  return NULL;
}

static mlx_status_t open_server(mlx_http_server_t *server, const mlx_http_server_options_t *options) {
  MLX_TRY(copy_options(server, options));
  MLX_TRY(mlx_exchange_queue_initialize(&server->queue));
  server->has_queue = true;
  server->queue.bodies.max = options->max_total_body_bytes;
  if (!options->certificate != !options->private_key)
    return mlx_status_hint(mlx_error(MLX_USAGE, "TLS needs both a certificate and a private key"),
                           "give both --ssl-cert and --ssl-key");
  if (options->certificate)
    MLX_TRY(mlx_tls_context_create(options->certificate, options->private_key, &server->tls));
  MLX_TRY(open_loop(server));
  server->connections.options = &server->options;
  server->connections.loop = &server->loop;
  server->connections.queue = &server->queue;
  server->connections.tls = server->tls;
  server->connections.max = mlx_socket_reserve(options->max_connections);
  server->connections.max_per_address = options->max_connections_per_address > 0
                                            ? options->max_connections_per_address
                                            : (server->connections.max + 1) / 2;
  server->connections.on_closed = on_closed;
  server->connections.on_large = on_large;
  MLX_TRY(mlx_http_listener_open(&server->loop, &server->options, on_connection, server, &server->listener));
  mlx_exchange_queue_set_wake(&server->queue, &server->wake);
  return NULL;
}

mlx_status_t mlx_http_server_create(const mlx_http_server_options_t *options,
                                    mlx_http_server_t **out_server) {
  *out_server = NULL;
  mlx_http_server_t *server;
  MLX_TRY(mlx_alloc(1, sizeof *server, &server));
  mlx_status_t status = open_server(server, options);
  if (status)
    mlx_http_server_free(server);
  else
    *out_server = server;
  return status;
}

int mlx_http_server_port(const mlx_http_server_t *server) { return server->listener.port; }

int64_t mlx_http_server_connections(const mlx_http_server_t *server) {
  return atomic_load(&server->connections.count);
}

mlx_status_t mlx_http_server_run(mlx_http_server_t *server) {
  mlx_socket_signals_t signals;
  mlx_socket_block_sigpipe(&signals);
  uv_run(&server->loop, UV_RUN_DEFAULT);
  mlx_socket_restore_signals(&signals);
  return NULL;
}

void mlx_http_server_free(mlx_http_server_t *server) {
  if (!server) return;
  if (server->has_loop) {
    close_all(server);
    uv_run(&server->loop, UV_RUN_DEFAULT);
    uv_loop_close(&server->loop);
  }
  if (server->has_queue) mlx_exchange_queue_clear(&server->queue);
  mlx_tls_context_free(server->tls);
  for (int i = 0; i < 4; ++i) mlx_free(server->strings[i]);
  mlx_free(server);
}
