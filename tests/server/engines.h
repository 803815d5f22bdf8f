// A server in this process whose model has several engines. For serve_engines_test.c on a CPU and
// serve_engines_gpu_test.c on a GPU.
#ifndef MLXCEL_TESTS_SERVER_ENGINES_H_
#define MLXCEL_TESTS_SERVER_ENGINES_H_

#include <pthread.h>
#include <stdatomic.h>

#include "runtime/engine_internal.h"
#include "server/core/server.h"
#include "tests/support/json_reply.h"

#define ENGINES_REQUESTS 16
#define ENGINES_TOKENS 64

typedef struct engines {
  mlx_server_t *server;
  pthread_t thread;
  int port;
} engines_t;

static atomic_int engine_until_failure;  // steps of engine 1; 0: none fails
static int engine_opened;
static mlx_stepper_t *engine_breaking;
static mlx_status_t (*engine_wait)(mlx_stepper_t *, mlx_ticket_t *, const mlx_step_result_t **, size_t *);

static mlx_status_t engine_wait_or_fail(mlx_stepper_t *stepper, mlx_ticket_t *ticket,
                                        const mlx_step_result_t **out_results, size_t *out_count) {
  MLX_TRY(engine_wait(stepper, ticket, out_results, out_count));
  if (stepper != engine_breaking || !atomic_load(&engine_until_failure) ||
      atomic_fetch_sub(&engine_until_failure, 1) > 1)
    return NULL;
  return mlx_error(MLX_UNAVAILABLE, "the device was lost");
}

// Engine 1 can fail. Each step is one token, so that a failure comes in mid-stream.
static void engine_on_open(void *user, const char *path, mlx_engine_t *engine, double seconds) {
  (void)user, (void)path, (void)seconds;
  engine->stepper->burst = 0;
  engine_wait = engine->stepper->wait;
  engine->stepper->wait = engine_wait_or_fail;
  if (engine_opened++ == 1) engine_breaking = engine->stepper;
}

static void *engines_run(void *server) {
  CHECK_OK(mlx_server_run(server));
  return NULL;
}

static void engines_start(engines_t *e, const char *model, mlx_device_choice_t device, size_t count) {
  mlx_server_options_t options;
  mlx_server_options_initialize(&options);
  options.http.host = "127.0.0.1";
  options.http.port = 0;
  options.engine.device = device;
  options.engine.sequences = 8;
  options.engine.allow_unsigned = true;  // a bundle may have been prepared on another machine
  options.engines = count;
  options.sleep_mode = true;
  options.on_open = engine_on_open;
  engine_opened = 0;
  engine_breaking = NULL;
  CHECK_OK(mlx_server_create(&options, &e->server));
  CHECK_OK(mlx_server_add(e->server, model, "m"));
  CHECK_OK(mlx_server_load(e->server));
  CHECK_INT(engine_opened, (int)count);
  CHECK_OK(mlx_server_listen(e->server, &e->port));
  CHECK(!pthread_create(&e->thread, NULL, engines_run, e->server));
  reply_t reply = {0};
  for (int i = 0; i < 3000 && reply.status != 200; ++i) {
    if (i) mlx_sleep_ms(10);
    client_call(e->port, "GET", "/health", "", NULL, &reply);
    mlx_text_clear(&reply.body);
  }
  CHECK_INT(reply.status, 200);
}

// Waits until the server has drained.
static void engines_wait(engines_t *e) {
  CHECK(!pthread_join(e->thread, NULL));
  mlx_server_free(e->server);
}

static void engines_stop(engines_t *e) {
  CHECK(!kill(getpid(), SIGTERM));
  engines_wait(e);
}

// The metric |name| of engine |engine|.
static double engines_metric(const engines_t *e, const char *name, int engine) {
  reply_t reply;
  char line[128];
  client_call(e->port, "GET", "/metrics", "", NULL, &reply);
  snprintf(line, sizeof line, "\n%s{model_name=\"m\",engine=\"%d\"} ", name, engine);
  const char *found = strstr(reply_text(&reply), line);
  if (!found) CHECK_FAIL("/metrics has no %s", line + 1);
  const double value = atof(found + strlen(line));
  mlx_text_clear(&reply.body);
  return value;
}

