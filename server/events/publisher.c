// See publisher.h. zmtp.c reads what peers send; this file has the sockets.
#include "server/events/publisher.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#include "base/memory.h"
#include "server/events/zmtp.h"
#include "server/http/socket.h"

#define BACKLOG 64
#define MOST_PEERS 256                   // of both sockets
#define MOST_WAITING ((size_t)64 << 20)  // bytes of messages that the thread has not taken
#define MOST_QUEUED ((size_t)64 << 20)   // bytes that a subscriber has not read, before it loses messages
#define MOST_REPLAYED ((size_t)1 << 20)  // bytes of a replay that are written at a time
#define MOST_REPLIES ((size_t)64 << 10)  // bytes of replies to a peer that reads nothing
#define MOST_KEPT 10000                  // messages for replays, and their bytes
#define MOST_KEPT_BYTES ((size_t)64 << 20)
#define READ_BYTES 4096
#define HANDSHAKE_MS 10000
#define TICK_MS 2500
#define END_MS 200  // time of the peers to read the last messages
#define KEEPALIVE_SECONDS 60

typedef struct message {
  size_t users;
  uint64_t sequence;
  mlx_text_t frames;  // the number and the payload
  struct message *next;
} message_t;

typedef struct peer {
  uv_tcp_t tcp;
  mlx_publisher_t *publisher;
  struct peer *previous, *next;
  uint64_t since;  // time of its arrival, in milliseconds of the loop
  mlx_zmtp_t zmtp;
  mlx_text_t input;  // not read yet
  bool is_replaying, is_closing;
  uint64_t replay_at;  // the next message of the replay
} peer_t;

typedef struct write {
  uv_write_t request;
  peer_t *peer;
  message_t *message;  // a user of it; NULL: |bytes| are written
  char bytes[MLX_ZMTP_MAX_REPLY];
} write_t;

typedef struct listener {
  uv_tcp_t tcp;
  mlx_publisher_t *publisher;
  mlx_zmtp_role_t role;
  bool is_open;
  int port;
} listener_t;

struct mlx_publisher {
  uv_loop_t loop;
  uv_async_t wake;
  uv_prepare_t turn;
  uv_timer_t tick, end;
  listener_t listeners[2];  // [mlx_zmtp_role_t]
  uv_thread_t thread;
  bool has_loop, has_handles, has_thread;
  mlx_text_t greeting, topic, finish;  // bytes that are the same for all peers
  size_t topic_length;                 // of |topic|, which begins with the header of its frame

  uv_mutex_t mutex;  // for the fields of this block
  message_t *waiting, **waiting_end;
  size_t waiting_bytes;
  uint64_t next_sequence;
  bool stopping;

  // Of the thread.
  peer_t *peers;
  size_t peer_count;
  message_t *kept[MOST_KEPT];  // a ring
  size_t kept_first, kept_count, kept_bytes;
  bool ending;
  char scratch[READ_BYTES];
};

// ----------------------------------------------------------------------------------------------------------
// Messages

static void drop_message(message_t *message) {
  if (!message || --message->users) return;
  mlx_text_clear(&message->frames);
  mlx_free(message);
}

static message_t *kept_at(const mlx_publisher_t *p, size_t nth) {
  return p->kept[(p->kept_first + nth) % MOST_KEPT];
}

// Keeps |message|, whose user it becomes, in place of the oldest ones.
static void keep(mlx_publisher_t *p, message_t *message) {
  while (p->kept_count == MOST_KEPT ||
         (p->kept_count && p->kept_bytes + message->frames.length > MOST_KEPT_BYTES)) {
    message_t *oldest = kept_at(p, 0);
    p->kept_bytes -= oldest->frames.length;
    drop_message(oldest);
    p->kept_first = (p->kept_first + 1) % MOST_KEPT;
    --p->kept_count;
  }
  p->kept[(p->kept_first + p->kept_count++) % MOST_KEPT] = message;
  p->kept_bytes += message->frames.length;
}

static mlx_status_t make_message(uint64_t sequence, const char *payload, size_t length,
                                 message_t **out_message) {
  message_t *message;
  MLX_TRY(mlx_alloc(1, sizeof *message, &message));
  message->users = 1;
  message->sequence = sequence;
  mlx_zmtp_put_sequence(&message->frames, true, sequence);
  mlx_zmtp_put_frame(&message->frames, false, payload, length);
  mlx_status_t status = mlx_text_finish(&message->frames);
  if (!status) {
    *out_message = message;
    return NULL;
  }
  drop_message(message);
  return status;
}

