// OpenAI's chat completions, with the fields of llama.cpp and vLLM.
#include <string.h>

#include "base/memory.h"
#include "server/api/llama_answer.h"
#include "server/api/openai_answer.h"
#include "server/api/openai_fields.h"

static const mlx_field_t fields[] = {
    MLX_OPENAI_GENERATION_FIELDS,
    MLX_READ("messages"),
    MLX_READ("max_tokens"),
    MLX_READ("max_completion_tokens"),
    MLX_READ("n_predict"),
    MLX_READ("n"),
    MLX_READ("logprobs"),
    MLX_READ("top_logprobs"),
    MLX_READ("response_format"),
    MLX_READ("tools"),
    MLX_READ("tool_choice"),
    MLX_READ("parallel_tool_calls"),
    MLX_READ("reasoning_effort"),
    MLX_READ("reasoning"),
    MLX_READ("include_reasoning"),
    MLX_READ("reasoning_format"),
    MLX_READ("enable_thinking"),
    MLX_READ("thinking"),
    MLX_READ("verbosity"),
    MLX_READ("chat_template_kwargs"),
    MLX_READ("add_generation_prompt"),
    MLX_READ("continue_final_message"),
    MLX_READ("modalities"),
    MLX_IGNORE("prediction", "it changes the speed only, not the answer"),
    MLX_READ("functions"),
    MLX_READ("function_call"),
    MLX_REFUSE_VALUE("audio", "this server reads and writes text only"),
    MLX_REFUSE_VALUE("web_search_options", "give the model a search tool"),
    MLX_REFUSE_VALUE("moderation", "leave it out"),
    MLX_REFUSE_VALUE("best_of", "use n"),
    MLX_REFUSE_VALUE("echo", "use /v1/completions"),
    MLX_REFUSE_VALUE("add_special_tokens", "the chat template writes the special tokens"),
    MLX_REFUSE_VALUE("chat_template", "start the server with --chat-template"),
    MLX_REFUSE_VALUE("documents", "put them into a message"),
    MLX_FIELDS_END,
};

typedef struct chat_details {
  bool include_usage;   // stream_options.include_usage
  bool hide_reasoning;  // include_reasoning is false
  bool has_functions;   // the older form of tools: the answer has function_call
} chat_details_t;

// ----------------------------------------------------------------------------------------------------------
// Parsing

static mlx_status_t read_logprobs(const mlx_place_t *root, mlx_api_call_t *call) {
  bool wanted = false;
  int64_t top = 0;
  MLX_TRY(mlx_field_bool(root, "logprobs", &wanted));
  MLX_TRY(mlx_field_int(root, "top_logprobs", 0, MLX_MAX_LOGPROBS, &top));
  const mlx_place_t place = mlx_place_key(root, "top_logprobs");
  if (top && !wanted) return mlx_field_error(&place, MLX_INVALID_INPUT, "needs logprobs: true");
  if (wanted) call->logprobs = top;
  return NULL;
}

// OpenRouter's form: {"effort": ..., "enabled": ..., "exclude": ...}.
static mlx_status_t read_reasoning_object(const mlx_place_t *root, mlx_openai_variables_t *variables,
                                          bool *hide) {
  static const mlx_field_t reasoning_fields[] = {
      MLX_READ("effort"),
      MLX_READ("enabled"),
      MLX_READ("exclude"),
      MLX_IGNORE("summary", "reasoning is sent whole"),
      MLX_REFUSE_VALUE("max_tokens", "use effort, or max_tokens of the request"),
      MLX_FIELDS_END};
  const mlx_place_t place = mlx_place_key(root, "reasoning");
  if (!place.value) return NULL;
  MLX_TRY(mlx_fields_check(&place, reasoning_fields, false));
  MLX_TRY(mlx_openai_read_effort(&place, "effort", variables));
  if (mlx_place_key(&place, "enabled").value) {
    bool enabled = true;
    MLX_TRY(mlx_field_bool(&place, "enabled", &enabled));
    variables->enable_thinking = enabled;
  }
  return mlx_field_bool(&place, "exclude", hide);
}

