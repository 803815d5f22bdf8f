// Ollama's POST /api/chat and /api/generate.
#include "server/api/ollama.h"

#include <string.h>

#include "base/json_writer.h"
#include "base/memory.h"
#include "server/api/messages.h"
#include "server/api/ollama_text.h"
#include "server/api/openai_answer.h"
#include "server/api/openai_fields.h"
#include "server/api/prompt_fields.h"

// clang-format off
#define SHARED_FIELDS \
  MLX_READ("model"), MLX_READ("stream"), MLX_READ("format"), MLX_READ("options"), MLX_READ("think"), \
      MLX_READ("logprobs"), MLX_READ("top_logprobs"), MLX_READ("parse_special"), \
      MLX_IGNORE("keep_alive", "the server decides when a model is unloaded"), \
      MLX_IGNORE("truncate", "prompts are never truncated"), \
      MLX_IGNORE("shift", "the context is never shifted"), \
      MLX_REFUSE_VALUE("template", "the model's own chat template is used")
// clang-format on

static const mlx_field_t chat_fields[] = {SHARED_FIELDS, MLX_READ("messages"), MLX_READ("tools"),
                                          MLX_FIELDS_END};

static const mlx_field_t generate_fields[] = {
    SHARED_FIELDS,
    MLX_READ("prompt"),
    MLX_READ("system"),
    MLX_READ("raw"),
    MLX_READ("suffix"),
    MLX_REFUSE_VALUE("context", "send the conversation to /api/chat"),
    MLX_REFUSE_VALUE("images", "this server reads text only"),
    MLX_REFUSE_VALUE("width", "this server writes text only"),
    MLX_REFUSE_VALUE("height", "this server writes text only"),
    MLX_REFUSE_VALUE("steps", "this server writes text only"),
    MLX_FIELDS_END};

static const mlx_field_t option_fields[] = {
    MLX_SAMPLING_FIELDS,
    MLX_READ("num_predict"),
    MLX_READ("num_ctx"),
    MLX_READ("stop"),
    MLX_IGNORE("num_keep", "the context is never shifted"),
    MLX_IGNORE("num_batch", "the server chooses it"),
    MLX_IGNORE("num_gpu", "the server chooses the device when it starts"),
    MLX_IGNORE("main_gpu", "the server chooses the device when it starts"),
    MLX_IGNORE("num_thread", "the server chooses it when it starts"),
    MLX_IGNORE("numa", "the server chooses it when it starts"),
    MLX_IGNORE("low_vram", "the server measures the memory"),
    MLX_IGNORE("f16_kv", "the model is compiled for its KV cache"),
    MLX_IGNORE("logits_all", "it does not change the answer"),
    MLX_IGNORE("vocab_only", "it does not change the answer"),
    MLX_IGNORE("embedding_only", "it does not change the answer"),
    MLX_IGNORE("use_mmap", "weights are always mapped"),
    MLX_IGNORE("use_mlock", "the server chooses it when it starts"),
    MLX_IGNORE("penalize_newline", "Ollama ignores it too"),
    MLX_IGNORE("tfs_z", "Ollama ignores it too"),
    MLX_FIELDS_END};

typedef struct details {
  int64_t context;  // options.num_ctx
  bool is_load;     // without a message or with an empty prompt: only loads the model
  bool is_chat;
} details_t;

// ----------------------------------------------------------------------------------------------------------
// Requests

static mlx_status_t read_options(const mlx_place_t *root, mlx_api_call_t *call, details_t *details) {
  const mlx_place_t options = mlx_place_key(root, "options");
  if (!options.value) return NULL;
  MLX_TRY(mlx_fields_check(&options, option_fields, false));
  MLX_TRY(mlx_field_sampling(&options, call));
  MLX_TRY(mlx_field_stops(&options, "stop", call));
  MLX_TRY(mlx_field_int(&options, "num_predict", -2, INT32_MAX, &call->max_tokens));
  if (call->max_tokens <= 0) call->max_tokens = -1;  // -1 and -2: until the context is full
  return mlx_field_int(&options, "num_ctx", 0, INT32_MAX, &details->context);
}

