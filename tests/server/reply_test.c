// Answers over HTTP (server/core/answer_writer.h): what a client sees of a stream that fails, and of one that
// waits.
#include "server/core/answer_writer.h"

#include <uv.h>

#include "base/memory.h"
#include "tests/support/http_client.h"

typedef enum script { FAILS_IN_A_STREAM, FAILS_BEFORE_THE_STREAM, FAILS_ITSELF, WAITS } script_t;

typedef struct stage {
  mlx_http_server_t *http;
  script_t script;
  uv_thread_t loop;
  uv_mutex_t mutex;
  uv_cond_t wake;
  mlx_exchange_t *exchange;  // that waits for its answer
} stage_t;

static void on_request(void *user, mlx_exchange_t *exchange) {
  stage_t *stage = user;
  mlx_exchange_retain(exchange);
  uv_mutex_lock(&stage->mutex);
  stage->exchange = exchange;
  uv_cond_signal(&stage->wake);
  uv_mutex_unlock(&stage->mutex);
}

static void run_loop(void *user) { CHECK_OK(mlx_http_server_run(((stage_t *)user)->http)); }

static void start(stage_t *stage) {
  mlx_http_server_options_t options;
  mlx_http_server_options_initialize(&options);
  options.port = 0;
  options.on_request = on_request;
  options.user = stage;
  uv_mutex_init(&stage->mutex);
  uv_cond_init(&stage->wake);
  CHECK_OK(mlx_http_server_create(&options, &stage->http));
  CHECK(!uv_thread_create(&stage->loop, run_loop, stage));
}

static void stop(stage_t *stage) {
  mlx_http_server_stop(stage->http);
  uv_thread_join(&stage->loop);
  mlx_http_server_free(stage->http);
  uv_cond_destroy(&stage->wake);
  uv_mutex_destroy(&stage->mutex);
}

static mlx_status_t fail_event(void *writer, const mlx_event_t *event, mlx_text_t *out) {
  (void)writer, (void)event, (void)out;
  return mlx_error(MLX_INTERNAL, "the event cannot be written");
}

// Answers the next request as a scheduler thread does.
static void answer(void *user) {
  stage_t *stage = user;
  mlx_api_call_t call;
  const mlx_prepared_prompt_t prompt = {0};
  const mlx_generation_t generation = {.finish_reason = MLX_FINISH_STOP, .stop = -1};
  mlx_answer_writer_t writer;
  uv_mutex_lock(&stage->mutex);
  while (!stage->exchange) uv_cond_wait(&stage->wake, &stage->mutex);
  uv_mutex_unlock(&stage->mutex);
  size_t length;
  const char *body = mlx_exchange_body(stage->exchange, &length);
  CHECK_OK(mlx_api_call_initialize(&call));
  CHECK_OK(mlx_api_chat.parse(body, length, "", &call));
  CHECK_OK(mlx_alloc(1, sizeof *call.prompts, &call.prompts));
  call.prompt_count = 1;
  mlx_job_t job = {.exchange = stage->exchange, .model_name = "m"};
  mlx_api_t api = mlx_api_chat;
  if (stage->script == FAILS_ITSELF) api.stream_event = fail_event;
  CHECK_OK(mlx_answer_writer_initialize(&job, &api, &call, &prompt, &writer));
  if (stage->script == WAITS) {
    mlx_answer_writer_beat(&writer, 3600);  // not due
    for (int i = 0; i < 3; ++i) mlx_answer_writer_beat(&writer, 0);
  }
  if (stage->script != FAILS_BEFORE_THE_STREAM)
    CHECK(mlx_answer_writer_add(&writer, 0, "some", 4, &generation) == (stage->script != FAILS_ITSELF));
  mlx_answer_writer_flush(&writer);
  if (stage->script == WAITS) {
    mlx_answer_writer_finish(&writer, 0, &generation);
    mlx_answer_writer_close(&writer);
  } else {
    mlx_status_t status = mlx_error(MLX_UNAVAILABLE, "the device was lost");
    mlx_answer_writer_fail(&writer, &(mlx_failure_t){.kind = MLX_FAILURE_RUN, .status = status});
    mlx_answer_writer_beat(&writer, 0);  // sends nothing after the end
    mlx_status_free(status);
  }
  mlx_answer_writer_clear(&writer);
  mlx_api_chat.free_details(call.details);
  mlx_api_call_clear(&call);
  mlx_exchange_release(stage->exchange);
}

// Plays |script| for one request. |out| gets all bytes of the response.
static void play(script_t script, mlx_text_t *out) {
  stage_t stage = {.script = script};
  uv_thread_t scheduler;
  start(&stage);
  CHECK(!uv_thread_create(&scheduler, answer, &stage));
  const int fd = client_request(mlx_http_server_port(stage.http), "POST", "/", "",
                                "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"stream\":true}");
  char bytes[4096];
  for (ssize_t n; (n = receive(fd, bytes, sizeof bytes, 0)) > 0;) mlx_text_append(out, bytes, (size_t)n);
  close(fd);
  uv_thread_join(&scheduler);
  stop(&stage);
  CHECK(out->data);
}

TEST(an_error_in_a_stream_is_an_event_and_the_connection_closes) {
  mlx_text_t text = {0};
  play(FAILS_IN_A_STREAM, &text);
  CHECK_CONTAINS(text.data, "HTTP/1.1 200");
  CHECK_CONTAINS(text.data, "\"content\":\"some\"");
  CHECK_CONTAINS(text.data, "the device was lost");
  CHECK(!strstr(text.data, "\r\n0\r\n\r\n"));  // the client sees that the response is incomplete
  mlx_text_clear(&text);
}

TEST(an_error_before_the_stream_is_an_error_response) {
  mlx_text_t text = {0};
  play(FAILS_BEFORE_THE_STREAM, &text);
  CHECK_CONTAINS(text.data, "HTTP/1.1 503");
  CHECK_CONTAINS(text.data, "the device was lost");
  mlx_text_clear(&text);
}

TEST(an_error_of_the_writer_is_not_reported_as_that_of_its_cancelled_tasks) {
  mlx_text_t text = {0};
  play(FAILS_ITSELF, &text);
  CHECK_CONTAINS(text.data, "the event cannot be written");
  CHECK(!strstr(text.data, "the device was lost"));
  mlx_text_clear(&text);
}

TEST(a_stream_that_waits_gets_heartbeats) {
  mlx_text_t text = {0};
  play(WAITS, &text);
  CHECK_CONTAINS(text.data, "HTTP/1.1 200");
  int beats = 0;
  for (const char *at = text.data; (at = strstr(at, mlx_api_chat.heartbeat)); ++at) ++beats;
  CHECK_INT(beats, 3);
  CHECK_CONTAINS(text.data, "\"content\":\"some\"");
  CHECK_CONTAINS(text.data, "[DONE]");
  mlx_text_clear(&text);
}

TEST_MAIN(CASE(an_error_in_a_stream_is_an_event_and_the_connection_closes),
          CASE(an_error_before_the_stream_is_an_error_response),
          CASE(an_error_of_the_writer_is_not_reported_as_that_of_its_cancelled_tasks),
          CASE(a_stream_that_waits_gets_heartbeats))