// {"type": "enabled"} or {"type": "disabled"}, as DeepSeek and GLM have it.
static mlx_status_t read_thinking_object(const mlx_place_t *root, mlx_openai_variables_t *variables) {
  static const mlx_field_t thinking_fields[] = {
      MLX_READ("type"), MLX_IGNORE("clear_thinking", "the chat template decides which reasoning it keeps"),
      MLX_REFUSE_VALUE("budget_tokens", "use reasoning_effort, or max_tokens"), MLX_FIELDS_END};
  const mlx_place_t place = mlx_place_key(root, "thinking");
  const char *type = NULL;
  if (!place.value) return NULL;
  MLX_TRY(mlx_fields_check(&place, thinking_fields, false));
  MLX_TRY(mlx_field_text(&place, "type", &type));
  const mlx_place_t type_place = mlx_place_key(&place, "type");
  if (!type || (strcmp(type, "enabled") && strcmp(type, "disabled") && strcmp(type, "auto")))
    return mlx_field_error(&type_place, MLX_INVALID_INPUT, "expected enabled, disabled or auto");
  if (strcmp(type, "auto")) variables->enable_thinking = !strcmp(type, "enabled");
  return NULL;
}

static mlx_status_t read_thinking(const mlx_place_t *root, mlx_api_call_t *call, bool *hide) {
  mlx_openai_variables_t variables = {.enable_thinking = -1};
  bool include = true, enable = true;
  const char *format = "auto";
  MLX_TRY(read_reasoning_object(root, &variables, hide));
  MLX_TRY(read_thinking_object(root, &variables));
  MLX_TRY(mlx_openai_read_effort(root, "reasoning_effort", &variables));
  MLX_TRY(mlx_field_text(root, "verbosity", &variables.verbosity));
  MLX_TRY(mlx_field_bool(root, "enable_thinking", &enable));
  if (mlx_place_key(root, "enable_thinking").value) variables.enable_thinking = enable;
  MLX_TRY(mlx_field_bool(root, "include_reasoning", &include));
  if (!include) *hide = true;
  MLX_TRY(mlx_field_text(root, "reasoning_format", &format));
  if (strcmp(format, "auto") && strcmp(format, "deepseek")) {
    const mlx_place_t place = mlx_place_key(root, "reasoning_format");
    return mlx_status_hint(mlx_field_error(&place, MLX_UNSUPPORTED, "'%.64s' is not supported", format),
                           "use auto or deepseek: reasoning comes as reasoning_content");
  }
  return mlx_openai_put_variables(root, &variables, call);
}

static mlx_status_t read_continuation(const mlx_place_t *root, mlx_api_call_t *call) {
  bool generation_prompt = true;
  const mlx_place_t place = mlx_place_key(root, "add_generation_prompt");
  MLX_TRY(mlx_field_bool(root, "continue_final_message", &call->continue_final));
  MLX_TRY(mlx_field_bool(root, "add_generation_prompt", &generation_prompt));
  if (place.value && generation_prompt && call->continue_final)
    return mlx_field_error(&place, MLX_INVALID_INPUT, "not possible with continue_final_message");
  call->no_generation_prompt = !generation_prompt && !call->continue_final;
  return NULL;
}

static mlx_status_t check_modalities(const mlx_place_t *root) {
  const mlx_place_t place = mlx_place_key(root, "modalities");
  size_t index, max;
  yyjson_val *value;
  if (!place.value) return NULL;
  if (!yyjson_is_arr(place.value)) return mlx_field_expected(&place, "a list");
  yyjson_arr_foreach(place.value, index, max, value) {
    const mlx_place_t item = mlx_place_item(&place, index, value);
    if (!yyjson_equals_str(value, "text"))
      return mlx_field_error(&item, MLX_UNSUPPORTED, "only text is supported");
  }
  return NULL;
}

static mlx_status_t read_tools(const mlx_place_t *root, mlx_api_call_t *call, chat_details_t *details) {
  const mlx_place_t tools = mlx_place_key(root, "tools"), choice = mlx_place_key(root, "tool_choice");
  const mlx_place_t functions = mlx_place_key(root, "functions");
  const mlx_place_t function_call = mlx_place_key(root, "function_call");
  bool parallel = true;
  MLX_TRY(mlx_openai_read_tools(&tools, MLX_TOOL_NESTED, NULL, call));
  MLX_TRY(mlx_openai_read_tool_choice(&choice, MLX_TOOL_NESTED, call));
  MLX_TRY(mlx_field_bool(root, "parallel_tool_calls", &parallel));
  call->one_tool_call = !parallel;
  if (!functions.value && !function_call.value) return NULL;
  if (call->tools || choice.value)
    return mlx_field_error(functions.value ? &functions : &function_call, MLX_INVALID_INPUT,
                           "not possible together with tools");
  MLX_TRY(mlx_openai_read_tools(&functions, MLX_TOOL_FLAT, NULL, call));
  MLX_TRY(mlx_openai_read_function_call(&function_call, call));
  call->one_tool_call = details->has_functions = call->tools != NULL;
  return NULL;
}

