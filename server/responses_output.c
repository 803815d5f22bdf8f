// The response object and its output items.
#include <string.h>

#include "server/openai.h"
#include "server/responses.h"

const char *mlx_responses_status(mlx_finish_reason_t finish) {
  return finish == MLX_FINISH_LENGTH || finish == MLX_FINISH_CONTEXT ? "incomplete" : "completed";
}

// ----------------------------------------------------------------------------------------------------------
// Items

void mlx_responses_put_item_id(const mlx_answer_t *answer, const mlx_response_item_t *item, mlx_text_t *out) {
  const char *prefix = item->kind == MLX_RESPONSE_REASONING ? "rs"
                       : item->kind == MLX_RESPONSE_MESSAGE ? "msg"
                                                            : "fc";
  mlx_text_printf(out, "\"%s_%s_%zu\"", prefix, answer->id, item->index);
}

static bool is_summary(const mlx_call_t *call) {
  const mlx_responses_details_t *details = call->details;
  return details->has_summary;
}

void mlx_responses_put_part(const mlx_call_t *call, const mlx_response_item_t *item, mlx_text_t *out) {
  const char *type = item->kind == MLX_RESPONSE_MESSAGE ? "output_text"
                     : is_summary(call)                 ? "summary_text"
                                                        : "reasoning_text";
  mlx_text_printf(out, "{\"type\":\"%s\",\"text\":", type);
  mlx_text_json_string(out, item->text, item->length);
  if (item->kind == MLX_RESPONSE_MESSAGE)
    mlx_text_printf(out, ",\"annotations\":[],\"logprobs\":[%s]", item->logprobs ? item->logprobs : "");
  mlx_text_puts(out, "}");
}

// A list with the part, or an empty list before the part is added.
static void put_parts(const mlx_call_t *call, const mlx_response_item_t *item, bool wanted, mlx_text_t *out) {
  mlx_text_puts(out, "[");
  if (wanted && strcmp(item->status, "in_progress")) mlx_responses_put_part(call, item, out);
  mlx_text_puts(out, "]");
}

void mlx_responses_put_item(const mlx_call_t *call, const mlx_answer_t *answer,
                            const mlx_response_item_t *item, mlx_text_t *out) {
  mlx_text_puts(out, "{\"id\":");
  mlx_responses_put_item_id(answer, item, out);
  switch (item->kind) {
    case MLX_RESPONSE_REASONING:
      mlx_text_puts(out, ",\"type\":\"reasoning\",\"summary\":");
      put_parts(call, item, is_summary(call), out);
      mlx_text_puts(out, ",\"content\":");
      put_parts(call, item, !is_summary(call), out);
      mlx_text_puts(out, ",\"encrypted_content\":null");
      break;
    case MLX_RESPONSE_MESSAGE:
      mlx_text_puts(out, ",\"type\":\"message\",\"role\":\"assistant\",\"content\":");
      put_parts(call, item, true, out);
      break;
    default:
      mlx_text_puts(out, ",\"type\":\"function_call\",\"call_id\":");
      mlx_openai_put_string(item->call_id, out);
      mlx_text_puts(out, ",\"name\":");
      mlx_openai_put_string(item->name, out);
      mlx_text_puts(out, ",\"arguments\":");
      mlx_text_json_string(out, item->text, item->length);
  }
  mlx_text_printf(out, ",\"status\":\"%s\"}", item->status);
}

// ----------------------------------------------------------------------------------------------------------
// The response

static void put_usage(const mlx_answer_t *a, mlx_text_t *out) {
  mlx_text_printf(
      out,
      "{\"input_tokens\":%lld,\"input_tokens_details\":{\"cached_tokens\":%lld,\"cache_write_tokens\":0}"
      ",\"output_tokens\":%lld,\"output_tokens_details\":{\"reasoning_tokens\":%lld}"
      ",\"total_tokens\":%lld}",
      (long long)a->prompt_tokens, (long long)a->cached_tokens, (long long)a->output_tokens,
      (long long)a->reasoning_tokens, (long long)(a->prompt_tokens + a->output_tokens));
}

static void put_error(const mlx_api_error_t *error, mlx_text_t *out) {
  if (!error) {
    mlx_text_puts(out, "null");
    return;
  }
  const char *code = error->http_status == 429   ? "rate_limit_exceeded"
                     : error->http_status >= 500 ? "server_error"
                                                 : "invalid_prompt";
  mlx_text_printf(out, "{\"code\":\"%s\",\"message\":", code);
  mlx_openai_put_string(error->message, out);
  mlx_text_puts(out, "}");
}

static const char *json_or(const char *json, const char *fallback) { return json ? json : fallback; }

