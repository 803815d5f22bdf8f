// A server in this process with a few handlers, and a client on raw sockets: for tests of the HTTP server.
#ifndef MLXCEL_TESTS_HTTP_PEER_H_
#define MLXCEL_TESTS_HTTP_PEER_H_

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/text.h"
#include "server/http/http.h"
#include "tests/support/check.h"
#include "tests/support/receive.h"

static mlx_http_server_t *server;
static pthread_t server_thread;
static struct {
  atomic_int requests, waiting, gone, ended, gone_ends, last_status;
  atomic_llong sent_bytes;
} counts;
static mlx_exchange_t *held;  // by the handler of /stream or /wait
static pthread_mutex_t held_mutex = PTHREAD_MUTEX_INITIALIZER;

static inline bool wait_for(atomic_int *value, int expected, double seconds) {
  const double end = mlx_seconds() + seconds;
  while (atomic_load(value) < expected && mlx_seconds() < end) mlx_sleep_ms(1);
  return atomic_load(value) >= expected;
}

static inline void on_gone(void *user) {
  mlx_exchange_t *exchange = user;
  atomic_fetch_add(&counts.gone, 1);
  pthread_mutex_lock(&held_mutex);
  if (held == exchange) held = NULL;
  pthread_mutex_unlock(&held_mutex);
  mlx_exchange_release(exchange);
}

static inline void hold(mlx_exchange_t *exchange) {
  mlx_exchange_retain(exchange);
  pthread_mutex_lock(&held_mutex);
  held = exchange;
  pthread_mutex_unlock(&held_mutex);
  mlx_exchange_on_gone(exchange, on_gone, exchange);
  atomic_fetch_add(&counts.waiting, 1);
}

// Takes the exchange that a handler holds, for the test's thread to answer.
static inline mlx_exchange_t *take_held(void) {
  pthread_mutex_lock(&held_mutex);
  mlx_exchange_t *exchange = held;
  held = NULL;
  pthread_mutex_unlock(&held_mutex);
  CHECK(exchange);
  mlx_exchange_on_gone(exchange, NULL, NULL);
  return exchange;
}

// Ends the response of /stream.
static inline void release_handler(void) {
  mlx_exchange_t *exchange = take_held();
  mlx_exchange_write(exchange, "two", 3);
  mlx_exchange_end(exchange);
  mlx_exchange_release(exchange);
}

static inline void echo(mlx_exchange_t *exchange) {
  mlx_text_t text = {0};
  size_t length;
  const char *body = mlx_exchange_body(exchange, &length), *name = mlx_exchange_header(exchange, "x-name");
  mlx_text_printf(&text, "%s %s %s %s %s ", mlx_exchange_method(exchange), mlx_exchange_path(exchange),
                  mlx_exchange_query(exchange), name ? name : "", mlx_exchange_remote(exchange));
  mlx_text_append(&text, body, length);
  mlx_exchange_respond(exchange, 200, "text/plain", text.data, text.length);
  mlx_text_clear(&text);
}

static inline void *big_body(size_t length) {
  char *bytes = malloc(length);
  for (size_t i = 0; i < length; ++i) bytes[i] = (char)('a' + i % 26);
  return bytes;
}

static inline void on_request(void *user, mlx_exchange_t *exchange) {
  (void)user;
  const char *path = mlx_exchange_path(exchange);
  atomic_fetch_add(&counts.requests, 1);
  if (!strncmp(path, "/echo", 5)) {
    echo(exchange);
  } else if (!strcmp(path, "/stream")) {
    mlx_exchange_begin(exchange, 200, "text/event-stream");
    mlx_exchange_write(exchange, "one", 3);
    hold(exchange);
  } else if (!strcmp(path, "/wait")) {
    hold(exchange);
  } else if (!strcmp(path, "/big")) {
    const size_t length = (size_t)atoll(mlx_exchange_query(exchange));
    char *bytes = big_body(length);
    mlx_exchange_respond(exchange, 200, "text/plain", bytes, length);
    free(bytes);
  } else if (!strcmp(path, "/abort")) {
    mlx_exchange_begin(exchange, 200, "text/plain");
    mlx_exchange_write(exchange, "part", 4);
    mlx_exchange_abort(exchange);
  } else if (!strcmp(path, "/headers")) {
    mlx_exchange_set_header(exchange, "X-One", "1");
    mlx_exchange_set_header(exchange, "x-one", "2\r\nX-Evil: 1");
    mlx_exchange_set_header(exchange, "Content-Length", "99");
    mlx_exchange_set_header(exchange, "Bad Name", "1");
    mlx_exchange_respond(exchange, 204, NULL, "no", 2);
  } else if (strcmp(path, "/forgotten")) {
    mlx_exchange_respond(exchange, 404, "text/plain", "no", 2);
  }
}