static mlx_status_t read_chat(const mlx_place_t *root, mlx_api_call_t *call) {
  chat_details_t *details = call->details;
  static const char *const limits[] = {"max_completion_tokens", "max_tokens", "n_predict", NULL};
  MLX_TRY(mlx_fields_check(root, fields, false));
  MLX_TRY(mlx_openai_read_generation(root, call, &details->include_usage));
  MLX_TRY(mlx_openai_read_max_tokens(root, limits, 1, call));
  MLX_TRY(mlx_field_int(root, "n", 1, MLX_MAX_N, &call->n));
  MLX_TRY(read_logprobs(root, call));
  const mlx_place_t messages = mlx_place_key(root, "messages");
  const mlx_place_t format = mlx_place_key(root, "response_format");
  MLX_TRY(mlx_openai_read_messages(&messages, call));
  MLX_TRY(read_tools(root, call, details));
  MLX_TRY(mlx_openai_read_format(&format, false, call));
  MLX_TRY(read_thinking(root, call, &details->hide_reasoning));
  MLX_TRY(check_modalities(root));
  return read_continuation(root, call);
}

static mlx_status_t parse(const char *body, size_t length, const char *query, mlx_api_call_t *call) {
  (void)query;
  return mlx_fields_read(body, length, sizeof(chat_details_t), read_chat, call);
}

// ----------------------------------------------------------------------------------------------------------
// Whole answers

// The text under both names that clients read.
static void put_reasoning(mlx_json_writer_t *json, const char *text, size_t length) {
  mlx_json_put_bytes(json, "reasoning_content", text, length);
  mlx_json_put_bytes(json, "reasoning", text, length);
}

static void put_logprobs(mlx_json_writer_t *json, const mlx_answer_token_t *tokens, size_t count) {
  mlx_json_begin_object(json, "logprobs", MLX_JSON_COMPACT);
  mlx_openai_put_logprobs(json, "content", tokens, count);
  mlx_json_put_null(json, "refusal");
  mlx_json_end(json);
}

// "tool_calls" becomes "function_call" for a client that sent functions.
static const char *finish_reason(const mlx_api_call_t *call, mlx_finish_reason_t finish, bool has_tools) {
  const char *reason = mlx_openai_finish_reason(finish, has_tools);
  const bool is_call =
      ((const chat_details_t *)call->details)->has_functions && !strcmp(reason, "tool_calls");
  return is_call ? "function_call" : reason;
}

static void put_function_call(mlx_json_writer_t *json, const mlx_tool_call_t *tool) {
  mlx_json_begin_object(json, "function_call", MLX_JSON_COMPACT);
  mlx_json_put_text(json, "name", tool->name);
  mlx_json_put_bytes(json, "arguments", tool->arguments.data ? tool->arguments.data : "",
                     tool->arguments.length);
  mlx_json_end(json);
}

static void put_choice(mlx_json_writer_t *json, const mlx_api_call_t *call, const mlx_answer_choice_t *choice,
                       size_t index) {
  const chat_details_t *details = call->details;
  mlx_json_begin_object(json, NULL, MLX_JSON_COMPACT);
  mlx_json_put_uint(json, "index", index);
  mlx_json_begin_object(json, "message", MLX_JSON_COMPACT);
  mlx_json_put_text(json, "role", "assistant");
  mlx_answer_put_content(json, choice);
  mlx_json_put_null(json, "refusal");
  if (choice->reasoning.length && !details->hide_reasoning)
    put_reasoning(json, choice->reasoning.data, choice->reasoning.length);
  if (choice->tool_count && details->has_functions)
    put_function_call(json, &choice->tools[0]);
  else if (choice->tool_count)
    mlx_answer_put_tool_calls(json, choice);
  mlx_json_end(json);
  if (call->logprobs >= 0)
    put_logprobs(json, choice->tokens, choice->token_count);
  else
    mlx_json_put_null(json, "logprobs");
  mlx_token_fields_put_choice(json, call, choice);
  mlx_json_put_text(json, "finish_reason", finish_reason(call, choice->finish, choice->tool_count));
  mlx_json_end(json);
}

