// The response object and its output items.
#include <stdio.h>
#include <string.h>

#include "server/api/llama_answer.h"
#include "server/api/openai_answer.h"
#include "server/api/openai_responses.h"

const char *mlx_responses_status(mlx_finish_reason_t finish) {
  return finish == MLX_FINISH_LENGTH || finish == MLX_FINISH_CONTEXT ? "incomplete" : "completed";
}

// ----------------------------------------------------------------------------------------------------------
// Items

void mlx_responses_put_item_id(mlx_json_writer_t *json, const char *key, const mlx_answer_t *answer,
                               const mlx_responses_item_t *item) {
  const char *prefix = item->kind == MLX_RESPONSES_REASONING ? "rs"
                       : item->kind == MLX_RESPONSES_MESSAGE ? "msg"
                                                             : "fc";
  mlx_json_put_format(json, key, "%s_%s_%zu", prefix, answer->id, item->index);
}

void mlx_responses_put_list(mlx_json_writer_t *json, const char *key, const char *objects) {
  mlx_json_begin_list(json, key, MLX_JSON_COMPACT);
  if (objects) mlx_json_put_raw(json, NULL, objects, strlen(objects));
  mlx_json_end(json);
}

static bool is_summary(const mlx_api_call_t *call) {
  const mlx_responses_details_t *details = call->details;
  return details->has_summary;
}

void mlx_responses_put_part(mlx_json_writer_t *json, const char *key, const mlx_api_call_t *call,
                            const mlx_responses_item_t *item) {
  const char *type = item->kind == MLX_RESPONSES_MESSAGE ? "output_text"
                     : is_summary(call)                  ? "summary_text"
                                                         : "reasoning_text";
  mlx_json_begin_object(json, key, MLX_JSON_COMPACT);
  mlx_json_put_text(json, "type", type);
  mlx_json_put_bytes(json, "text", item->text, item->length);
  if (item->kind == MLX_RESPONSES_MESSAGE) {
    mlx_responses_put_list(json, "annotations", NULL);
    mlx_responses_put_list(json, "logprobs", item->logprobs);
  }
  mlx_json_end(json);
}

// A list with the part, or an empty list before the part is added.
static void put_parts(mlx_json_writer_t *json, const char *key, const mlx_api_call_t *call,
                      const mlx_responses_item_t *item, bool wanted) {
  mlx_json_begin_list(json, key, MLX_JSON_COMPACT);
  if (wanted && strcmp(item->status, "in_progress")) mlx_responses_put_part(json, NULL, call, item);
  mlx_json_end(json);
}

// The name as the client knows it: that of a function in a namespace is divided again.
static void put_function_name(mlx_json_writer_t *json, const mlx_api_call_t *call, const char *name) {
  const mlx_responses_details_t *details = call->details;
  for (const char *line = details->namespaced.data; line && *line; line = strchr(line, '\n') + 1) {
    const size_t space = strcspn(line, " "), tool = strcspn(line, "\n") - space - 1;
    if (strlen(name) != space + 2 + tool || strncmp(name, line, space) || strncmp(name + space, "__", 2) ||
        strncmp(name + space + 2, line + space + 1, tool))
      continue;
    mlx_json_put_text(json, "name", name + space + 2);
    mlx_json_put_bytes(json, "namespace", line, space);
    return;
  }
  mlx_json_put_text(json, "name", name);
}

void mlx_responses_put_item(mlx_json_writer_t *json, const char *key, const mlx_api_call_t *call,
                            const mlx_answer_t *answer, const mlx_responses_item_t *item) {
  mlx_json_begin_object(json, key, MLX_JSON_COMPACT);
  mlx_responses_put_item_id(json, "id", answer, item);
  switch (item->kind) {
    case MLX_RESPONSES_REASONING:
      mlx_json_put_text(json, "type", "reasoning");
      put_parts(json, "summary", call, item, is_summary(call));
      put_parts(json, "content", call, item, !is_summary(call));
      mlx_json_put_null(json, "encrypted_content");
      break;
    case MLX_RESPONSES_MESSAGE:
      mlx_json_put_text(json, "type", "message");
      mlx_json_put_text(json, "role", "assistant");
      put_parts(json, "content", call, item, true);
      break;
    default:
      mlx_json_put_text(json, "type", "function_call");
      mlx_json_put_text(json, "call_id", item->call_id);
      put_function_name(json, call, item->name);
      mlx_json_put_bytes(json, "arguments", item->text, item->length);
  }
  mlx_json_put_text(json, "status", item->status);
  mlx_json_end(json);
}

