// ZMTP 3.1, the protocol of ZeroMQ: what the other side of one connection sends, and the bytes to answer.
// Only what a publisher (PUB) and a server of replies (ROUTER) need, without authentication (mechanism NULL):
// greetings, READY, subscriptions as messages (3.0) and commands (3.1), PING, and requests of 8 bytes.
//
// No sockets, no threads. Messages are composed by mlx_zmtp_put_frame.
#ifndef MLXCEL_SERVER_EVENTS_ZMTP_H_
#define MLXCEL_SERVER_EVENTS_ZMTP_H_

#include <stdint.h>

#include "base/text.h"

#define MLX_ZMTP_MAX_FRAME 1024        // bytes of a frame that a peer may send
#define MLX_ZMTP_MAX_SUBSCRIPTIONS 64  // of a peer
#define MLX_ZMTP_MAX_REPLY 64          // bytes of a reply
#define MLX_ZMTP_SEQUENCE_BYTES 8

typedef enum mlx_zmtp_role { MLX_ZMTP_PUBLISHER, MLX_ZMTP_ROUTER } mlx_zmtp_role_t;

typedef enum mlx_zmtp_result {
  MLX_ZMTP_MORE,     // all items are read that have arrived
  MLX_ZMTP_NEXT,     // an item was read that needs no answer
  MLX_ZMTP_REPLY,    // send |reply|
  MLX_ZMTP_REQUEST,  // of a router: the peer wants messages from |request| on
  MLX_ZMTP_BAD,      // close the connection; |reason| says why
} mlx_zmtp_result_t;

typedef struct mlx_zmtp_topic {
  char *bytes;  // owned
  size_t length;
} mlx_zmtp_topic_t;

// One connection. Zero-initialize and set |role|. Release with mlx_zmtp_clear.
typedef struct mlx_zmtp {
  mlx_zmtp_role_t role;
  // Results.
  uint8_t reply[MLX_ZMTP_MAX_REPLY];
  size_t reply_length;
  uint64_t request;
  const char *reason;  // a constant
  // Owned by the functions below.
  enum { MLX_ZMTP_GREETING, MLX_ZMTP_HANDSHAKE, MLX_ZMTP_OPEN } stage;
  mlx_zmtp_topic_t topics[MLX_ZMTP_MAX_SUBSCRIPTIONS];
  size_t topic_count;
  size_t frame_count;  // of the message that is being read
  bool is_request;     // its frames have the form of a request so far
} mlx_zmtp_t;

void mlx_zmtp_clear(mlx_zmtp_t *zmtp);
// The first bytes of a connection, from both sides.
void mlx_zmtp_put_greeting(mlx_text_t *out);
// Reads at most one item from |bytes|. *|out_used| bytes were read; the others are given again, with more
// behind them.
mlx_zmtp_result_t mlx_zmtp_read(mlx_zmtp_t *zmtp, const uint8_t *bytes, size_t length, size_t *out_used);
// True if the peer is ready and has subscribed to a prefix of |topic|.
bool mlx_zmtp_wants(const mlx_zmtp_t *zmtp, const char *topic, size_t length);

// Appends a frame of a message. |more|: it is not the last one.
void mlx_zmtp_put_frame(mlx_text_t *out, bool more, const void *bytes, size_t length);
// Big-endian, as sequence numbers are sent.
void mlx_zmtp_put_sequence(mlx_text_t *out, bool more, uint64_t sequence);

#endif  // MLXCEL_SERVER_EVENTS_ZMTP_H_
