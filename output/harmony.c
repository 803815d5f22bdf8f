// gpt-oss: an answer is a list of messages. Each has a header with a channel and perhaps a recipient:
//   <|channel|>analysis<|message|>reasoning<|end|><|start|>assistant<|channel|>final<|message|>text
//   <|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>
#include <string.h>

#include "base/memory.h"
#include "output/parser_state.h"

enum { BODY_TEXT, BODY_REASONING, BODY_CALL, BODY_AFTER_CALL };

static const char message_tag[] = "<|message|>";
static const char *const ends[] = {"<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>"};
#define END_COUNT 5
#define CONSUMED_ENDS 3  // the others begin the next header

static void consume(mlx_output_parser_t *p, size_t count) { p->begin += count; }

static void begin_body(mlx_output_parser_t *p, int channel) {
  p->channel = channel;
  p->state = channel == BODY_CALL ? MLX_PARSER_CALL : MLX_PARSER_TEXT;
  if (channel == BODY_REASONING) p->state = MLX_PARSER_REASONING;
}

// ----------------------------------------------------------------------------------------------------------
// Headers

// The name after "to=functions." in a header; true if there is one.
static bool find_recipient(mlx_output_parser_t *p, const char *header) {
  static const char mark[] = "to=functions.";
  const char *name = strstr(header, mark);
  if (!name) return false;
  name += strlen(mark);
  return mlx_parser_set_name(p, name, strcspn(name, " \t\r\n<"));
}

static int channel_of(mlx_output_parser_t *p, const char *header) {
  mlx_text_clear(&p->call.arguments);
  p->call = (mlx_open_call_t){0};
  if (p->parses_calls && find_recipient(p, header)) return BODY_CALL;
  const char *channel = strstr(header, "<|channel|>");
  return channel && !strncmp(channel + strlen("<|channel|>"), "analysis", 8) ? BODY_REASONING : BODY_TEXT;
}

// True if a header begins here; sets *out_wait if more text may make one.
static bool header_begins(const mlx_output_parser_t *p, bool *out_wait) {
  static const char *const starts[] = {"<|channel|>", "<|start|>", "<|message|>", " to=", "to="};
  *out_wait = !mlx_parser_left(p) && !p->final;
  for (int i = 0; i < 5; ++i) {
    const int match = mlx_parser_match(p, 0, starts[i]);
    if (match == 1) return true;
    *out_wait |= match < 0;
  }
  return false;
}

mlx_status_t mlx_parser_read_header(mlx_output_parser_t *p, bool *out_moved) {
  const char *tag, *const tags[] = {message_tag};
  char header[MLX_MAX_CALL_HEADER + 1];
  bool wait;
  *out_moved = true;
  if (!header_begins(p, &wait)) {
    if (wait)
      *out_moved = false;
    else
      begin_body(p, BODY_TEXT);
    return NULL;
  }
  const size_t length = mlx_parser_find(p, 0, tags, 1, &tag);
  if (length > MLX_MAX_CALL_HEADER || (!tag && p->final)) {
    const size_t shown = length < mlx_parser_left(p) ? length : mlx_parser_left(p);
    begin_body(p, BODY_TEXT);
    MLX_TRY(mlx_parser_emit_text(p, MLX_EVENT_TEXT, mlx_parser_text(p), shown));
    consume(p, shown);
    return NULL;
  }
  if (!tag) {
    *out_moved = false;
    return NULL;
  }
  memcpy(header, mlx_parser_text(p), length);
  header[length] = 0;
  p->separate = true;
  begin_body(p, channel_of(p, header));
  consume(p, length + strlen(message_tag));
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Bodies

static mlx_status_t emit(mlx_output_parser_t *p, const char *text, size_t length) {
  const bool reasoning = p->channel == BODY_REASONING;
  const mlx_event_kind_t kind = reasoning ? MLX_EVENT_REASONING : MLX_EVENT_TEXT;
  if (!length) return NULL;
  if (p->separate && (reasoning ? p->has_reasoning : p->has_text))
    MLX_TRY(mlx_parser_emit_text(p, kind, "\n\n", 2));
  p->separate = false;
  return mlx_parser_emit_text(p, kind, text, length);
}

// Text up to the end of the message.
static mlx_status_t read_plain(mlx_output_parser_t *p, bool *out_moved) {
  const char *tag;
  const size_t length = mlx_parser_find(p, 0, ends, END_COUNT, &tag);
  MLX_TRY(emit(p, mlx_parser_text(p), length));
  consume(p, length);
  *out_moved = tag || length;
  if (!tag) return NULL;
  bool consumed = false;
  for (int i = 0; i < CONSUMED_ENDS; ++i) consumed |= tag == ends[i];
  if (consumed) consume(p, strlen(tag));
  p->state = MLX_PARSER_HEADER;
  return NULL;
}

static mlx_status_t finish_call(mlx_output_parser_t *p) {
  MLX_TRY(mlx_parser_end_call(p));
  consume(p, p->call.at);
  p->channel = BODY_AFTER_CALL;
  p->state = p->one_call ? MLX_PARSER_DISCARD : MLX_PARSER_TEXT;
  return NULL;
}

static mlx_status_t read_call(mlx_output_parser_t *p, bool *out_moved) {
  mlx_call_progress_t progress;
  *out_moved = true;
  if (!p->call.phase) {
    const char *tag;
    p->call.at = mlx_parser_skip_space(p, 0);
    const size_t end = mlx_parser_find(p, p->call.at, ends, END_COUNT, &tag);
    const bool empty = tag && end == p->call.at;
    if (empty || (p->final && p->call.at == mlx_parser_left(p))) {
      mlx_text_puts(&p->call.arguments, "{}");
      return finish_call(p);
    }
    *out_moved = false;
    if (end == p->call.at && !p->final) return NULL;  // nothing, or the beginning of a tag
    *out_moved = true;
    if (mlx_parser_text(p)[p->call.at] != '{') {
      begin_body(p, BODY_TEXT);
      return NULL;
    }
    p->call.phase = 1;
  }
  MLX_TRY(mlx_parser_read_arguments(p, &progress));
  if (progress == MLX_CALL_MORE) {
    *out_moved = false;
    return NULL;
  }
  if (progress == MLX_CALL_DONE || progress == MLX_CALL_CUT) return finish_call(p);
  begin_body(p, BODY_TEXT);  // malformed: the body is text
  return NULL;
}

mlx_status_t mlx_parser_read_body(mlx_output_parser_t *p, bool *out_moved) {
  if (p->channel == BODY_CALL) return read_call(p, out_moved);
  if (p->channel != BODY_AFTER_CALL) return read_plain(p, out_moved);
  const size_t space = mlx_parser_skip_space(p, 0);
  *out_moved = space > 0;
  consume(p, space);
  if (mlx_parser_left(p)) {
    p->channel = BODY_TEXT;
    *out_moved = true;
  }
  return NULL;
}
