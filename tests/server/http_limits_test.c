// The HTTP server's limits, and its behaviour under load and faults: slow clients, many connections, many
// threads, no file descriptors, no memory.
#include <signal.h>
#include <sys/resource.h>

#include "tests/server/http_peer.h"

// ----------------------------------------------------------------------------------------------------------
// Memory: counts live blocks, and fails the Nth allocation. The server allocates from its own thread.

static atomic_long live_blocks, allocations, failing_allocation;

static void *counting_resize(void *ptr, size_t size) {
  if (atomic_fetch_add(&allocations, 1) + 1 == atomic_load(&failing_allocation)) return NULL;
  void *block = realloc(ptr, size);
  if (!ptr && block) atomic_fetch_add(&live_blocks, 1);
  return block;
}

static void counting_release(void *ptr) {
  if (ptr) atomic_fetch_sub(&live_blocks, 1);
  free(ptr);
}

static void count_memory(void) {
  static const mlx_memory_calls_t calls = {counting_resize, counting_release};
  atomic_store(&failing_allocation, 0);
  mlx_memory_set_calls(&calls);
}

static long cpu_microseconds(void) {
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000L + usage.ru_utime.tv_usec +
         usage.ru_stime.tv_usec;
}

static void wait_for_connections(int64_t expected) {
  const double end = mlx_seconds() + 60;
  while (mlx_http_server_connections(server) != expected && mlx_seconds() < end) mlx_sleep_ms(2);
  CHECK_INT(mlx_http_server_connections(server), expected);
}

static void get_ok(int fd) {
  send_text(fd, "GET /echo HTTP/1.1\r\nHost: h\r\n\r\n");
  CHECK_CONTAINS(read_response(fd), "200 OK");
}

// ----------------------------------------------------------------------------------------------------------
// Sizes

static void small_sizes(mlx_http_server_options_t *options) {
  options->max_header_bytes = 1000;
  options->max_body_bytes = 1000;
}

TEST(long_headers_give_431) {
  start_server(small_sizes);
  for (int kind = 0; kind < 4; ++kind) {
    const int fd = dial();
    char filler[2000];
    memset(filler, 'a', sizeof filler);
    send_text(fd, kind == 0 ? "GET /" : kind == 1 ? "GET / HTTP/1.1\r\nX: " : "GET / HTTP/1.1\r\n");
    if (kind == 3) {
      for (int i = 0; i < 300; ++i) send_text(fd, "A:\r\n");  // many short headers
    } else {
      send_bytes(fd, filler, sizeof filler);
    }
    CHECK_CONTAINS(read_response(fd), "HTTP/1.1 431 Request Header Fields Too Large");
    CHECK(is_closed(fd, 60));
    close(fd);
  }
  stop_server();
  CHECK_INT(counts.last_status, 431);
}