void mlx_publisher_push(mlx_publisher_t *p, char *payload, size_t length) {
  message_t *message = NULL;
  uv_mutex_lock(&p->mutex);
  const uint64_t sequence = p->next_sequence++;
  if (payload && p->waiting_bytes + length <= MOST_WAITING)
    mlx_status_free(make_message(sequence, payload, length, &message));  // without it, the number is missing
  if (message) {
    p->waiting_bytes += length;
    *p->waiting_end = message;
    p->waiting_end = &message->next;
  }
  uv_mutex_unlock(&p->mutex);
  mlx_free(payload);
  uv_async_send(&p->wake);
}

// ----------------------------------------------------------------------------------------------------------
// Peers, on the thread

static void go_on(peer_t *peer);
static void end_if_sent(mlx_publisher_t *p);

static void on_peer_closed(uv_handle_t *handle) {
  peer_t *peer = handle->data;
  mlx_publisher_t *p = peer->publisher;
  if (peer->next) peer->next->previous = peer->previous;
  if (peer->previous)
    peer->previous->next = peer->next;
  else
    p->peers = peer->next;
  --p->peer_count;
  mlx_zmtp_clear(&peer->zmtp);
  mlx_text_clear(&peer->input);
  mlx_free(peer);
}

static void close_peer(peer_t *peer) {
  if (peer->is_closing) return;
  peer->is_closing = true;
  uv_close((uv_handle_t *)&peer->tcp, on_peer_closed);
}

static size_t unsent(const peer_t *peer) {
  return uv_stream_get_write_queue_size((const uv_stream_t *)&peer->tcp);
}

static void on_written(uv_write_t *request, int error) {
  write_t *w = request->data;
  peer_t *peer = w->peer;
  drop_message(w->message);
  mlx_free(w);
  if (error) close_peer(peer);
  if (peer->is_replaying && !peer->is_closing) go_on(peer);
  if (peer->publisher->ending) end_if_sent(peer->publisher);
}

// Writes |head| and then the frames of |message|, if it is not NULL. |head| is constant, or copied if
// |copies|.
static void write_to(peer_t *peer, const void *head, size_t length, bool copies, message_t *message) {
  write_t *w;
  if (peer->is_closing) return;
  mlx_status_t status = mlx_alloc(1, sizeof *w, &w);
  if (status) {
    mlx_status_free(status);
    close_peer(peer);
    return;
  }
  w->peer = peer;
  w->request.data = w;
  if (copies) memcpy(w->bytes, head, length);
  uv_buf_t buffers[2] = {{0}};
  buffers[0] = uv_buf_init(copies ? w->bytes : (char *)(uintptr_t)head, (unsigned)length);
  if (message) {
    buffers[1] = uv_buf_init(message->frames.data, (unsigned)message->frames.length);
    w->message = message;
    ++message->users;
  }
  if (!uv_write(&w->request, (uv_stream_t *)&peer->tcp, buffers, message ? 2 : 1, on_written)) return;
  drop_message(w->message);
  mlx_free(w);
  close_peer(peer);
}

// Sends a message to a subscriber, unless so many of its bytes wait that it is lost.
static void publish(peer_t *peer, message_t *message) {
  const mlx_text_t *topic = &peer->publisher->topic;
  const size_t name = peer->publisher->topic_length;
  if (peer->zmtp.role != MLX_ZMTP_PUBLISHER || unsent(peer) + message->frames.length > MOST_QUEUED) return;
  if (mlx_zmtp_wants(&peer->zmtp, topic->data + topic->length - name, name))
    write_to(peer, topic->data, topic->length, false, message);
}

// Sends the messages that were pushed.
static void take_waiting(mlx_publisher_t *p) {
  uv_mutex_lock(&p->mutex);
  message_t *message = p->waiting;
  p->waiting = NULL;
  p->waiting_end = &p->waiting;
  p->waiting_bytes = 0;
  uv_mutex_unlock(&p->mutex);
  for (message_t *next; message; message = next) {
    next = message->next;
    for (peer_t *peer = p->peers; peer; peer = peer->next) publish(peer, message);
    keep(p, message);
  }
}