// The same, when it is |expected|: a scheduler publishes its numbers after the response.
static void engines_expect(const engines_t *e, const char *name, int engine, double expected) {
  double value = -1;
  for (int i = 0; i < 3000 && value != expected; ++i) {
    if (i) mlx_sleep_ms(10);
    value = engines_metric(e, name, engine);
  }
  if (value != expected) CHECK_FAIL("%s of engine %d is %g, not %g", name, engine, value, expected);
}

static int engines_ask(const engines_t *e, int number, int tokens, bool stream) {
  char body[512];
  size_t at = (size_t)snprintf(body, sizeof body,
                               "{\"max_tokens\":%d,\"temperature\":0.9,\"seed\":%d,\"ignore_eos\":true,"
                               "\"stream\":%s,\"prompt\":\"",
                               tokens, number, stream ? "true" : "false");
  for (int i = 0; i < 12; ++i) at += (size_t)snprintf(body + at, sizeof body - at, "%d ", number * 31 + i);
  snprintf(body + at, sizeof body - at, "\"}");
  return client_request(e->port, "POST", "/v1/completions", "", body);
}

// The text of an answer. Release with free.
static char *engines_text(int socket) {
  reply_t reply;
  client_finish(socket, &reply);
  yyjson_doc *doc = parse_reply("/v1/completions", &reply, 200);
  char *text = yyjson_val_write(at(doc, "/choices/0/text"), 0, NULL);
  yyjson_doc_free(doc);
  return text;
}

// One engine answers all requests one after another, two engines all at once: the same texts, and both work.
static void engines_check_tokens(const char *model, mlx_device_choice_t device) {
  engines_t one, two;
  char *expected[ENGINES_REQUESTS];
  int sockets[ENGINES_REQUESTS];
  engines_start(&one, model, device, 1);
  for (int i = 0; i < ENGINES_REQUESTS; ++i)
    expected[i] = engines_text(engines_ask(&one, i, ENGINES_TOKENS, false));
  engines_stop(&one);
  engines_start(&two, model, device, 2);
  for (int i = 0; i < ENGINES_REQUESTS; ++i) sockets[i] = engines_ask(&two, i, ENGINES_TOKENS, false);
  for (int i = 0; i < ENGINES_REQUESTS; ++i) {
    char *text = engines_text(sockets[i]);
    if (strcmp(text, expected[i])) CHECK_FAIL("request %d is %s, and alone %s", i, text, expected[i]);
    free(text);
    free(expected[i]);
  }
  for (int i = 0; i < 2; ++i) CHECK(engines_metric(&two, "mlxcel_output_tokens_total", i) >= ENGINES_TOKENS);
  engines_stop(&two);
}

// Streams run on both engines when one fails: its half of them ends with an error, the others go on.
static void engines_check_failure(const char *model, mlx_device_choice_t device) {
  engines_t e;
  int sockets[8], failed = 0, ended = 0;
  reply_t reply;
  engines_start(&e, model, device, 2);
  for (int i = 0; i < 8; ++i) sockets[i] = engines_ask(&e, i, 1500, true);
  for (int i = 0; i < 8; ++i) {
    char byte;
    CHECK_INT(receive(sockets[i], &byte, 1, MSG_PEEK), 1);  // the stream has begun
  }
  atomic_store(&engine_until_failure, 20);
  for (int i = 0; i < 8; ++i) {
    client_finish(sockets[i], &reply);
    failed += strstr(reply_text(&reply), "the device was lost") != NULL;
    ended += strstr(reply_text(&reply), "data: [DONE]") && strstr(reply_text(&reply), "\"length\"");
    mlx_text_clear(&reply.body);
  }
  CHECK_INT(failed, 4);
  CHECK_INT(ended, 4);
  engines_expect(&e, "mlxcel_engine_works", 1, 0);
  engines_expect(&e, "mlxcel_engine_works", 0, 1);
  engines_expect(&e, "mlxcel_failed_steps_total", 1, 1);
  const double before = engines_metric(&e, "mlxcel_output_tokens_total", 1);
  for (int i = 0; i < 4; ++i) sockets[i] = engines_ask(&e, 20 + i, 8, false);
  for (int i = 0; i < 4; ++i) free(engines_text(sockets[i]));
  CHECK(engines_metric(&e, "mlxcel_output_tokens_total", 1) == before);  // engine 0 answered all
  client_call(e.port, "GET", "/health/ready", "", NULL, &reply);
  CHECK_INT(reply.status, 200);
  mlx_text_clear(&reply.body);
  engines_stop(&e);
}

#endif  // MLXCEL_TESTS_SERVER_ENGINES_H_
