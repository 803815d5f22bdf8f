// The state machine of a connection: reading a request, answering it, and closing.
#include "server/http/connection.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "server/http/socket.h"

#define MAX_BACKLOG (64 * 1024)  // bytes of later requests that are read during a response
#define MAX_SPARE (64 * 1024)    // capacity of an output buffer that is kept for the next response
#define EXTRA_CONNECTIONS 64     // above the limits: for reserved requests, and to give others their 503
#define EXTRA_SECONDS 2.0        // time of such a connection for its request line and headers
#define PRESSED_SECONDS 5.0      // the same for any connection, and its time without a request, while more
#define PRESSED_PERCENT 75       // than this share of the connections is open
#define LARGE_BYTES (4 << 20)    // of a request and its response: their memory goes back to the system
#define LINGER_MS 500            // a closed connection reads so long: unread bytes would reset it,
#define LINGER_REFUSED_MS 2000   // and the client might not get the end of its response

typedef enum connection_state {
  READING,    // a request, or waiting for one
  ANSWERING,  // the exchange is open, or its last bytes are being written
  LINGERING,  // everything is written; the client has not closed its side
  CLOSED
} connection_state_t;

struct mlx_http_connection {
  union {
    uv_handle_t handle;
    uv_stream_t stream;
    uv_tcp_t tcp;
    uv_pipe_t pipe;
  } socket;
  uv_timer_t timer;
  uv_shutdown_t shutdown;
  int handles;  // that libuv has not closed
  mlx_http_connections_t *all;
  mlx_http_connection_t *previous, *next;
  connection_state_t state;
  uint64_t address;   // of the client: IPv4, or the 64-bit network of IPv6; 0: a Unix socket, or unknown
  bool is_extra;      // above the limits: only reserved requests are handled
  bool has_answered;  // it has had a complete request
  double since;       // time of the accept, or of the end of the last response
  mlx_tls_t *tls;
  mlx_http_parser_t parser;
  mlx_http_stage_t timed_stage;  // whose time limit runs
  mlx_text_t input;              // received and not parsed
  bool is_parsing;
  double begin;       // time of the request's first byte
  size_t body_bytes;  // of the present request, also if the handler has dropped them
  mlx_exchange_t *exchange;
  mlx_text_t spare;     // an empty buffer
  bool response_ended;  // all its bytes are queued
  bool keep_alive, was_refused, was_aborted, is_end_of_input;
  uint64_t queued_bytes;    // bytes given to libuv
  uint64_t progress_bytes;  // of those, received by the client when progress was last seen
  double progress_time;
  char remote[64];
};

typedef struct pending_write {
  uv_write_t request;
  char *bytes;  // owned
} pending_write_t;

static void leave(mlx_http_connection_t *connection);
static void flush(mlx_http_connection_t *connection);
static void parse(mlx_http_connection_t *connection);
static void on_timer(uv_timer_t *timer);

// ----------------------------------------------------------------------------------------------------------
// Release

static void on_handle_closed(uv_handle_t *handle) {
  mlx_http_connection_t *connection = handle->data;
  mlx_http_connections_t *all = connection->all;
  if (--connection->handles) return;
  if (connection->previous)
    connection->previous->next = connection->next;
  else
    all->first = connection->next;
  if (connection->next) connection->next->previous = connection->previous;
  mlx_tls_free(connection->tls);
  mlx_http_parser_clear(&connection->parser);
  mlx_text_clear(&connection->input);
  mlx_text_clear(&connection->spare);
  mlx_free(connection);
  atomic_fetch_sub(&all->count, 1);
  all->on_closed(all);
}

// Gives the connection's place to the next one: libuv closes the socket at once, and calls back later.
static void set_closed(mlx_http_connection_t *connection) {
  connection->state = CLOSED;
  --*(connection->is_extra ? &connection->all->extra : &connection->all->open);
}

