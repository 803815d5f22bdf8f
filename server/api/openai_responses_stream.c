// The events of a streamed response, in OpenAI's order:
//
//   response.created, response.in_progress
//   for each output item: response.output_item.added, the events of its kind, response.output_item.done
//   response.completed or response.incomplete; response.failed after an error
//
// Each event has its type and the next sequence_number.
#include <string.h>

#include "base/memory.h"
#include "server/api/openai_answer.h"
#include "server/api/openai_responses.h"

static bool is_summary(const mlx_responses_stream_t *writer) {
  const mlx_responses_details_t *details = writer->call->details;
  return writer->kind == MLX_RESPONSES_REASONING && details->has_summary;
}

static mlx_responses_item_t open_item(const mlx_responses_stream_t *writer, const char *status) {
  const bool is_done = strcmp(status, "in_progress");
  return (mlx_responses_item_t){.kind = writer->kind,
                                .index = writer->index,
                                .status = status,
                                .text = is_done && writer->text.data ? writer->text.data : "",
                                .length = is_done ? writer->text.length : 0,
                                .call_id = writer->call_id,
                                .name = writer->name,
                                .logprobs = is_done ? writer->logprobs.data : NULL};
}

// ----------------------------------------------------------------------------------------------------------
// Events

static mlx_json_writer_t begin_event(mlx_responses_stream_t *writer, const char *type, mlx_text_t *out) {
  mlx_json_writer_t json = {.out = out};
  mlx_text_printf(out, "event: %s\ndata: ", type);
  mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
  mlx_json_put_text(&json, "type", type);
  mlx_json_put_int(&json, "sequence_number", writer->sequence++);
  return json;
}

static void end_event(mlx_json_writer_t *json) {
  mlx_json_end(json);
  mlx_text_puts(json->out, "\n\n");
}

static void put_response_event(mlx_responses_stream_t *writer, const char *type, const mlx_answer_t *answer,
                               const char *status, const mlx_api_error_t *error, mlx_text_t *out) {
  mlx_json_writer_t json = begin_event(writer, type, out);
  mlx_responses_put(&json, "response", writer->call, answer, status, writer->items.data, error);
  end_event(&json);
}

static void put_item_event(mlx_responses_stream_t *writer, const char *type, const char *status,
                           mlx_text_t *out) {
  const mlx_responses_item_t item = open_item(writer, status);
  mlx_json_writer_t json = begin_event(writer, type, out);
  mlx_json_put_uint(&json, "output_index", writer->index);
  mlx_responses_put_item(&json, "item", writer->call, writer->answer, &item);
  end_event(&json);
}

// The beginning of an event about the open item, or about its only part.
static mlx_json_writer_t begin_part_event(mlx_responses_stream_t *writer, const char *type, mlx_text_t *out) {
  const mlx_responses_item_t item = open_item(writer, "in_progress");
  mlx_json_writer_t json = begin_event(writer, type, out);
  mlx_responses_put_item_id(&json, "item_id", writer->answer, &item);
  mlx_json_put_uint(&json, "output_index", writer->index);
  if (is_summary(writer))
    mlx_json_put_int(&json, "summary_index", 0);
  else if (writer->kind != MLX_RESPONSES_FUNCTION)
    mlx_json_put_int(&json, "content_index", 0);
  return json;
}

static void put_part_event(mlx_responses_stream_t *writer, const char *type, const char *status,
                           mlx_text_t *out) {
  const mlx_responses_item_t item = open_item(writer, status);
  mlx_json_writer_t json = begin_part_event(writer, type, out);
  mlx_responses_put_part(&json, "part", writer->call, &item);
  end_event(&json);
}

// Types of the events of an item's text.
static const char *delta_type(const mlx_responses_stream_t *writer) {
  if (writer->kind == MLX_RESPONSES_MESSAGE) return "response.output_text.delta";
  if (writer->kind == MLX_RESPONSES_FUNCTION) return "response.function_call_arguments.delta";
  return is_summary(writer) ? "response.reasoning_summary_text.delta" : "response.reasoning_text.delta";
}