// Writes the next part of a replay. on_written calls it for the one after.
static void replay(peer_t *peer) {
  static const char delimiter[] = {1, 0};  // an empty frame with more behind it
  const mlx_publisher_t *p = peer->publisher;
  for (size_t i = 0; i < p->kept_count && !peer->is_closing; ++i) {
    message_t *message = kept_at(p, i);
    if (message->sequence < peer->replay_at) continue;
    if (unsent(peer) > MOST_REPLAYED) return;
    peer->replay_at = message->sequence + 1;
    write_to(peer, delimiter, sizeof delimiter, false, message);
  }
  peer->is_replaying = false;
  write_to(peer, p->finish.data, p->finish.length, false, NULL);
}

// Reads the items that have arrived. A replay ends first.
static void read_items(peer_t *peer) {
  size_t done = 0, used;
  for (bool more = true; more && !peer->is_replaying && !peer->is_closing; done += used) {
    const uint8_t *bytes = (const uint8_t *)peer->input.data + done;
    switch (mlx_zmtp_read(&peer->zmtp, bytes, peer->input.length - done, &used)) {
      case MLX_ZMTP_NEXT: break;
      case MLX_ZMTP_MORE: more = false; break;
      case MLX_ZMTP_BAD: close_peer(peer); break;
      case MLX_ZMTP_REPLY:
        if (unsent(peer) > MOST_QUEUED + MOST_REPLIES)
          close_peer(peer);
        else
          write_to(peer, peer->zmtp.reply, peer->zmtp.reply_length, true, NULL);
        break;
      case MLX_ZMTP_REQUEST:
        take_waiting(peer->publisher);  // a replay has all that was pushed before its request
        peer->is_replaying = true;
        peer->replay_at = peer->zmtp.request;
        replay(peer);
        break;
    }
  }
  memmove(peer->input.data, peer->input.data + done, peer->input.length - done);
  peer->input.length -= done;
}

static void on_allocate(uv_handle_t *handle, size_t suggested, uv_buf_t *out) {
  (void)suggested;
  const peer_t *peer = handle->data;
  *out = uv_buf_init(peer->publisher->scratch, READ_BYTES);
}

static void on_read(uv_stream_t *stream, ssize_t length, const uv_buf_t *buffer) {
  peer_t *peer = stream->data;
  if (length < 0) close_peer(peer);
  if (length <= 0) return;
  mlx_text_append(&peer->input, buffer->base, (size_t)length);
  if (peer->input.failed) {
    close_peer(peer);
    return;
  }
  read_items(peer);
  if (peer->is_replaying) uv_read_stop(stream);
}

// Goes on with a replay, and behind its end with reading.
static void go_on(peer_t *peer) {
  replay(peer);
  if (peer->is_replaying || peer->is_closing) return;
  read_items(peer);
  if (!peer->is_replaying && !peer->is_closing)
    uv_read_start((uv_stream_t *)&peer->tcp, on_allocate, on_read);
}

static void on_connection(uv_stream_t *server, int error) {
  const listener_t *listener = server->data;
  mlx_publisher_t *p = listener->publisher;
  peer_t *peer;
  if (error) return;
  mlx_status_t status = mlx_alloc(1, sizeof *peer, &peer);
  if (status) {  // it waits until another connection arrives
    mlx_status_free(status);
    return;
  }
  *peer = (peer_t){.publisher = p, .next = p->peers, .since = uv_now(&p->loop)};
  peer->zmtp.role = listener->role;
  uv_tcp_init(&p->loop, &peer->tcp);
  peer->tcp.data = peer;
  if (p->peers) p->peers->previous = peer;
  p->peers = peer;
  const bool fits = ++p->peer_count <= MOST_PEERS && !p->ending;
  if (uv_accept(server, (uv_stream_t *)&peer->tcp) || !fits ||
      uv_read_start((uv_stream_t *)&peer->tcp, on_allocate, on_read)) {
    close_peer(peer);
    return;
  }
  uv_tcp_nodelay(&peer->tcp, 1);
  uv_tcp_keepalive(&peer->tcp, 1, KEEPALIVE_SECONDS);
  write_to(peer, p->greeting.data, p->greeting.length, false, NULL);
}

// Closes connections whose handshake takes too long.
static void on_tick(uv_timer_t *timer) {
  const mlx_publisher_t *p = timer->data;
  for (peer_t *peer = p->peers; peer; peer = peer->next) {
    if (peer->zmtp.stage != MLX_ZMTP_OPEN && uv_now(&p->loop) - peer->since > HANDSHAKE_MS) close_peer(peer);
  }
}

// ----------------------------------------------------------------------------------------------------------
// The thread