// Closes the socket. The memory is released in a later turn of the loop.
static void close_now(mlx_http_connection_t *connection) {
  if (connection->state == CLOSED) return;
  set_closed(connection);
  uv_close(&connection->socket.handle, on_handle_closed);
  uv_close((uv_handle_t *)&connection->timer, on_handle_closed);
}

static void end_exchange(mlx_http_connection_t *connection, bool gone) {
  mlx_exchange_t *exchange = connection->exchange;
  const mlx_http_server_options_t *options = connection->all->options;
  connection->exchange = NULL;
  exchange->connection = NULL;
  if (exchange->sent_bytes + connection->body_bytes > LARGE_BYTES) connection->all->on_large(connection->all);
  if (options->on_end)
    options->on_end(options->user, exchange, mlx_seconds() - exchange->begin, exchange->sent_bytes, gone);
  mlx_exchange_release(exchange);
}

// The client has left, or is disconnected.
static void leave(mlx_http_connection_t *connection) {
  if (connection->state == CLOSED) return;
  close_now(connection);
  if (connection->exchange) {
    mlx_exchange_leave(connection->exchange);
    end_exchange(connection, true);
  }
}

// ----------------------------------------------------------------------------------------------------------
// Time limits

static void set_timer(mlx_http_connection_t *connection, double seconds) {
  const double ms = seconds * 1000;
  const uint64_t whole = ms < 1 ? 1 : ms > 1e15 ? (uint64_t)1e15 : (uint64_t)ms;
  uv_update_time(connection->all->loop);
  uv_timer_start(&connection->timer, on_timer, whole, 0);
}

// The time limit of a connection that has no complete headers. It is shorter while places are scarce.
static double scarce_seconds(const mlx_http_connection_t *connection, double seconds) {
  const mlx_http_connections_t *all = connection->all;
  const bool is_pressed = all->open * 100 > all->max * PRESSED_PERCENT;
  const double most = connection->is_extra ? EXTRA_SECONDS : is_pressed ? PRESSED_SECONDS : seconds;
  return seconds < most ? seconds : most;
}

// Starts the time limit of the parser's stage when the stage changes.
static void set_stage_timer(mlx_http_connection_t *connection, bool is_new) {
  const mlx_http_server_options_t *options = connection->all->options;
  const mlx_http_stage_t stage = connection->parser.stage;
  if (connection->tls && !mlx_tls_is_ready(connection->tls)) {
    if (is_new) set_timer(connection, scarce_seconds(connection, options->header_seconds));
    return;
  }
  if (!is_new && stage == connection->timed_stage) return;
  connection->timed_stage = stage;
  set_timer(connection, stage == MLX_STAGE_IDLE      ? scarce_seconds(connection, options->idle_seconds)
                        : stage == MLX_STAGE_HEADERS ? scarce_seconds(connection, options->header_seconds)
                                                     : options->body_seconds);
}

static size_t unsent(const mlx_http_connection_t *connection) {
  return uv_stream_get_write_queue_size(&connection->socket.stream);
}

// The bytes that the client has received. libuv writes to the system's buffer in big pieces, so a slow client
// shows its progress only there.
static uint64_t received_bytes(const mlx_http_connection_t *connection) {
  const uint64_t waiting = unsent(connection) + mlx_socket_unacknowledged(&connection->socket.stream);
  return waiting < connection->queued_bytes ? connection->queued_bytes - waiting : 0;
}

// Watches that the client reads, while bytes wait for it.
static void set_write_timer(mlx_http_connection_t *connection) {
  if (uv_is_active((uv_handle_t *)&connection->timer)) return;
  connection->progress_bytes = received_bytes(connection);
  connection->progress_time = mlx_seconds();
  set_timer(connection, connection->all->options->write_seconds / 4);
}

