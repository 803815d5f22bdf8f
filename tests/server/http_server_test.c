// The HTTP server's protocol, in this process, with clients on raw sockets.
#include <signal.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "base/file.h"
#include "tests/server/http_peer.h"

// ----------------------------------------------------------------------------------------------------------
// Requests and responses

TEST(request_is_answered_with_its_parts) {
  start_server(NULL);
  const int fd = dial();
  send_text(fd,
            "POST /echo/a%20b%2Fc?x=%20y HTTP/1.1\r\nHost: localhost\r\nX-Name:  value \t\r\n"
            "Content-Length: 5\r\n\r\nhello");
  const char *response = read_response(fd);
  CHECK_CONTAINS(response, "HTTP/1.1 200 OK\r\n");
  CHECK_CONTAINS(response, "\r\nDate: ");
  CHECK_CONTAINS(response, " GMT\r\n");
  CHECK_CONTAINS(response, "\r\nServer: mlxcel\r\n");
  CHECK_CONTAINS(response, "\r\nContent-Type: text/plain\r\n");
  CHECK(!strstr(response, "Connection:"));
  CHECK_TEXT(body_of(response), "POST /echo/a b/c x=%20y value 127.0.0.1 hello");
  send_text(fd, "GET http://localhost/echo/ HTTP/1.1\r\nHost: localhost\r\n\r\n");  // the connection is kept
  CHECK_TEXT(body_of(read_response(fd)), "GET /echo/   127.0.0.1 ");
  close(fd);
  stop_server();
  CHECK_INT(counts.ended, 2);
  CHECK_INT(counts.gone_ends, 0);
}

TEST(stream_is_sent_in_chunks_at_once) {
  start_server(NULL);
  const int fd = dial();
  send_text(fd, "GET /stream HTTP/1.1\r\nHost: h\r\n\r\n");
  char head[4096];
  read_until(fd, head, sizeof head, "3\r\none\r\n");
  CHECK_CONTAINS(head, "Transfer-Encoding: chunked\r\n");
  CHECK(!strstr(head, "Content-Length"));
  release_handler();
  read_until(fd, head, sizeof head, "0\r\n\r\n");
  CHECK_TEXT(head, "3\r\ntwo\r\n0\r\n\r\n");
  send_text(fd, "GET /echo/ HTTP/1.1\r\nHost: h\r\n\r\n");
  CHECK_CONTAINS(read_response(fd), "200 OK");
  close(fd);
  stop_server();
}

TEST(pipelined_requests_are_answered_in_order) {
  start_server(NULL);
  const int fd = dial();
  char text[4096];
  send_text(fd,
            "GET /echo/1 HTTP/1.1\r\nHost: h\r\n\r\nGET /stream HTTP/1.1\r\nHost: h\r\n\r\n"
            "POST /echo/3 HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nok\r\n"  // an extra CRLF is allowed
            "GET /echo/4 HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\nGET /echo/5 HTTP/1.1\r\n");
  CHECK_TEXT(body_of(read_response(fd)), "GET /echo/1   127.0.0.1 ");
  read_until(fd, text, sizeof text, "3\r\none\r\n");
  CHECK_INT(counts.requests, 2);
  release_handler();
  read_until(fd, text, sizeof text, "0\r\n\r\n");
  CHECK_TEXT(body_of(read_response(fd)), "POST /echo/3   127.0.0.1 ok");
  const char *last = read_response(fd);
  CHECK_CONTAINS(last, "Connection: close\r\n");
  CHECK_TEXT(body_of(last), "GET /echo/4   127.0.0.1 ");
  CHECK(is_closed(fd, 60));
  close(fd);
  stop_server();
  CHECK_INT(counts.requests, 4);
}