TEST(long_bodies_give_413_before_they_arrive) {
  static const char *const heads[] = {"Content-Length: 1001\r\n\r\n",
                                      "Transfer-Encoding: chunked\r\n\r\n3e9\r\n",
                                      "Transfer-Encoding: chunked\r\n\r\nffffffffffffff\r\n"};
  start_server(small_sizes);
  for (size_t i = 0; i < 3; ++i) {
    const int fd = dial();
    send_text(fd, "POST /echo HTTP/1.1\r\nHost: h\r\n");
    send_text(fd, heads[i]);
    CHECK_CONTAINS(read_response(fd), "HTTP/1.1 413 Content Too Large");
    CHECK(is_closed(fd, 60));
    close(fd);
  }
  // The running size of chunks, and a body of exactly the limit.
  char kilobyte[1001];
  memset(kilobyte, 'a', 1000);
  kilobyte[1000] = 0;
  const int fd = dial();
  send_text(fd, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\n");
  send_text(fd, kilobyte);
  CHECK_CONTAINS(read_response(fd), kilobyte);
  send_text(fd, "POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3e8\r\n");
  send_text(fd, kilobyte);
  send_text(fd, "\r\n1\r\n");
  CHECK_CONTAINS(read_response(fd), "HTTP/1.1 413 Content Too Large");
  close(fd);
  stop_server();
}

// The server reads on for a while, so that the client can send its body and then read the response.
static void small_total(mlx_http_server_options_t *options) { options->max_total_body_bytes = 3000; }

static int send_body(const char *path, size_t length, size_t sent) {
  char head[128], bytes[2000];
  const int fd = dial();
  memset(bytes, 'a', sizeof bytes);
  snprintf(head, sizeof head, "POST %s HTTP/1.1\r\nHost: h\r\nContent-Length: %zu\r\n\r\n", path, length);
  send_text(fd, head);
  send_bytes(fd, bytes, sent);
  return fd;
}

TEST(too_many_bytes_in_all_bodies_give_503_until_a_handler_drops_its_body) {
  size_t length;
  start_server(small_total);
  const int first = send_body("/wait", 1400, 1400);
  CHECK(wait_for(&counts.waiting, 1, 60));
  mlx_exchange_t *exchange = take_held();
  const int part = send_body("/echo", 1500, 1400);  // is arriving
  int fd;
  for (bool refused = false; !refused;) {  // 200 until the server has read that part
    CHECK(counts.requests < 1000);
    fd = send_body("/echo", 1400, 1400);
    refused = strstr(read_response(fd), "HTTP/1.1 503 ");
    close(fd);
  }
  mlx_exchange_drop_body(exchange);
  CHECK_TEXT(mlx_exchange_body(exchange, &length), "");
  CHECK_INT((int64_t)length, 0);
  for (int i = 0; i < 3; ++i) {  // a response returns the bytes of its request
    fd = send_body("/echo", 1400, 1400);
    CHECK_CONTAINS(read_response(fd), "HTTP/1.1 200 ");
    close(fd);
  }
  close(part);  // a client that leaves, too
  wait_for_connections(1);
  fd = send_body("/echo", 2000, 2000);
  CHECK_CONTAINS(read_response(fd), "HTTP/1.1 200 ");
  close(fd);
  mlx_exchange_respond(exchange, 200, "text/plain", "", 0);
  mlx_exchange_release(exchange);
  CHECK_CONTAINS(read_response(first), "HTTP/1.1 200 ");
  close(first);
  stop_server();
}

TEST(client_that_sends_a_huge_body_gets_its_413) {
  start_server(small_sizes);
  const int fd = dial();
  char *piece = calloc(1, 1 << 20);
  send_text(fd, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 20971520\r\n\r\n");
  for (int i = 0; i < 20; ++i) send_bytes(fd, piece, 1 << 20);
  CHECK_CONTAINS(read_response(fd), "HTTP/1.1 413 Content Too Large");
  CHECK(is_closed(fd, 60));
  free(piece);
  close(fd);
  stop_server();
}

TEST(endless_chunk_extensions_are_refused) {
  start_server(small_sizes);
  const int fd = dial();
  send_text(fd, "POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1;");
  char filler[2000];
  memset(filler, 'a', sizeof filler);
  send_bytes(fd, filler, sizeof filler);
  CHECK_CONTAINS(read_response(fd), "HTTP/1.1 431");
  close(fd);
  stop_server();
}

// ----------------------------------------------------------------------------------------------------------
// Times

static void short_times(mlx_http_server_options_t *options) {
  options->header_seconds = options->body_seconds = 0.5;  // longer than a pause of a busy machine
  options->idle_seconds = 1;
  options->write_seconds = 0.5;
  options->max_unsent_bytes = 1 << 20;
}

TEST(slow_requests_give_408_however_they_trickle) {
  start_server(short_times);
  for (int part = 0; part < 2; ++part) {
    const double before = mlx_seconds();  // the server begins to count later
    const int fd = dial();
    send_text(fd, part ? "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 900\r\n\r\n"
                       : "GET /echo HTTP/1.1\r\n");
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    while (!poll(&poll_fd, 1, 20)) {        // a byte from time to time does not help
      CHECK(mlx_seconds() - before < 300);  // otherwise it would never end
      send_text(fd, "a");
    }
    CHECK(mlx_seconds() - before > 0.4);
    CHECK_CONTAINS(read_response(fd), "HTTP/1.1 408 Request Timeout");
    CHECK(is_closed(fd, 60));
    close(fd);
  }
  stop_server();
  CHECK_INT(counts.last_status, 408);
}

// Only the limits of idle connections end one within an hour; 3 s are longer than a pause of a busy machine.
static void short_idle_times(mlx_http_server_options_t *options) {
  options->header_seconds = options->body_seconds = options->write_seconds = 3600;
  options->idle_seconds = 3;
}

TEST(idle_connections_are_closed_without_a_response) {
  start_server(short_idle_times);
  const int fresh = dial(), kept = dial(), empty_lines = dial();
  send_text(kept, "GET /echo HTTP/1.1\r\nHost: h\r\n\r\n");
  read_response(kept);
  send_text(empty_lines, "\r\n");
  CHECK(is_closed(fresh, 60) && is_closed(kept, 60) && is_closed(empty_lines, 60));
  close(fresh);
  close(kept);
  close(empty_lines);
  stop_server();
}

static void small_buffers(int fd) {
  const int size = 4096;
  setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
}

TEST(client_that_does_not_read_is_disconnected) {
  start_server(short_times);
  const int fd = dial();
  small_buffers(fd);
  send_text(fd, "GET /big?30000000 HTTP/1.1\r\nHost: h\r\n\r\n");  // longer than max_unsent_bytes: allowed
  CHECK(wait_for(&counts.gone_ends, 1, 60));                       // but not to stop reading
  close(fd);
  stop_server();
}

static void few_unsent_bytes(mlx_http_server_options_t *options) { options->max_unsent_bytes = 1 << 20; }

TEST(stream_that_the_client_does_not_read_is_limited) {
  start_server(few_unsent_bytes);
  const int fd = dial();
  small_buffers(fd);
  send_text(fd, "GET /stream HTTP/1.1\r\nHost: h\r\n\r\n");
  CHECK(wait_for(&counts.waiting, 1, 60));
  mlx_exchange_t *exchange = take_held();
  char *piece = big_body(1 << 20);
  for (int i = 0; i < 64 && !mlx_exchange_is_gone(exchange); ++i) {
    mlx_exchange_write(exchange, piece, 1 << 20);
    mlx_sleep_ms(2);
  }
  CHECK(wait_for(&counts.gone_ends, 1, 60));
  CHECK(mlx_exchange_is_gone(exchange));
  free(piece);
  mlx_exchange_release(exchange);
  close(fd);
  stop_server();
}

static void some_write_seconds(mlx_http_server_options_t *options) { options->write_seconds = 3; }

TEST(client_that_reads_slowly_gets_everything) {
  enum { SIZE = 20000000 };
  start_server(some_write_seconds);
  const int fd = dial();
  send_text(fd, "GET /big?20000000 HTTP/1.1\r\nHost: h\r\n\r\n");
  char text[4096];
  read_until(fd, text, sizeof text, "\r\n\r\n");
  const double before = mlx_seconds();
  for (size_t done = 0; done < SIZE;) {
    char bytes[16384];
    const ssize_t got = receive(fd, bytes, sizeof bytes, 0);
    CHECK(got > 0);
    for (ssize_t i = 0; i < got; ++i) CHECK(bytes[i] == (char)('a' + (done + (size_t)i) % 26));
    done += (size_t)got;
    if (mlx_seconds() - before < 4.5) mlx_sleep_ms(10);  // longer than write_seconds in total
  }
  CHECK(mlx_seconds() - before > 4);
  close(fd);
  stop_server();
}

// ----------------------------------------------------------------------------------------------------------
// Connections

static bool is_health(void *user, const mlx_exchange_t *exchange) {
  (void)user;
  return !strcmp(mlx_exchange_path(exchange), "/echo/health");
}

static void few_connections(mlx_http_server_options_t *options) {
  options->max_connections = options->max_connections_per_address = 5;
  options->is_reserved = is_health;
}

// Makes connections whose requests are being answered.
static void be_busy(int *fds, int count) {
  for (int i = 0; i < count; ++i) {
    fds[i] = dial();
    send_text(fds[i], "GET /stream HTTP/1.1\r\nHost: h\r\n\r\n");
  }
  CHECK(wait_for(&counts.waiting, count, 60));
}

static void close_all(const int *fds, int count) {
  for (int i = 0; i < count; ++i) close(fds[i]);
  wait_for_connections(0);
}

TEST(busy_connections_at_the_limit_leave_places_for_reserved_requests) {
  start_server(few_connections);
  int fds[5], extra[3];
  be_busy(fds, 5);
  extra[0] = dial();
  send_text(extra[0], "GET /echo HTTP/1.1\r\nHost: h\r\n\r\n");
  const char *refused = read_response(extra[0]);
  CHECK_CONTAINS(refused, "HTTP/1.1 503 Service Unavailable");
  CHECK_CONTAINS(refused, "Retry-After: 1");
  CHECK(is_closed(extra[0], 60));
  extra[1] = dial();
  send_text(extra[1],
            "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\n");  // no byte of the body
  CHECK_CONTAINS(read_response(extra[1]), "HTTP/1.1 503 Service Unavailable");
  extra[2] = dial();
  send_text(extra[2], "GET /echo/health HTTP/1.1\r\nHost: h\r\n\r\n");
  CHECK_CONTAINS(read_response(extra[2]), "HTTP/1.1 200 OK");
  CHECK(is_closed(extra[2], 60));  // the place is for the next one
  for (int i = 0; i < 3; ++i) close(extra[i]);
  close_all(fds, 5);
  const int again = dial();
  get_ok(again);
  close(again);
  stop_server();
}

// Half-open connections, as many as there are places and more, with and without a part of a request.
TEST(half_open_connections_shut_nobody_out) {
  start_server(few_connections);
  int busy[2], idle, fds[20];
  be_busy(busy, 2);
  idle = dial();
  get_ok(idle);
  for (int i = 0; i < 20; ++i) {
    fds[i] = dial();
    if (i % 2) send_text(fds[i], "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Le");
  }
  for (int i = 0; i < 10; ++i) {
    const int fd = dial();
    get_ok(fd);
    close(fd);
  }
  CHECK(is_closed(fds[0], 60));  // the oldest
  get_ok(idle);                  // a client that had an answer stays
  release_handler();             // and so do those that wait for one
  close(idle);
  for (int i = 0; i < 20; ++i) close(fds[i]);
  close_all(busy, 2);
  stop_server();
}

static void few_per_address(mlx_http_server_options_t *options) {
  options->max_connections = 10;
  options->max_connections_per_address = 3;
  options->host = "0.0.0.0";
}

// Dials from another address of this machine. Returns -1 if it has none.
static int dial_from(const char *host) {
  struct sockaddr_in address = {.sin_family = AF_INET};
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  CHECK_INT(inet_pton(AF_INET, host, &address.sin_addr), 1);
  if (bind(fd, (struct sockaddr *)&address, sizeof address)) {
    close(fd);
    return -1;
  }
  dial_with(fd);
  return fd;
}

TEST(one_address_cannot_take_all_connections) {
  start_server(few_per_address);
  int mine[3], other;
  be_busy(mine, 3);
  const int extra = dial();
  send_text(extra, "GET /echo HTTP/1.1\r\nHost: h\r\n\r\n");
  CHECK_CONTAINS(read_response(extra), "HTTP/1.1 503 Service Unavailable");
  close(extra);
  other = dial_from("127.0.0.2");
  if (other >= 0) get_ok(other);
  close(other);
  close_all(mine, 3);
  stop_server();
  if (other < 0) SKIP("this machine has no address 127.0.0.2");
}

static void many_connections(mlx_http_server_options_t *options) {
  options->max_connections = options->max_connections_per_address = 2000;
}

TEST(a_thousand_idle_connections_cost_little_and_are_released) {
  enum { COUNT = 1000 };
  struct rlimit limit;
  getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_max != RLIM_INFINITY && limit.rlim_max < 3000)
    SKIP("this test needs 3000 file descriptors; the limit is %ld", (long)limit.rlim_max);
  count_memory();
  start_server(many_connections);
  CHECK(!setrlimit(RLIMIT_NOFILE, &(struct rlimit){3000, limit.rlim_max}));
  const long before = live_blocks;
  static int fds[COUNT];
  for (int i = 0; i < COUNT; ++i) {
    fds[i] = dial();
    if (i % 2) send_text(fds[i], "GET /echo HTTP/1.1\r\nHost: h\r\n\r\n");
    if (i % 2) read_response(fds[i]);
  }
  wait_for_connections(COUNT);
  CHECK(live_blocks - before <= 2 * COUNT + 10);  // the connection and its output buffer
  const int fd = dial();
  const long start = cpu_microseconds();
  for (int i = 0; i < 100; ++i) {
    send_text(fd, "GET /echo HTTP/1.1\r\nHost: h\r\n\r\n");
    CHECK_CONTAINS(read_response(fd), "200 OK");
  }
  CHECK(cpu_microseconds() - start < 5000000);  // normally 10 ms: idle connections cost nothing
  close(fd);
  for (int i = 0; i < COUNT; ++i) close(fds[i]);
  wait_for_connections(0);
  CHECK_INT(live_blocks, before);
  stop_server();
  mlx_memory_set_calls(NULL);
}

// Without a descriptor, libuv closes the connection with the help of its spare one. If that is lost too, the
// connection waits until a descriptor is free. In both cases the server goes on, without using the CPU.
TEST(server_goes_on_when_file_descriptors_run_out) {
  struct rlimit limit;
  start_server(NULL);
  getrlimit(RLIMIT_NOFILE, &limit);
  const int first = dial();
  get_ok(first);
  for (int has_spare = 1; has_spare >= 0; --has_spare) {
    const int late = socket(AF_INET, SOCK_STREAM, 0), next = dup(late);
    CHECK(next >= 0);
    close(next);
    CHECK(!setrlimit(RLIMIT_NOFILE, &(struct rlimit){has_spare ? (rlim_t)next : 3, limit.rlim_max}));
    dial_with(late);
    if (has_spare) CHECK(is_closed(late, 60));
    mlx_sleep_ms(50);
    const long before = cpu_microseconds();
    mlx_sleep_ms(1000);  // a loop would use 100 ms of it also beside nine other processes
    const long used = cpu_microseconds() - before;
    get_ok(first);
    CHECK(!setrlimit(RLIMIT_NOFILE, &limit));
    CHECK(used < 100000);
    if (!has_spare) get_ok(late);
    close(late);
  }
  close(first);
  stop_server();
}

// ----------------------------------------------------------------------------------------------------------
// Threads

enum { STREAMS = 16, PIECES = 200 };

static void *write_stream(void *user) {
  mlx_exchange_t *exchange = user;
  char piece[32];
  mlx_exchange_set_header(exchange, "X-Stream", "yes");
  mlx_exchange_begin(exchange, 200, "text/event-stream");
  for (int i = 0; i < PIECES; ++i) {
    snprintf(piece, sizeof piece, "data: %d\n\n", i);
    mlx_exchange_write(exchange, piece, strlen(piece));
    if (i % 50 == 0) mlx_sleep_ms(1);
  }
  mlx_exchange_end(exchange);
  mlx_exchange_release(exchange);
  return NULL;
}

static void start_stream(void *user, mlx_exchange_t *exchange) {
  pthread_t thread;
  (void)user;
  mlx_exchange_retain(exchange);
  if (pthread_create(&thread, NULL, write_stream, exchange)) abort();
  pthread_detach(thread);
}

static void stream_from_threads(mlx_http_server_options_t *options) { options->on_request = start_stream; }

TEST(threads_write_streams_at_the_same_time) {
  start_server(stream_from_threads);
  int fds[STREAMS];
  for (int i = 0; i < STREAMS; ++i) {
    fds[i] = dial();
    send_text(fds[i], "GET /s HTTP/1.1\r\nHost: h\r\n\r\n");
  }
  for (int i = 0; i < STREAMS; ++i) {
    static char text[1 << 16];
    read_until(fds[i], text, sizeof text, "0\r\n\r\n");
    CHECK_CONTAINS(text, "X-Stream: yes\r\n");
    const char *at = text;
    for (int j = 0; j < PIECES; ++j) {
      char expected[32];
      snprintf(expected, sizeof expected, "data: %d\n", j);
      at = strstr(at, expected);
      CHECK(at);
    }
    close(fds[i]);
  }
  stop_server();
  CHECK_INT(counts.ended, STREAMS);
  CHECK_INT(counts.gone_ends, 0);
}

// A handler's thread that removes its callback waits until a call of it has returned.
static atomic_int call_begun, call_ended, removed, late_calls;
static void slow_callback(void *user) {
  (void)user;
  if (atomic_load(&removed)) atomic_fetch_add(&late_calls, 1);
  atomic_fetch_add(&call_begun, 1);
  mlx_sleep_ms(10);
  atomic_fetch_add(&call_ended, 1);
}

TEST(removed_callback_is_not_called_any_more) {
  start_server(NULL);
  for (int i = 0; i < 40; ++i) {
    const int fd = dial();
    send_text(fd, "GET /wait HTTP/1.1\r\nHost: h\r\n\r\n");
    CHECK(wait_for(&counts.waiting, i + 1, 60));
    mlx_exchange_t *exchange = take_held();
    call_begun = call_ended = removed = 0;
    mlx_exchange_on_gone(exchange, slow_callback, NULL);
    close(fd);
    if (i % 2) CHECK(wait_for(&call_begun, 1, 60));
    mlx_exchange_on_gone(exchange, NULL, NULL);
    atomic_store(&removed, 1);
    CHECK_INT(call_ended, call_begun);
    mlx_exchange_respond(exchange, 200, "text/plain", "x", 1);
    mlx_exchange_release(exchange);
  }
  stop_server();
  CHECK_INT(late_calls, 0);
}

// ----------------------------------------------------------------------------------------------------------
// Faults

static uint32_t random_state = 1;
static uint32_t next_random(uint32_t below) {
  random_state = random_state * 1664525u + 1013904223u;
  return (random_state >> 8) % below;
}

// One client that behaves badly in some way. Ignores all errors.
static void misbehave(void) {
  static const char *const texts[] = {
      "GET /echo HTTP/1.1\r\nHost: h\r\n\r\n",
      "GET /big?300000 HTTP/1.1\r\nHost: h\r\n\r\n",
      "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\nshort",
      "POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
      "GET /s HTTP/1.1\r\nHost: h\r\n\r\n",
      "\x16\x03\x01\x00 not TLS",
      "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999999\r\n\r\n",
      "GET /echo HTTP/1.1\r\nHost: h\r\n\r\nGET /echo HTTP/1.1\r\nHost: h\r\n\r\nGET /e",
  };
  char bytes[4096];
  const int fd = dial();
  const char *text = texts[next_random(sizeof texts / sizeof *texts)];
  size_t length = strlen(text);
  if (next_random(4) == 0) length = next_random((uint32_t)length + 1);
  send(fd, text, length, MSG_NOSIGNAL);
  if (next_random(2)) {
    poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, (int)next_random(5));
    receive(fd, bytes, sizeof bytes, MSG_DONTWAIT);
  }
  if (next_random(3) == 0)
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger));
  close(fd);
}

