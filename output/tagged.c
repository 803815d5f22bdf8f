// Tool calls with each argument between tags.
#include <string.h>

#include "base/memory.h"
#include "output/parser_state.h"
#include "output/value.h"

enum { PHASE_NAME, PHASE_NEXT, PHASE_KEY, PHASE_VALUE };

// Fails as the state allows: a call that has begun is cut.
static mlx_call_progress_t give_up(const mlx_output_parser_t *p) {
  return p->call.begun ? MLX_CALL_CUT : MLX_CALL_TEXT;
}

static mlx_call_progress_t wait(const mlx_output_parser_t *p) {
  return p->final ? give_up(p) : MLX_CALL_MORE;
}

// ----------------------------------------------------------------------------------------------------------
// The name

// Finds the end of a name from |from| on. *out_next is the position after it. Returns 1 if it is there, 0 if
// there is none, -1 if more text is needed.
static int find_name_end(const mlx_output_parser_t *p, size_t from, const char *end, size_t *out_end,
                         size_t *out_next) {
  const char *text = mlx_parser_text(p);
  for (size_t at = from; at < mlx_parser_left(p) && at - from <= MLX_MAX_CALL_HEADER; ++at) {
    const int match = end ? mlx_parser_match(p, at, end) : text[at] == '<' || text[at] == '\n';
    if (match < 0) return -1;
    if (match) {
      *out_end = at;
      *out_next = at + (end ? strlen(end) : 0);
      return 1;
    }
    if (end && (text[at] == '\n' || text[at] == '<')) return 0;
  }
  return mlx_parser_left(p) - from <= MLX_MAX_CALL_HEADER && !p->final ? -1 : 0;
}

static mlx_call_progress_t read_name(mlx_output_parser_t *p) {
  const mlx_tool_syntax_t *syntax = p->format->tools;
  size_t at = mlx_parser_skip_space(p, 0), end, next;
  const int section = mlx_parser_match(p, at, syntax->section);
  if (section < 0) return wait(p);
  if (section) at = mlx_parser_skip_space(p, at + strlen(syntax->section));
  const int begin = mlx_parser_match(p, at, syntax->begin);
  if (begin < 0 || (!begin && at == mlx_parser_left(p))) return wait(p);
  if (!begin) return MLX_CALL_TEXT;
  at += strlen(syntax->begin);
  const int found = find_name_end(p, at, syntax->name_end, &end, &next);
  if (found < 0) return wait(p);
  if (!found || !mlx_parser_set_name(p, mlx_parser_text(p) + at, end - at)) return MLX_CALL_TEXT;
  p->call.at = next;
  p->call.phase = PHASE_NEXT;
  return MLX_CALL_DONE;
}

// ----------------------------------------------------------------------------------------------------------
// Arguments

static mlx_status_t end_call(mlx_output_parser_t *p, size_t at, mlx_call_progress_t *out) {
  mlx_open_call_t *call = &p->call;
  mlx_text_puts(&call->arguments, call->count ? "}" : "{}");
  call->at = at;
  *out = MLX_CALL_DONE;
  return mlx_parser_end_call(p);
}

// The next argument, or the end of the call.
static mlx_status_t read_next(mlx_output_parser_t *p, mlx_call_progress_t *out) {
  const mlx_tool_syntax_t *syntax = p->format->tools;
  mlx_open_call_t *call = &p->call;
  const size_t at = mlx_parser_skip_space(p, call->at);
  const int key = mlx_parser_match(p, at, syntax->key_begin), end = mlx_parser_match(p, at, syntax->end),
            section = mlx_parser_match(p, at, syntax->section_end);
  if (end == 1) return end_call(p, at + strlen(syntax->end), out);
  if (section == 1) return end_call(p, at, out);  // the end of the call is missing
  if (key == 1) {
    call->at = at + strlen(syntax->key_begin);
    call->phase = PHASE_KEY;
    *out = MLX_CALL_DONE;
    return p->streams ? mlx_parser_begin_call(p) : NULL;
  }
  if (!p->final && (key < 0 || end < 0 || section < 0 || at == mlx_parser_left(p))) return NULL;
  if (call->count) return end_call(p, call->at, out);
  *out = give_up(p);
  return NULL;
}

// The position where a key ends: at a quote if |key_end| begins with one, as attributes may follow.
static int find_key_end(const mlx_output_parser_t *p, size_t *out_end, size_t *out_next) {
  const mlx_tool_syntax_t *syntax = p->format->tools;
  if (syntax->key_end[0] != '"') return find_name_end(p, p->call.at, syntax->key_end, out_end, out_next);
  const int quote = find_name_end(p, p->call.at, "\"", out_end, out_next);
  if (quote != 1) return quote;
  size_t unused;
  return find_name_end(p, *out_next, ">", &unused, out_next);
}

