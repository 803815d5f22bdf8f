// What the readers of the output parser share: matching tags and emitting events.
#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "base/memory.h"
#include "output/parser_state.h"

// ----------------------------------------------------------------------------------------------------------
// Matching

int mlx_parser_match(const mlx_output_parser_t *p, size_t at, const char *tag) {
  if (!tag || at > mlx_parser_left(p)) return 0;
  const size_t left = mlx_parser_left(p) - at, size = strlen(tag);
  if (memcmp(mlx_parser_text(p) + at, tag, left < size ? left : size)) return 0;
  return left >= size ? 1 : p->final ? 0 : -1;
}

size_t mlx_parser_skip_space(const mlx_output_parser_t *p, size_t at) {
  while (at < mlx_parser_left(p) && mlx_is_space(mlx_parser_text(p)[at])) ++at;
  return at;
}

size_t mlx_parser_find(const mlx_output_parser_t *p, size_t from, const char *const *tags, size_t count,
                       const char **out_tag) {
  *out_tag = NULL;
  for (size_t at = from; at < mlx_parser_left(p); ++at) {
    bool maybe = false;
    for (size_t i = 0; i < count; ++i) {
      const int match = mlx_parser_match(p, at, tags[i]);
      if (match == 1) {
        *out_tag = tags[i];
        return at;
      }
      maybe |= match < 0;
    }
    if (maybe) return at;
  }
  return mlx_parser_left(p);
}

// ----------------------------------------------------------------------------------------------------------
// Events

static void drop_held(mlx_output_parser_t *p) { mlx_answer_clear(&p->held); }

mlx_status_t mlx_parser_emit_text(mlx_output_parser_t *p, mlx_event_kind_t kind, const char *text,
                                  size_t length) {
  if (!length) return NULL;
  const mlx_answer_choice_t *held = p->held.choice_count ? &p->held.choices[0] : NULL;
  const mlx_event_t event = {.kind = kind,
                             .choice = p->choice,
                             .text = text,
                             .length = length,
                             .tokens = held ? held->tokens : NULL,
                             .token_count = held ? held->token_count : 0};
  p->has_text |= kind == MLX_EVENT_TEXT;
  p->has_reasoning |= kind == MLX_EVENT_REASONING;
  mlx_status_t status = p->on_event(p->user, &event);
  drop_held(p);
  return status;
}

// 9 or 29 characters and a NUL.
static mlx_status_t make_id(bool is_short, char *out) {
  static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
  const size_t prefix = is_short ? 0 : 5, count = is_short ? 9 : 24;
  unsigned char bytes[24];
  if (getrandom(bytes, count, 0) != (ssize_t)count)
    return mlx_error(MLX_IO, "cannot make an id: getrandom failed: %s", strerror(errno));
  memcpy(out, "call_", prefix);
  for (size_t i = 0; i < count; ++i) out[prefix + i] = letters[bytes[i] % (sizeof letters - 1)];
  out[prefix + count] = 0;
  return NULL;
}

mlx_status_t mlx_parser_begin_call(mlx_output_parser_t *p) {
  char id[32];
  if (p->call.begun) return NULL;
  MLX_TRY(make_id(p->format->tools->short_ids, id));
  p->call.begun = true;
  drop_held(p);
  const mlx_event_t event = {.kind = MLX_EVENT_TOOL_BEGIN,
                             .choice = p->choice,
                             .tool = p->tool_count++,
                             .id = id,
                             .name = p->call.name};
  return p->on_event(p->user, &event);
}

mlx_status_t mlx_parser_send_arguments(mlx_output_parser_t *p) {
  mlx_open_call_t *call = &p->call;
  MLX_TRY(mlx_text_finish(&call->arguments));
  if (!call->begun || call->sent == call->arguments.length) return NULL;
  const mlx_event_t event = {.kind = MLX_EVENT_TOOL_ARGUMENTS,
                             .choice = p->choice,
                             .tool = p->tool_count - 1,
                             .text = call->arguments.data + call->sent,
                             .length = call->arguments.length - call->sent};
  call->sent = call->arguments.length;
  return p->on_event(p->user, &event);
}

mlx_status_t mlx_parser_end_call(mlx_output_parser_t *p) {
  MLX_TRY(mlx_parser_begin_call(p));
  MLX_TRY(mlx_parser_send_arguments(p));
  drop_held(p);
  const mlx_event_t event = {.kind = MLX_EVENT_TOOL_END, .choice = p->choice, .tool = p->tool_count - 1};
  return p->on_event(p->user, &event);
}

// ----------------------------------------------------------------------------------------------------------
// Names

bool mlx_parser_set_name(mlx_output_parser_t *p, const char *name, size_t length) {
  while (length && mlx_is_space(*name)) ++name, --length;
  while (length && mlx_is_space(name[length - 1])) --length;
  if (!length || length > MLX_MAX_TOOL_NAME) return false;
  for (size_t i = 0; i < length; ++i) {
    const unsigned char c = (unsigned char)name[i];
    if (c <= ' ' || strchr("<>{}[]()\"'\\`,;", c)) return false;
  }
  memcpy(p->call.name, name, length);
  p->call.name[length] = 0;
  return true;
}

yyjson_val *mlx_parser_find_tool(const mlx_output_parser_t *p, const char *name) {
  yyjson_val *item;
  size_t index, count;
  yyjson_arr_foreach(yyjson_doc_get_root(p->tools), index, count, item) {
    yyjson_val *function = yyjson_obj_get(item, "function");
    if (yyjson_equals_str(yyjson_obj_get(function, "name"), name)) return function;
  }
  return NULL;
}
