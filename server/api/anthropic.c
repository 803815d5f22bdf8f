// Anthropic's POST /v1/messages.
#include "server/api/anthropic.h"

#include <string.h>

#include "base/memory.h"
#include "server/api/anthropic_input.h"

static const mlx_field_t fields[] = {
    MLX_SAMPLING_FIELDS,
    MLX_READ("model"),
    MLX_READ("messages"),
    MLX_READ("system"),
    MLX_READ("max_tokens"),
    MLX_READ("stop_sequences"),
    MLX_READ("stream"),
    MLX_READ("tools"),
    MLX_READ("tool_choice"),
    MLX_READ("thinking"),
    MLX_READ("output_config"),
    MLX_READ("output_format"),
    MLX_READ("parse_special"),
    MLX_IGNORE("cache_control", "equal prefixes are always shared"),
    MLX_IGNORE("metadata", "the server has no accounts"),
    MLX_IGNORE("service_tier", "there is one tier"),
    MLX_IGNORE("speed", "there is one speed"),
    MLX_IGNORE("inference_geo", "the server runs where it is"),
    MLX_IGNORE("context_management", "the context is never edited"),
    MLX_IGNORE("betas", "the fields of betas are read without them"),
    MLX_IGNORE("anthropic_beta", "the fields of betas are read without them"),
    MLX_IGNORE("anthropic_version", "there is one version"),
    MLX_IGNORE("diagnostics", "there are none"),
    MLX_IGNORE("user_profile_id", "the server has no accounts"),
    MLX_IGNORE("workspace_id", "the server has no accounts"),
    MLX_REFUSE_VALUE("container", "the server runs no code"),
    MLX_REFUSE_VALUE("mcp_servers", "connect MCP servers in the client"),
    MLX_REFUSE_VALUE("compaction", "shorten the conversation in the client"),
    MLX_REFUSE_VALUE("fallbacks", "try another model in the client"),
    MLX_REFUSE_VALUE("fallback_credit_token", "the server has no accounts"),
    MLX_REFUSE_VALUE("thread", "nothing is stored: send the whole conversation as messages"),
    MLX_FIELDS_END};

typedef struct details {
  bool thinking;  // thinking blocks are part of the answer
} details_t;

// ----------------------------------------------------------------------------------------------------------
// Requests

// Without "thinking" an answer has no thinking blocks: clients read the text from the first block.
static mlx_status_t read_thinking(const mlx_place_t *root, details_t *details) {
  const mlx_place_t thinking = mlx_place_key(root, "thinking"), place = mlx_place_key(&thinking, "type");
  static const mlx_field_t thinking_fields[] = {MLX_READ("type"), MLX_READ("budget_tokens"),
                                                MLX_IGNORE("display", "the reasoning text is sent as it is"),
                                                MLX_IGNORE("block_binding", "signatures are not checked"),
                                                MLX_FIELDS_END};
  static const char *const on[] = {"enabled", "adaptive", "between_tools"};
  const char *type = NULL;
  int64_t budget;
  if (!thinking.value) return NULL;
  if (!yyjson_is_obj(thinking.value)) return mlx_field_expected(&thinking, "an object with a type");
  MLX_TRY(mlx_fields_check(&thinking, thinking_fields, false));
  MLX_TRY(mlx_field_text(&thinking, "type", &type));
  MLX_TRY(mlx_field_int(&thinking, "budget_tokens", 0, INT64_MAX, &budget));
  for (int i = 0; i < 3 && type; ++i) details->thinking |= !strcmp(type, on[i]);
  if (details->thinking || (type && !strcmp(type, "disabled"))) return NULL;
  return mlx_field_error(&place, MLX_INVALID_INPUT, "expected enabled, adaptive or disabled");
}