static void check_write_progress(mlx_http_connection_t *connection) {
  const double now = mlx_seconds(), limit = connection->all->options->write_seconds;
  const uint64_t received = received_bytes(connection);
  if (!unsent(connection)) return;
  if (received > connection->progress_bytes) {
    connection->progress_bytes = received;
    connection->progress_time = now;
  } else if (now - connection->progress_time >= limit) {
    leave(connection);
    return;
  }
  set_timer(connection, limit / 4);
}

static void refuse(mlx_http_connection_t *connection, int status, const char *reason);

static void on_timer(uv_timer_t *timer) {
  mlx_http_connection_t *connection = timer->data;
  switch (connection->state) {
    case READING:
      if (connection->parser.stage == MLX_STAGE_IDLE)
        close_now(connection);  // also during a TLS handshake
      else
        refuse(connection, 408, "the request did not arrive within the time limit");
      break;
    case ANSWERING: check_write_progress(connection); break;
    case LINGERING: close_now(connection); break;
    case CLOSED: break;
  }
}

// ----------------------------------------------------------------------------------------------------------
// Writing

static void finish_response(mlx_http_connection_t *connection);

static void on_written(uv_write_t *request, int status) {
  pending_write_t *write = (pending_write_t *)request;
  mlx_http_connection_t *connection = request->data;
  mlx_free(write->bytes);
  mlx_free(write);
  if (connection->state == CLOSED) return;
  if (status < 0)
    leave(connection);
  else if (!unsent(connection) && connection->state == ANSWERING && connection->response_ended)
    finish_response(connection);
}

// Queues the bytes from |offset| on. Takes the buffer.
static bool write_later(mlx_http_connection_t *connection, mlx_text_t *bytes, size_t offset) {
  pending_write_t *write;
  mlx_status_t status = mlx_alloc(1, sizeof *write, &write);
  if (status) {
    mlx_status_free(status);
    mlx_text_clear(bytes);
    return false;
  }
  write->bytes = bytes->data;
  write->request.data = connection;
  const uv_buf_t buffer = uv_buf_init(bytes->data + offset, (unsigned)(bytes->length - offset));
  memset(bytes, 0, sizeof *bytes);
  if (uv_write(&write->request, &connection->socket.stream, &buffer, 1, on_written)) {
    mlx_free(write->bytes);
    mlx_free(write);
    return false;
  }
  return true;
}

// Writes to the socket. Takes the buffer. On failure the connection is closed.
static void write_raw(mlx_http_connection_t *connection, mlx_text_t *bytes) {
  const size_t length = bytes->length;
  bool ok = !bytes->failed && length <= INT32_MAX;
  int written = 0;
  if (ok && length && !unsent(connection)) {
    const uv_buf_t buffer = uv_buf_init(bytes->data, (unsigned)length);
    written = uv_try_write(&connection->socket.stream, &buffer, 1);
    ok = written >= 0 || written == UV_EAGAIN;
    if (written < 0) written = 0;
  }
  connection->queued_bytes += length;
  if (ok && (size_t)written < length) {
    ok = write_later(connection, bytes, (size_t)written);
  } else if (ok && !connection->spare.data && bytes->capacity <= MAX_SPARE) {
    connection->spare = *bytes;
    connection->spare.length = 0;
  } else {
    mlx_text_clear(bytes);
  }
  if (!ok) leave(connection);
}

// Encrypts and writes. Takes the buffer.
static void write_bytes(mlx_http_connection_t *connection, mlx_text_t *bytes) {
  if (!connection->tls || bytes->failed) {
    write_raw(connection, bytes);
    return;
  }
  mlx_text_t cipher = {0};
  if (bytes->length && !mlx_tls_send(connection->tls, bytes->data, bytes->length, &cipher))
    cipher.failed = true;
  mlx_text_clear(bytes);
  write_raw(connection, &cipher);
}

static void on_shutdown(uv_shutdown_t *request, int status) { (void)request, (void)status; }