static const char *done_type(const mlx_responses_stream_t *writer) {
  if (writer->kind == MLX_RESPONSES_MESSAGE) return "response.output_text.done";
  if (writer->kind == MLX_RESPONSES_FUNCTION) return "response.function_call_arguments.done";
  return is_summary(writer) ? "response.reasoning_summary_text.done" : "response.reasoning_text.done";
}

// ----------------------------------------------------------------------------------------------------------
// Items

static void begin_item(mlx_responses_stream_t *writer, mlx_responses_item_kind_t kind, mlx_text_t *out) {
  writer->kind = kind;
  put_item_event(writer, "response.output_item.added", "in_progress", out);
  if (kind == MLX_RESPONSES_FUNCTION) return;
  put_part_event(writer,
                 is_summary(writer) ? "response.reasoning_summary_part.added" : "response.content_part.added",
                 "in_progress", out);
}

static void put_text_done(mlx_responses_stream_t *writer, mlx_text_t *out) {
  const bool is_function = writer->kind == MLX_RESPONSES_FUNCTION;
  mlx_json_writer_t json = begin_part_event(writer, done_type(writer), out);
  if (is_function) mlx_json_put_text(&json, "name", writer->name);
  mlx_json_put_bytes(&json, is_function ? "arguments" : "text", writer->text.data ? writer->text.data : "",
                     writer->text.length);
  if (writer->kind == MLX_RESPONSES_MESSAGE) mlx_responses_put_list(&json, "logprobs", writer->logprobs.data);
  end_event(&json);
}

static void end_item(mlx_responses_stream_t *writer, const char *status, mlx_text_t *out) {
  if (writer->kind == MLX_RESPONSES_NONE) return;
  put_text_done(writer, out);
  if (writer->kind != MLX_RESPONSES_FUNCTION)
    put_part_event(writer,
                   is_summary(writer) ? "response.reasoning_summary_part.done" : "response.content_part.done",
                   status, out);
  put_item_event(writer, "response.output_item.done", status, out);
  const mlx_responses_item_t item = open_item(writer, status);
  mlx_json_writer_t json = {.out = &writer->items};
  if (writer->items.length) mlx_text_puts(&writer->items, ",");
  mlx_responses_put_item(&json, NULL, writer->call, writer->answer, &item);
  mlx_text_clear(&writer->text);
  mlx_text_clear(&writer->logprobs);
  mlx_free(writer->call_id);
  mlx_free(writer->name);
  writer->call_id = writer->name = NULL;
  writer->kind = MLX_RESPONSES_NONE;
  ++writer->index;
}

// Appends the event's tokens as JSON objects to the open message, and returns where they begin.
static size_t add_logprobs(mlx_responses_stream_t *writer, const mlx_event_t *event) {
  mlx_text_t list = {0};
  mlx_json_writer_t json = {.out = &list};
  mlx_openai_put_logprobs(&json, NULL, event->tokens, event->token_count);
  if (writer->logprobs.length) mlx_text_puts(&writer->logprobs, ",");
  const size_t begin = writer->logprobs.length;
  if (list.length > 2) mlx_text_append(&writer->logprobs, list.data + 1, list.length - 2);
  writer->logprobs.failed |= list.failed;
  mlx_text_clear(&list);
  return begin;
}

static void put_delta(mlx_responses_stream_t *writer, const mlx_event_t *event, mlx_text_t *out) {
  mlx_text_append(&writer->text, event->text, event->length);
  mlx_json_writer_t json = begin_part_event(writer, delta_type(writer), out);
  mlx_json_put_bytes(&json, "delta", event->text, event->length);
  if (writer->kind == MLX_RESPONSES_MESSAGE) {
    const size_t begin = event->token_count ? add_logprobs(writer, event) : 0;
    const char *entries = writer->logprobs.data;
    mlx_responses_put_list(&json, "logprobs", event->token_count && entries ? entries + begin : NULL);
  }
  end_event(&json);
}