static mlx_call_progress_t read_key(mlx_output_parser_t *p) {
  const mlx_tool_syntax_t *syntax = p->format->tools;
  mlx_open_call_t *call = &p->call;
  size_t end, next;
  const int found = find_key_end(p, &end, &next);
  if (found < 0) return wait(p);
  if (!found) return give_up(p);
  if (syntax->value_begin) {
    next = mlx_parser_skip_space(p, next);
    const int value = mlx_parser_match(p, next, syntax->value_begin);
    if (value < 0 || (!value && next == mlx_parser_left(p))) return wait(p);
    if (!value) return give_up(p);
    next += strlen(syntax->value_begin);
  }
  if (syntax->value_lines) {  // the line end after the tag is no part of the value
    if (next == mlx_parser_left(p)) return wait(p);
    if (mlx_parser_text(p)[next] == '\n') ++next;
  }
  const char *key = mlx_parser_text(p) + call->at;
  mlx_text_puts(&call->arguments, call->count++ ? ", " : "{");
  mlx_text_json_string(&call->arguments, key, end - call->at);
  mlx_text_puts(&call->arguments, ": ");
  call->is_string =
      mlx_argument_is_string(mlx_argument_schema(mlx_parser_find_tool(p, call->name), key, end - call->at));
  call->value_begun = false;
  memcpy(call->key, key, end - call->at < sizeof call->key ? end - call->at : sizeof call->key);
  call->key_length = end - call->at;
  call->at = next;
  call->phase = PHASE_VALUE;
  return MLX_CALL_DONE;
}

static void put_part(mlx_open_call_t *call, const char *text, size_t length) {
  if (!call->value_begun) mlx_text_puts(&call->arguments, "\"");
  call->value_begun = true;
  mlx_argument_put_part(&call->arguments, text, length);
}

// A part of a string value that is certain: not the line end that may stand before the end tag.
static mlx_status_t send_part(mlx_output_parser_t *p, size_t until) {
  mlx_open_call_t *call = &p->call;
  const char *text = mlx_parser_text(p);
  if (p->format->tools->value_lines && until > call->at && text[until - 1] == '\n') --until;
  if (until <= call->at) return NULL;
  put_part(call, text + call->at, until - call->at);
  call->at = until;
  return mlx_parser_send_arguments(p);
}

static mlx_status_t read_value(mlx_output_parser_t *p, mlx_call_progress_t *out) {
  const mlx_tool_syntax_t *syntax = p->format->tools;
  mlx_open_call_t *call = &p->call;
  const char *tag, *const ends[] = {syntax->value_end};
  const size_t from = call->searched > call->at ? call->searched : call->at;
  const size_t end = mlx_parser_find(p, from, ends, 1, &tag);
  if (!tag) {
    call->searched = end;
    *out = wait(p);
    return call->is_string && p->streams ? send_part(p, end) : NULL;
  }
  const char *text = mlx_parser_text(p);
  size_t until = end;
  if (syntax->value_lines && until > call->at && text[until - 1] == '\n') --until;
  if (call->is_string) {
    put_part(call, text + call->at, until - call->at);
    mlx_text_puts(&call->arguments, "\"");
  } else {
    yyjson_val *function = mlx_parser_find_tool(p, call->name);
    yyjson_val *schema = call->key_length <= sizeof call->key
                             ? mlx_argument_schema(function, call->key, call->key_length)
                             : NULL;
    mlx_argument_put(&call->arguments, schema, text + call->at, until - call->at);
  }
  call->at = end + strlen(tag);
  call->phase = PHASE_NEXT;
  *out = MLX_CALL_DONE;
  return mlx_parser_send_arguments(p);
}

mlx_status_t mlx_parser_read_tagged(mlx_output_parser_t *p, mlx_call_progress_t *out) {
  for (;;) {
    const int phase = p->call.phase;
    *out = MLX_CALL_MORE;
    switch (phase) {
      case PHASE_NAME: *out = read_name(p); break;
      case PHASE_NEXT: MLX_TRY(read_next(p, out)); break;
      case PHASE_KEY: *out = read_key(p); break;
      default: MLX_TRY(read_value(p, out)); break;
    }
    if (*out != MLX_CALL_DONE || (phase == PHASE_NEXT && p->call.phase == PHASE_NEXT)) return NULL;
  }
}
