// The output parser: reasoning, text, and where tool calls begin and end.
#include "output/parser_state.h"

#include <string.h>

#include "base/memory.h"

#define MAX_TAGS 8

// ----------------------------------------------------------------------------------------------------------
// Creating

static mlx_status_t fill(mlx_output_parser_t *p, const mlx_output_options_t *options, const char *prompt,
                         size_t length) {
  p->parses_calls = options->tools && options->tool_choice != MLX_TOOLS_NONE;
  p->streams = options->stream;
  p->one_call = options->one_tool_call;
  if (options->tools) {
    p->tools = yyjson_read(options->tools, options->tools_length, 0);
    if (!p->tools) return mlx_error(MLX_INVALID_INPUT, "tools: not JSON");
  }
  if (p->format->tools->kind == MLX_SYNTAX_HARMONY) {
    static const char message[] = "<|message|>", analysis[] = "<|channel|>analysis<|message|>";
    const size_t m = strlen(message), a = strlen(analysis);
    p->state = MLX_PARSER_HEADER;
    if (length >= m && !memcmp(prompt + length - m, message, m)) p->state = MLX_PARSER_TEXT;
    if (length >= a && !memcmp(prompt + length - a, analysis, a)) {
      p->state = MLX_PARSER_REASONING;
      p->channel = 1;
    }
  } else if (mlx_output_prompt_reasons(p->format, prompt, length, options->continue_final)) {
    p->state = MLX_PARSER_REASONING;
    p->skip_space = true;
  }
  return NULL;
}

mlx_status_t mlx_output_parser_create(const mlx_output_format_t *format, const mlx_output_options_t *options,
                                      const char *prompt, size_t prompt_length, size_t choice,
                                      mlx_on_event_t on_event, void *user, mlx_output_parser_t **out) {
  mlx_output_parser_t *p;
  *out = NULL;
  MLX_TRY(mlx_alloc(1, sizeof *p, &p));
  p->format = format;
  p->choice = choice;
  p->on_event = on_event;
  p->user = user;
  mlx_status_t status = fill(p, options, prompt, prompt_length);
  if (status) {
    mlx_output_parser_free(p);
    return status;
  }
  *out = p;
  return NULL;
}

void mlx_output_parser_free(mlx_output_parser_t *p) {
  if (!p) return;
  yyjson_doc_free(p->tools);
  mlx_text_clear(&p->buffer);
  mlx_text_clear(&p->call.arguments);
  mlx_answer_clear(&p->held);
  mlx_free(p);
}

int64_t mlx_output_parser_reasoning_tokens(const mlx_output_parser_t *p) { return p->reasoning_tokens; }

// ----------------------------------------------------------------------------------------------------------
// States. Each function returns false in *out_moved if it needs more text.

static void consume(mlx_output_parser_t *p, size_t count) { p->begin += count; }

static mlx_status_t emit(mlx_output_parser_t *p, mlx_event_kind_t kind, size_t length) {
  MLX_TRY(mlx_parser_emit_text(p, kind, mlx_parser_text(p), length));
  consume(p, length);
  return NULL;
}

static mlx_status_t read_start(mlx_output_parser_t *p, bool *out_moved) {
  const size_t at = mlx_parser_skip_space(p, 0);
  const mlx_reasoning_syntax_t *reasoning = p->format->reasoning;
  if (!reasoning) {
    p->state = MLX_PARSER_TEXT;
    return NULL;
  }
  const int match = mlx_parser_match(p, at, reasoning->begin);
  if (!p->final && (match < 0 || at == mlx_parser_left(p))) {
    *out_moved = false;
    return NULL;
  }
  p->state = match == 1 ? MLX_PARSER_REASONING : MLX_PARSER_TEXT;
  p->skip_space = match == 1;
  if (match == 1) consume(p, at + strlen(reasoning->begin));
  return NULL;
}

// Drops white space before the first character if skip_space is set. False if there is no other character.
static bool skip_space(mlx_output_parser_t *p) {
  if (!p->skip_space) return true;
  consume(p, mlx_parser_skip_space(p, 0));
  if (!mlx_parser_left(p)) return false;
  p->skip_space = false;
  return true;
}

// The length of the text before |end|, without the white space at its end.
static size_t without_space(const mlx_output_parser_t *p, size_t end) {
  while (end && mlx_is_space(mlx_parser_text(p)[end - 1])) --end;
  return end;
}

static mlx_status_t read_reasoning(mlx_output_parser_t *p, bool *out_moved) {
  const char *tag, *const ends[] = {p->format->reasoning->end};
  if (!skip_space(p)) {
    *out_moved = false;
    return NULL;
  }
  const size_t end = mlx_parser_find(p, 0, ends, 1, &tag), solid = without_space(p, end);
  MLX_TRY(emit(p, MLX_EVENT_REASONING, solid));
  *out_moved = solid > 0;
  if (!tag) {
    if (p->final) consume(p, mlx_parser_left(p));
    return NULL;
  }
  consume(p, end - solid + strlen(tag));
  p->state = MLX_PARSER_TEXT;
  p->skip_space = true;
  *out_moved = true;
  return NULL;
}

