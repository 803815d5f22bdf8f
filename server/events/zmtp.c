// See zmtp.h. The specification is RFC 37 of ZeroMQ (rfc.zeromq.org/spec/37).
#include "server/events/zmtp.h"

#include <string.h>

#include "base/memory.h"

#define GREETING_BYTES 64
#define SIGNATURE_BYTES 10
#define MECHANISM_AT 12
#define MECHANISM_BYTES 20
#define FLAG_MORE 1
#define FLAG_LONG 2
#define FLAG_COMMAND 4
#define MOST_PING_CONTEXT 16

typedef struct frame {
  uint8_t flags;
  const uint8_t *body;
  size_t length;
} frame_t;

void mlx_zmtp_clear(mlx_zmtp_t *z) {
  for (size_t i = 0; i < z->topic_count; ++i) mlx_free(z->topics[i].bytes);
  *z = (mlx_zmtp_t){0};
}

static mlx_zmtp_result_t bad(mlx_zmtp_t *z, const char *reason) {
  z->reason = reason;
  return MLX_ZMTP_BAD;
}

// ----------------------------------------------------------------------------------------------------------
// Writing

void mlx_zmtp_put_greeting(mlx_text_t *out) {
  char greeting[GREETING_BYTES] = {0};
  greeting[0] = (char)0xff;
  greeting[SIGNATURE_BYTES - 1] = 0x7f;
  greeting[SIGNATURE_BYTES] = 3;  // version 3.1
  greeting[SIGNATURE_BYTES + 1] = 1;
  memcpy(greeting + MECHANISM_AT, "NULL", 4);
  mlx_text_append(out, greeting, sizeof greeting);
}

static void put_big_endian(char *out, uint64_t value) {
  for (int i = 0; i < 8; ++i) out[i] = (char)(value >> (56 - 8 * i));
}

static uint64_t read_big_endian(const uint8_t *bytes) {
  uint64_t value = 0;
  for (int i = 0; i < 8; ++i) value = value << 8 | bytes[i];
  return value;
}

void mlx_zmtp_put_frame(mlx_text_t *out, bool more, const void *bytes, size_t length) {
  char header[9] = {more ? FLAG_MORE : 0, (char)length};
  size_t size = 2;
  if (length > 255) {
    header[0] |= FLAG_LONG;
    put_big_endian(header + 1, length);
    size = sizeof header;
  }
  mlx_text_append(out, header, size);
  mlx_text_append(out, bytes, length);
}

void mlx_zmtp_put_sequence(mlx_text_t *out, bool more, uint64_t sequence) {
  char bytes[MLX_ZMTP_SEQUENCE_BYTES];
  put_big_endian(bytes, sequence);
  mlx_zmtp_put_frame(out, more, bytes, sizeof bytes);
}

static void reply_append(mlx_zmtp_t *z, const void *bytes, size_t length) {
  memcpy(z->reply + z->reply_length, bytes, length);
  z->reply_length += length;
}

// A command of at most MLX_ZMTP_MAX_REPLY bytes. Names of commands and metadata have their length before
// them.
static mlx_zmtp_result_t reply_command(mlx_zmtp_t *z, const char *name, const void *data, size_t length) {
  const uint8_t header[3] = {FLAG_COMMAND, (uint8_t)(1 + strlen(name) + length), (uint8_t)strlen(name)};
  z->reply_length = 0;
  reply_append(z, header, sizeof header);
  reply_append(z, name, strlen(name));
  reply_append(z, data, length);
  return MLX_ZMTP_REPLY;
}

static mlx_zmtp_result_t reply_ready(mlx_zmtp_t *z) {
  static const char publisher[] = "\x0bSocket-Type\0\0\0\x03PUB",
                    router[] = "\x0bSocket-Type\0\0\0\x06ROUTER";
  return z->role == MLX_ZMTP_PUBLISHER ? reply_command(z, "READY", publisher, sizeof publisher - 1)
                                       : reply_command(z, "READY", router, sizeof router - 1);
}

// ----------------------------------------------------------------------------------------------------------
// The handshake