// "json", or a JSON schema.
static mlx_status_t read_format(const mlx_place_t *root, mlx_api_call_t *call) {
  const mlx_place_t format = mlx_place_key(root, "format");
  if (!format.value) return NULL;
  call->format_path = "format";
  if (yyjson_is_obj(format.value)) {
    call->format = MLX_FORMAT_JSON_SCHEMA;
    return mlx_field_json(format.value, &call->format_text, &call->format_length);
  }
  const bool json = yyjson_equals_str(format.value, "json");
  if (!json && !yyjson_equals_str(format.value, ""))
    return mlx_field_expected(&format, "\"json\" or a JSON schema");
  if (json) call->format = MLX_FORMAT_JSON;
  return NULL;
}

// true, false, or how much.
static mlx_status_t read_think(const mlx_place_t *root, mlx_api_call_t *call) {
  static const char *const efforts[] = {"low", "medium", "high", "max"};
  const mlx_place_t think = mlx_place_key(root, "think");
  mlx_text_t variables = {0};
  const char *effort = NULL;
  if (!think.value) return NULL;
  for (int i = 0; i < 4; ++i) effort = yyjson_equals_str(think.value, efforts[i]) ? efforts[i] : effort;
  if (!effort && !yyjson_is_bool(think.value))
    return mlx_field_expected(&think, "a boolean, low, medium, high or max");
  mlx_json_writer_t json = {.out = &variables};
  mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
  mlx_json_put_bool(&json, "enable_thinking", !yyjson_is_false(think.value));
  mlx_json_put_bool(&json, "thinking", !yyjson_is_false(think.value));
  if (effort) mlx_json_put_text(&json, "reasoning_effort", effort);
  mlx_json_end(&json);
  size_t length;
  mlx_status_t status = mlx_text_take(&variables, &call->variables, &length);
  mlx_text_clear(&variables);
  return status;
}

static mlx_status_t read_shared(const mlx_place_t *root, mlx_api_call_t *call, details_t *details) {
  bool logprobs = false;
  int64_t top = 0;
  MLX_TRY(mlx_field_copy(root, "model", &call->model));
  call->stream = true;
  MLX_TRY(mlx_field_bool(root, "stream", &call->stream));
  MLX_TRY(mlx_field_parse_special(root, &call->plain));
  MLX_TRY(mlx_field_bool(root, "logprobs", &logprobs));
  MLX_TRY(mlx_field_int(root, "top_logprobs", 0, MLX_MAX_LOGPROBS, &top));
  if (logprobs) call->logprobs = top;
  MLX_TRY(read_options(root, call, details));
  MLX_TRY(read_format(root, call));
  return read_think(root, call);
}

// Ollama's tool calls have no ids, but templates need them: the n-th result belongs to the n-th call.
typedef struct ids {
  size_t calls, results;
} ids_t;

static mlx_status_t read_calls(const mlx_place_t *calls, ids_t *ids, mlx_message_t *message) {
  yyjson_val *value;
  size_t index, count;
  if (calls->value && !yyjson_is_arr(calls->value)) return mlx_field_expected(calls, "a list of tool calls");
  yyjson_arr_foreach(calls->value, index, count, value) {
    const mlx_place_t call = mlx_place_item(calls, index, value), function = mlx_place_key(&call, "function");
    const mlx_place_t place = mlx_place_key(&function, "name"),
                      arguments = mlx_place_key(&function, "arguments");
    const char *name = NULL, *id = NULL;
    char made[32];
    if (!yyjson_is_obj(function.value))
      return mlx_field_expected(&function, "an object with name and arguments");
    MLX_TRY(mlx_field_text(&function, "name", &name));
    if (!name) return mlx_field_error(&place, MLX_INVALID_INPUT, "missing; expected a string");
    if (arguments.value && !yyjson_is_obj(arguments.value) && !yyjson_is_str(arguments.value))
      return mlx_field_expected(&arguments, "an object");
    MLX_TRY(mlx_field_text(&call, "id", &id));
    snprintf(made, sizeof made, "call%05zu", ids->calls++);
    MLX_TRY(mlx_message_add_tool_call(message, id ? id : made, name, arguments.value));
  }
  return NULL;
}

