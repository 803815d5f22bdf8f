// Fuzzing of APIs: parses a body, checks the call, and writes an answer to it, whole and as a stream.
// Everything that is written must be JSON. For fuzz targets only.
#ifndef MLXCEL_SERVER_API_API_FUZZ_H_
#define MLXCEL_SERVER_API_API_FUZZ_H_

#include <string.h>

#include "base/json.h"
#include "server/api/api.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define FUZZ_CHECK(condition)           \
  do {                                  \
    if (!(condition)) __builtin_trap(); \
  } while (0)

static inline void fuzz_check_json(const char *text, size_t length) {
  mlx_json_t json;
  FUZZ_CHECK(!mlx_json_parse_any("fuzz", text, length, &json));
  mlx_json_close(&json);
}

// Every "data: " line of a stream is JSON or [DONE].
static inline void fuzz_check_stream(const char *text) {
  while (*text) {
    const char *end = strchr(text, '\n');
    FUZZ_CHECK(end);
    if (!strncmp(text, "data: ", 6) && strncmp(text, "data: [DONE]", 12))
      fuzz_check_json(text + 6, (size_t)(end - text) - 6);
    text = end + 1;
  }
}

// A body is refused as a bad request, never as a failure of the server.
static inline void fuzz_check_refusal(mlx_status_t status) {
  const mlx_code_t code = mlx_status_code(status);
  FUZZ_CHECK(code == MLX_INVALID_INPUT || code == MLX_UNSUPPORTED || code == MLX_NOT_FOUND);
}

static inline void fuzz_check_call(const mlx_api_call_t *call) {
  FUZZ_CHECK(call->n >= 1 && call->n <= MLX_MAX_N);
  FUZZ_CHECK(call->logprobs >= -1 && call->logprobs <= MLX_MAX_LOGPROBS);
  FUZZ_CHECK(call->max_tokens >= -1);
  FUZZ_CHECK(!call->messages != !call->prompt_count);
  FUZZ_CHECK(call->stop_count <= MLX_MAX_STOPS);
  for (size_t i = 0; i < call->stop_count; ++i) FUZZ_CHECK(call->stops[i] && *call->stops[i]);
  for (size_t i = 0; i < call->prompt_count; ++i) {
    const mlx_api_prompt_t *prompt = &call->prompts[i];
    FUZZ_CHECK(!!prompt->text + !!prompt->ids + !!prompt->parts == 1);
    for (size_t k = 0; k < prompt->part_count; ++k)
      FUZZ_CHECK(!prompt->parts[k].text != !prompt->parts[k].ids && !prompt->parts[k].parts);
  }
  FUZZ_CHECK(!mlx_sampling_check(&call->sampling));
  if (call->messages) fuzz_check_json(call->messages, call->messages_length);
  if (call->tools) fuzz_check_json(call->tools, call->tools_length);
  if (call->variables) fuzz_check_json(call->variables, strlen(call->variables));
  if (call->tool_choice == MLX_TOOLS_NAMED) FUZZ_CHECK(call->tools && call->tool_name);
  if (call->tool_choice == MLX_TOOLS_REQUIRED) FUZZ_CHECK(call->tools);
  if (call->format == MLX_FORMAT_JSON_SCHEMA || call->format == MLX_FORMAT_GBNF)
    FUZZ_CHECK(call->format_text);
}

static inline void fuzz_write_answer(const mlx_api_t *api, const mlx_api_call_t *call, bool has_tools) {
  const mlx_answer_logprob_t top = {.id = 1, .logprob = -1, .bytes = "\xe2", .length = 1};
  const mlx_answer_token_t token = {.chosen = top, .top = &top, .top_count = call->logprobs > 0};
  const size_t tokens = call->logprobs >= 0,
               last = (size_t)call->n * (call->messages ? 1 : call->prompt_count) - 1;
  const mlx_event_t events[] = {
      {.kind = MLX_EVENT_REASONING, .text = "r\xff", .length = 2},
      {.kind = MLX_EVENT_TEXT, .text = "t\"", .length = 2, .tokens = &token, .token_count = tokens},
      {.kind = MLX_EVENT_TOOL_BEGIN, .id = "c", .name = "f"},
      {.kind = MLX_EVENT_TOOL_ARGUMENTS, .text = "{}", .length = 2},
      {.kind = MLX_EVENT_TOOL_END},
      {.kind = MLX_EVENT_FINISH, .choice = last, .finish = MLX_FINISH_STOP}};
  mlx_answer_t answer = {.id = "x", .model = "m"};
  mlx_text_t whole = {0}, stream = {0};
  void *writer;
  FUZZ_CHECK(!mlx_api_stream_open(api, call, &answer, &writer, &stream));
  if (api->stream_progress)
    api->stream_progress(writer, &(mlx_api_progress_t){.choice = last, .total = 2, .processed = 1}, &stream);
  for (size_t i = 0; i < sizeof events / sizeof *events; ++i) {
    const bool is_tool = events[i].kind >= MLX_EVENT_TOOL_BEGIN && events[i].kind <= MLX_EVENT_TOOL_END;
    if (is_tool && !has_tools) continue;
    FUZZ_CHECK(!mlx_answer_add(&answer, &events[i]));
    FUZZ_CHECK(!api->stream_event(writer, &events[i], &stream));
  }
  FUZZ_CHECK(!api->stream_close(writer, &answer, &stream));
  mlx_api_stream_free(api, writer);
  FUZZ_CHECK(!api->write(call, &answer, &whole));
  fuzz_check_json(whole.data, whole.length);
  fuzz_check_stream(stream.data);
  mlx_answer_clear(&answer);
  mlx_text_clear(&whole);
  mlx_text_clear(&stream);
}

static inline void fuzz_api(const mlx_api_t *api, const uint8_t *data, size_t size) {
  mlx_api_call_t call;
  FUZZ_CHECK(!mlx_api_call_initialize(&call));
  mlx_status_t status = api->parse((const char *)data, size, "", &call);
  if (!status) {
    fuzz_check_call(&call);
    fuzz_write_answer(api, &call, call.messages);
  } else {
    fuzz_check_refusal(status);
  }
  mlx_status_free(status);
  api->free_details(call.details);
  mlx_api_call_clear(&call);
}

#endif  // MLXCEL_SERVER_API_API_FUZZ_H_