static void close_handles(mlx_publisher_t *p) {
  for (int i = 0; i < 2; ++i) {
    uv_handle_t *handle = (uv_handle_t *)&p->listeners[i].tcp;
    if (p->listeners[i].is_open && !uv_is_closing(handle)) uv_close(handle, NULL);
  }
  for (peer_t *peer = p->peers; peer; peer = peer->next) close_peer(peer);
  if (!p->has_handles) return;
  p->has_handles = false;
  uv_close((uv_handle_t *)&p->wake, NULL);
  uv_close((uv_handle_t *)&p->turn, NULL);
  uv_close((uv_handle_t *)&p->tick, NULL);
  uv_close((uv_handle_t *)&p->end, NULL);
}

static void on_end(uv_timer_t *timer) { close_handles(timer->data); }

// At the end: closes everything as soon as the peers have read all.
static void end_if_sent(mlx_publisher_t *p) {
  size_t left = 0;
  for (const peer_t *peer = p->peers; peer; peer = peer->next) left += peer->is_closing ? 0 : unsent(peer);
  if (!left) close_handles(p);
}

static void on_wake(uv_async_t *wake) {
  mlx_publisher_t *p = wake->data;
  uv_mutex_lock(&p->mutex);
  const bool stopping = p->stopping;
  uv_mutex_unlock(&p->mutex);
  take_waiting(p);
  if (!stopping || p->ending) return;
  p->ending = true;
  uv_timer_start(&p->end, on_end, END_MS, 0);
  end_if_sent(p);
}

static void on_turn(uv_prepare_t *turn) { mlx_socket_check_spare(turn->loop); }

static void run(void *user) {
  mlx_publisher_t *p = user;
  mlx_socket_signals_t signals;
  mlx_socket_block_sigpipe(&signals);
  uv_run(&p->loop, UV_RUN_DEFAULT);
}

// ----------------------------------------------------------------------------------------------------------
// Beginning and end

static mlx_status_t endpoint_error(const char *endpoint) {
  return mlx_error(MLX_USAGE, "'%s' is no endpoint: expected tcp://ADDRESS:PORT, such as tcp://*:5557",
                   endpoint);
}

static mlx_status_t listen_error(const char *endpoint, int error) {
  return mlx_status_hint(mlx_error(MLX_IO, "cannot listen on %s: %s", endpoint, uv_strerror(error)),
                         "give an address of this machine, or * for all, and a port that no program uses");
}

// Splits tcp://HOST:PORT. |out_host| has no brackets.
static mlx_status_t read_endpoint(const char *endpoint, char *out_host, size_t size, char *out_port) {
  static const char scheme[] = "tcp://";
  const char *host = endpoint + strlen(scheme), *colon = strrchr(endpoint, ':');
  if (strncmp(endpoint, scheme, strlen(scheme)) || colon < host) return endpoint_error(endpoint);
  size_t length = (size_t)(colon - host);
  if (length > 1 && *host == '[' && host[length - 1] == ']') {
    ++host;
    length -= 2;
  }
  const char *port = strcmp(colon + 1, "*") ? colon + 1 : "0";
  if (!length || length >= size || !*port || strlen(port) > 5 || strspn(port, "0123456789") != strlen(port) ||
      atoi(port) > 65535)
    return endpoint_error(endpoint);
  snprintf(out_host, size, "%.*s", (int)length, host);
  if (!strcmp(out_host, "*")) snprintf(out_host, size, "0.0.0.0");
  snprintf(out_port, 6, "%s", port);
  return NULL;
}

static int port_of(const uv_tcp_t *tcp) {
  struct sockaddr_storage address;
  int length = sizeof address;
  if (uv_tcp_getsockname(tcp, (struct sockaddr *)&address, &length)) return 0;
  return ntohs(address.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&address)->sin6_port
                                             : ((struct sockaddr_in *)&address)->sin_port);
}

static mlx_status_t open_listener(mlx_publisher_t *p, const char *endpoint, mlx_zmtp_role_t role) {
  const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
  listener_t *listener = &p->listeners[role];
  char host[256], port[6];
  uv_getaddrinfo_t request;
  MLX_TRY(read_endpoint(endpoint, host, sizeof host, port));
  int error = uv_getaddrinfo(&p->loop, &request, NULL, host, port, &hints);
  if (error) return listen_error(endpoint, error);
  *listener = (listener_t){.publisher = p, .role = role};
  error = uv_tcp_init(&p->loop, &listener->tcp);
  listener->is_open = !error;
  listener->tcp.data = listener;
  if (!error) error = uv_tcp_bind(&listener->tcp, request.addrinfo->ai_addr, 0);
  if (!error) error = uv_listen((uv_stream_t *)&listener->tcp, BACKLOG, on_connection);
  uv_freeaddrinfo(request.addrinfo);
  if (error) return listen_error(endpoint, error);
  listener->port = port_of(&listener->tcp);
  return NULL;
}