static mlx_status_t read_message_parts(const mlx_place_t *place, ids_t *ids, mlx_message_t *message) {
  static const mlx_field_t fields[] = {
      MLX_READ("role"),      MLX_READ("content"),
      MLX_READ("thinking"),  MLX_READ("tool_calls"),
      MLX_READ("tool_name"), MLX_READ("tool_call_id"),
      MLX_READ("name"),      MLX_REFUSE_VALUE("images", "this server reads text only"),
      MLX_FIELDS_END};
  const mlx_place_t content = mlx_place_key(place, "content"), calls = mlx_place_key(place, "tool_calls"),
                    role = mlx_place_key(place, "role"), tool = mlx_place_key(place, "tool_name");
  static const char *const roles[] = {"system", "user", "assistant", "tool"};
  const char *thinking = NULL, *known = NULL;
  if (!yyjson_is_obj(place->value)) return mlx_field_expected(place, "an object with role and content");
  MLX_TRY(mlx_fields_check(place, fields, true));
  for (int i = 0; i < 4; ++i) known = yyjson_equals_str(role.value, roles[i]) ? roles[i] : known;
  if (!known) return mlx_field_error(&role, MLX_INVALID_INPUT, "expected system, user, assistant or tool");
  message->role = known;
  MLX_TRY(mlx_message_put_content(&content, &message->content));
  MLX_TRY(mlx_field_text(place, "thinking", &thinking));
  if (thinking) mlx_text_puts(&message->reasoning, thinking);
  MLX_TRY(read_calls(&calls, ids, message));
  MLX_TRY(mlx_field_text(place, "tool_call_id", &message->tool_call_id));
  return tool.value ? mlx_message_add_member(message, "name", 4, tool.value) : NULL;
}

static mlx_status_t read_message(const mlx_place_t *place, ids_t *ids, mlx_text_t *list) {
  mlx_message_t message = {0};
  char made[32];
  mlx_status_t status = read_message_parts(place, ids, &message);
  if (!status && !strcmp(message.role, "tool")) {
    snprintf(made, sizeof made, "call%05zu", ids->results++);
    if (!message.tool_call_id) message.tool_call_id = made;
  }
  if (!status) status = mlx_messages_add(list, &message);
  mlx_message_clear(&message);
  return status;
}

static mlx_status_t read_chat(const mlx_place_t *root, mlx_api_call_t *call) {
  details_t *details = call->details;
  details->is_chat = true;
  const mlx_place_t messages = mlx_place_key(root, "messages"), tools = mlx_place_key(root, "tools");
  mlx_text_t list = {0};
  ids_t ids = {0};
  yyjson_val *value, *last = NULL;
  size_t index, count;
  mlx_status_t status = NULL;
  MLX_TRY(mlx_fields_check(root, chat_fields, false));
  MLX_TRY(read_shared(root, call, details));
  if (messages.value && !yyjson_is_arr(messages.value))
    return mlx_field_expected(&messages, "a list of messages");
  details->is_load = !yyjson_arr_size(messages.value);
  yyjson_arr_foreach(messages.value, index, count, value) {
    const mlx_place_t place = mlx_place_item(&messages, index, value);
    if (!status) status = read_message(&place, &ids, &list);
    last = value;
  }
  if (!status) status = mlx_messages_finish(&list, call);
  mlx_text_clear(&list);
  MLX_TRY(status);
  call->continue_final =
      yyjson_equals_str(mlx_json_find(last, "role"), "assistant") && !mlx_json_find(last, "tool_calls");
  return mlx_openai_read_tools(&tools, MLX_TOOL_NESTED, NULL, call);
}

