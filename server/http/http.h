// HTTP/1.1 server on libuv and llhttp, with TLS by Mbed TLS. It knows nothing about models or APIs.
//
// One thread, the loop thread, runs mlx_http_server_run and owns all sockets. A client that is slow, idle or
// gone costs a socket and its buffers, never a thread. Limits apply to headers, bodies, times, connections
// and unsent bytes (mlx_http_server_options_t).
//
// An exchange is one request and its response. The loop thread calls on_request when the whole request has
// arrived. The callback must not block: it answers at once, or retains the exchange and answers later from
// another thread. If it does neither, the client gets 500.
//
// A connection carries one exchange at a time: the next pipelined request is handled after the response.
// Malformed requests and requests above the limits are refused: such exchanges reach on_refuse and on_end,
// but not on_request. What on_refuse does not answer gets {"error":{"message":...,"type":...,"code":...}}.
// docs/internals/server.md describes the limits and the closing of connections.
//
// Threads: functions marked "any thread" may be called by any thread; calls for one exchange must not
// overlap. All other functions belong to the loop thread, or to the thread that creates the server before it
// runs.
#ifndef MLXCEL_SERVER_HTTP_HTTP_H_
#define MLXCEL_SERVER_HTTP_HTTP_H_

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct mlx_http_server mlx_http_server_t;
typedef struct mlx_exchange mlx_exchange_t;

typedef struct mlx_http_server_options {
  const char *host;         // address or name to listen on
  int port;                 // 0: a free port
  const char *unix_path;    // listen on this Unix socket (mode 0600) instead; NULL: TCP. Not on Windows
  const char *certificate;  // PEM files; NULL: no TLS
  const char *private_key;
  size_t max_header_bytes, max_body_bytes;  // more is answered with 431 and 413
  size_t max_total_body_bytes;              // of all requests together; more is answered with 503
  // A client that leaves more than this unread when a stream goes on is disconnected. A single write or whole
  // response may be longer.
  size_t max_unsent_bytes;
  // Above these limits a new connection replaces the oldest one without a request. If there is none, its
  // requests are answered with 503, unless they are reserved.
  int64_t max_connections;
  int64_t max_connections_per_address;  // and per network of 64 bits of IPv6; 0: half of max_connections
  double header_seconds, body_seconds;  // time to send them, each in total; then 408. Also for TLS handshakes
  double idle_seconds;                  // connections without a request are then closed
  double write_seconds;                 // a client that reads nothing for so long is disconnected
  void (*on_request)(void *user, mlx_exchange_t *exchange);
  // True if a request is answered although there are too many connections. Its handler must be fast. NULL:
  // none
  bool (*is_reserved)(void *user, const mlx_exchange_t *exchange);
  // Optional: answers a refused request, at once, in the form that its client understands. The connection is
  // closed afterwards. The method and the path may be empty, and headers may be missing.
  void (*on_refuse)(void *user, mlx_exchange_t *exchange, int status, const char *message);
  void (*on_ready)(void *user);  // after mlx_http_server_ready; may be NULL
  // SIGINT, SIGTERM or SIGHUP arrived, after mlx_http_server_ready. A SIGHUP that was ignored before stays
  // ignored, as nohup wants it. NULL: signals are not handled.
  void (*on_signal)(void *user, int signal);
  // Called on the loop thread after each exchange has ended, for the access log. May be NULL. |seconds|
  // counts from the request's first byte, |sent_bytes| counts head and body. A refused request may have an
  // empty method and path.
  void (*on_end)(void *user, const mlx_exchange_t *exchange, double seconds, uint64_t sent_bytes, bool gone);
  void *user;
} mlx_http_server_options_t;
// 127.0.0.1, port 8080, 64 KiB of headers, 32 MiB of body, 1 GiB of all bodies, 8 MiB unsent, 1024
// connections, 512 of one address, 30 s for headers, 120 s for a body, 75 s idle, 60 s without reading; no
// callbacks.
void mlx_http_server_options_initialize(mlx_http_server_options_t *out_options);

// Binds and listens. The strings of |options| are copied. |host| may have several addresses ("localhost").
// Raises the process's limit of open files if |max_connections| needs it; if that is not allowed, fewer
// connections are accepted. Release with mlx_http_server_free.
mlx_status_t mlx_http_server_create(const mlx_http_server_options_t *options,
                                    mlx_http_server_t **out_http) MLX_MUST_USE;
