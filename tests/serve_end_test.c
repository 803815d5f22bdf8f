// How `mlxcel serve` ends: signals, and the requests that run then.
#include "tests/http_client.h"

#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"

TEST(a_signal_finishes_streams_and_refuses_new_work) {
  served_t s;
  mlx_text_t stream = {0};
  char byte;
  SERVE(&s, TINY, "--device", "cpu", "--chat-template", "chatml");
  const int fd = client_request(s.port, "POST", "/v1/chat/completions", "",
                                "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"ignore_eos\":true,"
                                "\"max_tokens\":1500,\"stream\":true}");
  client_read(fd, &stream);
  const int other = client_connect(s.port);
  kill(s.pid, SIGTERM);
  while (client_read(fd, &stream)) continue;
  CHECK_CONTAINS(stream.data, "data: [DONE]");
  CHECK(receive(other, &byte, 1, 0) <= 0);  // closed
  const double start = mlx_seconds();
  CHECK_INT(serve_wait(&s), 0);
  CHECK(mlx_seconds() - start < 20);  // the default limit is 30 s
  close(fd);
  close(other);
  mlx_text_clear(&stream);
}

// The response is larger than the buffers of the system, and the request has ended long before it is read.
TEST(a_drain_waits_for_a_client_that_reads_slowly) {
  served_t s;
  mlx_text_t body = {0};
  reply_t reply;
  SERVE(&s, TINY, "--device", "cpu");
  mlx_text_puts(&body, "{\"with_pieces\":true,\"content\":\"");
  for (int i = 0; i < 150000; ++i) mlx_text_puts(&body, "x7q ");
  mlx_text_puts(&body, "\"}");
  const int fd = client_request(s.port, "POST", "/tokenize", "", body.data);
  CHECK(!setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &(int){65536}, sizeof(int)));
  char byte;
  CHECK_INT(receive(fd, &byte, 1, MSG_PEEK), 1);  // the response has begun
  kill(s.pid, SIGTERM);
  mlx_sleep_ms(2500);
  client_finish(fd, &reply);
  CHECK_INT(reply.status, 200);
  CHECK(reply.body.length > (size_t)8 << 20);
  CHECK_CONTAINS(reply_text(&reply) + reply.body.length - 64, "\"max_model_len\"");
  CHECK_INT(serve_wait(&s), 0);
  mlx_text_clear(&reply.body);
  mlx_text_clear(&body);
}

TEST(a_drain_ends_within_its_limit) {
  served_t s;
  mlx_text_t text = {0};
  SERVE(&s, TINY, "--device", "cpu", "--drain", "1");
  const int fd = client_request(
      s.port, "POST", "/v1/completions", "",
      "{\"prompt\":\"a\",\"max_tokens\":1000000,\"ignore_eos\":true,\"n\":100,\"stream\":true}");
  client_read(fd, &text);
  const double start = mlx_seconds();
  CHECK_INT(serve_stop(&s), 0);
  CHECK(mlx_seconds() - start < 20);  // the default limit is 30 s
  while (client_read(fd, &text)) continue;
  CHECK(!strstr(text.data, "[DONE]"));  // the limit came before the end of the stream
  close(fd);
  mlx_text_clear(&text);
}

// Scheduler threads pass embeddings to workers, also after the workers have ended.
TEST(embeddings_that_a_shutdown_interrupts_end_cleanly) {
  mlx_text_t body = {0};
  mlx_text_puts(&body, "{\"input\":[\"a\"");
  for (int i = 0; i < 500; ++i) mlx_text_printf(&body, ",\"%d words of text\"", i);
  mlx_text_puts(&body, "]}");
  for (int i = 0; i < 4; ++i) {
    served_t s;
    int fds[4];
    SERVE(&s, TINY, "--device", "cpu", "--drain", i % 2 ? "0" : "0.2");
    for (int k = 0; k < 4; ++k) fds[k] = client_request(s.port, "POST", "/v1/embeddings", "", body.data);
    mlx_sleep_ms(20 + 15 * i);
    CHECK_INT(serve_stop(&s), 0);
    for (int k = 0; k < 4; ++k) close(fds[k]);
  }
  mlx_text_clear(&body);
}

// Waits until the server accepts no connection.
static void wait_until_refused(int port) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  for (int i = 0;; ++i) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool accepted = !connect(fd, (const struct sockaddr *)&address, sizeof address);
    close(fd);
    if (!accepted) return;
    CHECK(i < 6000);
    mlx_sleep_ms(10);
  }
}

TEST(a_second_signal_ends_at_once) {
  served_t s;
  mlx_text_t text = {0};
  SERVE(&s, TINY, "--device", "cpu");
  const int fd = client_request(
      s.port, "POST", "/v1/completions", "",
      "{\"prompt\":\"a\",\"max_tokens\":1000000,\"ignore_eos\":true,\"n\":100,\"stream\":true}");
  client_read(fd, &text);
  kill(s.pid, SIGINT);
  wait_until_refused(s.port);  // the server has got the first signal: two pending ones would be one
  const double start = mlx_seconds();
  kill(s.pid, SIGINT);
  CHECK_INT(serve_wait(&s), 128 + SIGINT);
  CHECK(mlx_seconds() - start < 20);  // without the second signal it would wait for the stream
  close(fd);
  mlx_text_clear(&text);
}

TEST_MAIN(CASE(a_signal_finishes_streams_and_refuses_new_work),
          CASE(a_drain_waits_for_a_client_that_reads_slowly), CASE(a_drain_ends_within_its_limit),
          CASE(embeddings_that_a_shutdown_interrupts_end_cleanly), CASE(a_second_signal_ends_at_once))