// The tags that the text may contain: calls, then tags that are dropped.
static size_t list_tags(const mlx_output_parser_t *p, const char **tags, size_t *out_call_tags) {
  const mlx_tool_syntax_t *syntax = p->format->tools;
  size_t count = 0;
  if (p->parses_calls && syntax->section) tags[count++] = syntax->section;
  if (p->parses_calls && syntax->begin) tags[count++] = syntax->begin;
  *out_call_tags = count;
  for (int i = 0; i < 3 && p->format->dropped[i]; ++i) tags[count++] = p->format->dropped[i];
  return count;
}

static void begin_call(mlx_output_parser_t *p, size_t opened, bool bare) {
  mlx_text_clear(&p->call.arguments);
  p->call = (mlx_open_call_t){.opened = opened, .bare = bare};
  p->state = MLX_PARSER_CALL;
}

// A call without a tag, at the beginning of the answer. Sets *out_wait if more text decides it.
static bool begin_bare_call(mlx_output_parser_t *p, bool *out_wait) {
  *out_wait = false;
  if (!p->parses_calls || !p->format->tools->bare || p->has_text || p->tool_count) return false;
  const size_t at = mlx_parser_skip_space(p, 0);
  *out_wait = at == mlx_parser_left(p) && !p->final;
  if (at == mlx_parser_left(p) || !strchr("{[`", mlx_parser_text(p)[at]) || !mlx_parser_text(p)[at])
    return false;
  const bool tagged = mlx_parser_match(p, at, p->format->tools->begin) != 0;
  if (tagged) return false;
  begin_call(p, at + 1, true);
  return true;
}

static mlx_status_t read_text(mlx_output_parser_t *p, bool *out_moved) {
  const char *tags[MAX_TAGS], *tag;
  size_t call_tags;
  bool wait = false;
  *out_moved = false;
  if (!skip_space(p)) return NULL;
  if (begin_bare_call(p, &wait)) *out_moved = true;
  if (*out_moved || wait) return NULL;
  const size_t count = list_tags(p, tags, &call_tags);
  const size_t end = mlx_parser_find(p, 0, tags, count, &tag);
  bool is_call = false;
  for (size_t i = 0; i < call_tags; ++i) is_call |= tag == tags[i];
  // White space before a call is no part of the text.
  const size_t solid = p->parses_calls && (is_call || !(tag || p->final)) ? without_space(p, end) : end;
  MLX_TRY(emit(p, MLX_EVENT_TEXT, solid));
  *out_moved = solid > 0 || tag;
  if (is_call)
    begin_call(p, end - solid + strlen(tag), false);
  else if (tag)
    consume(p, strlen(tag));
  return NULL;
}

// Calls in JSON. Models of these formats also write lists of Python calls.
static mlx_status_t read_object(mlx_output_parser_t *p, mlx_call_progress_t *out) {
  const bool may = p->format->tools->bare && (!p->call.phase || p->call.python);
  const int python = may ? mlx_parser_is_python(p) : 0;
  *out = MLX_CALL_MORE;
  if (python < 0) return NULL;
  p->call.python = python;
  return python ? mlx_parser_read_python(p, out) : mlx_parser_read_object(p, out);
}

static mlx_status_t read_call(mlx_output_parser_t *p, bool *out_moved) {
  mlx_call_progress_t progress;
  switch (p->format->tools->kind) {
    case MLX_SYNTAX_TAGGED: MLX_TRY(mlx_parser_read_tagged(p, &progress)); break;
    case MLX_SYNTAX_GEMMA: MLX_TRY(mlx_parser_read_gemma(p, &progress)); break;
    default: MLX_TRY(read_object(p, &progress)); break;
  }
  *out_moved = progress != MLX_CALL_MORE;
  if (progress == MLX_CALL_MORE) return NULL;
  if (progress == MLX_CALL_TEXT) {  // the tag is text; what follows may have other calls
    p->state = MLX_PARSER_TEXT;
    return emit(p, MLX_EVENT_TEXT, p->call.opened);
  }
  if (progress == MLX_CALL_CUT) MLX_TRY(mlx_parser_end_call(p));
  consume(p, p->call.at);
  p->state = progress == MLX_CALL_CUT ? MLX_PARSER_TEXT : p->one_call ? MLX_PARSER_DISCARD : MLX_PARSER_AFTER;
  p->in_list |= p->call.bare;
  return NULL;
}