// Sends the end of the connection and discards input until the client sends its end.
static void linger(mlx_http_connection_t *connection) {
  connection->state = LINGERING;
  mlx_text_clear(&connection->input);
  if (connection->is_end_of_input) {
    close_now(connection);
    return;
  }
  if (connection->tls && mlx_tls_is_ready(connection->tls)) {
    mlx_text_t cipher = {0};
    mlx_tls_close(connection->tls, &cipher);
    write_raw(connection, &cipher);
    if (connection->state == CLOSED) return;
  }
  set_timer(connection, (connection->was_refused ? LINGER_REFUSED_MS : LINGER_MS) / 1000.0);
  if (uv_shutdown(&connection->shutdown, &connection->socket.stream, on_shutdown)) close_now(connection);
}

static void start_reading(mlx_http_connection_t *connection);

// Ends a connection whose response is incomplete. A client of HTTP/1.0 sees that only from a reset.
static void close_aborted(mlx_http_connection_t *connection, bool is_http_1_0) {
  if (is_http_1_0 && connection->socket.handle.type == UV_TCP &&
      !uv_tcp_close_reset(&connection->socket.tcp, on_handle_closed)) {
    set_closed(connection);
    uv_close((uv_handle_t *)&connection->timer, on_handle_closed);
  } else {
    close_now(connection);
  }
}

// The last byte of the response is written.
static void finish_response(mlx_http_connection_t *connection) {
  const bool is_http_1_0 = connection->exchange->request.is_http_1_0;
  const bool goes_on = connection->keep_alive && !connection->is_end_of_input &&
                       !atomic_load(&connection->all->queue->draining);
  uv_timer_stop(&connection->timer);
  end_exchange(connection, false);
  connection->response_ended = false;
  if (connection->was_aborted) {
    close_aborted(connection, is_http_1_0);
    return;
  }
  start_reading(connection);
  if (connection->state == CLOSED) return;
  if (!goes_on) {
    linger(connection);
    return;
  }
  connection->state = READING;
  connection->since = mlx_seconds();
  set_stage_timer(connection, true);
  if (!connection->is_parsing) parse(connection);
}

// Writes what the handler has added to the response.
static void flush(mlx_http_connection_t *connection) {
  mlx_exchange_output_t output;
  mlx_exchange_take(connection->exchange, connection->spare, &output);
  memset(&connection->spare, 0, sizeof connection->spare);
  if (unsent(connection) > connection->all->options->max_unsent_bytes) {
    mlx_text_clear(&output.bytes);
    leave(connection);
    return;
  }
  if (output.ended) {
    connection->response_ended = true;
    connection->keep_alive = output.keep_alive;
    connection->was_aborted = output.aborted;
  }
  write_bytes(connection, &output.bytes);
  if (connection->state == CLOSED) return;
  if (unsent(connection))
    set_write_timer(connection);
  else if (connection->response_ended)
    finish_response(connection);
}

void mlx_http_connection_flush(mlx_exchange_t *exchange) {
  if (exchange->connection) flush(exchange->connection);
}

// ----------------------------------------------------------------------------------------------------------
// Requests

// Makes an exchange of what the parser has read.
static bool begin_exchange(mlx_http_connection_t *connection) {
  mlx_exchange_request_t request = {0};
  mlx_status_t status = mlx_http_parser_take(&connection->parser, &request);
  connection->body_bytes = request.body.length;
  if (!status)
    status = mlx_exchange_create(connection->all->queue, &request, connection->remote, &connection->exchange);
  if (status) {
    mlx_status_free(status);
    mlx_exchange_request_clear(&request);
    close_now(connection);
    return false;
  }
  uv_timer_stop(&connection->timer);
  connection->state = ANSWERING;
  connection->exchange->connection = connection;
  connection->exchange->begin = connection->begin;
  connection->exchange->is_queued = true;  // flush follows
  return true;
}

static const char crowded[] = "the server has too many connections";