static mlx_status_t read_prompt(const mlx_place_t *root, mlx_api_call_t *call, details_t *details) {
  const char *keys[] = {"system", "prompt"}, *roles[] = {"system", "user"};
  bool raw = false;
  mlx_text_t list = {0};
  mlx_status_t status = NULL;
  MLX_TRY(mlx_field_bool(root, "raw", &raw));
  const char *prompt = "";
  MLX_TRY(mlx_field_text(root, "prompt", &prompt));
  details->is_load = !*prompt;
  const mlx_place_t suffix = mlx_place_key(root, "suffix"), place = mlx_place_key(root, "prompt");
  const bool fills = yyjson_is_str(suffix.value) && yyjson_get_len(suffix.value);
  if (fills) details->is_load = false;
  if (raw || (fills && place.value)) {
    MLX_TRY(mlx_prompt_fields_read(&place, call));
    return mlx_prompt_fields_read_suffix(root, "suffix", call);
  }
  for (int i = 0; i < 2 && !status; ++i) {
    mlx_message_t message = {.role = roles[i]};
    const char *text = NULL;
    status = mlx_field_text(root, keys[i], &text);
    if (!status && text) {
      mlx_text_puts(&message.content, text);
      status = mlx_messages_add(&list, &message);
    }
    mlx_message_clear(&message);
  }
  if (!status) status = mlx_messages_finish(&list, call);
  mlx_text_clear(&list);
  return status;
}

static mlx_status_t read_generate(const mlx_place_t *root, mlx_api_call_t *call) {
  details_t *details = call->details;
  MLX_TRY(mlx_fields_check(root, generate_fields, false));
  MLX_TRY(read_shared(root, call, details));
  return read_prompt(root, call, details);
}

static mlx_status_t parse_chat(const char *body, size_t length, const char *query, mlx_api_call_t *call) {
  (void)query;
  return mlx_fields_read(body, length, sizeof(details_t), read_chat, call);
}

static mlx_status_t parse_generate(const char *body, size_t length, const char *query, mlx_api_call_t *call) {
  (void)query;
  return mlx_fields_read(body, length, sizeof(details_t), read_generate, call);
}

static void note_context(const mlx_api_call_t *call, int64_t context, mlx_text_t *note) {
  const int64_t wanted = ((const details_t *)call->details)->context;
  if (wanted > context) mlx_text_printf(note, "options.num_ctx to %lld", (long long)context);
}

// ----------------------------------------------------------------------------------------------------------
// Answers

static void begin_object(mlx_json_writer_t *json, const mlx_answer_t *answer) {
  mlx_json_begin_object(json, NULL, MLX_JSON_COMPACT);
  mlx_ollama_put_text(json, "model", answer->model);
  mlx_ollama_put_time(json, "created_at", answer->created);
}

// Text and reasoning. /api/generate has them in the object itself; /api/chat in a message, which stays open.
static void begin_texts(mlx_json_writer_t *json, bool is_chat, const mlx_text_t *text,
                        const mlx_text_t *reasoning) {
  if (is_chat) {
    mlx_json_begin_object(json, "message", MLX_JSON_COMPACT);
    mlx_json_put_text(json, "role", "assistant");
  }
  mlx_json_put_bytes(json, is_chat ? "content" : "response", text->data ? text->data : "", text->length);
  if (reasoning->length) mlx_json_put_bytes(json, "thinking", reasoning->data, reasoning->length);
}

static void end_texts(mlx_json_writer_t *json, bool is_chat) {
  if (is_chat) mlx_json_end(json);
}

// The arguments of a call that was cut off are not an object.
static bool is_whole(const mlx_tool_call_t *tool) {
  yyjson_doc *doc = yyjson_read(tool->arguments.data ? tool->arguments.data : "", tool->arguments.length, 0);
  const bool fine = yyjson_is_obj(yyjson_doc_get_root(doc));
  yyjson_doc_free(doc);
  return fine;
}

static void put_tool(mlx_json_writer_t *json, const mlx_tool_call_t *tool, size_t index) {
  mlx_json_begin_object(json, NULL, MLX_JSON_COMPACT);
  mlx_ollama_put_text(json, "id", tool->id);
  mlx_json_begin_object(json, "function", MLX_JSON_COMPACT);
  mlx_json_put_uint(json, "index", index);
  mlx_ollama_put_text(json, "name", tool->name);
  mlx_json_put_raw(json, "arguments", tool->arguments.data, tool->arguments.length);
  mlx_json_end(json);
  mlx_json_end(json);
}