// {"type": "json_schema", "schema": {...}}
static mlx_status_t read_format(const mlx_place_t *format, const char *path, mlx_api_call_t *call) {
  const mlx_place_t schema = mlx_place_key(format, "schema"), place = mlx_place_key(format, "type");
  const char *type = "";
  if (!format->value) return NULL;
  if (!yyjson_is_obj(format->value)) return mlx_field_expected(format, "an object with type and schema");
  MLX_TRY(mlx_field_text(format, "type", &type));
  if (strcmp(type, "json_schema")) return mlx_field_error(&place, MLX_UNSUPPORTED, "expected json_schema");
  if (!yyjson_is_obj(schema.value)) return mlx_field_expected(&schema, "a JSON schema");
  mlx_free(call->format_text);
  call->format_text = NULL;
  call->format = MLX_FORMAT_JSON_SCHEMA;
  call->format_path = path;
  return mlx_field_json(schema.value, &call->format_text, &call->format_length);
}

static mlx_status_t read_output(const mlx_place_t *root, const details_t *details, mlx_api_call_t *call) {
  const mlx_place_t config = mlx_place_key(root, "output_config"), old = mlx_place_key(root, "output_format");
  const mlx_place_t format = mlx_place_key(&config, "format"),
                    effort_place = mlx_place_key(&config, "effort");
  static const mlx_field_t config_fields[] = {MLX_READ("effort"), MLX_READ("format"),
                                              MLX_REFUSE_VALUE("task_budget", "use max_tokens"),
                                              MLX_FIELDS_END};
  static const char *const efforts[] = {"low", "medium", "high", "xhigh", "max"};
  const char *effort = NULL, *known = NULL;
  mlx_text_t variables = {0};
  mlx_json_writer_t json = {.out = &variables};
  if (config.value && !yyjson_is_obj(config.value)) return mlx_field_expected(&config, "an object");
  if (config.value) MLX_TRY(mlx_fields_check(&config, config_fields, false));
  MLX_TRY(read_format(&old, "output_format.schema", call));
  MLX_TRY(read_format(&format, "output_config.format.schema", call));
  if (config.value) MLX_TRY(mlx_field_text(&config, "effort", &effort));
  for (int i = 0; i < 5 && effort; ++i) known = strcmp(effort, efforts[i]) ? known : efforts[i];
  if (effort && !known)
    return mlx_field_error(&effort_place, MLX_INVALID_INPUT, "expected low, medium, high, xhigh or max");
  mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
  mlx_json_put_bool(&json, "enable_thinking", details->thinking);
  mlx_json_put_bool(&json, "thinking", details->thinking);
  if (known) mlx_json_put_text(&json, "reasoning_effort", known);
  mlx_json_end(&json);
  size_t length;
  mlx_status_t status = mlx_text_take(&variables, &call->variables, &length);
  mlx_text_clear(&variables);
  return status;
}

static mlx_status_t read_fields(const mlx_place_t *root, mlx_api_call_t *call) {
  details_t *details = call->details;
  MLX_TRY(mlx_field_copy(root, "model", &call->model));
  MLX_TRY(mlx_field_int(root, "max_tokens", 1, INT32_MAX, &call->max_tokens));
  MLX_TRY(mlx_field_bool(root, "stream", &call->stream));
  MLX_TRY(mlx_field_stops(root, "stop_sequences", call));
  MLX_TRY(mlx_field_sampling(root, call));
  MLX_TRY(mlx_field_parse_special(root, &call->plain));
  MLX_TRY(mlx_anthropic_read_history(root, call));
  MLX_TRY(mlx_anthropic_read_tools(root, call));
  MLX_TRY(read_thinking(root, details));
  return read_output(root, details, call);
}

static mlx_status_t read_request(const mlx_place_t *root, mlx_api_call_t *call) {
  const mlx_place_t limit = mlx_place_key(root, "max_tokens");
  MLX_TRY(mlx_fields_check(root, fields, false));
  if (!limit.value) return mlx_field_error(&limit, MLX_INVALID_INPUT, "missing; it is required");
  return read_fields(root, call);
}

// For counting tokens, max_tokens may be missing.
static mlx_status_t read_count(const mlx_place_t *root, mlx_api_call_t *call) {
  MLX_TRY(mlx_fields_check(root, fields, false));
  return read_fields(root, call);
}

