// The events of a streamed response, in OpenAI's order:
//
//   response.created, response.in_progress
//   for each output item: response.output_item.added, the events of its kind, response.output_item.done
//   response.completed or response.incomplete; response.failed after an error
//
// Each event has its type and the next sequence_number.
#include <string.h>

#include "base/memory.h"
#include "server/openai.h"
#include "server/responses.h"

struct mlx_stream_writer {
  const mlx_call_t *call;
  const mlx_answer_t *answer;
  int64_t sequence;               // number of the next event
  mlx_response_item_kind_t kind;  // of the open item; NONE: no item is open
  size_t index;                   // of the open or the next item
  mlx_text_t text;                // of the open item
  mlx_text_t logprobs;            // of the open message: JSON objects, separated by commas
  char *call_id, *name;           // of the open function call
  mlx_text_t items;               // JSON of the items that are done, separated by commas
  mlx_finish_reason_t finish;
};

static bool is_summary(const mlx_stream_writer_t *writer) {
  const mlx_responses_details_t *details = writer->call->details;
  return writer->kind == MLX_RESPONSE_REASONING && details->has_summary;
}

static mlx_response_item_t open_item(const mlx_stream_writer_t *writer, const char *status) {
  const bool is_done = strcmp(status, "in_progress");
  return (mlx_response_item_t){.kind = writer->kind,
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

static void begin_event(mlx_stream_writer_t *writer, const char *type, mlx_text_t *out) {
  mlx_text_printf(out, "event: %s\ndata: {\"type\":\"%s\",\"sequence_number\":%lld", type, type,
                  (long long)writer->sequence++);
}

static void end_event(mlx_text_t *out) { mlx_text_puts(out, "}\n\n"); }

static void put_response_event(mlx_stream_writer_t *writer, const char *type, const mlx_answer_t *answer,
                               const char *status, const mlx_api_error_t *error, mlx_text_t *out) {
  begin_event(writer, type, out);
  mlx_text_puts(out, ",\"response\":");
  mlx_responses_put(writer->call, answer, status, writer->items.data ? writer->items.data : "", error, out);
  end_event(out);
}

static void put_item_event(mlx_stream_writer_t *writer, const char *type, const char *status,
                           mlx_text_t *out) {
  const mlx_response_item_t item = open_item(writer, status);
  begin_event(writer, type, out);
  mlx_text_printf(out, ",\"output_index\":%zu,\"item\":", writer->index);
  mlx_responses_put_item(writer->call, writer->answer, &item, out);
  end_event(out);
}

// The beginning of an event about the open item, or about its only part.
static void begin_part_event(mlx_stream_writer_t *writer, const char *type, mlx_text_t *out) {
  const mlx_response_item_t item = open_item(writer, "in_progress");
  begin_event(writer, type, out);
  mlx_text_puts(out, ",\"item_id\":");
  mlx_responses_put_item_id(writer->answer, &item, out);
  mlx_text_printf(out, ",\"output_index\":%zu", writer->index);
  if (is_summary(writer))
    mlx_text_puts(out, ",\"summary_index\":0");
  else if (writer->kind != MLX_RESPONSE_FUNCTION)
    mlx_text_puts(out, ",\"content_index\":0");
}

static void put_part_event(mlx_stream_writer_t *writer, const char *type, const char *status,
                           mlx_text_t *out) {
  const mlx_response_item_t item = open_item(writer, status);
  begin_part_event(writer, type, out);
  mlx_text_puts(out, ",\"part\":");
  mlx_responses_put_part(writer->call, &item, out);
  end_event(out);
}

// Types of the events of an item's text.
static const char *delta_type(const mlx_stream_writer_t *writer) {
  if (writer->kind == MLX_RESPONSE_MESSAGE) return "response.output_text.delta";
  if (writer->kind == MLX_RESPONSE_FUNCTION) return "response.function_call_arguments.delta";
  return is_summary(writer) ? "response.reasoning_summary_text.delta" : "response.reasoning_text.delta";
}

static const char *done_type(const mlx_stream_writer_t *writer) {
  if (writer->kind == MLX_RESPONSE_MESSAGE) return "response.output_text.done";
  if (writer->kind == MLX_RESPONSE_FUNCTION) return "response.function_call_arguments.done";
  return is_summary(writer) ? "response.reasoning_summary_text.done" : "response.reasoning_text.done";
}

// ----------------------------------------------------------------------------------------------------------
// Items

static void begin_item(mlx_stream_writer_t *writer, mlx_response_item_kind_t kind, mlx_text_t *out) {
  writer->kind = kind;
  put_item_event(writer, "response.output_item.added", "in_progress", out);
  if (kind == MLX_RESPONSE_FUNCTION) return;
  put_part_event(writer,
                 is_summary(writer) ? "response.reasoning_summary_part.added" : "response.content_part.added",
                 "in_progress", out);
}

static void put_text_done(mlx_stream_writer_t *writer, mlx_text_t *out) {
  const bool is_function = writer->kind == MLX_RESPONSE_FUNCTION;
  begin_part_event(writer, done_type(writer), out);
  if (is_function) {
    mlx_text_puts(out, ",\"name\":");
    mlx_openai_put_string(writer->name, out);
  }
  mlx_text_puts(out, is_function ? ",\"arguments\":" : ",\"text\":");
  mlx_text_json_string(out, writer->text.data ? writer->text.data : "", writer->text.length);
  if (writer->kind == MLX_RESPONSE_MESSAGE)
    mlx_text_printf(out, ",\"logprobs\":[%s]", writer->logprobs.data ? writer->logprobs.data : "");
  end_event(out);
}

static void end_item(mlx_stream_writer_t *writer, const char *status, mlx_text_t *out) {
  if (writer->kind == MLX_RESPONSE_NONE) return;
  put_text_done(writer, out);
  if (writer->kind != MLX_RESPONSE_FUNCTION)
    put_part_event(writer,
                   is_summary(writer) ? "response.reasoning_summary_part.done" : "response.content_part.done",
                   status, out);
  put_item_event(writer, "response.output_item.done", status, out);
  const mlx_response_item_t item = open_item(writer, status);
  if (writer->items.length) mlx_text_puts(&writer->items, ",");
  mlx_responses_put_item(writer->call, writer->answer, &item, &writer->items);
  mlx_text_clear(&writer->text);
  mlx_text_clear(&writer->logprobs);
  mlx_free(writer->call_id);
  mlx_free(writer->name);
  writer->call_id = writer->name = NULL;
  writer->kind = MLX_RESPONSE_NONE;
  ++writer->index;
}

// Appends the event's tokens as JSON objects to the open message, and returns where they begin.
static size_t add_logprobs(mlx_stream_writer_t *writer, const mlx_event_t *event) {
  mlx_text_t list = {0};
  mlx_openai_put_logprobs(event->tokens, event->token_count, &list);
  if (writer->logprobs.length) mlx_text_puts(&writer->logprobs, ",");
  const size_t begin = writer->logprobs.length;
  if (list.length > 2) mlx_text_append(&writer->logprobs, list.data + 1, list.length - 2);
  writer->logprobs.failed |= list.failed;
  mlx_text_clear(&list);
  return begin;
}

static void put_delta(mlx_stream_writer_t *writer, const mlx_event_t *event, mlx_text_t *out) {
  mlx_text_append(&writer->text, event->text, event->length);
  begin_part_event(writer, delta_type(writer), out);
  mlx_text_puts(out, ",\"delta\":");
  mlx_text_json_string(out, event->text, event->length);
  if (writer->kind == MLX_RESPONSE_MESSAGE) {
    const size_t begin = event->token_count ? add_logprobs(writer, event) : 0;
    const char *entries = writer->logprobs.data ? writer->logprobs.data : "";
    mlx_text_printf(out, ",\"logprobs\":[%s]", event->token_count ? entries + begin : "");
  }
  end_event(out);
}

static void put_text(mlx_stream_writer_t *writer, mlx_response_item_kind_t kind, const mlx_event_t *event,
                     mlx_text_t *out) {
  const bool has_tokens = event->token_count && kind == MLX_RESPONSE_MESSAGE;
  if (!event->length && !(has_tokens && writer->kind == kind)) return;
  if (writer->kind != kind) {
    end_item(writer, "completed", out);
    begin_item(writer, kind, out);
  }
  put_delta(writer, event, out);
}

static mlx_status_t begin_function(mlx_stream_writer_t *writer, const mlx_event_t *event, mlx_text_t *out) {
  end_item(writer, "completed", out);
  MLX_TRY(mlx_copy_text(event->id, strlen(event->id), &writer->call_id));
  MLX_TRY(mlx_copy_text(event->name, strlen(event->name), &writer->name));
  begin_item(writer, MLX_RESPONSE_FUNCTION, out);
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// The stream

void mlx_responses_stream_free(mlx_stream_writer_t *writer) {
  if (!writer) return;
  mlx_text_clear(&writer->text);
  mlx_text_clear(&writer->logprobs);
  mlx_text_clear(&writer->items);
  mlx_free(writer->call_id);
  mlx_free(writer->name);
  mlx_free(writer);
}

mlx_status_t mlx_responses_stream_open(const mlx_call_t *call, const mlx_answer_t *answer,
                                       mlx_stream_writer_t **out_writer, mlx_text_t *out) {
  mlx_stream_writer_t *writer;
  *out_writer = NULL;
  MLX_TRY(mlx_alloc(1, sizeof *writer, &writer));
  writer->call = call;
  writer->answer = answer;
  put_response_event(writer, "response.created", answer, "in_progress", NULL, out);
  put_response_event(writer, "response.in_progress", answer, "in_progress", NULL, out);
  *out_writer = writer;
  return mlx_text_finish(out);
}

mlx_status_t mlx_responses_stream_event(mlx_stream_writer_t *writer, const mlx_event_t *event,
                                        mlx_text_t *out) {
  switch (event->kind) {
    case MLX_EVENT_TEXT: put_text(writer, MLX_RESPONSE_MESSAGE, event, out); break;
    case MLX_EVENT_REASONING: put_text(writer, MLX_RESPONSE_REASONING, event, out); break;
    case MLX_EVENT_TOOL_BEGIN: MLX_TRY(begin_function(writer, event, out)); break;
    case MLX_EVENT_TOOL_ARGUMENTS:
      if (writer->kind != MLX_RESPONSE_FUNCTION)
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

mlx_status_t mlx_responses_stream_close(mlx_stream_writer_t *writer, const mlx_answer_t *answer,
                                        mlx_text_t *out) {
  const char *status = mlx_responses_status(writer->finish);
  const bool is_complete = !strcmp(status, "completed");
  put_response_event(writer, is_complete ? "response.completed" : "response.incomplete", answer, status, NULL,
                     out);
  return mlx_text_finish(out);
}

void mlx_responses_stream_error(mlx_stream_writer_t *writer, const mlx_api_error_t *error, mlx_text_t *out) {
  put_response_event(writer, "response.failed", writer->answer, "failed", error, out);
}