static void refuse_exchange(mlx_http_connection_t *connection, int status, const char *reason) {
  const mlx_http_server_options_t *options = connection->all->options;
  mlx_exchange_t *exchange = connection->exchange;
  connection->was_refused = true;
  if (status == 503) mlx_exchange_set_header(exchange, "Retry-After", "1");
  mlx_exchange_set_header(exchange, "Connection", "close");
  if (options->on_refuse) options->on_refuse(options->user, exchange, status, reason);
  mlx_exchange_refuse(exchange, status, reason);  // unless on_refuse answered
}

static void call_handler(mlx_http_connection_t *connection) {
  const mlx_http_server_options_t *options = connection->all->options;
  if (!begin_exchange(connection)) return;
  mlx_exchange_t *exchange = connection->exchange;
  connection->has_answered = true;
  if (connection->is_extra) mlx_exchange_set_header(exchange, "Connection", "close");
  if (!connection->is_extra || (options->is_reserved && options->is_reserved(options->user, exchange)))
    options->on_request(options->user, exchange);
  else
    refuse_exchange(connection, 503, crowded);
  if (atomic_load(&exchange->references) == 1)
    mlx_exchange_refuse(exchange, 500, "the server did not answer the request");  // unless it did
  flush(connection);
}

// Answers with an error of the HTTP layer and closes the connection.
static void refuse(mlx_http_connection_t *connection, int status, const char *reason) {
  char copy[sizeof connection->parser.reason_text];
  snprintf(copy, sizeof copy, "%s", reason);
  if (!begin_exchange(connection)) return;
  refuse_exchange(connection, status, copy);
  flush(connection);
}

static void send_continue(mlx_http_connection_t *connection) {
  mlx_text_t bytes = {0};
  mlx_text_puts(&bytes, "HTTP/1.1 100 Continue\r\n\r\n");
  write_bytes(connection, &bytes);
}

// Parses the input until a request waits for its response.
static void parse(mlx_http_connection_t *connection) {
  size_t done = 0;
  connection->is_parsing = true;
  while (connection->state == READING && done < connection->input.length) {
    size_t used;
    if (connection->parser.stage == MLX_STAGE_IDLE) connection->begin = mlx_seconds();
    const mlx_http_result_t result = mlx_http_parser_feed(&connection->parser, connection->input.data + done,
                                                          connection->input.length - done, &used);
    done += used;
    if (result == MLX_REQUEST_COMPLETE)
      call_handler(connection);
    else if (result == MLX_REQUEST_REFUSED)
      refuse(connection, connection->parser.refusal, connection->parser.reason);
    else if (connection->is_extra && connection->parser.stage == MLX_STAGE_BODY)
      refuse(connection, 503, crowded);  // no reserved request has a body
    else if (result == MLX_REQUEST_CONTINUE && done == connection->input.length)
      send_continue(connection);
  }
  connection->is_parsing = false;
  if (done >= connection->input.length) {
    mlx_text_clear(&connection->input);
  } else if (done) {
    memmove(connection->input.data, connection->input.data + done, connection->input.length - done);
    connection->input.length -= done;
  }
  if (connection->state == READING) set_stage_timer(connection, false);
}

// ----------------------------------------------------------------------------------------------------------
// Reading

static void on_allocate(uv_handle_t *handle, size_t suggested, uv_buf_t *out_buffer) {
  mlx_http_connection_t *connection = handle->data;
  (void)suggested;
  *out_buffer = uv_buf_init(connection->all->buffer, sizeof connection->all->buffer);
}

// The client has closed its side. A client that waits for a response counts as gone: closing one direction
// and closing both look the same here, and a client that has left must not keep the model busy.
static void end_of_input(mlx_http_connection_t *connection) {
  connection->is_end_of_input = true;
  if (connection->state == ANSWERING && connection->response_ended)
    return;  // its last bytes are on their way
  leave(connection);
}