static void streams_and_others(void *user, mlx_exchange_t *exchange) {
  if (!strcmp(mlx_exchange_path(exchange), "/s"))
    start_stream(user, exchange);
  else
    on_request(user, exchange);
}

static void quick_and_streams(mlx_http_server_options_t *options) {
  short_times(options);
  options->header_seconds = options->body_seconds = options->idle_seconds =
      10;  // the last client is not late
  options->on_request = streams_and_others;
}

TEST(memory_returns_after_clients_that_misbehave) {
  count_memory();
  start_server(quick_and_streams);
  const long before = live_blocks;
  for (int i = 0; i < (MLXCEL_SANITIZED ? 1000 : 4000); ++i) misbehave();
  const int fd = dial();
  get_ok(fd);
  close(fd);
  wait_for_connections(0);
  const double end = mlx_seconds() + 60;
  while (live_blocks != before && mlx_seconds() < end) mlx_sleep_ms(5);  // threads release their exchanges
  CHECK_INT(live_blocks, before);
  stop_server();
  mlx_memory_set_calls(NULL);
}

static long resident_bytes(void) {
  long pages = 0, resident = 0;
  FILE *file = fopen("/proc/self/statm", "r");
  if (!file || fscanf(file, "%ld %ld", &pages, &resident) != 2) resident = 0;
  if (file) fclose(file);
  return resident * sysconf(_SC_PAGESIZE);
}