static mlx_status_t write_answer(const mlx_api_call_t *call, const mlx_answer_t *answer, mlx_text_t *out) {
  mlx_json_writer_t json = {.out = out};
  mlx_openai_put_head(&json, answer, "chatcmpl", "chat.completion");
  for (size_t i = 0; i < answer->choice_count; ++i) put_choice(&json, call, &answer->choices[i], i);
  mlx_json_end(&json);
  mlx_token_fields_put_prompt(&json, call, answer->choice_count ? &answer->choices[0] : NULL, 0);
  mlx_openai_put_verbose(&json, call, answer);
  mlx_openai_put_usage_and_timings(&json, answer);
  return mlx_text_finish(out);
}

// ----------------------------------------------------------------------------------------------------------
// Streams

typedef struct choice_state {
  bool has_role, has_tools;
} choice_state_t;

typedef struct chat_stream {
  const mlx_api_call_t *call;
  mlx_openai_chunks_t chunks;
  choice_state_t *choices;  // [chunks.count]
} chat_stream_t;

// Begins a chunk, a choice and its delta.
static void begin_delta(const chat_stream_t *writer, size_t choice, mlx_json_writer_t *json) {
  mlx_openai_begin_chunk(&writer->chunks, json);
  mlx_json_begin_object(json, NULL, MLX_JSON_COMPACT);
  mlx_json_put_uint(json, "index", choice);
  mlx_json_begin_object(json, "delta", MLX_JSON_COMPACT);
}

// |event| is NULL in chunks without tokens.
static void end_delta(const chat_stream_t *writer, const mlx_event_t *event, mlx_json_writer_t *json) {
  mlx_json_end(json);
  if (event && event->token_count)
    put_logprobs(json, event->tokens, event->token_count);
  else
    mlx_json_put_null(json, "logprobs");
  mlx_json_put_null(json, "finish_reason");
  mlx_json_end(json);
  mlx_openai_end_chunk(&writer->chunks, json);
}

static void put_role(const chat_stream_t *writer, size_t choice, mlx_text_t *out) {
  mlx_json_writer_t json = {.out = out};
  if (writer->choices[choice].has_role) return;
  writer->choices[choice].has_role = true;
  begin_delta(writer, choice, &json);
  mlx_json_put_text(&json, "role", "assistant");
  mlx_json_put_text(&json, "content", "");
  end_delta(writer, NULL, &json);
}

static void put_text(const chat_stream_t *writer, const mlx_event_t *event, mlx_text_t *out) {
  const chat_details_t *details = writer->call->details;
  const bool is_reasoning = event->kind == MLX_EVENT_REASONING;
  const bool is_hidden = is_reasoning && details->hide_reasoning;
  mlx_json_writer_t json = {.out = out};
  if ((!event->length || is_hidden) && !event->token_count) return;
  begin_delta(writer, event->choice, &json);
  if (is_reasoning && !is_hidden)
    put_reasoning(&json, event->text, event->length);
  else if (!is_hidden)
    mlx_json_put_bytes(&json, "content", event->text, event->length);
  end_delta(writer, event, &json);
}

// The member "function" of a call, or "function_call".
static void put_function(mlx_json_writer_t *json, const char *key, const mlx_event_t *event) {
  mlx_json_begin_object(json, key, MLX_JSON_COMPACT);
  if (event->kind == MLX_EVENT_TOOL_BEGIN) {
    mlx_json_put_text(json, "name", event->name);
    mlx_json_put_text(json, "arguments", "");
  } else {
    mlx_json_put_bytes(json, "arguments", event->text, event->length);
  }
  mlx_json_end(json);
}

