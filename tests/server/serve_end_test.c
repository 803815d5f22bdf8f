// How `mlxcel serve` ends: signals, and the requests that run then.
#include <sys/stat.h>
#include <sys/un.h>

#include "base/file.h"
#include "tests/support/http_client.h"

#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"

TEST(a_signal_finishes_streams_and_refuses_new_work) {
  served_t s;
  mlx_text_t stream = {0};
  char byte;
  SERVE(&s, TINY, "--device", "cpu", "--chat-template", "chatml", "--drain", "600");
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
  CHECK(mlx_seconds() - start < 300);  // it does not wait for the limit, 600 s
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

// A new connection to a server that is ready; -1 if it is not.
static int connect_when_ready(const struct sockaddr_un *address) {
  static const char probe[] = "GET /health HTTP/1.1\r\nHost: x\r\n\r\n";
  mlx_text_t text = {0};
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  bool ready = !connect(fd, (const struct sockaddr *)address, sizeof *address);
  if (ready) {
    client_send(fd, probe, sizeof probe - 1);
    client_read(fd, &text);
    ready = strstr(text.data, "HTTP/1.1 200") != NULL;
  }
  mlx_text_clear(&text);
  if (ready) return fd;
  close(fd);
  return -1;
}

// Starts a stream on a server with a Unix socket, sends |signal|, and reads the stream to its end.
static void end_stream_with(int signal, bool twice) {
  char folder[] = "/tmp/mlxcel-serve-end-XXXXXX", path[64];
  mlx_text_t stream = {0};
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  CHECK(mkdtemp(folder));
  snprintf(path, sizeof path, "%s/s", folder);
  const pid_t pid = fork();
  if (!pid) {
    execl(MLXCEL_BINARY, MLXCEL_BINARY, "serve", TINY, "--device", "cpu", "--quiet", "--unix", path,
          (char *)NULL);
    _exit(127);
  }
  memcpy(address.sun_path, path, strlen(path));
  int fd = -1;
  for (int i = 0; (fd = connect_when_ready(&address)) < 0; ++i) {
    CHECK(i < 30000);
    mlx_sleep_ms(10);
  }
  static const char body[] = "{\"prompt\":\"a\",\"ignore_eos\":true,\"max_tokens\":1500,\"stream\":true}";
  mlx_text_printf(&stream,
                  "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                  "Content-Length: %zu\r\nConnection: close\r\n\r\n%s",
                  sizeof body - 1, body);
  client_send(fd, stream.data, stream.length);
  stream.length = 0;
  client_read(fd, &stream);
  kill(pid, signal);
  if (twice) {
    for (int i = 0; !access(path, F_OK); ++i) {  // the first one has arrived
      CHECK(i < 30000);
      mlx_sleep_ms(10);
    }
    kill(pid, signal);
  }
  while (client_read(fd, &stream)) continue;
  CHECK_CONTAINS(stream.data, "data: [DONE]");
  int status = 0;
  waitpid(pid, &status, 0);
  CHECK(WIFEXITED(status) && !WEXITSTATUS(status));
  CHECK(access(path, F_OK));  // the socket file was removed
  CHECK(!rmdir(folder));
  close(fd);
  mlx_text_clear(&stream);
}

TEST(sighup_drains_and_removes_the_socket_file) {
  end_stream_with(SIGHUP, false);
  end_stream_with(SIGHUP, true);  // a terminal that closes may send it twice
}

TEST(a_server_that_ignores_sighup_goes_on) {
  served_t s;
  reply_t reply;
  signal(SIGHUP, SIG_IGN);  // as nohup does
  SERVE(&s, TINY, "--device", "cpu");
  signal(SIGHUP, SIG_DFL);
  kill(s.pid, SIGHUP);
  mlx_sleep_ms(100);
  client_call(s.port, "GET", "/health", "", NULL, &reply);
  CHECK_INT(reply.status, 200);
  mlx_text_clear(&reply.body);
  CHECK_INT(serve_stop(&s), 0);
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

// A stand-in for iree-compile that creates a file when it compiles, and then never ends.
static const char endless_compiler[] =
    "#!/bin/sh\n"
    "case \"$*\" in *--version*) exit 0;; esac\n"
    ": > \"$0.began\"\n"
    "exec sleep 600\n";

TEST(a_server_that_ends_cancels_the_compilation_of_a_model) {
  char folder[] = "/tmp/mlxcel-serve-end-XXXXXX", tool[64], began[80];
  served_t s;
  CHECK(mkdtemp(folder));
  snprintf(tool, sizeof tool, "%s/iree-compile", folder);
  snprintf(began, sizeof began, "%s.began", tool);
  CHECK_OK(mlx_write_file(tool, endless_compiler, strlen(endless_compiler)));
  CHECK(!chmod(tool, 0755));
  setenv("MLXCEL_IREE_COMPILE", tool, 1);
  SERVE(&s, TINY, TINY ".gguf", "--device", "cpu", "--drain", "1");  // of two models, none is loaded yet
  unsetenv("MLXCEL_IREE_COMPILE");
  const int fd = client_request(s.port, "POST", "/v1/completions", "", "{\"prompt\":\"a\",\"max_tokens\":1}");
  for (int i = 0; access(began, F_OK); ++i) {
    CHECK(i < 6000);
    mlx_sleep_ms(10);
  }
  CHECK_INT(serve_stop(&s), 0);  // not ended by the watchdog
  close(fd);
  CHECK_OK(mlx_remove_tree(folder));
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
  SERVE(&s, TINY, "--device", "cpu", "--drain", "600");
  const int fd = client_request(
      s.port, "POST", "/v1/completions", "",
      "{\"prompt\":\"a\",\"max_tokens\":1000000,\"ignore_eos\":true,\"n\":100,\"stream\":true}");
  client_read(fd, &text);
  kill(s.pid, SIGINT);
  wait_until_refused(s.port);  // the server has got the first signal: two pending ones would be one
  const double start = mlx_seconds();
  kill(s.pid, SIGINT);
  CHECK_INT(serve_wait(&s), 128 + SIGINT);
  CHECK(mlx_seconds() - start < 300);  // without the second signal it would wait for the stream
  while (client_read(fd, &text)) continue;
  CHECK(!strstr(text.data, "[DONE]"));  // the signal came before the end of the stream
  close(fd);
  mlx_text_clear(&text);
}

TEST_MAIN(CASE(a_signal_finishes_streams_and_refuses_new_work),
          CASE(a_drain_waits_for_a_client_that_reads_slowly), CASE(sighup_drains_and_removes_the_socket_file),
          CASE(a_server_that_ignores_sighup_goes_on), CASE(a_drain_ends_within_its_limit),
          CASE(a_server_that_ends_cancels_the_compilation_of_a_model),
          CASE(embeddings_that_a_shutdown_interrupts_end_cleanly), CASE(a_second_signal_ends_at_once))
