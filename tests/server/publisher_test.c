// The ZeroMQ publisher with peers on raw sockets: slow ones, too many, and numbers without a message.
// tests/clients/kv_events_test.py has libzmq as the peer.
#include "server/events/publisher.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"
#include "server/events/zmtp.h"
#include "tests/support/check.h"
#include "tests/support/receive.h"

#define LARGE (1 << 20)  // bytes of a payload
#define LARGE_COUNT 150
#define FINISH UINT64_MAX

static mlx_publisher_t *create(void) {
  mlx_publisher_t *publisher;
  CHECK_OK(mlx_publisher_create("tcp://127.0.0.1:0", "tcp://127.0.0.1:*", &publisher));
  CHECK_OK(mlx_publisher_set_topic(publisher, "topic"));
  return publisher;
}

static void push(mlx_publisher_t *publisher, size_t length) {
  char *payload;
  CHECK_OK(mlx_alloc(length, 1, &payload));
  memset(payload, 'x', length);
  mlx_publisher_push(publisher, payload, length);
}

static int connect_to(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0), small = 1 << 16;
  const struct timeval patience = {.tv_sec = 20};
  const struct sockaddr_in address = {
      .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
  CHECK(fd >= 0);
  setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  CHECK(!connect(fd, (const struct sockaddr *)&address, sizeof address));
  return fd;
}

static void receive_all(int fd, char *out, size_t length) {
  for (size_t done = 0; done < length;) {
    const ssize_t got = receive(fd, out + done, length - done, 0);
    CHECK(got > 0);
    done += (size_t)got;
  }
}

// Sends the greeting, READY as |type|, and |rest|; reads the greeting and READY of the publisher.
static int join(int port, const char *type, const mlx_text_t *rest) {
  const int fd = connect_to(port);
  mlx_text_t out = {0};
  char answer[64 + 2];
  mlx_zmtp_put_greeting(&out);
  const size_t length = strlen(type);
  const char ready[] = {4, (char)(6 + 12 + 4 + length), 5, 'R', 'E', 'A', 'D', 'Y', 11};
  mlx_text_append(&out, ready, sizeof ready);
  mlx_text_puts(&out, "Socket-Type");
  mlx_text_append(&out, (const char[]){0, 0, 0, (char)length}, 4);
  mlx_text_puts(&out, type);
  mlx_text_append(&out, rest->data, rest->length);
  CHECK_OK(mlx_text_finish(&out));
  CHECK_INT(send(fd, out.data, out.length, 0), out.length);
  mlx_text_clear(&out);
  receive_all(fd, answer, sizeof answer);
  CHECK(!memcmp(answer + 12, "NULL", 4) && answer[64] == 4);
  char command[256];
  receive_all(fd, command, (unsigned char)answer[65]);
  return fd;
}

static int subscribe(int port) {
  mlx_text_t rest = {0};
  mlx_zmtp_put_frame(&rest, false, "\1top", 4);
  const int fd = join(port, "SUB", &rest);
  mlx_text_clear(&rest);
  return fd;
}

// Reads a frame and returns its length; at most |size| bytes of it are kept.
static size_t receive_frame(int fd, bool *out_more, char *out, size_t size) {
  static char scrap[LARGE];
  unsigned char header[9];
  receive_all(fd, (char *)header, 2);
  uint64_t length = header[1];
  if (header[0] & 2) {
    receive_all(fd, (char *)header + 2, 7);
    length = 0;
    for (int i = 1; i < 9; ++i) length = length << 8 | header[i];
  }
  CHECK(length <= sizeof scrap);
  receive_all(fd, scrap, length);
  memcpy(out, scrap, length < size ? length : size);
  *out_more = header[0] & 1;
  return length;
}

// Reads a message with the first frame |first|, and returns its number.
static uint64_t receive_message(int fd, const char *first, size_t *out_length) {
  char bytes[16] = {0};
  bool more;
  CHECK_INT(receive_frame(fd, &more, bytes, sizeof bytes), strlen(first));
  CHECK(more && !memcmp(bytes, first, strlen(first)));
  CHECK_INT(receive_frame(fd, &more, bytes, sizeof bytes), 8);
  CHECK(more);
  uint64_t number = 0;
  for (int i = 0; i < 8; ++i) number = number << 8 | (unsigned char)bytes[i];
  *out_length = receive_frame(fd, &more, bytes, sizeof bytes);
  CHECK(!more);
  return number;
}

// Pushes messages until one arrives, and returns its number: then the publisher has the subscription.
static uint64_t await(mlx_publisher_t *publisher, int fd) {
  char byte;
  size_t length;
  for (int i = 0; i < 2000; ++i) {
    push(publisher, 1);
    mlx_sleep_ms(5);
    if (recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 1) return receive_message(fd, "topic", &length);
  }
  CHECK_FAIL("no message arrived");
}