static void receive_encrypted(mlx_http_connection_t *connection, const char *bytes, size_t length) {
  mlx_text_t cipher = {0};
  const bool was_ready = mlx_tls_is_ready(connection->tls);
  const mlx_tls_result_t result =
      mlx_tls_receive(connection->tls, bytes, length, &connection->input, &cipher);
  write_raw(connection, &cipher);
  if (connection->state == CLOSED) return;
  if (result == MLX_TLS_FAILED) {
    leave(connection);
    return;
  }
  if (!was_ready && mlx_tls_is_ready(connection->tls)) set_stage_timer(connection, true);
  if (connection->state == READING) parse(connection);
  if (result == MLX_TLS_CLOSED && connection->state != CLOSED) end_of_input(connection);
}

static void on_read(uv_stream_t *stream, ssize_t length, const uv_buf_t *buffer) {
  mlx_http_connection_t *connection = stream->data;
  if (connection->state == CLOSED || !length) return;
  if (length == UV_EOF) {
    end_of_input(connection);
  } else if (length < 0) {
    leave(connection);
  } else if (connection->state == LINGERING) {
    return;
  } else if (connection->tls) {
    receive_encrypted(connection, buffer->base, (size_t)length);
  } else {
    mlx_text_append(&connection->input, buffer->base, (size_t)length);
    if (connection->input.failed)
      leave(connection);
    else if (connection->state == READING)
      parse(connection);
  }
  if (connection->state == ANSWERING && connection->input.length > MAX_BACKLOG)
    uv_read_stop(&connection->socket.stream);
}

static void start_reading(mlx_http_connection_t *connection) {
  if (connection->is_end_of_input) return;
  const int error = uv_read_start(&connection->socket.stream, on_allocate, on_read);
  if (error && error != UV_EALREADY) leave(connection);
}

// ----------------------------------------------------------------------------------------------------------
// Accepting

// The address by which connections of one client are counted. A client with IPv6 usually has a whole network.
static uint64_t address_of(const struct sockaddr *address) {
  if (address->sa_family == AF_INET)
    return ntohl(((const struct sockaddr_in *)(const void *)address)->sin_addr.s_addr);
  if (address->sa_family != AF_INET6) return 0;
  const uint8_t *bytes = ((const struct sockaddr_in6 *)(const void *)address)->sin6_addr.s6_addr;
  static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};  // ::ffff:1.2.3.4
  uint64_t key = 0;
  for (int i = 0; i < 8; ++i) key = key << 8 | bytes[i];
  if (key || memcmp(bytes, mapped, sizeof mapped)) return key ? key : 1;  // 1: ::1
  for (int i = 12; i < 16; ++i) key = key << 8 | bytes[i];
  return key;
}

static void set_remote(mlx_http_connection_t *connection) {
  struct sockaddr_storage address;
  int length = sizeof address;
  if (connection->socket.handle.type == UV_NAMED_PIPE) {
    strcpy(connection->remote, "unix");
  } else if (uv_tcp_getpeername(&connection->socket.tcp, (struct sockaddr *)&address, &length) ||
             uv_ip_name((struct sockaddr *)&address, connection->remote, sizeof connection->remote)) {
    strcpy(connection->remote, "unknown");
  } else {
    connection->address = address_of((struct sockaddr *)&address);
  }
}

// Puts a new connection in the list and initializes its handles, which must be closed from then on.
static mlx_http_connection_t *add_connection(mlx_http_connections_t *all, bool is_pipe) {
  mlx_http_connection_t *connection;
  mlx_status_t status = mlx_alloc(1, sizeof *connection, &connection);
  if (status) {
    mlx_status_free(status);
    return NULL;
  }
  connection->all = all;
  mlx_http_parser_initialize(&connection->parser, all->options->max_header_bytes,
                             all->options->max_body_bytes);
  connection->parser.budget = &all->queue->bodies;
  if (is_pipe)
    uv_pipe_init(all->loop, &connection->socket.pipe, 0);
  else
    uv_tcp_init(all->loop, &connection->socket.tcp);
  uv_timer_init(all->loop, &connection->timer);
  connection->handles = 2;
  connection->socket.handle.data = connection->timer.data = connection;
  connection->next = all->first;
  if (all->first) all->first->previous = connection;
  all->first = connection;
  ++all->open;
  atomic_fetch_add(&all->count, 1);
  return connection;
}