// After a call: its end tags, separators, and the next call.
static mlx_status_t read_after(mlx_output_parser_t *p, bool *out_moved) {
  const mlx_tool_syntax_t *syntax = p->format->tools;
  const char *const skipped[] = {syntax->end,
                                 syntax->section_end,
                                 "```",
                                 "}",
                                 p->in_list ? "]" : NULL,
                                 p->in_list ? "," : NULL,
                                 p->in_list ? ";" : NULL};
  const size_t at = mlx_parser_skip_space(p, 0);
  bool wait = at == mlx_parser_left(p) && !p->final;
  for (size_t i = 0; i < sizeof skipped / sizeof *skipped; ++i) {
    const int match = mlx_parser_match(p, at, skipped[i]);
    if (match == 1) {
      p->in_python = p->in_python && *skipped[i] != ']';  // the list ends
      consume(p, at + strlen(skipped[i]));
      return NULL;
    }
    wait |= match < 0;
  }
  const char next = at < mlx_parser_left(p) ? mlx_parser_text(p)[at] : 0;
  const char lower = (char)(next | 32);
  const bool is_letter = next == '_' || (lower >= 'a' && lower <= 'z');
  if (p->in_python ? is_letter : p->in_list && next == '{') {
    begin_call(p, at + 1, true);
    return NULL;
  }
  *out_moved = !wait;
  if (wait) return NULL;
  if (at == mlx_parser_left(p)) consume(p, at);
  p->state = MLX_PARSER_TEXT;
  return NULL;
}

static mlx_status_t run(mlx_output_parser_t *p) {
  const bool harmony = p->format->tools->kind == MLX_SYNTAX_HARMONY;
  for (bool moved = true; moved && (mlx_parser_left(p) || p->final);) {
    moved = true;
    if (p->state == MLX_PARSER_DISCARD) {
      consume(p, mlx_parser_left(p));
      return NULL;
    }
    if (p->state == MLX_PARSER_HEADER)
      MLX_TRY(mlx_parser_read_header(p, &moved));
    else if (harmony)
      MLX_TRY(mlx_parser_read_body(p, &moved));
    else if (p->state == MLX_PARSER_START)
      MLX_TRY(read_start(p, &moved));
    else if (p->state == MLX_PARSER_REASONING)
      MLX_TRY(read_reasoning(p, &moved));
    else if (p->state == MLX_PARSER_TEXT)
      MLX_TRY(read_text(p, &moved));
    else if (p->state == MLX_PARSER_CALL)
      MLX_TRY(read_call(p, &moved));
    else
      MLX_TRY(read_after(p, &moved));
    if (p->final && !mlx_parser_left(p) && p->state != MLX_PARSER_CALL) return NULL;
  }
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Input

// Appends the character that begins in |bytes|, or U+FFFD for its first byte if there is none. Returns how
// many bytes it took; 0 if the character is not complete.
static size_t append_character(mlx_output_parser_t *p, const char *bytes, size_t length) {
  const int size = mlx_utf8_length(bytes, length);
  if (size < 0) return 0;
  if (size)
    mlx_text_append(&p->buffer, bytes, (size_t)size);
  else
    mlx_text_puts(&p->buffer, "\xEF\xBF\xBD");
  return size ? (size_t)size : 1;
}

// Appends |text| to the buffer, except an incomplete character at its end, which |tail| keeps.
static mlx_status_t append(mlx_output_parser_t *p, const char *text, size_t length) {
  if (p->begin) {
    memmove(p->buffer.data, p->buffer.data + p->begin, mlx_parser_left(p));
    p->buffer.length -= p->begin;
    p->begin = 0;
  }
  while (p->tail_length && length) {
    p->tail[p->tail_length++] = *text++;
    --length;
    for (size_t taken = 1; p->tail_length && taken;) {
      taken = append_character(p, p->tail, p->tail_length);
      p->tail_length -= taken;
      memmove(p->tail, p->tail + taken, p->tail_length);
    }
  }
  while (length) {
    const size_t taken = append_character(p, text, length);
    if (!taken) break;
    text += taken;
    length -= taken;
  }
  if (length) memcpy(p->tail, text, length);
  if (length) p->tail_length = length;
  return mlx_text_finish(&p->buffer);
}

mlx_status_t mlx_output_parser_add(mlx_output_parser_t *p, const char *text, size_t length,
                                   const mlx_answer_token_t *tokens, size_t token_count) {
  bool reasons = p->state == MLX_PARSER_REASONING;
  if (tokens && token_count) {
    const mlx_event_t event = {
        .kind = MLX_EVENT_TEXT, .text = "", .tokens = tokens, .token_count = token_count};
    MLX_TRY(mlx_answer_add(&p->held, &event));
  }
  MLX_TRY(append(p, text, length));
  MLX_TRY(run(p));
  reasons |= p->state == MLX_PARSER_REASONING;
  if (reasons) p->reasoning_tokens += (int64_t)token_count;
  return NULL;
}

mlx_status_t mlx_output_parser_finish(mlx_output_parser_t *p, mlx_finish_reason_t reason) {
  if (p->tail_length) mlx_text_puts(&p->buffer, "\xEF\xBF\xBD");
  p->tail_length = 0;
  p->final = true;
  MLX_TRY(mlx_text_finish(&p->buffer));
  MLX_TRY(run(p));
  const mlx_answer_choice_t *held = p->held.choice_count ? &p->held.choices[0] : NULL;
  const mlx_event_t event = {.kind = MLX_EVENT_FINISH,
                             .choice = p->choice,
                             .finish = reason,
                             .tokens = held ? held->tokens : NULL,
                             .token_count = held ? held->token_count : 0};
  mlx_status_t status = p->on_event(p->user, &event);
  mlx_answer_clear(&p->held);
  return status;
}