TEST(a_peer_that_reads_nothing_loses_messages_and_no_other_one_does) {
  mlx_publisher_t *publisher = create();
  const int slow = subscribe(mlx_publisher_port(publisher)), fast = subscribe(mlx_publisher_port(publisher));
  size_t length;
  uint64_t slow_at = await(publisher, slow), fast_at = await(publisher, fast);
  for (int i = 0; i < LARGE_COUNT; ++i) {
    push(publisher, LARGE);
    do CHECK_INT(receive_message(fast, "topic", &length), ++fast_at);
    while (length != LARGE);
  }
  // The slow one has 64 MiB and what fits into the buffers of the sockets. As soon as it has read some, it
  // gets later messages.
  int received = 0, gaps = 0;
  do {
    const uint64_t number = receive_message(slow, "topic", &length);
    CHECK(number > slow_at);
    gaps += number != slow_at + 1;
    slow_at = number;
    received += length == LARGE;
    if (length == LARGE && received == 40) push(publisher, 3);
  } while (length != 3);
  CHECK_INT(gaps, 1);
  CHECK(received >= 60 && received < LARGE_COUNT);
  // The replay has the last 64 MiB.
  mlx_text_t request = {0};
  mlx_zmtp_put_frame(&request, true, "", 0);
  mlx_zmtp_put_sequence(&request, false, 0);
  const int again = join(mlx_publisher_replay_port(publisher), "DEALER", &request);
  mlx_text_clear(&request);
  uint64_t at = receive_message(again, "", &length);
  CHECK(at > 0 && at < slow_at);
  for (uint64_t number; (number = receive_message(again, "", &length)) != FINISH; ++at)
    CHECK_INT(number, at + 1);
  CHECK_INT(at, slow_at);
  CHECK_INT(length, 0);
  close(slow);
  close(fast);
  close(again);
  mlx_publisher_free(publisher);
}

TEST(a_message_that_there_is_no_memory_for_leaves_a_gap) {
  mlx_publisher_t *publisher = create();
  const int fd = subscribe(mlx_publisher_port(publisher));
  size_t length;
  uint64_t at = await(publisher, fd);
  mlx_publisher_push(publisher, NULL, 0);
  push(publisher, 7);
  uint64_t number;
  do number = receive_message(fd, "topic", &length);
  while (length != 7 && number == ++at);
  CHECK_INT(length, 7);
  CHECK_INT(number, at + 2);
  close(fd);
  mlx_publisher_free(publisher);
}

TEST(too_many_peers_are_closed_and_the_first_ones_stay) {
  enum { MANY = 300 };
  mlx_publisher_t *publisher = create();
  const int first = subscribe(mlx_publisher_port(publisher));
  int many[MANY], refused = 0;
  char greeting[64];
  for (int i = 0; i < MANY; ++i) many[i] = connect_to(mlx_publisher_port(publisher));
  for (int i = 0; i < MANY; ++i)
    refused += receive(many[i], greeting, sizeof greeting, MSG_WAITALL) != sizeof greeting;
  CHECK_INT(refused, MANY - 255);
  await(publisher, first);
  for (int i = 0; i < MANY; ++i) close(many[i]);
  close(first);
  mlx_publisher_free(publisher);
}

TEST(what_was_pushed_before_the_end_is_sent) {
  mlx_publisher_t *publisher = create();
  const int fd = subscribe(mlx_publisher_port(publisher));
  size_t length;
  await(publisher, fd);
  for (int i = 0; i < 10; ++i) push(publisher, 100 + (size_t)i);
  mlx_publisher_free(publisher);
  do receive_message(fd, "topic", &length);
  while (length != 109);
  char byte;
  CHECK_INT(receive(fd, &byte, 1, 0), 0);
  close(fd);
}

TEST(a_port_in_use_is_an_error) {
  mlx_publisher_t *publisher = create(), *second;
  char endpoint[64];
  snprintf(endpoint, sizeof endpoint, "tcp://127.0.0.1:%d", mlx_publisher_port(publisher));
  CHECK_ERROR(mlx_publisher_create(endpoint, NULL, &second), MLX_IO, "cannot listen on tcp://127.0.0.1:");
  CHECK_ERROR(mlx_publisher_create("tcp://127.0.0.1:0", endpoint, &second), MLX_IO, "cannot listen on");
  CHECK_ERROR(mlx_publisher_create("ipc:///tmp/x", NULL, &second), MLX_USAGE, "is no endpoint");
  CHECK_ERROR(mlx_publisher_create("tcp://:5557", NULL, &second), MLX_USAGE, "is no endpoint");
  CHECK_ERROR(mlx_publisher_create("tcp://*:65536", NULL, &second), MLX_USAGE, "is no endpoint");
  mlx_publisher_free(publisher);
}

TEST_MAIN(CASE(a_peer_that_reads_nothing_loses_messages_and_no_other_one_does),
          CASE(a_message_that_there_is_no_memory_for_leaves_a_gap),
          CASE(too_many_peers_are_closed_and_the_first_ones_stay),
          CASE(what_was_pushed_before_the_end_is_sent), CASE(a_port_in_use_is_an_error))
