// Starts a test server (a Python script in tests/) as a child process on a free port, sets its faults and
// reads its request log. The server exits when this process exits.
#ifndef MLXCEL_TESTS_SERVER_H_
#define MLXCEL_TESTS_SERVER_H_

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/check.h"
#include "transfer/http.h"

typedef struct server {
  pid_t pid;
  int port;
  int hold;  // pipe to the server's stdin; closing it ends the server
  char url[64];
} server_t;

static inline void server_start(server_t *server, const char *const *argv, const char *scheme) {
  int in[2], out[2];
  CHECK(!pipe2(in, O_CLOEXEC) && !pipe2(out, O_CLOEXEC));
  server->pid = fork();
  if (server->pid == 0) {
    dup2(in[0], 0);
    dup2(out[1], 1);
    execvp(argv[0], (char *const *)(uintptr_t)argv);
    _exit(127);
  }
  close(in[0]);
  close(out[1]);
  server->hold = in[1];
  FILE *output = fdopen(out[0], "r");
  if (fscanf(output, "%d", &server->port) != 1)
    CHECK_FAIL("%s did not start: is python3 installed?", argv[1]);
  fclose(output);
  snprintf(server->url, sizeof server->url, "%s://127.0.0.1:%d", scheme, server->port);
}

static inline void server_stop(server_t *server) {
  close(server->hold);
  waitpid(server->pid, NULL, 0);
}

// Removes settings of this machine that could change a test: proxies, certificates, hub settings. The hub's
// address has no server, so that no test reaches the public hub.
static inline void plain_environment(void) {
  // clang-format off
  static const char *const names[] = {
      "http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "CURL_CA_BUNDLE", "SSL_CERT_FILE",
      "HF_TOKEN", "HF_HUB_OFFLINE", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH",
      "MLXCEL_CONFIG"};
  // clang-format on
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i) unsetenv(names[i]);
  setenv("HF_ENDPOINT", "http://127.0.0.1:9", 1);
}

static inline void quick_http(mlx_http_options_t *options) {
  mlx_http_options_initialize(options);
  options->pause_seconds = 0.01;
  options->stall_seconds = 1;
}

// Sets the server's faults and clears its log. The scripts document |json|.
static inline void server_control(const server_t *server, const char *json) {
  mlx_http_options_t options;
  mlx_http_t *http;
  mlx_http_response_t response;
  char url[96];
  quick_http(&options);
  options.insecure = true;
  snprintf(url, sizeof url, "%s/_control", server->url);
  CHECK_OK(mlx_http_open(&options, &http));
  const mlx_http_request_t request = {.method = "PUT", .url = url, .body = json, .body_length = strlen(json)};
  CHECK_OK(mlx_http_send(http, &request, &response));
  CHECK_INT(response.status, 200);
  mlx_http_response_clear(&response);
  mlx_http_close(http);
}

// Returns the requests since the last server_control, as JSON; valid until the next call.
static inline const char *server_log(const server_t *server) {
  static mlx_http_response_t response;
  mlx_http_options_t options;
  mlx_http_t *http;
  char url[96];
  mlx_http_response_clear(&response);
  quick_http(&options);
  options.insecure = true;
  snprintf(url, sizeof url, "%s/_log", server->url);
  CHECK_OK(mlx_http_open(&options, &http));
  const mlx_http_request_t request = {.url = url, .max_bytes = 1 << 20};
  CHECK_OK(mlx_http_send(http, &request, &response));
  mlx_http_close(http);
  return response.body.data;
}

static inline int count_of(const char *text, const char *part) {
  int count = 0;
  for (const char *found = text; (found = strstr(found, part)); found += strlen(part)) ++count;
  return count;
}

#endif  // MLXCEL_TESTS_SERVER_H_
