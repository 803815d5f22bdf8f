// Anthropic's POST /v1/messages.
#include "server/api_messages.h"

#include <string.h>

#include "base/memory.h"
#include "server/messages_input.h"

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
static mlx_status_t read_format(const mlx_place_t *format, const char *path, mlx_call_t *call) {
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

static mlx_status_t read_output(const mlx_place_t *root, const details_t *details, mlx_call_t *call) {
  const mlx_place_t config = mlx_place_key(root, "output_config"), old = mlx_place_key(root, "output_format");
  const mlx_place_t format = mlx_place_key(&config, "format"),
                    effort_place = mlx_place_key(&config, "effort");
  static const mlx_field_t config_fields[] = {MLX_READ("effort"), MLX_READ("format"),
                                              MLX_REFUSE_VALUE("task_budget", "use max_tokens"),
                                              MLX_FIELDS_END};
  static const char *const efforts[] = {"low", "medium", "high", "xhigh", "max"};
  const char *effort = NULL, *known = NULL, *truth = details->thinking ? "true" : "false";
  mlx_text_t variables = {0};
  if (config.value && !yyjson_is_obj(config.value)) return mlx_field_expected(&config, "an object");
  if (config.value) MLX_TRY(mlx_fields_check(&config, config_fields, false));
  MLX_TRY(read_format(&old, "output_format.schema", call));
  MLX_TRY(read_format(&format, "output_config.format.schema", call));
  if (config.value) MLX_TRY(mlx_field_text(&config, "effort", &effort));
  for (int i = 0; i < 5 && effort; ++i) known = strcmp(effort, efforts[i]) ? known : efforts[i];
  if (effort && !known)
    return mlx_field_error(&effort_place, MLX_INVALID_INPUT, "expected low, medium, high, xhigh or max");
  mlx_text_printf(&variables, "{\"enable_thinking\":%s,\"thinking\":%s", truth, truth);
  if (known) mlx_text_printf(&variables, ",\"reasoning_effort\":\"%s\"", known);
  mlx_text_puts(&variables, "}");
  size_t length;
  mlx_status_t status = mlx_text_take(&variables, &call->variables, &length);
  mlx_text_clear(&variables);
  return status;
}

static mlx_status_t read_fields(const mlx_place_t *root, mlx_call_t *call) {
  details_t *details = call->details;
  MLX_TRY(mlx_field_copy(root, "model", &call->model));
  MLX_TRY(mlx_field_int(root, "max_tokens", 1, INT32_MAX, &call->max_tokens));
  MLX_TRY(mlx_field_bool(root, "stream", &call->stream));
  MLX_TRY(mlx_field_stops(root, "stop_sequences", call));
  MLX_TRY(mlx_field_sampling(root, call));
  MLX_TRY(mlx_messages_read_history(root, call));
  MLX_TRY(mlx_messages_read_tools(root, call));
  MLX_TRY(read_thinking(root, details));
  return read_output(root, details, call);
}

static mlx_status_t read_request(const mlx_place_t *root, mlx_call_t *call) {
  const mlx_place_t limit = mlx_place_key(root, "max_tokens");
  MLX_TRY(mlx_fields_check(root, fields, false));
  if (!limit.value) return mlx_field_error(&limit, MLX_INVALID_INPUT, "missing; it is required");
  return read_fields(root, call);
}

// For counting tokens, max_tokens may be missing.
static mlx_status_t read_count(const mlx_place_t *root, mlx_call_t *call) {
  MLX_TRY(mlx_fields_check(root, fields, false));
  return read_fields(root, call);
}

static mlx_status_t parse(const char *body, size_t length, const char *query, mlx_call_t *call) {
  (void)query;  // beta=true changes nothing
  return mlx_fields_read(body, length, sizeof(details_t), read_request, call);
}

mlx_status_t mlx_messages_parse_count(const char *body, size_t length, const char *query, mlx_call_t *call) {
  (void)query;
  return mlx_fields_read(body, length, sizeof(details_t), read_count, call);
}

void mlx_messages_write_count(int64_t tokens, mlx_text_t *out) {
  mlx_text_printf(out, "{\"input_tokens\":%lld}", (long long)tokens);
}

static void free_details(void *details) { mlx_free(details); }

// ----------------------------------------------------------------------------------------------------------
// Answers

static void put_string(const char *text, size_t length, mlx_text_t *out) {
  mlx_text_json_string(out, text ? text : "", length);
}

static const char *stop_reason(mlx_finish_reason_t finish, bool has_tools) {
  if (finish == MLX_FINISH_LENGTH) return "max_tokens";
  if (finish == MLX_FINISH_CONTEXT) return "model_context_window_exceeded";
  return has_tools ? "tool_use" : "end_turn";
}

// "stop_reason" and "stop_sequence". |stop| is the stop string that ended the text; NULL: none.
static void put_stop(mlx_finish_reason_t finish, bool has_tools, const char *stop, mlx_text_t *out) {
  mlx_text_printf(out, "\"stop_reason\":\"%s\",\"stop_sequence\":",
                  stop ? "stop_sequence" : stop_reason(finish, has_tools));
  if (stop)
    put_string(stop, strlen(stop), out);
  else
    mlx_text_puts(out, "null");
}

static void put_usage(const mlx_answer_t *answer, mlx_text_t *out) {
  mlx_text_printf(out,
                  "{\"input_tokens\":%lld,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":%lld,"
                  "\"output_tokens\":%lld",
                  (long long)(answer->prompt_tokens - answer->cached_tokens),
                  (long long)answer->cached_tokens, (long long)answer->output_tokens);
}

// The beginning of a message, up to its content.
static void put_head(const mlx_answer_t *answer, mlx_text_t *out) {
  mlx_text_printf(out,
                  "{\"id\":\"msg_%s\",\"type\":\"message\",\"role\":\"assistant\",\"model\":", answer->id);
  put_string(answer->model, answer->model ? strlen(answer->model) : 0, out);
}

static void put_tool(const mlx_tool_call_t *tool, mlx_text_t *out) {
  yyjson_doc *doc = yyjson_read(tool->arguments.data ? tool->arguments.data : "", tool->arguments.length, 0);
  mlx_text_puts(out, "{\"type\":\"tool_use\",\"id\":");
  put_string(tool->id, strlen(tool->id), out);
  mlx_text_puts(out, ",\"name\":");
  put_string(tool->name, strlen(tool->name), out);
  mlx_text_puts(out, ",\"input\":");
  if (yyjson_is_obj(yyjson_doc_get_root(doc)))
    mlx_text_append(out, tool->arguments.data, tool->arguments.length);
  else
    mlx_text_puts(out, "{}");
  mlx_text_puts(out, "}");
  yyjson_doc_free(doc);
}

// Clients send the signature back with the block. It is not read.
#define SIGNATURE "mlxcel"

static mlx_status_t write_answer(const mlx_call_t *call, const mlx_answer_t *answer, mlx_text_t *out) {
  static const mlx_answer_choice_t none;
  const mlx_answer_choice_t *choice = answer->choice_count ? &answer->choices[0] : &none;
  const details_t *details = call->details;
  const char *comma = "";
  put_head(answer, out);
  mlx_text_puts(out, ",\"content\":[");
  if (choice->reasoning.length && details->thinking) {
    mlx_text_puts(out, "{\"type\":\"thinking\",\"thinking\":");
    put_string(choice->reasoning.data, choice->reasoning.length, out);
    mlx_text_puts(out, ",\"signature\":\"" SIGNATURE "\"}");
    comma = ",";
  }
  if (choice->text.length) {
    mlx_text_printf(out, "%s{\"type\":\"text\",\"text\":", comma);
    put_string(choice->text.data, choice->text.length, out);
    mlx_text_puts(out, "}");
    comma = ",";
  }
  for (size_t i = 0; i < choice->tool_count; ++i) {
    mlx_text_puts(out, comma);
    put_tool(&choice->tools[i], out);
    comma = ",";
  }
  mlx_text_puts(out, "],");
  put_stop(choice->finish, choice->tool_count, choice->stop, out);
  mlx_text_puts(out, ",\"usage\":");
  put_usage(answer, out);
  mlx_text_puts(out, ",\"service_tier\":\"standard\"}}");
  return mlx_text_finish(out);
}

// ----------------------------------------------------------------------------------------------------------
// Streams

typedef enum block { BLOCK_NONE, BLOCK_TEXT, BLOCK_THINKING, BLOCK_TOOL } block_t;

struct mlx_stream_writer {
  const details_t *details;
  block_t block;
  size_t index;  // of the block
  bool has_tools;
  mlx_finish_reason_t finish;
  const char *stop;  // borrowed from the call
};

static void begin_frame(const char *type, mlx_text_t *out) {
  mlx_text_printf(out, "event: %s\ndata: {\"type\":\"%s\"", type, type);
}

static void end_frame(mlx_text_t *out) { mlx_text_puts(out, "}\n\n"); }

static void begin_delta(const mlx_stream_writer_t *w, const char *type, const char *key, mlx_text_t *out) {
  begin_frame("content_block_delta", out);
  mlx_text_printf(out, ",\"index\":%zu,\"delta\":{\"type\":\"%s\",\"%s\":", w->index, type, key);
}

static void put_delta(const mlx_stream_writer_t *w, const char *type, const char *key, const char *text,
                      size_t length, mlx_text_t *out) {
  begin_delta(w, type, key, out);
  put_string(text, length, out);
  mlx_text_puts(out, "}");
  end_frame(out);
}

static void end_block(mlx_stream_writer_t *w, mlx_text_t *out) {
  if (w->block == BLOCK_NONE) return;
  if (w->block == BLOCK_THINKING)
    put_delta(w, "signature_delta", "signature", SIGNATURE, strlen(SIGNATURE), out);
  begin_frame("content_block_stop", out);
  mlx_text_printf(out, ",\"index\":%zu", w->index++);
  end_frame(out);
  w->block = BLOCK_NONE;
}

// Begins a block, unless the open one is of this kind. |content| is the block's JSON.
static void begin_block(mlx_stream_writer_t *w, block_t block, const char *content, mlx_text_t *out) {
  if (w->block == block && block != BLOCK_TOOL) return;
  end_block(w, out);
  w->block = block;
  begin_frame("content_block_start", out);
  mlx_text_printf(out, ",\"index\":%zu,\"content_block\":%s", w->index, content);
  end_frame(out);
}

static mlx_status_t begin_tool(mlx_stream_writer_t *w, const mlx_event_t *event, mlx_text_t *out) {
  mlx_text_t content = {0};
  mlx_text_puts(&content, "{\"type\":\"tool_use\",\"id\":");
  put_string(event->id, strlen(event->id), &content);
  mlx_text_puts(&content, ",\"name\":");
  put_string(event->name, strlen(event->name), &content);
  mlx_text_puts(&content, ",\"input\":{}}");
  mlx_status_t status = mlx_text_finish(&content);
  if (!status) begin_block(w, BLOCK_TOOL, content.data, out);
  mlx_text_clear(&content);
  w->has_tools = true;
  return status;
}

static mlx_status_t stream_open(const mlx_call_t *call, const mlx_answer_t *answer,
                                mlx_stream_writer_t **out_writer, mlx_text_t *out) {
  mlx_stream_writer_t *w;
  *out_writer = NULL;
  MLX_TRY(mlx_alloc(1, sizeof *w, &w));
  w->details = call->details;
  begin_frame("message_start", out);
  mlx_text_puts(out, ",\"message\":");
  put_head(answer, out);
  mlx_text_puts(out, ",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":");
  put_usage(answer, out);
  mlx_text_puts(out, ",\"service_tier\":\"standard\"}}");
  end_frame(out);
  begin_frame("ping", out);
  end_frame(out);
  *out_writer = w;
  return mlx_text_finish(out);
}

static mlx_status_t stream_event(mlx_stream_writer_t *w, const mlx_event_t *event, mlx_text_t *out) {
  if (event->choice) return NULL;
  switch (event->kind) {
    case MLX_EVENT_TEXT:
      begin_block(w, BLOCK_TEXT, "{\"type\":\"text\",\"text\":\"\"}", out);
      put_delta(w, "text_delta", "text", event->text, event->length, out);
      break;
    case MLX_EVENT_REASONING:
      if (!w->details->thinking) break;
      begin_block(w, BLOCK_THINKING, "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}", out);
      put_delta(w, "thinking_delta", "thinking", event->text, event->length, out);
      break;
    case MLX_EVENT_TOOL_BEGIN: MLX_TRY(begin_tool(w, event, out)); break;
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

static mlx_status_t stream_close(mlx_stream_writer_t *w, const mlx_answer_t *answer, mlx_text_t *out) {
  end_block(w, out);
  begin_frame("message_delta", out);
  mlx_text_puts(out, ",\"delta\":{");
  put_stop(w->finish, w->has_tools, w->stop, out);
  mlx_text_puts(out, "},\"usage\":");
  put_usage(answer, out);
  mlx_text_puts(out, "}");
  end_frame(out);
  begin_frame("message_stop", out);
  end_frame(out);
  return mlx_text_finish(out);
}

static void stream_free(mlx_stream_writer_t *w) { mlx_free(w); }

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

static void put_error(const mlx_api_error_t *error, mlx_text_t *out) {
  mlx_text_printf(
      out, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":", error_type(error->http_status));
  if (error->context) {  // clients look for these words to shorten the conversation
    mlx_text_printf(out, "\"prompt is too long: %lld tokens > %lld maximum\"",
                    (long long)error->prompt_tokens, (long long)error->context);
  } else {
    put_string(error->message, strlen(error->message), out);
  }
  mlx_text_puts(out, "}}");
}

static void stream_error(mlx_stream_writer_t *w, const mlx_api_error_t *error, mlx_text_t *out) {
  (void)w;
  mlx_text_puts(out, "event: error\ndata: ");
  put_error(error, out);
  mlx_text_puts(out, "\n\n");
}

const mlx_shape_t mlx_shape_messages = {.stream_type = "text/event-stream; charset=utf-8",
                                        .fields = fields,
                                        .parse = parse,
                                        .free_details = free_details,
                                        .write = write_answer,
                                        .stream_open = stream_open,
                                        .stream_event = stream_event,
                                        .stream_close = stream_close,
                                        .stream_error = stream_error,
                                        .stream_free = stream_free,
                                        .heartbeat = "event: ping\ndata: {\"type\":\"ping\"}\n\n",
                                        .error = put_error};