static mlx_status_t open_loop(mlx_publisher_t *p, const char *endpoint, const char *replay_endpoint) {
  int error = uv_loop_init(&p->loop);
  if (error) return mlx_error(MLX_OUT_OF_MEMORY, "cannot create an event loop: %s", uv_strerror(error));
  p->has_loop = true;
  error = uv_async_init(&p->loop, &p->wake, on_wake);
  if (error) return mlx_error(MLX_OUT_OF_MEMORY, "cannot create an event loop: %s", uv_strerror(error));
  p->has_handles = true;
  uv_prepare_init(&p->loop, &p->turn);
  uv_timer_init(&p->loop, &p->tick);
  uv_timer_init(&p->loop, &p->end);
  p->wake.data = p->tick.data = p->end.data = p;
  uv_prepare_start(&p->turn, on_turn);
  uv_timer_start(&p->tick, on_tick, TICK_MS, TICK_MS);
  MLX_TRY(open_listener(p, endpoint, MLX_ZMTP_PUBLISHER));
  return replay_endpoint ? open_listener(p, replay_endpoint, MLX_ZMTP_ROUTER) : NULL;
}

mlx_status_t mlx_publisher_set_topic(mlx_publisher_t *p, const char *topic) {
  p->topic_length = strlen(topic);
  p->topic.length = 0;
  mlx_zmtp_put_frame(&p->topic, true, topic, p->topic_length);
  return mlx_text_finish(&p->topic);
}

mlx_status_t mlx_publisher_create(const char *endpoint, const char *replay_endpoint, mlx_publisher_t **out) {
  mlx_publisher_t *p;
  *out = NULL;
  MLX_TRY(mlx_alloc(1, sizeof *p, &p));
  p->waiting_end = &p->waiting;
  uv_mutex_init(&p->mutex);
  mlx_zmtp_put_greeting(&p->greeting);
  mlx_zmtp_put_frame(&p->finish, true, "", 0);
  mlx_zmtp_put_sequence(&p->finish, true, UINT64_MAX);
  mlx_zmtp_put_frame(&p->finish, false, "", 0);
  mlx_status_t status = mlx_publisher_set_topic(p, "");
  if (!status) status = mlx_text_finish(&p->greeting);
  if (!status) status = mlx_text_finish(&p->finish);
  if (!status) status = open_loop(p, endpoint, replay_endpoint);
  const int error = status ? 0 : uv_thread_create(&p->thread, run, p);
  if (error) status = mlx_error(MLX_OUT_OF_MEMORY, "cannot start a thread: %s", uv_strerror(error));
  p->has_thread = !status;
  if (status) {
    mlx_publisher_free(p);
    return status;
  }
  *out = p;
  return NULL;
}

void mlx_publisher_free(mlx_publisher_t *p) {
  if (!p) return;
  if (p->has_thread) {
    uv_mutex_lock(&p->mutex);
    p->stopping = true;
    uv_mutex_unlock(&p->mutex);
    uv_async_send(&p->wake);
    uv_thread_join(&p->thread);
  } else if (p->has_loop) {
    close_handles(p);
    uv_run(&p->loop, UV_RUN_DEFAULT);
  }
  if (p->has_loop) uv_loop_close(&p->loop);
  for (message_t *message = p->waiting, *next; message; message = next) {
    next = message->next;
    drop_message(message);
  }
  for (size_t i = 0; i < p->kept_count; ++i) drop_message(kept_at(p, i));
  mlx_text_clear(&p->greeting);
  mlx_text_clear(&p->topic);
  mlx_text_clear(&p->finish);
  uv_mutex_destroy(&p->mutex);
  mlx_free(p);
}

int mlx_publisher_port(const mlx_publisher_t *p) { return p->listeners[MLX_ZMTP_PUBLISHER].port; }
int mlx_publisher_replay_port(const mlx_publisher_t *p) { return p->listeners[MLX_ZMTP_ROUTER].port; }