static mlx_status_t parse(const char *body, size_t length, const char *query, mlx_api_call_t *call) {
  (void)query;  // beta=true changes nothing
  return mlx_fields_read(body, length, sizeof(details_t), read_request, call);
}

mlx_status_t mlx_anthropic_parse_count(const char *body, size_t length, const char *query,
                                       mlx_api_call_t *call) {
  (void)query;
  return mlx_fields_read(body, length, sizeof(details_t), read_count, call);
}

static void free_details(void *details) { mlx_free(details); }

// ----------------------------------------------------------------------------------------------------------
// Answers

static const char *stop_reason(mlx_finish_reason_t finish, bool has_tools) {
  if (finish == MLX_FINISH_LENGTH) return "max_tokens";
  if (finish == MLX_FINISH_CONTEXT) return "model_context_window_exceeded";
  return has_tools ? "tool_use" : "end_turn";
}

// "stop_reason" and "stop_sequence". |stop| is the stop string that ended the text; NULL: none.
static void put_stop(mlx_json_writer_t *json, mlx_finish_reason_t finish, bool has_tools, const char *stop) {
  mlx_json_put_text(json, "stop_reason", stop ? "stop_sequence" : stop_reason(finish, has_tools));
  mlx_json_put_text(json, "stop_sequence", stop);
}

// The object stays open.
static void begin_usage(mlx_json_writer_t *json, const mlx_answer_t *answer) {
  mlx_json_begin_object(json, "usage", MLX_JSON_COMPACT);
  mlx_json_put_int(json, "input_tokens", answer->prompt_tokens - answer->cached_tokens);
  mlx_json_put_int(json, "cache_creation_input_tokens", 0);
  mlx_json_put_int(json, "cache_read_input_tokens", answer->cached_tokens);
  mlx_json_put_int(json, "output_tokens", answer->output_tokens);
}

static void put_usage_of_message(mlx_json_writer_t *json, const mlx_answer_t *answer) {
  begin_usage(json, answer);
  mlx_json_put_text(json, "service_tier", "standard");
  mlx_json_end(json);
}

// The beginning of a message, up to its content.
static void begin_message(mlx_json_writer_t *json, const char *key, const mlx_answer_t *answer) {
  mlx_json_begin_object(json, key, MLX_JSON_COMPACT);
  mlx_json_put_format(json, "id", "msg_%s", answer->id);
  mlx_json_put_text(json, "type", "message");
  mlx_json_put_text(json, "role", "assistant");
  mlx_json_put_text(json, "model", answer->model ? answer->model : "");
}

// A tool call. |arguments| are JSON.
static void put_tool(mlx_json_writer_t *json, const char *key, const char *id, const char *name,
                     const char *arguments, size_t length) {
  mlx_json_begin_object(json, key, MLX_JSON_COMPACT);
  mlx_json_put_text(json, "type", "tool_use");
  mlx_json_put_text(json, "id", id);
  mlx_json_put_text(json, "name", name);
  mlx_json_put_raw(json, "input", arguments, length);
  mlx_json_end(json);
}

static void put_whole_tool(mlx_json_writer_t *json, const mlx_tool_call_t *tool) {
  yyjson_doc *doc = yyjson_read(tool->arguments.data ? tool->arguments.data : "", tool->arguments.length, 0);
  const bool is_object = yyjson_is_obj(yyjson_doc_get_root(doc));
  put_tool(json, NULL, tool->id, tool->name, is_object ? tool->arguments.data : "{}",
           is_object ? tool->arguments.length : 2);
  yyjson_doc_free(doc);
}

// Clients send the signature back with the block. It is not read.
#define SIGNATURE "mlxcel"