// Checks as many bytes as have arrived, so that another protocol is refused at its first byte.
static mlx_zmtp_result_t read_greeting(mlx_zmtp_t *z, const uint8_t *bytes, size_t length, size_t *out_used) {
  static const char null_mechanism[MECHANISM_BYTES] = "NULL";
  if (length && bytes[0] != 0xff) return bad(z, "its first byte is not that of ZMTP 2 and later");
  if (length >= SIGNATURE_BYTES && !(bytes[SIGNATURE_BYTES - 1] & 1)) return bad(z, "its signature is wrong");
  if (length > SIGNATURE_BYTES && bytes[SIGNATURE_BYTES] < 3)
    return bad(z, "its version is older than ZMTP 3");
  if (length < GREETING_BYTES) return MLX_ZMTP_MORE;
  if (memcmp(bytes + MECHANISM_AT, null_mechanism, MECHANISM_BYTES))
    return bad(z, "it wants to authenticate, and only the mechanism NULL is supported");
  *out_used = GREETING_BYTES;
  z->stage = MLX_ZMTP_HANDSHAKE;
  return reply_ready(z);
}

// Reads one frame. *|out_used| is 0 if it has not arrived whole. Its size is checked before that.
static mlx_zmtp_result_t read_frame(mlx_zmtp_t *z, const uint8_t *bytes, size_t length, frame_t *out,
                                    size_t *out_used) {
  if (length < 2) return MLX_ZMTP_MORE;
  const bool is_long = bytes[0] & FLAG_LONG;
  const size_t header = is_long ? 9 : 2;
  if (bytes[0] & ~(FLAG_MORE | FLAG_LONG | FLAG_COMMAND)) return bad(z, "a frame has unknown flags");
  if ((bytes[0] & FLAG_COMMAND) && (bytes[0] & FLAG_MORE)) return bad(z, "a command has a second frame");
  if (length < header) return MLX_ZMTP_MORE;
  const uint64_t size = is_long ? read_big_endian(bytes + 1) : bytes[1];
  if (size > MLX_ZMTP_MAX_FRAME) return bad(z, "a frame is too long");
  if (length - header < size) return MLX_ZMTP_MORE;
  *out = (frame_t){.flags = bytes[0], .body = bytes + header, .length = (size_t)size};
  *out_used = header + (size_t)size;
  return MLX_ZMTP_NEXT;
}

// Whether |frame| is the command |name|. Its data follow the name.
static bool is_command(const frame_t *frame, const char *name, const uint8_t **out_data, size_t *out_length) {
  const size_t length = strlen(name);
  if (!(frame->flags & FLAG_COMMAND) || frame->length < 1 + length || frame->body[0] != length ||
      memcmp(frame->body + 1, name, length))
    return false;
  *out_data = frame->body + 1 + length;
  *out_length = frame->length - 1 - length;
  return true;
}

// Whether |type| is that of a socket that may talk to one of |role|.
static bool is_compatible(mlx_zmtp_role_t role, const uint8_t *type, size_t length) {
  static const char *const types[][4] = {{"SUB", "XSUB"}, {"REQ", "DEALER", "ROUTER"}};
  for (size_t i = 0; i < 4 && types[role][i]; ++i) {
    if (strlen(types[role][i]) == length && !memcmp(types[role][i], type, length)) return true;
  }
  return false;
}

// Metadata: names with one byte of length, values with four.
static mlx_zmtp_result_t read_metadata(mlx_zmtp_t *z, const uint8_t *data, size_t length) {
  static const char wanted[] = "socket-type";
  bool found = false;
  while (length) {
    const size_t name = data[0];
    if (length - 1 < name || length - 1 - name < 4) return bad(z, "its metadata are cut off");
    const uint8_t *size = data + 1 + name;
    const uint32_t value =
        (uint32_t)size[0] << 24 | (uint32_t)size[1] << 16 | (uint32_t)size[2] << 8 | size[3];
    if (length - 1 - name - 4 < value) return bad(z, "its metadata are cut off");
    bool is_type = name == sizeof wanted - 1;  // names have any case
    for (size_t i = 0; is_type && i < name; ++i) is_type = (data[1 + i] | 0x20) == (wanted[i] | 0x20);
    if (is_type && !is_compatible(z->role, size + 4, value)) return bad(z, "its type of socket does not fit");
    found |= is_type;
    data = size + 4 + value;
    length -= 1 + name + 4 + value;
  }
  if (!found) return bad(z, "it does not tell its type of socket");
  z->stage = MLX_ZMTP_OPEN;
  return MLX_ZMTP_NEXT;
}

// ----------------------------------------------------------------------------------------------------------
// Subscriptions and requests