TEST(a_pipeline_longer_than_the_backlog_is_answered) {
  enum { COUNT = 4000 };
  start_server(NULL);
  const int fd = dial();
  send_text(fd, "GET /wait HTTP/1.1\r\nHost: h\r\n\r\n");
  CHECK(wait_for(&counts.waiting, 1, 60));
  for (int i = 0; i < COUNT; ++i)
    send_text(fd, "GET /echo/ HTTP/1.1\r\nHost: hhhhhhhhhhhhhhhhhhhhhh\r\n\r\n");
  mlx_exchange_t *exchange = take_held();
  mlx_exchange_respond(exchange, 200, "text/plain", "x", 1);
  mlx_exchange_release(exchange);
  for (int i = 0; i <= COUNT; ++i) CHECK_CONTAINS(read_response(fd), "200 OK");
  close(fd);
  stop_server();
}

TEST(requests_arrive_in_any_pieces) {
  static const char text[] =
      "POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nX-Name: a\r\n\r\n"
      "5;name=\"value\"\r\nhello\r\n1\r\n \r\n5\r\nworld\r\n0\r\nX-Name: trailer\r\n\r\n";
  start_server(NULL);
  for (size_t piece = 1; piece < 40; piece = piece * 3 - piece / 2) {
    const int fd = dial();
    for (size_t done = 0; done < sizeof text - 1; done += piece) {
      const size_t rest = sizeof text - 1 - done;
      send_bytes(fd, text + done, piece < rest ? piece : rest);
      mlx_sleep_ms(1);
    }
    CHECK_TEXT(body_of(read_response(fd)), "POST /echo  a 127.0.0.1 hello world");
    close(fd);
  }
  stop_server();
}