// Small blocks below a block that stays are free, but not at the end of the heap: glibc keeps them.
TEST(memory_goes_back_to_the_system_after_a_large_response) {
  enum { BLOCKS = 64 * 1024, SIZE = 1000, FREED = BLOCKS * SIZE };
#ifndef __GLIBC__
  SKIP("only glibc keeps freed memory and gives it back when asked");
#endif
  if (MLXCEL_SANITIZED) SKIP("the sanitizer has an allocator of its own");
  if (!resident_bytes()) SKIP("this system has no /proc/self/statm");
  static char *blocks[BLOCKS];
  start_server(NULL);
  for (int i = 0; i < BLOCKS; ++i) memset(blocks[i] = malloc(SIZE), 1, SIZE);
  const long full = resident_bytes();
  for (int i = 0; i < BLOCKS - 1; ++i) free(blocks[i]);
  CHECK(resident_bytes() > full - FREED / 2);
  const int fd = dial();
  send_text(fd, "GET /big?5000000 HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
  char buffer[65536];
  while (receive(fd, buffer, sizeof buffer, 0) > 0) continue;
  close(fd);
  const double end = mlx_seconds() + 60;
  while (resident_bytes() > full - FREED / 2 && mlx_seconds() < end) mlx_sleep_ms(20);
  CHECK(resident_bytes() <= full - FREED / 2);
  free(blocks[BLOCKS - 1]);
  stop_server();
}

TEST(server_survives_each_failed_allocation) {
  static const char request[] =
      "POST /echo?a HTTP/1.1\r\nHost: h\r\nX-Name: n\r\nTransfer-Encoding: "
      "chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
  count_memory();
  start_server(NULL);
  const long before = live_blocks;
  int failed = 0, answered = 0;
  for (int n = 1; n <= 60; ++n) {
    char bytes[4096];
    atomic_store(&failing_allocation, atomic_load(&allocations) + n);
    const int fd = dial();
    send(fd, request, sizeof request - 1, MSG_NOSIGNAL);
    const ssize_t got = receive(fd, bytes, sizeof bytes - 1, 0);
    bytes[got > 0 ? got : 0] = 0;
    if (strstr(bytes, "200 OK"))
      ++answered;
    else
      ++failed;  // 503, or closed
    close(fd);
    wait_for_connections(0);
    CHECK_INT(live_blocks, before);
  }
  CHECK(failed > 5 && answered > 5);
  stop_server();
  mlx_memory_set_calls(NULL);
}

TEST_MAIN(CASE(long_headers_give_431), CASE(long_bodies_give_413_before_they_arrive),
          CASE(too_many_bytes_in_all_bodies_give_503_until_a_handler_drops_its_body),
          CASE(client_that_sends_a_huge_body_gets_its_413), CASE(endless_chunk_extensions_are_refused),
          CASE(slow_requests_give_408_however_they_trickle),
          CASE(idle_connections_are_closed_without_a_response),
          CASE(client_that_does_not_read_is_disconnected),
          CASE(stream_that_the_client_does_not_read_is_limited),
          CASE(client_that_reads_slowly_gets_everything),
          CASE(busy_connections_at_the_limit_leave_places_for_reserved_requests),
          CASE(half_open_connections_shut_nobody_out), CASE(one_address_cannot_take_all_connections),
          CASE(a_thousand_idle_connections_cost_little_and_are_released),
          CASE(server_goes_on_when_file_descriptors_run_out), CASE(threads_write_streams_at_the_same_time),
          CASE(removed_callback_is_not_called_any_more), CASE(memory_returns_after_clients_that_misbehave),
          CASE(memory_goes_back_to_the_system_after_a_large_response),
          CASE(server_survives_each_failed_allocation))
