// A small HTTP/1.1 client on plain sockets, and `mlxcel serve` as a child process, for tests.
#ifndef MLXCEL_TESTS_HTTP_CLIENT_H_
#define MLXCEL_TESTS_HTTP_CLIENT_H_

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/text.h"
#include "tests/support/check.h"
#include "tests/support/receive.h"

// ---- the server

typedef struct served {
  pid_t pid;
  int port;
  char error_path[64];  // its stderr
  char line[512];       // that it printed when it was ready
} served_t;

// Starts `mlxcel serve ARGUMENTS... --port 0` and waits for the line that says that it is ready.
static inline void serve_start(served_t *s, const char *const *arguments) {
  const char *argv[48] = {MLXCEL_BINARY, "serve", "--port", "0"};
  int out[2], count = 4;
  while (*arguments && count < 47) argv[count++] = *arguments++;
  strcpy(s->error_path, "/tmp/mlxcel-serve-err-XXXXXX");
  s->line[0] = 0;
  const int error = mkstemp(s->error_path);
  CHECK(error >= 0 && !pipe2(out, O_CLOEXEC));
  s->pid = fork();
  if (s->pid == 0) {
    dup2(out[1], 1);
    dup2(error, 2);
    execv(argv[0], (char *const *)(uintptr_t)argv);
    _exit(127);
  }
  close(error);
  close(out[1]);
  FILE *stream = fdopen(out[0], "r");
  const bool ready = fgets(s->line, sizeof s->line, stream) != NULL;
  fclose(stream);
  if (!ready || sscanf(s->line, "listening on http://127.0.0.1:%d", &s->port) != 1)
    CHECK_FAIL("mlxcel serve printed '%s'; its stderr is %s", s->line, s->error_path);
}
#define SERVE(served, ...) serve_start(served, (const char *const[]){__VA_ARGS__, NULL})

// Ends the server and returns its exit status, or minus the signal that killed it.
static inline int serve_wait(served_t *s) {
  int status = 0;
  waitpid(s->pid, &status, 0);
  unlink(s->error_path);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static inline int serve_stop(served_t *s) {
  kill(s->pid, SIGTERM);
  return serve_wait(s);
}

// ---- the client

typedef struct reply {
  int status;
  char headers[4096];  // the head of the response
  mlx_text_t body;
} reply_t;

static inline int client_connect(int port) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
  const struct timeval limit = {.tv_sec = 300};  // compiling a model on a slow machine
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  CHECK(fd >= 0);
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  if (connect(fd, (const struct sockaddr *)&address, sizeof address)) CHECK_FAIL("cannot connect");
  return fd;
}

static inline void client_send(int fd, const char *text, size_t length) {
  for (size_t done = 0; done < length;) {
    const ssize_t n = send(fd, text + done, length - done, MSG_NOSIGNAL);
    if (n <= 0) CHECK_FAIL("the connection closed while sending");
    done += (size_t)n;
  }
}

// Sends a request. |headers| are lines that end with CRLF; "" for none.
static inline int client_request(int port, const char *method, const char *path, const char *headers,
                                 const char *body) {
  const int fd = client_connect(port);
  mlx_text_t text = {0};
  mlx_text_printf(&text, "%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n%s", method, path,
                  headers);
  if (body) mlx_text_printf(&text, "Content-Type: application/json\r\nContent-Length: %zu\r\n", strlen(body));
  mlx_text_printf(&text, "\r\n%s", body ? body : "");
  client_send(fd, text.data, text.length);
  mlx_text_clear(&text);
  return fd;
}

// Reads at least one byte. False at the end of the stream.
static inline bool client_read(int fd, mlx_text_t *out) {
  char bytes[4096];
  const ssize_t n = receive(fd, bytes, sizeof bytes, 0);
  if (n < 0) CHECK_FAIL("no answer: %s", strerror(errno));
  if (n > 0) mlx_text_append(out, bytes, (size_t)n);
  return n > 0;
}

// Decodes the chunks in |text| in place.
static inline void client_decode_chunks(mlx_text_t *text) {
  size_t to = 0;
  for (const char *at = text->data, *end = text->data + text->length; at && at < end;) {
    char *line;
    const size_t size = strtoul(at, &line, 16);
    at = line + 2;
    if (!size || at + size > end) break;
    memmove(text->data + to, at, size);
    to += size;
    at += size + 2;
  }
  text->length = to;
  if (text->data) text->data[to] = 0;
}

// Reads a whole response and closes the connection.
static inline void client_finish(int fd, reply_t *out) {
  mlx_text_t all = {0};
  while (client_read(fd, &all)) continue;
  close(fd);
  *out = (reply_t){0};
  const char *end = all.data ? strstr(all.data, "\r\n\r\n") : NULL;
  if (!end || sscanf(all.data, "HTTP/1.1 %d", &out->status) != 1) CHECK_FAIL("not a response: %s", all.data);
  const size_t head = (size_t)(end + 4 - all.data);
  snprintf(out->headers, sizeof out->headers, "%.*s", (int)head, all.data);
  mlx_text_append(&out->body, all.data + head, all.length - head);
  if (strcasestr(out->headers, "transfer-encoding: chunked")) client_decode_chunks(&out->body);
  mlx_text_clear(&all);
}

static inline void client_call(int port, const char *method, const char *path, const char *headers,
                               const char *body, reply_t *out) {
  client_finish(client_request(port, method, path, headers, body), out);
}

static inline const char *reply_text(const reply_t *reply) {
  return reply->body.data ? reply->body.data : "";
}

#endif  // MLXCEL_TESTS_HTTP_CLIENT_H_