// ----------------------------------------------------------------------------------------------------------
// The response

static void put_usage(mlx_json_writer_t *json, const mlx_answer_t *a) {
  mlx_json_begin_object(json, "usage", MLX_JSON_COMPACT);
  mlx_json_put_int(json, "input_tokens", a->prompt_tokens);
  mlx_json_begin_object(json, "input_tokens_details", MLX_JSON_COMPACT);
  mlx_json_put_int(json, "cached_tokens", a->cached_tokens);
  mlx_json_put_int(json, "cache_write_tokens", 0);
  mlx_json_end(json);
  mlx_json_put_int(json, "output_tokens", a->output_tokens);
  mlx_json_begin_object(json, "output_tokens_details", MLX_JSON_COMPACT);
  mlx_json_put_int(json, "reasoning_tokens", a->reasoning_tokens);
  mlx_json_end(json);
  mlx_json_put_int(json, "total_tokens", a->prompt_tokens + a->output_tokens);
  mlx_json_end(json);
}

static void put_error(mlx_json_writer_t *json, const mlx_api_error_t *error) {
  if (!error) {
    mlx_json_put_null(json, "error");
    return;
  }
  const char *code = error->http_status == 429   ? "rate_limit_exceeded"
                     : error->http_status >= 500 ? "server_error"
                                                 : "invalid_prompt";
  mlx_json_begin_object(json, "error", MLX_JSON_COMPACT);
  mlx_json_put_text(json, "code", code);
  mlx_json_put_text(json, "message", error->message);
  mlx_json_end(json);
}

// A value of the request, which is JSON; |fallback| if it was not given.
static void put_given(mlx_json_writer_t *json, const char *key, const char *value, const char *fallback) {
  if (!value) value = fallback;
  mlx_json_put_raw(json, key, value, strlen(value));
}

// What the request asked for.
static void put_request(mlx_json_writer_t *json, const mlx_api_call_t *call) {
  const mlx_responses_details_t *d = call->details;
  put_given(json, "instructions", d->instructions, "null");
  put_given(json, "metadata", d->metadata, "{}");
  if (call->max_tokens >= 0)
    mlx_json_put_int(json, "max_output_tokens", call->max_tokens);
  else
    mlx_json_put_null(json, "max_output_tokens");
  mlx_json_put_bool(json, "parallel_tool_calls", !call->one_tool_call);
  put_given(json, "tools", d->tools, "[]");
  put_given(json, "tool_choice", d->tool_choice, "\"auto\"");
  mlx_json_put_number(json, "temperature", "%.9g", call->sampling.temperature);
  mlx_json_put_number(json, "top_p", "%.9g", call->sampling.top_p);
  mlx_json_put_int(json, "top_logprobs", call->logprobs > 0 ? call->logprobs : 0);
  mlx_json_begin_object(json, "text", MLX_JSON_COMPACT);
  put_given(json, "format", d->text_format, "{\"type\":\"text\"}");
  put_given(json, "verbosity", d->verbosity, "\"medium\"");
  mlx_json_end(json);
  mlx_json_begin_object(json, "reasoning", MLX_JSON_COMPACT);
  put_given(json, "effort", d->effort, "null");
  mlx_json_put_text(json, "summary", d->has_summary ? "detailed" : NULL);
  mlx_json_end(json);
  mlx_json_put_text(json, "truncation", "disabled");
  mlx_json_put_bool(json, "store", d->store);
  mlx_json_put_bool(json, "background", false);
  put_given(json, "previous_response_id", d->previous, "null");
  mlx_json_put_text(json, "service_tier", "default");
  mlx_json_put_null(json, "user");
}

void mlx_responses_put(mlx_json_writer_t *json, const char *key, const mlx_api_call_t *call,
                       const mlx_answer_t *answer, const char *status, const char *items,
                       const mlx_api_error_t *error) {
  const bool is_done = strcmp(status, "in_progress");
  mlx_json_begin_object(json, key, MLX_JSON_COMPACT);
  mlx_json_put_format(json, "id", "resp_%s", answer->id);
  mlx_json_put_text(json, "object", "response");
  mlx_json_put_int(json, "created_at", answer->created);
  mlx_json_put_text(json, "status", status);
  mlx_json_put_text(json, "model", answer->model);
  put_error(json, error);
  if (strcmp(status, "incomplete")) {
    mlx_json_put_null(json, "incomplete_details");
  } else {
    mlx_json_begin_object(json, "incomplete_details", MLX_JSON_COMPACT);
    mlx_json_put_text(json, "reason", "max_output_tokens");
    mlx_json_end(json);
  }
  put_request(json, call);
  mlx_responses_put_list(json, "output", items);
  if (is_done && !error) {
    put_usage(json, answer);
    mlx_llama_put_timings(json, answer);
  } else {
    mlx_json_put_null(json, "usage");
  }
  mlx_json_end(json);
}

