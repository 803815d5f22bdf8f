// A device that fails while responses are streamed: a whole server in this process, with an engine whose
// steps fail on request.
#include <pthread.h>
#include <stdatomic.h>

#include "runtime/engine_internal.h"
#include "server/core/server.h"
#include "tests/support/http_client.h"

#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"
#define ASK "{\"prompt\":\"the quick\",\"max_tokens\":400,\"temperature\":0,\"ignore_eos\":true"

static atomic_int until_failure;  // steps; 0: none fails
static mlx_status_t (*device_wait)(mlx_stepper_t *, mlx_ticket_t *, const mlx_step_result_t **, size_t *);

static mlx_status_t failing_wait(mlx_stepper_t *stepper, mlx_ticket_t *ticket,
                                 const mlx_step_result_t **out_results, size_t *out_count) {
  MLX_TRY(device_wait(stepper, ticket, out_results, out_count));
  if (!atomic_load(&until_failure) || atomic_fetch_sub(&until_failure, 1) > 1) return NULL;
  return mlx_error(MLX_UNAVAILABLE, "the device was lost");
}

static void break_device(void *user, const char *path, mlx_engine_t *engine, double seconds) {
  (void)user, (void)path, (void)seconds;
  engine->stepper->burst = 0;  // each step is one token, so that a failure comes in mid-stream
  device_wait = engine->stepper->wait;
  engine->stepper->wait = failing_wait;
}

static void *run_server(void *server) {
  CHECK_OK(mlx_server_run(server));
  return NULL;
}

TEST(a_device_error_in_mid_stream_ends_the_stream_with_an_error) {
  static const struct {
    const char *path, *body, *error;
  } streams[] = {{"/v1/completions", ASK ",\"stream\":true}", "data: {\"error\":{"},
                 {"/api/generate",
                  "{\"model\":\"x\",\"prompt\":\"the "
                  "quick\",\"raw\":true,\"options\":{\"num_predict\":400,\"temperature\":0}}",
                  "{\"error\":"}};
  mlx_server_options_t options;
  mlx_server_t *server;
  pthread_t thread;
  reply_t reply;
  int port;
  mlx_server_options_initialize(&options);
  options.http.host = "127.0.0.1";
  options.http.port = 0;
  options.engine.device = MLX_USE_CPU;
  options.engine.sequences = 4;
  options.on_open = break_device;
  CHECK_OK(mlx_server_create(&options, &server));
  CHECK_OK(mlx_server_add(server, TINY, NULL));
  CHECK_OK(mlx_server_load(server));
  CHECK_OK(mlx_server_listen(server, &port));
  CHECK(!pthread_create(&thread, NULL, run_server, server));
  for (size_t i = 0; i < sizeof streams / sizeof *streams; ++i) {
    atomic_store(&until_failure, 20);
    client_call(port, "POST", streams[i].path, "", streams[i].body, &reply);
    CHECK_INT(reply.status, 200);  // the stream had begun
    const char *error = strstr(reply_text(&reply), streams[i].error);
    if (!error || !strstr(error, "the device was lost"))
      CHECK_FAIL("%s: %s", streams[i].path, reply_text(&reply));
    CHECK(error - reply_text(&reply) > 500);  // tokens came before it
    mlx_text_clear(&reply.body);
    client_call(port, "POST", streams[i].path, "", streams[i].body, &reply);  // the device works again
    CHECK(reply.status == 200 && !strstr(reply_text(&reply), "error"));
    mlx_text_clear(&reply.body);
  }
  atomic_store(&until_failure, 20);
  client_call(port, "POST", "/v1/completions", "", ASK "}", &reply);  // not streamed: a status
  CHECK_INT(reply.status, 503);
  CHECK(strstr(reply_text(&reply), "the device was lost"));
  mlx_text_clear(&reply.body);
  bool counted = false;  // the response comes before the scheduler thread publishes its numbers
  for (int i = 0; i < 3000 && !counted; ++i) {
    if (i) mlx_sleep_ms(10);
    client_call(port, "GET", "/metrics", "", NULL, &reply);
    counted =
        strstr(reply_text(&reply), "mlxcel_failed_steps_total{model_name=\"tiny-llama\",engine=\"0\"} 3");
    mlx_text_clear(&reply.body);
  }
  CHECK(counted);
  CHECK(!kill(getpid(), SIGTERM));
  CHECK(!pthread_join(thread, NULL));
  mlx_server_free(server);
}

TEST_MAIN(CASE(a_device_error_in_mid_stream_ends_the_stream_with_an_error))