static inline void on_end(void *user, const mlx_exchange_t *exchange, double seconds, uint64_t sent_bytes,
                          bool gone) {
  (void)user;
  if (seconds < 0) abort();
  atomic_fetch_add(&counts.sent_bytes, (long long)sent_bytes);
  atomic_store(&counts.last_status, mlx_exchange_status(exchange));
  if (gone) atomic_fetch_add(&counts.gone_ends, 1);
  atomic_fetch_add(&counts.ended, 1);
}

static inline void *serve(void *user) {
  (void)user;
  mlx_status_t status = mlx_http_server_run(server);
  if (status) abort();
  return NULL;
}

// Starts a server on a free port of 127.0.0.1. |change| may change its options.
static inline void start_server(void (*change)(mlx_http_server_options_t *options)) {
  mlx_http_server_options_t options;
  memset(&counts, 0, sizeof counts);
  mlx_http_server_options_initialize(&options);
  options.port = 0;
  options.on_request = on_request;
  options.on_end = on_end;
  if (change) change(&options);
  CHECK_OK(mlx_http_server_create(&options, &server));
  CHECK(!pthread_create(&server_thread, NULL, serve, NULL));
}

static inline void join_server(void) {
  CHECK(!pthread_join(server_thread, NULL));
  mlx_http_server_free(server);
  server = NULL;
}

static inline void stop_server(void) {
  mlx_http_server_stop(server);
  join_server();
}

// ----------------------------------------------------------------------------------------------------------
// The client

static inline void dial_with(int fd) {
  struct sockaddr_in address = {.sin_family = AF_INET,
                                .sin_port = htons((uint16_t)mlx_http_server_port(server))};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  CHECK(fd >= 0);
  CHECK(!connect(fd, (struct sockaddr *)&address, sizeof address));
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){.tv_sec = 60}, sizeof(struct timeval));
}

static inline int dial(void) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  dial_with(fd);
  return fd;
}

static inline void send_bytes(int fd, const char *bytes, size_t length) {
  while (length) {
    const ssize_t sent = send(fd, bytes, length, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    CHECK(sent > 0);
    bytes += sent;
    length -= (size_t)sent;
  }
}
static inline void send_text(int fd, const char *text) { send_bytes(fd, text, strlen(text)); }

// Reads until the text so far ends with |end|.
static inline void read_until(int fd, char *out, size_t size, const char *end) {
  size_t length = 0;
  for (out[0] = 0; length < strlen(end) || strcmp(out + length - strlen(end), end);) {
    CHECK(length + 1 < size);
    const ssize_t got = receive(fd, out + length, 1, 0);
    if (got != 1) CHECK_FAIL("the connection ended after '%s', expected '%s'", out, end);
    out[++length] = 0;
  }
}

// Reads a whole response with Content-Length. Valid until the next call.
static inline const char *read_response(int fd) {
  static char response[1 << 20];
  read_until(fd, response, sizeof response, "\r\n\r\n");
  size_t length = strlen(response);
  const char *field = strstr(response, "Content-Length: ");
  const size_t body = field ? (size_t)atoll(field + 16) : 0;
  CHECK(length + body < sizeof response);
  for (size_t done = 0; done < body;) {
    const ssize_t got = receive(fd, response + length, body - done, 0);
    if (got <= 0) CHECK_FAIL("the response ended early: %s", response);
    length += (size_t)got;
    done += (size_t)got;
    response[length] = 0;
  }
  return response;
}

static inline const char *body_of(const char *response) {
  const char *end = strstr(response, "\r\n\r\n");
  CHECK(end);
  return end + 4;
}

// True if the server closes the connection within |seconds| without sending another byte.
static inline bool is_closed(int fd, double seconds) {
  char byte;
  struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
  return poll(&poll_fd, 1, (int)(seconds * 1000)) == 1 && receive(fd, &byte, 1, 0) <= 0;
}

#endif  // MLXCEL_TESTS_HTTP_PEER_H_