static mlx_zmtp_result_t subscribe(mlx_zmtp_t *z, const uint8_t *topic, size_t length) {
  if (z->topic_count == MLX_ZMTP_MAX_SUBSCRIPTIONS) return bad(z, "it has too many subscriptions");
  mlx_zmtp_topic_t *added = &z->topics[z->topic_count];
  mlx_status_t status = mlx_copy_text((const char *)topic, length, &added->bytes);
  if (status) {
    mlx_status_free(status);
    return bad(z, "out of memory");
  }
  added->length = length;
  ++z->topic_count;
  return MLX_ZMTP_NEXT;
}

// Ends one of equal subscriptions.
static mlx_zmtp_result_t unsubscribe(mlx_zmtp_t *z, const uint8_t *topic, size_t length) {
  for (size_t i = 0; i < z->topic_count; ++i) {
    if (z->topics[i].length != length || memcmp(z->topics[i].bytes, topic, length)) continue;
    mlx_free(z->topics[i].bytes);
    z->topics[i] = z->topics[--z->topic_count];
    break;
  }
  return MLX_ZMTP_NEXT;
}

bool mlx_zmtp_wants(const mlx_zmtp_t *z, const char *topic, size_t length) {
  for (size_t i = 0; i < z->topic_count; ++i) {
    const mlx_zmtp_topic_t *wanted = &z->topics[i];
    if (wanted->length <= length && !memcmp(wanted->bytes, topic, wanted->length)) return true;
  }
  return false;
}

static mlx_zmtp_result_t read_command(mlx_zmtp_t *z, const frame_t *frame) {
  const uint8_t *data;
  size_t length;
  if (is_command(frame, "PING", &data,
                 &length)) {  // a time to live of two bytes, and what the answer repeats
    if (length < 2 || length - 2 > MOST_PING_CONTEXT) return bad(z, "a PING has the wrong length");
    return reply_command(z, "PONG", data + 2, length - 2);
  }
  if (is_command(frame, "ERROR", &data, &length)) return bad(z, "it sent an error");
  if (z->role == MLX_ZMTP_PUBLISHER && is_command(frame, "SUBSCRIBE", &data, &length))
    return subscribe(z, data, length);
  if (z->role == MLX_ZMTP_PUBLISHER && is_command(frame, "CANCEL", &data, &length))
    return unsubscribe(z, data, length);
  return MLX_ZMTP_NEXT;
}

// A subscription of ZMTP 3.0. Other messages to a publisher are ignored.
static mlx_zmtp_result_t read_subscription(mlx_zmtp_t *z, const frame_t *frame) {
  if (!frame->length || frame->body[0] > 1) return MLX_ZMTP_NEXT;
  return frame->body[0] ? subscribe(z, frame->body + 1, frame->length - 1)
                        : unsubscribe(z, frame->body + 1, frame->length - 1);
}

// A request has an empty frame and one of 8 bytes. Other messages are ignored, as vLLM does.
static mlx_zmtp_result_t read_request(mlx_zmtp_t *z, const frame_t *frame) {
  const bool is_last = !(frame->flags & FLAG_MORE);
  const size_t nth = z->frame_count++;
  if (!nth) z->is_request = !frame->length && !is_last;
  if (nth == 1) {
    z->is_request &= frame->length == MLX_ZMTP_SEQUENCE_BYTES && is_last;
    if (z->is_request) z->request = read_big_endian(frame->body);
  }
  if (!is_last) return MLX_ZMTP_NEXT;
  z->frame_count = 0;
  return nth == 1 && z->is_request ? MLX_ZMTP_REQUEST : MLX_ZMTP_NEXT;
}

mlx_zmtp_result_t mlx_zmtp_read(mlx_zmtp_t *z, const uint8_t *bytes, size_t length, size_t *out_used) {
  frame_t frame;
  const uint8_t *data;
  size_t size;
  *out_used = 0;
  if (z->stage == MLX_ZMTP_GREETING) return read_greeting(z, bytes, length, out_used);
  const mlx_zmtp_result_t result = read_frame(z, bytes, length, &frame, out_used);
  if (result != MLX_ZMTP_NEXT) return result;
  if (z->stage == MLX_ZMTP_HANDSHAKE) {
    if (!is_command(&frame, "READY", &data, &size)) return bad(z, "its handshake does not begin with READY");
    return read_metadata(z, data, size);
  }
  if (frame.flags & FLAG_COMMAND) return read_command(z, &frame);
  return z->role == MLX_ZMTP_PUBLISHER ? read_subscription(z, &frame) : read_request(z, &frame);
}