static void put_text(mlx_responses_stream_t *writer, mlx_responses_item_kind_t kind, const mlx_event_t *event,
                     mlx_text_t *out) {
  const bool has_tokens = event->token_count && kind == MLX_RESPONSES_MESSAGE;
  if (!event->length && !(has_tokens && writer->kind == kind)) return;
  if (writer->kind != kind) {
    end_item(writer, "completed", out);
    begin_item(writer, kind, out);
  }
  put_delta(writer, event, out);
}

static mlx_status_t begin_function(mlx_responses_stream_t *writer, const mlx_event_t *event,
                                   mlx_text_t *out) {
  end_item(writer, "completed", out);
  MLX_TRY(mlx_copy_text(event->id, strlen(event->id), &writer->call_id));
  MLX_TRY(mlx_copy_text(event->name, strlen(event->name), &writer->name));
  begin_item(writer, MLX_RESPONSES_FUNCTION, out);
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// The stream

void mlx_responses_stream_clear(void *stream) {
  mlx_responses_stream_t *writer = stream;
  mlx_text_clear(&writer->text);
  mlx_text_clear(&writer->logprobs);
  mlx_text_clear(&writer->items);
  mlx_free(writer->call_id);
  mlx_free(writer->name);
}

mlx_status_t mlx_responses_stream_open(void *stream, const mlx_api_call_t *call, const mlx_answer_t *answer,
                                       mlx_text_t *out) {
  mlx_responses_stream_t *writer = stream;
  writer->call = call;
  writer->answer = answer;
  put_response_event(writer, "response.created", answer, "in_progress", NULL, out);
  put_response_event(writer, "response.in_progress", answer, "in_progress", NULL, out);
  return mlx_text_finish(out);
}

mlx_status_t mlx_responses_stream_event(void *stream, const mlx_event_t *event, mlx_text_t *out) {
  mlx_responses_stream_t *writer = stream;
  switch (event->kind) {
    case MLX_EVENT_TEXT: put_text(writer, MLX_RESPONSES_MESSAGE, event, out); break;
    case MLX_EVENT_REASONING: put_text(writer, MLX_RESPONSES_REASONING, event, out); break;
    case MLX_EVENT_TOOL_BEGIN: MLX_TRY(begin_function(writer, event, out)); break;
    case MLX_EVENT_TOOL_ARGUMENTS:
      if (writer->kind != MLX_RESPONSES_FUNCTION)
        return mlx_error(MLX_INTERNAL, "arguments before the beginning of a tool call");
      if (event->length) put_delta(writer, event, out);
      break;
    case MLX_EVENT_TOOL_END: break;  // the next event ends the item: FINISH says whether it was cut off
    case MLX_EVENT_FINISH:
      writer->finish = event->finish;
      end_item(writer, mlx_responses_status(event->finish), out);
      break;
  }
  MLX_TRY(mlx_text_finish(&writer->text));
  MLX_TRY(mlx_text_finish(&writer->logprobs));
  MLX_TRY(mlx_text_finish(&writer->items));
  return mlx_text_finish(out);
}

mlx_status_t mlx_responses_stream_close(void *stream, const mlx_answer_t *answer, mlx_text_t *out) {
  mlx_responses_stream_t *writer = stream;
  const char *status = mlx_responses_status(writer->finish);
  const bool is_complete = !strcmp(status, "completed");
  put_response_event(writer, is_complete ? "response.completed" : "response.incomplete", answer, status, NULL,
                     out);
  MLX_TRY(mlx_text_finish(out));
  return mlx_responses_store(writer->call, answer, status, writer->items.data);
}

void mlx_responses_stream_error(void *stream, const mlx_api_error_t *error, mlx_text_t *out) {
  mlx_responses_stream_t *writer = stream;
  put_response_event(writer, "response.failed", writer->answer, "failed", error, out);
}
