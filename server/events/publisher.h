// Publisher: a ZeroMQ PUB socket for numbered messages, and a ROUTER socket that repeats the last of them, as
// vLLM's KV events use them (docs/kv-events.md). A thread of its own writes to the peers.
//
// A message has the frames topic, sequence number (8 bytes, big-endian, from 0) and payload. A request to the
// ROUTER is an empty frame and a sequence number. It is answered with an empty frame, the number and the
// payload of each message from there on that is still kept, and at the end with the number 2^64 - 1 and no
// payload.
//
// A peer that reads too slowly loses messages, never time of the caller: the gap is seen in the numbers.
#ifndef MLXCEL_SERVER_EVENTS_PUBLISHER_H_
#define MLXCEL_SERVER_EVENTS_PUBLISHER_H_

#include <stdint.h>

#include "base/status.h"

typedef struct mlx_publisher mlx_publisher_t;

// Binds and listens. The endpoints are tcp://ADDRESS:PORT of this machine; the address *: all of IPv4; the
// port 0 or *: a free one. |replay| NULL: messages are not repeated. Release with mlx_publisher_free.
mlx_status_t mlx_publisher_create(const char *endpoint, const char *replay,
                                  mlx_publisher_t **out_publisher) MLX_MUST_USE;
// Sends what was pushed, as far as the peers read it at once, and closes the sockets. NULL is fine.
void mlx_publisher_free(mlx_publisher_t *publisher);
// Before the first message. The topic of all messages; "" until then.
mlx_status_t mlx_publisher_set_topic(mlx_publisher_t *publisher, const char *topic) MLX_MUST_USE;
int mlx_publisher_port(const mlx_publisher_t *publisher);         // of |endpoint|
int mlx_publisher_replay_port(const mlx_publisher_t *publisher);  // 0: none

// Gives |payload|, which it owns (mlx_free), the next number and sends it. Only the number is used if
// |payload| is NULL, or if the thread is so late that too many bytes wait for it. Any thread. Never blocks.
void mlx_publisher_push(mlx_publisher_t *publisher, char *payload, size_t length);

#endif  // MLXCEL_SERVER_EVENTS_PUBLISHER_H_