int mlx_http_server_port(const mlx_http_server_t *http);  // the port that is listened on; 0 for a Unix socket
// Serves until mlx_http_server_stop, or until the last connection closes after mlx_http_server_drain. Call
// once.
mlx_status_t mlx_http_server_run(mlx_http_server_t *http) MLX_MUST_USE;
// Any thread, once. The loop thread lets signals that end a program go to on_signal, and then calls on_ready.
// Before, signals have the handlers of the process.
void mlx_http_server_ready(mlx_http_server_t *http);
// Any thread. Accepts no further connections and closes idle ones; others close after their present response.
// A request that is arriving is still read and handled.
void mlx_http_server_drain(mlx_http_server_t *http);
// Any thread. Closes all connections and ends mlx_http_server_run. Handlers see that their clients have left.
void mlx_http_server_stop(mlx_http_server_t *http);
// Not while it runs. All exchanges must be released before. NULL is fine.
void mlx_http_server_free(mlx_http_server_t *http);
// Calls |tick| on the loop thread every |seconds|. At most one timer.
mlx_status_t mlx_http_server_set_timer(mlx_http_server_t *http, double seconds, void (*tick)(void *user),
                                       void *user) MLX_MUST_USE;
int64_t mlx_http_server_connections(const mlx_http_server_t *http);  // any thread

// The request. Everything is borrowed and valid until the exchange is released, the body at most until
// mlx_exchange_drop_body. Any thread.
const char *mlx_exchange_method(const mlx_exchange_t *exchange);
const char *mlx_exchange_path(const mlx_exchange_t *exchange);   // percent-decoded, without the query
const char *mlx_exchange_query(const mlx_exchange_t *exchange);  // raw, without '?'; "" if there is none
// The value of a header, the first if it is repeated; NULL if absent. Case of |name| does not matter.
const char *mlx_exchange_header(const mlx_exchange_t *exchange, const char *name);
const char *mlx_exchange_body(const mlx_exchange_t *exchange, size_t *out_length);
// The handler does not need the body any more: releases its memory. The body is then empty.
void mlx_exchange_drop_body(mlx_exchange_t *exchange);
const char *mlx_exchange_remote(const mlx_exchange_t *exchange);  // address of the client; "unix"
int mlx_exchange_status(const mlx_exchange_t *exchange);          // of the response; 0 before it
const char *mlx_http_status_name(int status);                     // 413: "content_too_large"; NULL: unknown
void *mlx_exchange_user(const mlx_exchange_t *exchange);          // a pointer of the handler, NULL at first
void mlx_exchange_set_user(mlx_exchange_t *exchange, void *user);

// Lifetime, any thread. The server holds a reference until the response has ended or the client has left.
void mlx_exchange_retain(mlx_exchange_t *exchange);
void mlx_exchange_release(mlx_exchange_t *exchange);

// The response, any thread. All calls do nothing once the client has left. A failure to allocate closes the
// connection. Text is copied.
//
// Sets a header before the response begins. It replaces one of the same name. Control characters in |value|
// become spaces. Content-Length, Transfer-Encoding, Date and Server are ignored; "Connection: close" closes
// the connection after the response.
void mlx_exchange_set_header(mlx_exchange_t *exchange, const char *name, const char *value);
// A whole response, with Content-Length.
void mlx_exchange_respond(mlx_exchange_t *exchange, int status, const char *content_type, const char *body,
                          size_t length);
// A response of unknown length: begin, any number of writes, end. Sent in chunks at once. HTTP/1.0 clients
// get it until the connection closes.
void mlx_exchange_begin(mlx_exchange_t *exchange, int status, const char *content_type);
void mlx_exchange_write(mlx_exchange_t *exchange, const char *bytes, size_t length);
void mlx_exchange_end(mlx_exchange_t *exchange);
// Closes the connection without an end of the response, so that the client sees an error.
void mlx_exchange_abort(mlx_exchange_t *exchange);

// True once the client has left or its connection failed. A client that closes only its sending side counts
// as gone, because the server cannot tell this from a client that has left.
bool mlx_exchange_is_gone(const mlx_exchange_t *exchange);
// |gone| is called once, on the loop thread, if the client leaves before the response has ended. If it has
// already left, the calling thread calls it before mlx_exchange_on_gone returns. NULL removes the callback;
// afterwards it is not called any more (mlx_exchange_on_gone waits for a call in progress, so the callback
// must not wait for the calling thread).
void mlx_exchange_on_gone(mlx_exchange_t *exchange, void (*gone)(void *user), void *user);

// ----------------------------------------------------------------------------------------------------------
// Requests without a connection, of this program itself

// A request with the method POST and no headers, whose response the caller gets whole. |ended| is called once
// when it is complete, by the thread that ends it; it must not call any function of the exchange but
// mlx_exchange_user. The caller has the first reference, which it releases after that.
mlx_status_t mlx_exchange_create_local(const char *path, const char *body, size_t length,
                                       void (*ended)(void *user, mlx_exchange_t *exchange), void *user,
                                       mlx_exchange_t **out_exchange) MLX_MUST_USE;
// After |ended|: the body of the response, borrowed. *|out_complete| is false if its end is missing.
const char *mlx_exchange_local_response(const mlx_exchange_t *exchange, size_t *out_length,
                                        bool *out_complete);

#endif  // MLXCEL_SERVER_HTTP_HTTP_H_