TEST(expect_continue_is_answered_before_the_body) {
  start_server(NULL);
  int fd = dial();
  char text[4096];
  send_text(fd, "POST /echo HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  read_until(fd, text, sizeof text, "\r\n\r\n");
  CHECK_TEXT(text, "HTTP/1.1 100 Continue\r\n\r\n");
  send_text(fd, "ok");
  CHECK_TEXT(body_of(read_response(fd)), "POST /echo   127.0.0.1 ok");
  // No 100 if the body came with the headers, or if there is none.
  send_text(fd, "POST /echo HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nok");
  CHECK_CONTAINS(read_response(fd), "200 OK");
  send_text(fd, "GET /echo HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\n\r\n");
  CHECK_CONTAINS(read_response(fd), "200 OK");
  send_text(fd, "POST /echo HTTP/1.1\r\nHost: h\r\nExpect: a-pony\r\nContent-Length: 2\r\n\r\n");
  CHECK_CONTAINS(read_response(fd), "417 Expectation Failed");
  close(fd);
  fd = dial();
  send_text(fd,
            "POST /echo HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 99999999999\r\n\r\n");
  CHECK_CONTAINS(read_response(fd), "HTTP/1.1 413 Content Too Large");
  close(fd);
  stop_server();
}

TEST(head_has_no_body) {
  start_server(NULL);
  const int fd = dial();
  char text[4096];
  send_text(fd, "HEAD /echo HTTP/1.1\r\nHost: h\r\n\r\n");
  read_until(fd, text, sizeof text, "\r\n\r\n");
  CHECK_CONTAINS(text, "Content-Length: 23\r\n");
  send_text(fd, "HEAD /stream HTTP/1.1\r\nHost: h\r\n\r\n");
  read_until(fd, text, sizeof text, "\r\n\r\n");
  CHECK_CONTAINS(text, "HTTP/1.1 200 OK");  // the first byte after the first response
  release_handler();
  send_text(fd, "GET /headers HTTP/1.1\r\nHost: h\r\n\r\n");
  read_until(fd, text, sizeof text, "\r\n\r\n");
  CHECK_CONTAINS(text, "HTTP/1.1 204 No Content");
  close(fd);
  stop_server();
}

TEST(http_1_0_closes_unless_asked) {
  start_server(NULL);
  char text[4096];
  int fd = dial();
  send_text(fd, "GET /echo HTTP/1.0\r\n\r\n");
  CHECK_CONTAINS(read_response(fd), "HTTP/1.0 200 OK");
  CHECK(is_closed(fd, 60));
  close(fd);
  fd = dial();
  send_text(fd, "GET /echo HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  CHECK_CONTAINS(read_response(fd), "Connection: keep-alive\r\n");
  send_text(fd, "GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");  // ends with the connection
  read_until(fd, text, sizeof text, "\r\n\r\none");
  CHECK(!strstr(text, "chunked"));
  CHECK_CONTAINS(text, "Connection: close\r\n");
  release_handler();
  read_until(fd, text, sizeof text, "two");
  CHECK(is_closed(fd, 60));
  close(fd);
  stop_server();
}

TEST(headers_of_a_response_cannot_add_lines) {
  start_server(NULL);
  const int fd = dial();
  send_text(fd, "GET /headers HTTP/1.1\r\nHost: h\r\n\r\n");
  const char *response = read_response(fd);
  CHECK_CONTAINS(response, "\r\nx-one: 2  X-Evil: 1\r\n");
  CHECK(!strstr(response, "X-One") && !strstr(response, "Bad Name") && !strstr(response, "Content-Length"));
  close(fd);
  stop_server();
}

TEST(handler_that_does_not_answer_gives_500) {
  start_server(NULL);
  const int fd = dial();
  send_text(fd, "GET /forgotten HTTP/1.1\r\nHost: h\r\n\r\n");
  CHECK_CONTAINS(read_response(fd), "HTTP/1.1 500 Internal Server Error");
  CHECK(is_closed(fd, 60));
  close(fd);
  stop_server();
}

TEST(aborted_response_is_seen_as_incomplete) {
  start_server(NULL);
  char text[4096];
  for (int minor = 0; minor < 2; ++minor) {
    const int fd = dial();
    snprintf(text, sizeof text, "GET /abort HTTP/1.%d\r\nHost: h\r\n\r\n", minor);
    send_text(fd, text);
    if (minor) read_until(fd, text, sizeof text, "4\r\npart\r\n");  // and no chunk of length 0
    char rest[4096];
    ssize_t got;
    while ((got = receive(fd, rest, sizeof rest, 0)) > 0) CHECK(!minor);
    CHECK(minor || (got < 0 && errno == ECONNRESET));
    close(fd);
  }
  stop_server();
  CHECK_INT(counts.ended, 2);
}

// ----------------------------------------------------------------------------------------------------------
// Refusals

static const struct {
  int status;
  const char *request;
} refusals[] = {
    {400, "GARBAGE\r\n\r\n"},
    {400, "\x16\x03\x01\x02\x05\x01"},                         // TLS
    {505, "GET /\r\n\r\n"},                                    // HTTP/0.9
    {400, "GET / HTTP/1.1\r\n\r\n"},                           // no Host
    {400, "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"},     // two Hosts
    {400, "GET / HTTP/1.1\r\nHost: a b\r\n\r\n"},              // no host
    {400, "GET / HTTP/1.1\nHost: h\n\n"},                      // bare LF
    {400, "GET / HTTP/1.1\r\nHost: h\r\nX: 1\nY: 2\r\n\r\n"},  // bare LF
    {400, "GET / HTTP/1.1\r\nHost: h\r\nX: 1\r\n folded\r\n\r\n"},
    {400, "GET / HTTP/1.1\r\nHost : h\r\n\r\n"},
    {400, "GET / HTTP/1.1\r\n Host: h\r\n\r\n"},
    {400, "GET / HTTP/1.1\r\nHost: h\r\nX: a\x01z\r\n\r\n"},
    {400, "GET / HTTP/1.1\r\nHost: h\r\nAuthorization: a\r\nAuthorization: b\r\n\r\n"},
    {400, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
    {400, "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n"},
    {400, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello"},
    {400, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5, 5\r\n\r\nhello"},
    {400, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: -5\r\n\r\nhello"},
    {400, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: +5\r\n\r\nhello"},
    {400, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0x5\r\n\r\nhello"},
    {400, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999999999999999\r\n\r\n"},
    {400, "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked, identity\r\n\r\n"},
    {501, "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"},
    {400, "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhelloX\r\n"},
    {400, "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n"},
    {400, "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5 \r\nhello\r\n"},
    {400, "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
    {501, "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"},
    {501, "CONNECT h:443 HTTP/1.1\r\nHost: h\r\n\r\n"},
    {505, "GET / HTTP/3.0\r\nHost: h\r\n\r\n"},
    {505, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"},
    {400, "GET /%00 HTTP/1.1\r\nHost: h\r\n\r\n"},
    {400, "GET /%0a HTTP/1.1\r\nHost: h\r\n\r\n"},
    {400, "GET /%4 HTTP/1.1\r\nHost: h\r\n\r\n"},
    {400, "GET /%zz HTTP/1.1\r\nHost: h\r\n\r\n"},
    {400, "GET /%ff HTTP/1.1\r\nHost: h\r\n\r\n"},
    {400, "GET /%c0%80 HTTP/1.1\r\nHost: h\r\n\r\n"},
    {400, "GET /a#b HTTP/1.1\r\nHost: h\r\n\r\n"},
    {400, "GET a HTTP/1.1\r\nHost: h\r\n\r\n"},
};

TEST(malformed_and_ambiguous_requests_are_refused) {
  start_server(NULL);
  for (size_t i = 0; i < sizeof refusals / sizeof *refusals; ++i) {
    const int fd = dial();
    char expected[32];
    send_text(fd, refusals[i].request);
    shutdown(fd, SHUT_WR);  // some are incomplete
    const char *response = read_response(fd);
    snprintf(expected, sizeof expected, "HTTP/1.1 %d ", refusals[i].status);
    if (strncmp(response + 9, expected + 9, 3))
      CHECK_FAIL("expected %d for\n%s\ngot\n%s", refusals[i].status, refusals[i].request, response);
    CHECK_CONTAINS(response, "Content-Type: application/json\r\n");
    CHECK_CONTAINS(response, "Connection: close\r\n");
    CHECK_CONTAINS(body_of(response), "{\"error\":{\"message\":\"");
    CHECK_CONTAINS(body_of(response), refusals[i].status < 500
                                          ? "\"type\":\"invalid_request_error\",\"code\":\""
                                          : "\"type\":\"server_error\",\"code\":\"");
    CHECK(is_closed(fd, 60));
    close(fd);
  }
  stop_server();
  CHECK_INT(counts.requests, 0);
  CHECK_INT(counts.ended, sizeof refusals / sizeof *refusals);
}

TEST(wish_for_another_protocol_is_ignored) {
  start_server(NULL);
  const int fd = dial();
  send_text(fd,
            "GET /echo HTTP/1.1\r\nHost: h\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
            "HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n\r\n");
  CHECK_CONTAINS(read_response(fd), "200 OK");
  send_text(fd, "GET /echo HTTP/1.1\r\nHost: h\r\n\r\n");
  CHECK_CONTAINS(read_response(fd), "200 OK");
  close(fd);
  stop_server();
}

// ----------------------------------------------------------------------------------------------------------
// Clients that leave

// The clock is the server itself: it must notice before it has answered a few requests of another client. A
// server that finds out with a timer would answer hundreds before.
TEST(client_that_leaves_is_noticed_at_once) {
  start_server(NULL);
  const int other = dial();
  for (int way = 0; way < 3; ++way) {
    const int fd = dial();
    send_text(fd, "GET /wait HTTP/1.1\r\nHost: h\r\n\r\n");
    CHECK(wait_for(&counts.waiting, way + 1, 60));
    CHECK_INT(counts.gone, way);
    if (way == 1) setsockopt(fd, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger));
    if (way == 2)
      shutdown(fd, SHUT_WR);
    else
      close(fd);
    for (int i = 0; i < 10 && atomic_load(&counts.gone) == way; ++i) {
      send_text(other, "GET /echo HTTP/1.1\r\nHost: h\r\n\r\n");
      read_response(other);
    }
    CHECK_INT(counts.gone, way + 1);
    if (way == 2) close(fd);
  }
  CHECK(wait_for(&counts.gone_ends, 3, 60));
  close(other);
  stop_server();
  CHECK_INT(counts.gone_ends, 3);
}

static void count_call(void *user) { atomic_fetch_add((atomic_int *)user, 1); }

TEST(calls_for_a_client_that_has_left_do_nothing) {
  static atomic_int calls;
  start_server(NULL);
  const int fd = dial();
  send_text(fd, "GET /stream HTTP/1.1\r\nHost: h\r\n\r\n");
  CHECK(wait_for(&counts.waiting, 1, 60));
  mlx_exchange_t *exchange = take_held();
  CHECK(!mlx_exchange_is_gone(exchange));
  close(fd);
  CHECK(wait_for(&counts.gone_ends, 1, 60));
  CHECK(mlx_exchange_is_gone(exchange));
  CHECK_INT(counts.gone, 0);  // the callback was removed
  atomic_store(&calls, 0);
  mlx_exchange_on_gone(exchange, count_call, &calls);
  CHECK_INT(calls, 1);  // at once
  stop_server();
  mlx_exchange_write(exchange, "x", 1);  // also after the server has gone
  mlx_exchange_end(exchange);
  mlx_exchange_abort(exchange);
  CHECK_TEXT(mlx_exchange_path(exchange), "/stream");
  mlx_exchange_release(exchange);
}

// ----------------------------------------------------------------------------------------------------------
// The end

TEST(drain_finishes_responses_and_closes_idle_connections) {
  start_server(NULL);
  char text[4096];
  const int idle = dial(), busy = dial(), arriving = dial();
  send_text(idle, "GET /echo HTTP/1.1\r\nHost: h\r\n\r\n");
  read_response(idle);
  send_text(busy, "GET /stream HTTP/1.1\r\nHost: h\r\n\r\n");
  read_until(busy, text, sizeof text, "one\r\n");
  send_text(arriving, "POST /echo HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  read_until(arriving, text, sizeof text, "100 Continue\r\n\r\n");  // the server has this part of the request
  const int port = mlx_http_server_port(server);
  mlx_http_server_drain(server);
  CHECK(is_closed(idle, 60));
  const int late = socket(AF_INET, SOCK_STREAM, 0);
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  CHECK(connect(late, (struct sockaddr *)&address, sizeof address) && errno == ECONNREFUSED);
  send_text(arriving, "ok");
  CHECK_CONTAINS(read_response(arriving), "Connection: close\r\n");
  release_handler();
  read_until(busy, text, sizeof text, "0\r\n\r\n");
  CHECK(is_closed(busy, 60) && is_closed(arriving, 60));
  const int fds[] = {idle, busy, arriving, late};
  for (int i = 0; i < 4; ++i) close(fds[i]);
  join_server();  // it ends by itself
  CHECK_INT(counts.ended, 3);
}

TEST(stop_disconnects_everyone) {
  start_server(NULL);
  const int fd = dial();
  send_text(fd, "GET /wait HTTP/1.1\r\nHost: h\r\n\r\n");
  CHECK(wait_for(&counts.waiting, 1, 60));
  stop_server();  // nothing else ends /wait
  CHECK_INT(counts.gone, 1);
  CHECK(is_closed(fd, 60));
  close(fd);
}

TEST(server_that_never_ran_can_be_freed) {
  mlx_http_server_options_t options;
  mlx_http_server_options_initialize(&options);
  options.port = 0;
  CHECK_OK(mlx_http_server_create(&options, &server));
  CHECK(mlx_http_server_port(server) > 0);
  mlx_http_server_drain(server);
  mlx_http_server_stop(server);
  mlx_http_server_free(server);
  mlx_http_server_free(NULL);
}

static atomic_int signals, ticks;
static void on_signal(void *user, int signal) {
  (void)user;
  atomic_fetch_add(&signals, signal);
  mlx_http_server_drain(server);
}
static atomic_bool is_ready;
static void on_ready(void *user) {
  (void)user;
  atomic_store(&is_ready, true);
}
static void handle_signals(mlx_http_server_options_t *options) {
  options->on_signal = on_signal;
  options->on_ready = on_ready;
}

TEST(signals_arrive_on_the_loop_thread) {
  signals = 0;
  start_server(handle_signals);
  mlx_http_server_ready(server);
  while (!atomic_load(&is_ready)) mlx_sleep_ms(1);
  CHECK(!kill(getpid(), SIGTERM));
  join_server();
  CHECK_INT(signals, SIGTERM);
}

static void tick(void *user) { atomic_fetch_add((atomic_int *)user, 1); }

TEST(timer_ticks) {
  mlx_http_server_options_t options;
  mlx_http_server_options_initialize(&options);
  options.port = 0;
  CHECK_OK(mlx_http_server_create(&options, &server));
  CHECK_OK(mlx_http_server_set_timer(server, 0.005, tick, &ticks));
  CHECK(!pthread_create(&server_thread, NULL, serve, NULL));
  CHECK(wait_for(&ticks, 5, 60));
  stop_server();
}

// ----------------------------------------------------------------------------------------------------------
// Addresses

static char folder[64], socket_path[96];
static void use_unix_socket(mlx_http_server_options_t *options) { options->unix_path = socket_path; }

static int dial_unix(void) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  snprintf(address.sun_path, sizeof address.sun_path, "%s", socket_path);
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  CHECK(!connect(fd, (struct sockaddr *)&address, sizeof address));
  return fd;
}

TEST(unix_socket_is_private_and_replaced_only_if_dead) {
  struct stat info;
  mlx_http_server_t *second;
  mlx_http_server_options_t options;
  strcpy(folder, "/tmp/mlxcel-http-XXXXXX");
  CHECK(mkdtemp(folder));
  snprintf(socket_path, sizeof socket_path, "%s/socket", folder);
  mlx_http_server_options_initialize(&options);
  use_unix_socket(&options);
  for (int round = 0; round < 2; ++round) {
    start_server(use_unix_socket);
    CHECK_INT(mlx_http_server_port(server), 0);
    CHECK(!stat(socket_path, &info) && (info.st_mode & 0777) == 0600);
    const int fd = dial_unix();
    send_text(fd, "GET /echo HTTP/1.1\r\nHost: h\r\n\r\n");
    CHECK_TEXT(body_of(read_response(fd)), "GET /echo   unix ");
    close(fd);
    CHECK_ERROR(mlx_http_server_create(&options, &second), MLX_IO, "another server uses it");
    stop_server();
    CHECK(stat(socket_path, &info) && errno == ENOENT);  // removed
    // A server that was killed leaves its socket.
    const int dead = socket(AF_UNIX, SOCK_STREAM, 0);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strcpy(address.sun_path, socket_path);
    CHECK(!bind(dead, (struct sockaddr *)&address, sizeof address));
    close(dead);
    CHECK(!stat(socket_path, &info));
  }
  CHECK(!unlink(socket_path));
  CHECK_OK(mlx_write_file(socket_path, "x", 1));
  CHECK_ERROR(mlx_http_server_create(&options, &second), MLX_IO, "another file is there");
  CHECK(!stat(socket_path, &info) && info.st_size == 1);
  snprintf(socket_path, sizeof socket_path, "%s/none/socket", folder);
  CHECK_ERROR(mlx_http_server_create(&options, &second), MLX_IO, "none/socket");
  CHECK_OK(mlx_remove_tree(folder));
}

static const char *host;
static void use_host(mlx_http_server_options_t *options) { options->host = host; }

TEST(hosts_are_addresses_or_names) {
  static const char *const hosts[] = {"localhost", "0.0.0.0"};
  for (int i = 0; i < 2; ++i) {
    host = hosts[i];
    start_server(use_host);
    const int fd = dial();
    send_text(fd, "GET /echo HTTP/1.1\r\nHost: h\r\n\r\n");
    CHECK_CONTAINS(read_response(fd), "127.0.0.1");
    close(fd);
    stop_server();
  }
}

TEST(ipv6_addresses_have_optional_brackets) {
  const int probe = socket(AF_INET6, SOCK_STREAM, 0);
  struct sockaddr_in6 address = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
  const bool has_ipv6 = probe >= 0 && !bind(probe, (struct sockaddr *)&address, sizeof address);
  if (probe >= 0) close(probe);
  if (!has_ipv6) SKIP("this machine has no IPv6");
  static const char *const hosts[] = {"::1", "[::1]"};
  for (int i = 0; i < 2; ++i) {
    host = hosts[i];
    start_server(use_host);
    const int fd = socket(AF_INET6, SOCK_STREAM, 0);
    address.sin6_port = htons((uint16_t)mlx_http_server_port(server));
    CHECK(!connect(fd, (struct sockaddr *)&address, sizeof address));
    send_text(fd, "GET /echo HTTP/1.1\r\nHost: [::1]\r\n\r\n");
    CHECK_TEXT(body_of(read_response(fd)), "GET /echo   ::1 ");
    close(fd);
    stop_server();
  }
}

TEST(errors_of_addresses_say_what_to_do) {
  mlx_http_server_t *second;
  mlx_http_server_options_t options;
  start_server(NULL);
  mlx_http_server_options_initialize(&options);
  options.port = mlx_http_server_port(server);
  mlx_status_t status = mlx_http_server_create(&options, &second);
  CHECK_CONTAINS(mlx_status_message(status), "address already in use");
  CHECK_CONTAINS(mlx_status_hint_text(status), "--port");
  mlx_status_free(status);
  options.host = "192.0.2.1";
  CHECK_ERROR(mlx_http_server_create(&options, &second), MLX_IO, "192.0.2.1");
  options.host = "no such host";
  CHECK_ERROR(mlx_http_server_create(&options, &second), MLX_NOT_FOUND, "cannot find the host");
  options.host = "";
  CHECK_ERROR(mlx_http_server_create(&options, &second), MLX_USAGE, "not a host");
  options.host = "127.0.0.1";
  options.port = 65536;
  CHECK_ERROR(mlx_http_server_create(&options, &second), MLX_USAGE, "65536");
  stop_server();
}

TEST_MAIN(CASE(request_is_answered_with_its_parts), CASE(stream_is_sent_in_chunks_at_once),
          CASE(pipelined_requests_are_answered_in_order),
          CASE(a_pipeline_longer_than_the_backlog_is_answered), CASE(requests_arrive_in_any_pieces),
          CASE(expect_continue_is_answered_before_the_body), CASE(head_has_no_body),
          CASE(http_1_0_closes_unless_asked), CASE(headers_of_a_response_cannot_add_lines),
          CASE(handler_that_does_not_answer_gives_500), CASE(aborted_response_is_seen_as_incomplete),
          CASE(malformed_and_ambiguous_requests_are_refused), CASE(wish_for_another_protocol_is_ignored),
          CASE(client_that_leaves_is_noticed_at_once), CASE(calls_for_a_client_that_has_left_do_nothing),
          CASE(drain_finishes_responses_and_closes_idle_connections), CASE(stop_disconnects_everyone),
          CASE(server_that_never_ran_can_be_freed), CASE(signals_arrive_on_the_loop_thread),
          CASE(timer_ticks), CASE(unix_socket_is_private_and_replaced_only_if_dead),
          CASE(hosts_are_addresses_or_names), CASE(ipv6_addresses_have_optional_brackets),
          CASE(errors_of_addresses_say_what_to_do))