static mlx_status_t write_answer(const mlx_api_call_t *call, const mlx_answer_t *answer, mlx_text_t *out) {
  static const mlx_answer_choice_t none;
  const mlx_answer_choice_t *choice = answer->choice_count ? &answer->choices[0] : &none;
  const details_t *details = call->details;
  mlx_json_writer_t json = {.out = out};
  begin_message(&json, NULL, answer);
  mlx_json_begin_list(&json, "content", MLX_JSON_COMPACT);
  if (choice->reasoning.length && details->thinking) {
    mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
    mlx_json_put_text(&json, "type", "thinking");
    mlx_json_put_bytes(&json, "thinking", choice->reasoning.data, choice->reasoning.length);
    mlx_json_put_text(&json, "signature", SIGNATURE);
    mlx_json_end(&json);
  }
  if (choice->text.length) {
    mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
    mlx_json_put_text(&json, "type", "text");
    mlx_json_put_bytes(&json, "text", choice->text.data, choice->text.length);
    mlx_json_end(&json);
  }
  for (size_t i = 0; i < choice->tool_count; ++i) put_whole_tool(&json, &choice->tools[i]);
  mlx_json_end(&json);
  put_stop(&json, choice->finish, choice->tool_count, choice->stop);
  put_usage_of_message(&json, answer);
  mlx_json_end(&json);
  return mlx_text_finish(out);
}

// ----------------------------------------------------------------------------------------------------------
// Streams

typedef enum block { BLOCK_NONE, BLOCK_TEXT, BLOCK_THINKING, BLOCK_TOOL } block_t;

typedef struct message_stream {
  const details_t *details;
  block_t block;
  size_t index;  // of the block
  bool has_tools;
  mlx_finish_reason_t finish;
  const char *stop;  // borrowed from the call
} message_stream_t;

static mlx_json_writer_t begin_frame(const char *type, mlx_text_t *out) {
  mlx_json_writer_t json = {.out = out};
  mlx_text_printf(out, "event: %s\ndata: ", type);
  mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
  mlx_json_put_text(&json, "type", type);
  return json;
}

static void end_frame(mlx_json_writer_t *json) {
  mlx_json_end(json);
  mlx_text_puts(json->out, "\n\n");
}

static void put_delta(const message_stream_t *w, const char *type, const char *key, const char *text,
                      size_t length, mlx_text_t *out) {
  mlx_json_writer_t json = begin_frame("content_block_delta", out);
  mlx_json_put_uint(&json, "index", w->index);
  mlx_json_begin_object(&json, "delta", MLX_JSON_COMPACT);
  mlx_json_put_text(&json, "type", type);
  mlx_json_put_bytes(&json, key, text, length);
  mlx_json_end(&json);
  end_frame(&json);
}

static void end_block(message_stream_t *w, mlx_text_t *out) {
  if (w->block == BLOCK_NONE) return;
  if (w->block == BLOCK_THINKING)
    put_delta(w, "signature_delta", "signature", SIGNATURE, strlen(SIGNATURE), out);
  mlx_json_writer_t json = begin_frame("content_block_stop", out);
  mlx_json_put_uint(&json, "index", w->index++);
  end_frame(&json);
  w->block = BLOCK_NONE;
}

// Begins a block, unless the open one is of this kind. |event| begins a tool call.
static void begin_block(message_stream_t *w, block_t block, const mlx_event_t *event, mlx_text_t *out) {
  if (w->block == block && block != BLOCK_TOOL) return;
  end_block(w, out);
  w->block = block;
  mlx_json_writer_t json = begin_frame("content_block_start", out);
  mlx_json_put_uint(&json, "index", w->index);
  if (block == BLOCK_TOOL) {
    w->has_tools = true;
    put_tool(&json, "content_block", event->id, event->name, "{}", 2);
  } else {
    const char *type = block == BLOCK_THINKING ? "thinking" : "text";
    mlx_json_begin_object(&json, "content_block", MLX_JSON_COMPACT);
    mlx_json_put_text(&json, "type", type);
    mlx_json_put_text(&json, type, "");
    if (block == BLOCK_THINKING) mlx_json_put_text(&json, "signature", "");
    mlx_json_end(&json);
  }
  end_frame(&json);
}