mlx_status_t mlx_responses_store(const mlx_api_call_t *call, const mlx_answer_t *answer, const char *status,
                                 const char *items) {
  const mlx_responses_details_t *details = call->details;
  mlx_stored_response_t response = {0};
  mlx_json_writer_t json = {.out = &response.object};
  char id[sizeof answer->id + 8];
  if (!details->store) return NULL;
  snprintf(id, sizeof id, "resp_%s", answer->id);
  mlx_responses_put(&json, NULL, call, answer, status, items, NULL);
  mlx_text_append(&response.input, details->items.data, details->items.length);
  if (items) mlx_text_puts(&response.output, items);
  mlx_status_t made = mlx_text_finish(&response.object);
  if (!made) made = mlx_text_finish(&response.input);
  if (!made) made = mlx_text_finish(&response.output);
  if (!made) return mlx_stored_responses_add(call->stored, id, &response);
  mlx_stored_response_clear(&response);
  return made;
}

// ----------------------------------------------------------------------------------------------------------
// Whole answers

static void add_item(const mlx_api_call_t *call, const mlx_answer_t *answer, mlx_responses_item_t item,
                     size_t *inout_count, mlx_text_t *items) {
  mlx_json_writer_t json = {.out = items};
  if (items->length) mlx_text_puts(items, ",");
  item.index = (*inout_count)++;
  mlx_responses_put_item(&json, NULL, call, answer, &item);
}

static void add_message(const mlx_api_call_t *call, const mlx_answer_t *answer,
                        const mlx_answer_choice_t *choice, const char *status, size_t *inout_count,
                        mlx_text_t *items) {
  mlx_text_t logprobs = {0};
  mlx_json_writer_t json = {.out = &logprobs};
  mlx_responses_item_t item = {MLX_RESPONSES_MESSAGE, 0,    status, choice->text.data,
                               choice->text.length,   NULL, NULL,   NULL};
  if (choice->token_count) {  // the list without its brackets
    mlx_openai_put_logprobs(&json, NULL, choice->tokens, choice->token_count);
    if (logprobs.data && !logprobs.failed) {
      logprobs.data[logprobs.length - 1] = 0;
      item.logprobs = logprobs.data + 1;
    }
  }
  items->failed |= logprobs.failed;
  add_item(call, answer, item, inout_count, items);
  mlx_text_clear(&logprobs);
}

mlx_status_t mlx_responses_write(const mlx_api_call_t *call, const mlx_answer_t *answer, mlx_text_t *out) {
  static const mlx_answer_choice_t empty = {0};
  const mlx_answer_choice_t *choice = answer->choice_count ? answer->choices : &empty;
  const char *status = mlx_responses_status(choice->finish);
  mlx_text_t items = {0};
  mlx_json_writer_t json = {.out = out};
  size_t count = 0;
  if (choice->reasoning.length) {
    const mlx_responses_item_t item = {
        .kind = MLX_RESPONSES_REASONING,
        .status = choice->text.length || choice->tool_count ? "completed" : status,
        .text = choice->reasoning.data,
        .length = choice->reasoning.length};
    add_item(call, answer, item, &count, &items);
  }
  if (choice->text.length)
    add_message(call, answer, choice, choice->tool_count ? "completed" : status, &count, &items);
  for (size_t i = 0; i < choice->tool_count; ++i) {
    const mlx_tool_call_t *tool = &choice->tools[i];
    const mlx_responses_item_t item = {.kind = MLX_RESPONSES_FUNCTION,
                                       .status = i + 1 < choice->tool_count ? "completed" : status,
                                       .text = tool->arguments.data ? tool->arguments.data : "",
                                       .length = tool->arguments.length,
                                       .call_id = tool->id,
                                       .name = tool->name};
    add_item(call, answer, item, &count, &items);
  }
  mlx_responses_put(&json, NULL, call, answer, status, items.data, NULL);
  out->failed |= items.failed;
  mlx_status_t stored = mlx_text_finish(out);
  if (!stored) stored = mlx_responses_store(call, answer, status, items.data);
  mlx_text_clear(&items);
  return stored;
}