// The calls that are whole; no member if there is none.
static void put_tools(mlx_json_writer_t *json, const mlx_answer_choice_t *choice) {
  bool any = false;
  for (size_t i = 0; i < choice->tool_count; ++i) {
    if (!is_whole(&choice->tools[i])) continue;
    if (!any) mlx_json_begin_list(json, "tool_calls", MLX_JSON_COMPACT);
    any = true;
    put_tool(json, &choice->tools[i], i);
  }
  if (any) mlx_json_end(json);
}

static void put_logprobs(mlx_json_writer_t *json, const mlx_answer_token_t *tokens, size_t count) {
  if (count) mlx_openai_put_logprobs(json, "logprobs", tokens, count);
}

static const char *done_reason(mlx_finish_reason_t finish) {
  return finish == MLX_FINISH_LENGTH || finish == MLX_FINISH_CONTEXT ? "length" : "stop";
}

static int64_t nanoseconds(double seconds) { return (int64_t)(seconds * 1e9); }

// The members of the last object, and its end.
static void put_done(mlx_json_writer_t *json, const mlx_answer_t *answer, const char *reason) {
  mlx_json_put_bool(json, "done", true);
  mlx_json_put_text(json, "done_reason", reason);
  mlx_json_put_int(json, "total_duration",
                   nanoseconds(answer->queue_seconds + answer->prompt_seconds + answer->decode_seconds));
  mlx_json_put_int(json, "load_duration", nanoseconds(answer->queue_seconds));
  mlx_json_put_int(json, "prompt_eval_count", answer->prompt_tokens);
  mlx_json_put_int(json, "prompt_eval_duration", nanoseconds(answer->prompt_seconds));
  mlx_json_put_int(json, "eval_count", answer->output_tokens);
  mlx_json_put_int(json, "eval_duration", nanoseconds(answer->decode_seconds));
  mlx_json_end(json);
}

static mlx_status_t write_answer(const mlx_api_call_t *call, const mlx_answer_t *answer, mlx_text_t *out) {
  static const mlx_answer_choice_t none;
  const mlx_answer_choice_t *choice = answer->choice_count ? &answer->choices[0] : &none;
  const bool is_chat = ((const details_t *)call->details)->is_chat;
  mlx_json_writer_t json = {.out = out};
  begin_object(&json, answer);
  begin_texts(&json, is_chat, &choice->text, &choice->reasoning);
  if (is_chat) put_tools(&json, choice);
  end_texts(&json, is_chat);
  put_logprobs(&json, choice->tokens, choice->token_count);
  put_done(&json, answer, done_reason(choice->finish));
  return mlx_text_finish(out);
}

// An object without text that ends the answer.
static void put_last(const mlx_answer_t *answer, bool is_chat, const char *reason, mlx_text_t *out) {
  static const mlx_text_t none;
  mlx_json_writer_t json = {.out = out};
  begin_object(&json, answer);
  begin_texts(&json, is_chat, &none, &none);
  end_texts(&json, is_chat);
  put_done(&json, answer, reason);
}

static bool write_load(const mlx_api_call_t *call, const mlx_answer_t *answer, mlx_text_t *out) {
  const details_t *details = call->details;
  if (details->is_load) put_last(answer, details->is_chat, "load", out);
  return details->is_load;
}

// ----------------------------------------------------------------------------------------------------------
// Streams

typedef struct ollama_stream {
  const mlx_answer_t *answer;
  bool is_chat;
  mlx_tool_call_t tool;  // the call that is being collected: Ollama sends calls as a whole
  mlx_finish_reason_t finish;
} ollama_stream_t;

static void clear_tool(mlx_tool_call_t *tool) {
  mlx_free(tool->id);
  mlx_free(tool->name);
  mlx_text_clear(&tool->arguments);
  *tool = (mlx_tool_call_t){0};
}

static mlx_status_t stream_open(void *stream, const mlx_api_call_t *call, const mlx_answer_t *answer,
                                mlx_text_t *out) {
  ollama_stream_t *w = stream;
  (void)out;
  w->answer = answer;
  w->is_chat = ((const details_t *)call->details)->is_chat;
  return NULL;
}

static void end_chunk(mlx_json_writer_t *json) {
  mlx_json_put_bool(json, "done", false);
  mlx_json_end(json);
  mlx_text_puts(json->out, "\n");
}

