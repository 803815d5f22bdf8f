// Load generator for a server with OpenAI's API: N clients, each with one connection and one request at a
// time, all streamed.
//
//   load HOST PORT CLIENTS REQUESTS PROMPT_WORDS TOKENS SECONDS [MODEL [TIMES]]
//
// Each client sends REQUESTS requests. Every prompt is different, so that no prefix is shared. Prints one
// line of JSON: tokens per second in all, and the median and 99th percentile of the time to the first token
// and of the time between two pieces of text, in milliseconds; -1 if no piece of text came. A request fails
// if the server refuses it or sends nothing for SECONDS; the first reason is printed, and no further requests
// are sent. After SIGTERM each client finishes its request and sends no other. Writes to the file TIMES, for
// each piece but the first of an answer, when it came and how long after the piece before, in milliseconds of
// CLOCK_MONOTONIC. bench/serve compiles and runs it.
#include <errno.h>
#include <netdb.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define MAX_SAMPLES (1 << 20)

typedef struct samples {
  double *items;  // milliseconds
  size_t count;
} samples_t;

static const char *host, *port, *model;
static int clients, requests, prompt_words, tokens, limit_seconds;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static samples_t first_token, between_tokens, piece_times;
static volatile sig_atomic_t stopped;
static long generated;
static int failures;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static void add(samples_t *samples, double value) {
  if (samples->count < MAX_SAMPLES) samples->items[samples->count++] = value;
}

static void stop(int number) { stopped = number; }

static int compare(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double percentile(samples_t *samples, double part) {
  if (!samples->count) return -1;
  qsort(samples->items, samples->count, sizeof *samples->items, compare);
  return samples->items[(size_t)(part * (double)(samples->count - 1))];
}

// Counts a failed request. Prints the reason of the first one.
static void fail(const char *reason, const char *detail) {
  pthread_mutex_lock(&lock);
  if (!failures++) fprintf(stderr, "load: %s%s%s\n", reason, *detail ? ": " : "", detail);
  pthread_mutex_unlock(&lock);
}

static bool has_failed(void) {
  pthread_mutex_lock(&lock);
  const bool failed = failures > 0;
  pthread_mutex_unlock(&lock);
  return failed;
}

static int open_connection(void) {
  struct addrinfo *found, hints = {.ai_socktype = SOCK_STREAM};
  if (getaddrinfo(host, port, &hints, &found)) return -1;
  const int fd = socket(found->ai_family, found->ai_socktype, 0);
  const struct timeval limit = {.tv_sec = limit_seconds};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  const int result = connect(fd, found->ai_addr, found->ai_addrlen);
  freeaddrinfo(found);
  return result ? -1 : fd;
}

static bool send_request(int fd, int client, int number) {
  static const char *const words[] = {"river", "table", "green",  "seven",  "light",  "paper",
                                      "stone", "music", "winter", "garden", "bridge", "silver"};
  char body[1 << 16], head[512];
  size_t length = (size_t)snprintf(body, sizeof body,
                                   "{\"model\":\"%s\",\"messages\":[{\"role\":\"user\",\"content\":\"%d %d",
                                   model, client, number);
  uint32_t state = (uint32_t)(client * 7919 + number * 104729 + 1);
  for (int i = 0; i < prompt_words && length < sizeof body - 512; ++i) {
    state = state * 1664525u + 1013904223u;
    length += (size_t)snprintf(body + length, sizeof body - length, " %s", words[(state >> 16) % 12]);
  }
  length += (size_t)snprintf(body + length, sizeof body - length,
                             "\"}],\"max_tokens\":%d,\"temperature\":0,\"ignore_eos\":true,\"stream\":true,"
                             "\"stream_options\":{\"include_usage\":true}}",
                             tokens);
  const size_t head_length =
      (size_t)snprintf(head, sizeof head,
                       "POST /v1/chat/completions HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n"
                       "Content-Length: %zu\r\nConnection: close\r\n\r\n",
                       host, length);
  return send(fd, head, head_length, MSG_NOSIGNAL) == (ssize_t)head_length &&
         send(fd, body, length, MSG_NOSIGNAL) == (ssize_t)length;
}

// Reads the rest of a response that is not a stream, and fails with its body. |start| is its first part.
static void refuse(int fd, const char *start, size_t length) {
  char text[4096];
  length = length < sizeof text - 1 ? length : sizeof text - 1;
  memcpy(text, start, length);
  for (ssize_t got = 1; got > 0 && length < sizeof text - 1; length += (size_t)(got > 0 ? got : 0))
    got = recv(fd, text + length, sizeof text - 1 - length, 0);
  text[length] = 0;
  const char *body = strstr(text, "\r\n\r\n");
  fail("the server refused a request", body ? body + 4 : text);
}

// Reads one streamed response. Chunk sizes and headers are skipped: only the status and lines that begin with
// "data:" matter.
static bool read_response(int fd, double started) {
  char buffer[1 << 16];
  size_t length = 0;
  double last = 0;
  bool done = false, has_status = false;
  for (;;) {
    const ssize_t got = recv(fd, buffer + length, sizeof buffer - 1 - length, 0);
    if (got < 0 && errno == EINTR) continue;  // the process was stopped and continued
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) fail("the server sent nothing in time", "");
    if (got <= 0) return false;
    const double time = now();
    length += (size_t)got;
    buffer[length] = 0;
    static const char accepted[] = "HTTP/1.1 200";
    if (!has_status && length >= strlen(accepted)) {
      has_status = true;
      if (strncmp(buffer, accepted, strlen(accepted))) {
        refuse(fd, buffer, length);
        return false;
      }
    }
    char *line = buffer, *end;
    while ((end = strchr(line, '\n'))) {
      *end = 0;
      if (!strncmp(line, "data: {\"error\"", strlen("data: {\"error\""))) {
        fail("the server ended a stream", line);
        return false;
      }
      const char *usage = strstr(line, "\"completion_tokens\":");
      if (strstr(line, "\"content\":\"") && !strstr(line, "\"content\":\"\"")) {
        pthread_mutex_lock(&lock);
        if (last == 0) {
          add(&first_token, time - started);
        } else {
          add(&between_tokens, time - last);
          add(&piece_times, time);
        }
        pthread_mutex_unlock(&lock);
        last = time;
      }
      if (usage && strstr(line, "\"choices\":[]")) {
        pthread_mutex_lock(&lock);
        generated += atol(usage + strlen("\"completion_tokens\":"));
        pthread_mutex_unlock(&lock);
      }
      if (strstr(line, "data: [DONE]")) done = true;
      if (done && (!strcmp(line, "0\r") || !strcmp(line, "0"))) return true;  // the last chunk
      line = end + 1;
    }
    length -= (size_t)(line - buffer);
    memmove(buffer, line, length);
    if (done && length >= 3 && !strncmp(buffer, "0\r\n", 3)) return true;
    if (length == sizeof buffer - 1) return false;
  }
}

