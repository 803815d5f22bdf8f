// A synthetic answer for tests of APIs: a request is parsed, events are fed to the api, and the
// result is the text that a client gets.
#ifndef MLXCEL_TESTS_SERVER_API_ANSWERS_H_
#define MLXCEL_TESTS_SERVER_API_ANSWERS_H_

#include "base/file.h"
#include "base/memory.h"
#include "server/api/api.h"
#include "server/api/fields.h"
#include "tests/support/check.h"
#include "tests/support/faults.h"

#define TEXT_EVENT(string) {.kind = MLX_EVENT_TEXT, .text = string, .length = sizeof string - 1}
#define REASONING_EVENT(string) {.kind = MLX_EVENT_REASONING, .text = string, .length = sizeof string - 1}
#define TOOL_EVENT(index, call, function) \
  {.kind = MLX_EVENT_TOOL_BEGIN, .tool = index, .id = call, .name = function}
#define ARGUMENTS_EVENT(index, string) \
  {.kind = MLX_EVENT_TOOL_ARGUMENTS, .tool = index, .text = string, .length = sizeof string - 1}
#define TOOL_END_EVENT(index) {.kind = MLX_EVENT_TOOL_END, .tool = index}
#define FINISH_EVENT(reason) {.kind = MLX_EVENT_FINISH, .finish = reason}
#define COUNT(array) (sizeof(array) / sizeof *(array))

// The call of a body that must parse. Release with free_call.
static inline void parse_call(const mlx_api_t *api, const char *body, mlx_api_call_t *out) {
  CHECK_OK(mlx_api_call_initialize(out));
  out->sampling.seed = 1;
  CHECK_OK(api->parse(body, strlen(body), "", out));
}

static inline void free_call(const mlx_api_t *api, mlx_api_call_t *call) {
  api->free_details(call->details);
  mlx_api_call_clear(call);
}

// "CODE message | hint" of a body that must not parse; "parsed" if it does. Valid until the next call.
static inline const char *parse_error(const mlx_api_t *api, const char *body, size_t length) {
  static char error[1024];
  mlx_api_call_t call;
  CHECK_OK(mlx_api_call_initialize(&call));
  mlx_status_t status = api->parse(body, length, "", &call);
  const mlx_code_t code = mlx_status_code(status);
  if (status)
    snprintf(error, sizeof error, "%s %s | %s",
             code == MLX_INVALID_INPUT ? "invalid"
             : code == MLX_UNSUPPORTED ? "unsupported"
                                       : "OTHER",
             mlx_status_message(status), mlx_status_hint_text(status));
  else
    snprintf(error, sizeof error, "parsed");
  mlx_status_free(status);
  free_call(api, &call);
  return error;
}

static inline mlx_answer_t begin_answer(void) {
  return (mlx_answer_t){.id = "x1", .model = "m", .created = 7};
}

static inline void end_answer(mlx_answer_t *answer) {
  answer->prompt_tokens = 12;
  answer->cached_tokens = 4;
  answer->output_tokens = 5;
  answer->reasoning_tokens = 2;
  answer->prompt_seconds = 0.5;
  answer->decode_seconds = 0.25;
}

// The whole answer. Release with mlx_text_clear.
static inline mlx_text_t whole_answer(const mlx_api_t *api, const char *body, const mlx_event_t *events,
                                      size_t count) {
  mlx_api_call_t call;
  mlx_text_t out = {0};
  mlx_answer_t answer = begin_answer();
  parse_call(api, body, &call);
  for (size_t i = 0; i < count; ++i) CHECK_OK(mlx_answer_add(&answer, &events[i]));
  end_answer(&answer);
  CHECK_OK(api->write(&call, &answer, &out));
  mlx_answer_clear(&answer);
  free_call(api, &call);
  return out;
}

// The whole stream; ends with |error| if it is not NULL. Release with mlx_text_clear.
static inline mlx_text_t streamed_answer(const mlx_api_t *api, const char *body, const mlx_event_t *events,
                                         size_t count, const mlx_api_error_t *error) {
  mlx_api_call_t call;
  mlx_text_t out = {0};
  void *writer;
  mlx_answer_t answer = begin_answer();
  parse_call(api, body, &call);
  CHECK_OK(mlx_api_stream_open(api, &call, &answer, &writer, &out));
  for (size_t i = 0; i < count; ++i) CHECK_OK(api->stream_event(writer, &events[i], &out));
  end_answer(&answer);
  if (error)
    api->stream_error(writer, error, &out);
  else
    CHECK_OK(api->stream_close(writer, &answer, &out));
  mlx_api_stream_free(api, writer);
  mlx_answer_clear(&answer);
  free_call(api, &call);
  return out;
}

// Parses a body and answers it, as a stream and as a whole. Releases everything, also after a failure.
static inline mlx_status_t answer_both_ways(const mlx_api_t *api, const char *body, const mlx_event_t *events,
                                            size_t count) {
  mlx_api_call_t call;
  mlx_text_t out = {0};
  void *writer = NULL;
  mlx_answer_t answer = begin_answer();
  mlx_status_t status = mlx_api_call_initialize(&call);
  if (!status) status = api->parse(body, strlen(body), "", &call);
  if (!status) status = mlx_api_stream_open(api, &call, &answer, &writer, &out);
  for (size_t i = 0; i < count && !status; ++i) {
    status = mlx_answer_add(&answer, &events[i]);
    if (!status) status = api->stream_event(writer, &events[i], &out);
  }
  if (!status) status = api->stream_close(writer, &answer, &out);
  if (!status) status = api->write(&call, &answer, &out);
  mlx_api_stream_free(api, writer);
  api->free_details(call.details);
  mlx_api_call_clear(&call);
  mlx_answer_clear(&answer);
  mlx_text_clear(&out);
  return status;
}

// Every allocation of a request and its answer fails once: each is MLX_OUT_OF_MEMORY and leaks nothing.
static inline void check_failing_allocations(const mlx_api_t *api, const char *body,
                                             const mlx_event_t *events, size_t count) {
  long target = 0;
  mlx_memory_set_calls(&counting_memory);
  do {
    memory.count = memory.live = 0;
    memory.target = ++target;
    mlx_status_t status = answer_both_ways(api, body, events, count);
    const mlx_code_t code = mlx_status_code(status);
    mlx_status_free(status);
    CHECK_INT(memory.live, 0);
    CHECK_INT(code, memory.count < target ? MLX_OK : MLX_OUT_OF_MEMORY);
  } while (memory.count >= target);
  mlx_memory_set_calls(NULL);
  CHECK(target > 20);
}

// docs/server.md names every field that the api reads, and has a row for each ignored or refused one.
static inline void check_fields_are_documented(const mlx_api_t *api) {
  char *page;
  size_t length, missing = 0;
  CHECK_OK(mlx_read_file(MLXCEL_SOURCE_DIR "/docs/server.md", 1 << 20, &page, &length));
  for (const mlx_field_t *field = api->fields; field->name; ++field) {
    char row[512];
    if (field->use == MLX_FIELD_READ)
      snprintf(row, sizeof row, "`%s`", field->name);
    else
      snprintf(row, sizeof row, "| `%s` | %s |", field->name, field->why);
    if (strstr(page, row)) continue;
    fprintf(stderr, "%s\n", row);
    ++missing;
  }
  mlx_free(page);
  if (missing) CHECK_FAIL("docs/server.md lacks these %zu rows", missing);
}

#endif  // MLXCEL_TESTS_SERVER_API_ANSWERS_H_