static mlx_status_t stream_open(void *stream, const mlx_api_call_t *call, const mlx_answer_t *answer,
                                mlx_text_t *out) {
  message_stream_t *w = stream;
  w->details = call->details;
  mlx_json_writer_t json = begin_frame("message_start", out);
  begin_message(&json, "message", answer);
  mlx_json_begin_list(&json, "content", MLX_JSON_COMPACT);
  mlx_json_end(&json);
  mlx_json_put_null(&json, "stop_reason");
  mlx_json_put_null(&json, "stop_sequence");
  put_usage_of_message(&json, answer);
  mlx_json_end(&json);
  end_frame(&json);
  json = begin_frame("ping", out);
  end_frame(&json);
  return mlx_text_finish(out);
}

static mlx_status_t stream_event(void *stream, const mlx_event_t *event, mlx_text_t *out) {
  message_stream_t *w = stream;
  if (event->choice) return NULL;
  switch (event->kind) {
    case MLX_EVENT_TEXT:
      begin_block(w, BLOCK_TEXT, event, out);
      put_delta(w, "text_delta", "text", event->text, event->length, out);
      break;
    case MLX_EVENT_REASONING:
      if (!w->details->thinking) break;
      begin_block(w, BLOCK_THINKING, event, out);
      put_delta(w, "thinking_delta", "thinking", event->text, event->length, out);
      break;
    case MLX_EVENT_TOOL_BEGIN: begin_block(w, BLOCK_TOOL, event, out); break;
    case MLX_EVENT_TOOL_ARGUMENTS:
      put_delta(w, "input_json_delta", "partial_json", event->text, event->length, out);
      break;
    case MLX_EVENT_TOOL_END: end_block(w, out); break;
    case MLX_EVENT_FINISH:
      w->finish = event->finish;
      w->stop = event->stop;
      break;
  }
  return mlx_text_finish(out);
}

static mlx_status_t stream_close(void *stream, const mlx_answer_t *answer, mlx_text_t *out) {
  message_stream_t *w = stream;
  end_block(w, out);
  mlx_json_writer_t json = begin_frame("message_delta", out);
  mlx_json_begin_object(&json, "delta", MLX_JSON_COMPACT);
  put_stop(&json, w->finish, w->has_tools, w->stop);
  mlx_json_end(&json);
  begin_usage(&json, answer);
  mlx_json_end(&json);
  end_frame(&json);
  json = begin_frame("message_stop", out);
  end_frame(&json);
  return mlx_text_finish(out);
}

// ----------------------------------------------------------------------------------------------------------
// Errors

static const char *error_type(int status) {
  switch (status) {
    case 400: return "invalid_request_error";
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 503:
    case 529: return "overloaded_error";
    case 408:
    case 504: return "timeout_error";
    default: return status < 500 ? "invalid_request_error" : "api_error";
  }
}

void mlx_anthropic_write_error(const mlx_api_error_t *error, mlx_text_t *out) {
  mlx_json_writer_t json = {.out = out};
  mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
  mlx_json_put_text(&json, "type", "error");
  mlx_json_begin_object(&json, "error", MLX_JSON_COMPACT);
  mlx_json_put_text(&json, "type", error_type(error->http_status));
  if (error->context)  // clients look for these words to shorten the conversation
    mlx_json_put_format(&json, "message", "prompt is too long: %lld tokens > %lld maximum",
                        (long long)error->prompt_tokens, (long long)error->context);
  else
    mlx_json_put_text(&json, "message", error->message);
  mlx_json_end(&json);
  mlx_json_end(&json);
}

static void stream_error(void *stream, const mlx_api_error_t *error, mlx_text_t *out) {
  (void)stream;
  mlx_text_puts(out, "event: error\ndata: ");
  mlx_anthropic_write_error(error, out);
  mlx_text_puts(out, "\n\n");
}

const mlx_api_t mlx_api_messages = {.stream_type = "text/event-stream; charset=utf-8",
                                    .fields = fields,
                                    .parse = parse,
                                    .free_details = free_details,
                                    .write = write_answer,
                                    .stream_size = sizeof(message_stream_t),
                                    .stream_open = stream_open,
                                    .stream_event = stream_event,
                                    .stream_close = stream_close,
                                    .stream_error = stream_error,
                                    .heartbeat = "event: ping\ndata: {\"type\":\"ping\"}\n\n",
                                    .error = mlx_anthropic_write_error};