static void put_tool(const chat_stream_t *writer, const mlx_event_t *event, mlx_text_t *out) {
  const chat_details_t *details = writer->call->details;
  mlx_json_writer_t json = {.out = out};
  if (event->kind == MLX_EVENT_TOOL_ARGUMENTS && !event->length) return;
  begin_delta(writer, event->choice, &json);
  if (details->has_functions) {
    put_function(&json, "function_call", event);
    end_delta(writer, NULL, &json);
    return;
  }
  mlx_json_begin_list(&json, "tool_calls", MLX_JSON_COMPACT);
  mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
  mlx_json_put_uint(&json, "index", event->tool);
  if (event->kind == MLX_EVENT_TOOL_BEGIN) {
    mlx_json_put_text(&json, "id", event->id);
    mlx_json_put_text(&json, "type", "function");
  }
  put_function(&json, "function", event);
  mlx_json_end(&json);
  mlx_json_end(&json);
  end_delta(writer, NULL, &json);
}

static mlx_status_t finish_choice(chat_stream_t *writer, const mlx_event_t *event, mlx_text_t *out) {
  const bool has_tools = writer->choices[event->choice].has_tools;
  const mlx_openai_end_t end = {.choice = event->choice,
                                .key = "delta",
                                .content = "{}",
                                .reason = finish_reason(writer->call, event->finish, has_tools),
                                .finish = event->finish,
                                .stop = event->stop,
                                .ids = event->ids,
                                .id_count = event->id_count};
  return mlx_openai_finish_choice(&writer->chunks, &end, out);
}

static void stream_clear(void *stream) {
  chat_stream_t *writer = stream;
  mlx_openai_chunks_clear(&writer->chunks);
  mlx_free(writer->choices);
}

static mlx_status_t stream_open(void *stream, const mlx_api_call_t *call, const mlx_answer_t *answer,
                                mlx_text_t *out) {
  chat_stream_t *writer = stream;
  (void)out;
  const chat_details_t *details = call->details;
  writer->call = call;
  writer->chunks = (mlx_openai_chunks_t){.call = call,
                                         .answer = answer,
                                         .prefix = "chatcmpl",
                                         .object = "chat.completion.chunk",
                                         .include_usage = details->include_usage,
                                         .count = (size_t)call->n};
  return mlx_alloc(writer->chunks.count, sizeof *writer->choices, &writer->choices);
}

static mlx_status_t stream_event(void *stream, const mlx_event_t *event, mlx_text_t *out) {
  chat_stream_t *writer = stream;
  if (event->choice >= writer->chunks.count)
    return mlx_error(MLX_INTERNAL, "there is no choice %zu", event->choice);
  put_role(writer, event->choice, out);
  switch (event->kind) {
    case MLX_EVENT_TEXT:
    case MLX_EVENT_REASONING:
      writer->chunks.has_new_line |= mlx_llama_has_new_line(event->text, event->length);
      put_text(writer, event, out);
      break;
    case MLX_EVENT_TOOL_BEGIN: writer->choices[event->choice].has_tools = true;  // fall through
    case MLX_EVENT_TOOL_ARGUMENTS: put_tool(writer, event, out); break;
    case MLX_EVENT_TOOL_END: break;
    case MLX_EVENT_FINISH: MLX_TRY(finish_choice(writer, event, out)); break;
  }
  return mlx_text_finish(out);
}

static void stream_progress(void *stream, const mlx_api_progress_t *progress, mlx_text_t *out) {
  const chat_stream_t *writer = stream;
  put_role(writer, progress->choice, out);
  mlx_openai_put_progress_chunk(&writer->chunks, "delta", "{}", progress, out);
}

static mlx_status_t stream_close(void *stream, const mlx_answer_t *answer, mlx_text_t *out) {
  chat_stream_t *writer = stream;
  return mlx_openai_close_chunks(&writer->chunks, answer, out);
}

static void stream_error(void *stream, const mlx_api_error_t *error, mlx_text_t *out) {
  (void)stream;
  mlx_openai_put_stream_error(error, out);
}

const mlx_api_t mlx_api_chat = {
    .stream_type = "text/event-stream; charset=utf-8",
    .parse = parse,
    .free_details = mlx_free,
    .write = write_answer,
    .stream_size = sizeof(chat_stream_t),
    .stream_open = stream_open,
    .stream_event = stream_event,
    .stream_progress = stream_progress,
    .stream_close = stream_close,
    .stream_error = stream_error,
    .stream_clear = stream_clear,
    .heartbeat = ": \n\n",
    .error = mlx_openai_put_error,
    .fields = fields,
};