// How little is lost if the connection is closed for a new one; 0: it must stay.
static int spare_rank(const mlx_http_connection_t *connection) {
  if (connection->state == LINGERING) return 2;
  if (connection->state != READING) return 0;
  return connection->has_answered ? 1 : 3;
}

// Closes the oldest of the connections that are the least loss, other than |newcomer|: of its address if
// |address| is not 0, and of the extra ones if |extra|. Returns false if all of them are busy.
static bool make_place(mlx_http_connections_t *all, const mlx_http_connection_t *newcomer, uint64_t address,
                       bool extra) {
  mlx_http_connection_t *spare = NULL;
  for (mlx_http_connection_t *at = all->first; at; at = at->next) {
    if (at == newcomer || at->is_extra != extra || !spare_rank(at) || (address && at->address != address))
      continue;
    const int better = spare ? spare_rank(at) - spare_rank(spare) : 1;
    if (better > 0 || (!better && at->since <= spare->since)) spare = at;
  }
  if (spare) close_now(spare);
  return spare;
}

static int64_t count_address(const mlx_http_connections_t *all, uint64_t address) {
  int64_t count = 0;
  for (const mlx_http_connection_t *at = all->first; at; at = at->next)
    count += at->address == address && at->state != CLOSED && !at->is_extra;
  return count;
}

// Finds a place for a new connection. If its address, or the server, has too many and all are busy, it is an
// extra one. Returns false if there are too many of those too.
static bool take_place(mlx_http_connections_t *all, mlx_http_connection_t *connection) {
  const uint64_t address = connection->address;
  bool has_place = true;
  if (address && count_address(all, address) > all->max_per_address)
    has_place = make_place(all, connection, address, false);
  if (has_place && all->open > all->max) has_place = make_place(all, connection, 0, false);
  if (has_place) return true;
  connection->is_extra = true;
  --all->open;
  return ++all->extra <= EXTRA_CONNECTIONS || make_place(all, connection, 0, true);
}

bool mlx_http_connection_accept(mlx_http_connections_t *all, uv_stream_t *listener) {
  const bool is_pipe = listener->type == UV_NAMED_PIPE;
  mlx_http_connection_t *connection = add_connection(all, is_pipe);
  if (!connection) return false;
  mlx_status_t status = NULL;
  connection->begin = connection->since = mlx_seconds();
  if (uv_accept(listener, &connection->socket.stream)) {
    close_now(connection);
    return true;
  }
  if (!is_pipe) uv_tcp_nodelay(&connection->socket.tcp, 1);
  set_remote(connection);
  const bool has_place = take_place(all, connection);
  if (has_place && all->tls) status = mlx_tls_create(all->tls, &connection->tls);
  if (status || !has_place) {
    mlx_status_free(status);
    close_now(connection);
    return true;
  }
  start_reading(connection);
  if (connection->state != CLOSED) set_stage_timer(connection, true);
  return true;
}

// ----------------------------------------------------------------------------------------------------------
// All connections

void mlx_http_connections_close_idle(mlx_http_connections_t *connections) {
  for (mlx_http_connection_t *at = connections->first; at; at = at->next) {
    if (at->state == READING && at->parser.stage == MLX_STAGE_IDLE && !at->input.length) close_now(at);
  }
}

void mlx_http_connections_close(mlx_http_connections_t *connections) {
  for (mlx_http_connection_t *at = connections->first; at; at = at->next) leave(at);
}