static void put_chunk(const ollama_stream_t *w, const mlx_event_t *event, mlx_text_t *out) {
  const mlx_text_t text = {.data = (char *)(uintptr_t)event->text, .length = event->length}, none = {0};
  const bool reasons = event->kind == MLX_EVENT_REASONING;
  mlx_json_writer_t json = {.out = out};
  begin_object(&json, w->answer);
  begin_texts(&json, w->is_chat, reasons ? &none : &text, reasons ? &text : &none);
  end_texts(&json, w->is_chat);
  put_logprobs(&json, event->tokens, event->token_count);
  end_chunk(&json);
}

// The call as a chunk; as text if it was cut off.
static void put_call(const ollama_stream_t *w, size_t index, mlx_text_t *out) {
  static const mlx_text_t none;
  const mlx_event_t text = {.kind = MLX_EVENT_TEXT,
                            .text = w->tool.arguments.data ? w->tool.arguments.data : "",
                            .length = w->tool.arguments.length};
  mlx_json_writer_t json = {.out = out};
  if (!w->is_chat || !is_whole(&w->tool)) {
    put_chunk(w, &text, out);
    return;
  }
  begin_object(&json, w->answer);
  begin_texts(&json, true, &none, &none);
  mlx_json_begin_list(&json, "tool_calls", MLX_JSON_COMPACT);
  put_tool(&json, &w->tool, index);
  mlx_json_end(&json);
  end_texts(&json, true);
  end_chunk(&json);
}

static mlx_status_t stream_event(void *stream, const mlx_event_t *event, mlx_text_t *out) {
  ollama_stream_t *w = stream;
  if (event->choice) return NULL;
  switch (event->kind) {
    case MLX_EVENT_TEXT:
    case MLX_EVENT_REASONING: put_chunk(w, event, out); break;
    case MLX_EVENT_TOOL_BEGIN:
      clear_tool(&w->tool);
      MLX_TRY(mlx_copy_text(event->id, strlen(event->id), &w->tool.id));
      MLX_TRY(mlx_copy_text(event->name, strlen(event->name), &w->tool.name));
      break;
    case MLX_EVENT_TOOL_ARGUMENTS: mlx_text_append(&w->tool.arguments, event->text, event->length); break;
    case MLX_EVENT_TOOL_END:
      MLX_TRY(mlx_text_finish(&w->tool.arguments));
      put_call(w, event->tool, out);
      break;
    case MLX_EVENT_FINISH: w->finish = event->finish; break;
  }
  return mlx_text_finish(out);
}

static mlx_status_t stream_close(void *stream, const mlx_answer_t *answer, mlx_text_t *out) {
  const ollama_stream_t *w = stream;
  put_last(answer, w->is_chat, done_reason(w->finish), out);
  mlx_text_puts(out, "\n");
  return mlx_text_finish(out);
}

static void stream_clear(void *stream) { clear_tool(&((ollama_stream_t *)stream)->tool); }

void mlx_ollama_write_error(const mlx_api_error_t *error, mlx_text_t *out) {
  mlx_json_writer_t json = {.out = out};
  mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
  mlx_ollama_put_text(&json, "error", error->message);
  mlx_json_end(&json);
}

static void stream_error(void *stream, const mlx_api_error_t *error, mlx_text_t *out) {
  (void)stream;
  mlx_ollama_write_error(error, out);
  mlx_text_puts(out, "\n");
}

static void free_details(void *details) { mlx_free(details); }

#define API(parser, list)                  \
  {.stream_type = "application/x-ndjson",  \
   .fields = list,                         \
   .parse = parser,                        \
   .free_details = free_details,           \
   .note_context = note_context,           \
   .write_load = write_load,               \
   .write = write_answer,                  \
   .stream_size = sizeof(ollama_stream_t), \
   .stream_open = stream_open,             \
   .stream_event = stream_event,           \
   .stream_close = stream_close,           \
   .stream_error = stream_error,           \
   .stream_clear = stream_clear,           \
   .error = mlx_ollama_write_error}

const mlx_api_t mlx_api_ollama_chat = API(parse_chat, chat_fields);
const mlx_api_t mlx_api_ollama_generate = API(parse_generate, generate_fields);