static void *run_client(void *argument) {
  const int client = (int)(intptr_t)argument;
  for (int i = 0; i < requests && !has_failed() && !stopped; ++i) {
    const int fd =
        open_connection();  // a new connection for each request: the end of a stream needs no parsing then
    const double started = now();
    if (fd < 0)
      fail("cannot connect", strerror(errno));
    else if (!send_request(fd, client, i) || !read_response(fd, started))
      fail("the connection ended before the response", "");
    if (fd >= 0) close(fd);
  }
  return NULL;
}

static void write_times(const char *path) {
  FILE *file = fopen(path, "w");
  if (!file) fail(path, strerror(errno));
  for (size_t i = 0; file && i < piece_times.count; ++i)
    fprintf(file, "%.3f %.3f\n", piece_times.items[i], between_tokens.items[i]);
  if (file && fclose(file)) fail(path, strerror(errno));
}

int main(int argc, char **argv) {
  if (argc < 8) {
    fprintf(stderr, "usage: load HOST PORT CLIENTS REQUESTS PROMPT_WORDS TOKENS SECONDS [MODEL [TIMES]]\n");
    return 2;
  }
  host = argv[1];
  port = argv[2];
  clients = atoi(argv[3]);
  requests = atoi(argv[4]);
  prompt_words = atoi(argv[5]);
  tokens = atoi(argv[6]);
  limit_seconds = atoi(argv[7]);
  model = argc > 8 ? argv[8] : "default";
  first_token.items = calloc(MAX_SAMPLES, sizeof(double));
  between_tokens.items = calloc(MAX_SAMPLES, sizeof(double));
  piece_times.items = calloc(MAX_SAMPLES, sizeof(double));
  pthread_t *threads = calloc((size_t)clients, sizeof *threads);
  if (!first_token.items || !between_tokens.items || !piece_times.items || !threads) return 1;
  signal(SIGTERM, stop);
  const double started = now();
  for (int i = 0; i < clients; ++i) pthread_create(&threads[i], NULL, run_client, (void *)(intptr_t)i);
  for (int i = 0; i < clients; ++i) pthread_join(threads[i], NULL);
  const double seconds = (now() - started) / 1e3;
  if (argc > 9) write_times(argv[9]);
  printf(
      "{\"clients\":%d,\"tokens\":%ld,\"seconds\":%.3f,\"tokens_per_second\":%.1f,\"failures\":%d,"
      "\"first_token_ms\":{\"p50\":%.1f,\"p99\":%.1f},\"between_ms\":{\"p50\":%.2f,\"p99\":%.2f}}\n",
      clients, generated, seconds, (double)generated / seconds, failures, percentile(&first_token, 0.5),
      percentile(&first_token, 0.99), percentile(&between_tokens, 0.5), percentile(&between_tokens, 0.99));
  return failures ? 1 : 0;
}