// What the request asked for.
static void put_request(const mlx_call_t *call, mlx_text_t *out) {
  const mlx_responses_details_t *d = call->details;
  mlx_text_printf(out, ",\"instructions\":%s,\"metadata\":%s", json_or(d->instructions, "null"),
                  json_or(d->metadata, "{}"));
  if (call->max_tokens >= 0)
    mlx_text_printf(out, ",\"max_output_tokens\":%lld", (long long)call->max_tokens);
  else
    mlx_text_puts(out, ",\"max_output_tokens\":null");
  mlx_text_printf(out, ",\"parallel_tool_calls\":%s,\"tools\":%s,\"tool_choice\":%s",
                  call->one_tool_call ? "false" : "true", json_or(d->tools, "[]"),
                  json_or(d->tool_choice, "\"auto\""));
  mlx_text_puts(out, ",\"temperature\":");
  mlx_text_json_number(out, "%.9g", call->sampling.temperature);
  mlx_text_puts(out, ",\"top_p\":");
  mlx_text_json_number(out, "%.9g", call->sampling.top_p);
  mlx_text_printf(out, ",\"top_logprobs\":%lld", (long long)(call->logprobs > 0 ? call->logprobs : 0));
  mlx_text_printf(out, ",\"text\":{\"format\":%s,\"verbosity\":%s}",
                  json_or(d->text_format, "{\"type\":\"text\"}"), json_or(d->verbosity, "\"medium\""));
  mlx_text_printf(out, ",\"reasoning\":{\"effort\":%s,\"summary\":%s}", json_or(d->effort, "null"),
                  d->has_summary ? "\"detailed\"" : "null");
  mlx_text_puts(out,
                ",\"truncation\":\"disabled\",\"store\":false,\"background\":false"
                ",\"previous_response_id\":null,\"service_tier\":\"default\",\"user\":null");
}

void mlx_responses_put(const mlx_call_t *call, const mlx_answer_t *answer, const char *status,
                       const char *items, const mlx_api_error_t *error, mlx_text_t *out) {
  const bool is_done = strcmp(status, "in_progress");
  mlx_text_printf(
      out, "{\"id\":\"resp_%s\",\"object\":\"response\",\"created_at\":%lld,\"status\":\"%s\",\"model\":",
      answer->id, (long long)answer->created, status);
  mlx_openai_put_string(answer->model, out);
  mlx_text_puts(out, ",\"error\":");
  put_error(error, out);
  mlx_text_printf(out, ",\"incomplete_details\":%s",
                  strcmp(status, "incomplete") ? "null" : "{\"reason\":\"max_output_tokens\"}");
  put_request(call, out);
  mlx_text_puts(out, ",\"output\":[");
  mlx_text_puts(out, items);
  mlx_text_puts(out, "],\"usage\":");
  if (is_done && !error)
    put_usage(answer, out);
  else
    mlx_text_puts(out, "null");
  if (is_done && !error) {
    mlx_text_puts(out, ",\"timings\":");
    mlx_openai_put_timings(answer, out);
  }
  mlx_text_puts(out, "}");
}

// ----------------------------------------------------------------------------------------------------------
// Whole answers

static void add_item(const mlx_call_t *call, const mlx_answer_t *answer, mlx_response_item_t item,
                     size_t *inout_count, mlx_text_t *items) {
  if (items->length) mlx_text_puts(items, ",");
  item.index = (*inout_count)++;
  mlx_responses_put_item(call, answer, &item, items);
}

static void add_message(const mlx_call_t *call, const mlx_answer_t *answer, const mlx_answer_choice_t *choice,
                        const char *status, size_t *inout_count, mlx_text_t *items) {
  mlx_text_t logprobs = {0};
  mlx_response_item_t item = {MLX_RESPONSE_MESSAGE, 0,    status, choice->text.data,
                              choice->text.length,  NULL, NULL,   NULL};
  if (choice->token_count) {  // the list without its brackets
    mlx_openai_put_logprobs(choice->tokens, choice->token_count, &logprobs);
    if (logprobs.data && !logprobs.failed) {
      logprobs.data[logprobs.length - 1] = 0;
      item.logprobs = logprobs.data + 1;
    }
  }
  items->failed |= logprobs.failed;
  add_item(call, answer, item, inout_count, items);
  mlx_text_clear(&logprobs);
}

mlx_status_t mlx_responses_write(const mlx_call_t *call, const mlx_answer_t *answer, mlx_text_t *out) {
  static const mlx_answer_choice_t empty = {0};
  const mlx_answer_choice_t *choice = answer->choice_count ? answer->choices : &empty;
  const char *status = mlx_responses_status(choice->finish);
  mlx_text_t items = {0};
  size_t count = 0;
  if (choice->reasoning.length) {
    const mlx_response_item_t item = {
        .kind = MLX_RESPONSE_REASONING,
        .status = choice->text.length || choice->tool_count ? "completed" : status,
        .text = choice->reasoning.data,
        .length = choice->reasoning.length};
    add_item(call, answer, item, &count, &items);
  }
  if (choice->text.length)
    add_message(call, answer, choice, choice->tool_count ? "completed" : status, &count, &items);
  for (size_t i = 0; i < choice->tool_count; ++i) {
    const mlx_tool_call_t *tool = &choice->tools[i];
    const mlx_response_item_t item = {.kind = MLX_RESPONSE_FUNCTION,
                                      .status = i + 1 < choice->tool_count ? "completed" : status,
                                      .text = tool->arguments.data ? tool->arguments.data : "",
                                      .length = tool->arguments.length,
                                      .call_id = tool->id,
                                      .name = tool->name};
    add_item(call, answer, item, &count, &items);
  }
  mlx_responses_put(call, answer, status, items.data ? items.data : "", NULL, out);
  out->failed |= items.failed;
  mlx_text_clear(&items);
  return mlx_text_finish(out);
}
