// Tool calls whose arguments are JSON: an object with the name and the arguments, or a name and then the
// arguments.
#include <string.h>

#include "base/memory.h"
#include "output/parser_state.h"

enum { PHASE_OPEN, PHASE_OBJECT, PHASE_ARGUMENTS };
enum { ROLE_OTHER, ROLE_NAME, ROLE_ARGUMENTS, ROLE_FUNCTION };

// ----------------------------------------------------------------------------------------------------------
// Arguments

// Appends a byte of the arguments. Models write line ends inside strings: JSON has them as escapes.
static void put_byte(mlx_text_t *out, char byte, bool in_string) {
  const unsigned char c = (unsigned char)byte;
  if (in_string && c < 0x20) {
    switch (c) {
      case '\n': mlx_text_puts(out, "\\n"); break;
      case '\r': mlx_text_puts(out, "\\r"); break;
      case '\t': mlx_text_puts(out, "\\t"); break;
      default: mlx_text_printf(out, "\\u%04x", c); break;
    }
    return;
  }
  mlx_text_append(out, &byte, 1);
}

mlx_status_t mlx_parser_read_arguments(mlx_output_parser_t *p, mlx_call_progress_t *out) {
  mlx_open_call_t *call = &p->call;
  *out = MLX_CALL_MORE;
  if (p->streams) MLX_TRY(mlx_parser_begin_call(p));
  while (call->at < mlx_parser_left(p) && *out == MLX_CALL_MORE) {
    const char byte = mlx_parser_text(p)[call->at];
    const bool in_string = call->scan.in_string;
    const mlx_scan_result_t result = mlx_json_scan_byte(&call->scan, byte);
    if (result == MLX_SCAN_BAD) {
      *out = call->begun ? MLX_CALL_CUT : MLX_CALL_TEXT;
    } else {
      put_byte(&call->arguments, byte, in_string);
      ++call->at;
      if (result == MLX_SCAN_DONE) *out = MLX_CALL_DONE;
    }
  }
  if (*out == MLX_CALL_MORE && p->final) *out = call->begun ? MLX_CALL_CUT : MLX_CALL_TEXT;
  return mlx_parser_send_arguments(p);
}

// ----------------------------------------------------------------------------------------------------------
// Objects with a name

static bool is_one_of(const char *text, const char *const *words) {
  for (; *words; ++words) {
    if (!strcmp(text, *words)) return true;
  }
  return false;
}

static int role_of(const char *key) {
  static const char *const names[] = {"name", "tool_name", NULL}, *const arguments[] = {"arguments",
                                                                                        "parameters", "args",
                                                                                        "input", NULL};
  if (is_one_of(key, names)) return ROLE_NAME;
  if (is_one_of(key, arguments)) return ROLE_ARGUMENTS;
  return strcmp(key, "function") ? ROLE_OTHER : ROLE_FUNCTION;
}

// A key of the object is complete. False if no call has such a key and nothing else says that it is a call.
static bool end_key(mlx_output_parser_t *p) {
  static const char *const others[] = {"id", "type", "tool_call_id", "index", NULL};
  mlx_open_call_t *call = &p->call;
  call->key[call->key_length] = 0;
  call->role = role_of(call->key);
  const bool again = (call->role == ROLE_NAME && call->name_length) ||
                     (call->role == ROLE_ARGUMENTS && call->arguments_done);
  if (again) return false;
  return call->role != ROLE_OTHER || !call->bare || is_one_of(call->key, others);
}

// The string value of the name is complete.
static bool end_name(mlx_output_parser_t *p) {
  mlx_open_call_t *call = &p->call;
  char name[sizeof call->name];
  memcpy(name, call->name, call->name_length);
  call->role = ROLE_OTHER;
  if (!mlx_parser_set_name(p, name, call->name_length)) return false;
  return !call->bare || mlx_parser_find_tool(p, call->name);
}

static bool read_name_byte(mlx_output_parser_t *p, char byte, bool was_in_string) {
  mlx_open_call_t *call = &p->call;
  if (!was_in_string) return call->scan.in_string || mlx_is_space(byte);
  if (!call->scan.in_string) return end_name(p);
  if (call->name_length == MLX_MAX_TOOL_NAME) return false;
  call->name[call->name_length++] = byte;
  return true;
}

// Arguments that are a string have the object as its text.
static bool decode_arguments(mlx_open_call_t *call) {
  yyjson_doc *doc = yyjson_read(call->arguments.data, call->arguments.length, 0), *inner = NULL;
  yyjson_val *root = yyjson_doc_get_root(doc);
  bool fine = yyjson_is_obj(root);
  if (yyjson_is_null(root)) {
    call->arguments.length = 0;
    mlx_text_puts(&call->arguments, "{}");
    fine = true;
  } else if (yyjson_is_str(root)) {
    inner = yyjson_read(yyjson_get_str(root), yyjson_get_len(root), 0);
    fine = yyjson_is_obj(yyjson_doc_get_root(inner));
    if (fine) {
      call->arguments.length = 0;
      mlx_text_append(&call->arguments, yyjson_get_str(root), yyjson_get_len(root));
    }
  }
  yyjson_doc_free(inner);
  yyjson_doc_free(doc);
  return fine;
}

static mlx_status_t end_arguments(mlx_output_parser_t *p, bool *out_fine) {
  mlx_open_call_t *call = &p->call;
  call->role = ROLE_OTHER;
  call->arguments_done = true;
  MLX_TRY(mlx_text_finish(&call->arguments));
  *out_fine = call->begun || decode_arguments(call);
  return mlx_text_finish(&call->arguments);
}

static mlx_status_t read_arguments_byte(mlx_output_parser_t *p, char byte, bool was_in_string,
                                        bool *out_fine) {
  mlx_open_call_t *call = &p->call;
  const mlx_json_scan_t *scan = &call->scan;
  const bool first = !call->arguments.length;
  *out_fine = true;
  if (first && mlx_is_space(byte)) return NULL;
  // A number or a word ends before the comma or brace that follows it.
  const bool ended_before = !first && !was_in_string && scan->depth <= call->level &&
                            (byte == ',' || byte == '}') &&
                            (scan->depth < call->level || scan->expect == MLX_EXPECT_KEY);
  if (ended_before) return end_arguments(p, out_fine);
  put_byte(&call->arguments, byte, was_in_string);
  if (first && byte == '{' && p->streams && call->name[0] && call->name_length)
    MLX_TRY(mlx_parser_begin_call(p));
  const bool ended = scan->depth == call->level && scan->expect == MLX_EXPECT_COMMA && !mlx_is_space(byte) &&
                     (byte == '}' || byte == ']' || byte == '"');
  return ended ? end_arguments(p, out_fine) : NULL;
}

// Follows one byte that the scan has accepted. *out_fine is false if the object is no call.
static mlx_status_t follow_byte(mlx_output_parser_t *p, char byte, bool was_in_string, bool *out_fine) {
  mlx_open_call_t *call = &p->call;
  const mlx_json_scan_t *scan = &call->scan;
  *out_fine = true;
  if (call->role == ROLE_ARGUMENTS && byte != ':')
    return read_arguments_byte(p, byte, was_in_string, out_fine);
  if (call->role == ROLE_ARGUMENTS && call->arguments.length)
    return read_arguments_byte(p, byte, was_in_string, out_fine);
  if (call->role == ROLE_NAME && (byte != ':' || was_in_string)) {
    *out_fine = read_name_byte(p, byte, was_in_string);
    return NULL;
  }
  if (call->role == ROLE_FUNCTION && !mlx_is_space(byte) && byte != ':') {
    if (byte == '"') {  // "function": "name"
      call->role = ROLE_NAME;
      call->name_length = 0;
    } else {
      call->role = ROLE_OTHER;
      if (byte == '{') ++call->level;  // "function": {"name": ...}
    }
    return NULL;
  }
  if (scan->depth != call->level || !(was_in_string || scan->in_string)) return NULL;
  if (!was_in_string) {
    call->key_length = 0;
  } else if (scan->in_string && scan->is_key) {
    if (call->key_length + 1 < sizeof call->key) call->key[call->key_length++] = byte;
  } else if (!scan->in_string && scan->is_key) {
    *out_fine = end_key(p);
  }
  return NULL;
}

// The object has ended, or it is malformed after its arguments.
static mlx_status_t end_object(mlx_output_parser_t *p, mlx_call_progress_t *out) {
  mlx_open_call_t *call = &p->call;
  const bool complete = call->name_length && (call->arguments_done || (!call->bare && !call->has_arguments));
  *out = complete ? MLX_CALL_DONE : call->begun ? MLX_CALL_CUT : MLX_CALL_TEXT;
  if (!complete) return NULL;
  if (!call->arguments.length) mlx_text_puts(&call->arguments, "{}");
  return mlx_parser_end_call(p);
}

static mlx_status_t read_object(mlx_output_parser_t *p, mlx_call_progress_t *out) {
  mlx_open_call_t *call = &p->call;
  *out = MLX_CALL_MORE;
  while (call->at < mlx_parser_left(p)) {
    const char byte = mlx_parser_text(p)[call->at];
    const bool was_in_string = call->scan.in_string;
    const mlx_scan_result_t result = mlx_json_scan_byte(&call->scan, byte);
    bool fine = true;
    if (result == MLX_SCAN_BAD) {
      if (call->arguments_done) return end_object(p, out);
      *out = call->begun ? MLX_CALL_CUT : MLX_CALL_TEXT;
      return mlx_parser_send_arguments(p);
    }
    ++call->at;
    MLX_TRY(follow_byte(p, byte, was_in_string, &fine));
    call->has_arguments |= call->role == ROLE_ARGUMENTS;
    if (!fine) {
      *out = call->begun ? MLX_CALL_CUT : MLX_CALL_TEXT;
      return mlx_parser_send_arguments(p);
    }
    if (result == MLX_SCAN_DONE) return end_object(p, out);
  }
  if (p->final && call->arguments_done) return end_object(p, out);
  if (p->final) *out = call->begun ? MLX_CALL_CUT : MLX_CALL_TEXT;
  return mlx_parser_send_arguments(p);
}

// ----------------------------------------------------------------------------------------------------------
// The beginning of a call

// Finds the name in the text between the tag and the arguments.
static bool read_header_name(mlx_output_parser_t *p, size_t from, size_t to) {
  const mlx_tool_syntax_t *syntax = p->format->tools;
  char header[MLX_MAX_CALL_HEADER + 1];
  memcpy(header, mlx_parser_text(p) + from, to - from);
  header[to - from] = 0;
  const char *name = header, *begin = syntax->name_begin ? strstr(header, syntax->name_begin) : NULL;
  if (begin) name = begin + strlen(syntax->name_begin);
  size_t length = strlen(name);
  bool ended = false;
  for (int i = 0; i < 2 && syntax->name_ends[i]; ++i) {
    const char *end = strstr(name, syntax->name_ends[i]);
    if (!end) continue;
    ended = true;
    if ((size_t)(end - name) < length) length = (size_t)(end - name);
  }
  return ended && mlx_parser_set_name(p, name, length);
}

static void begin_object(mlx_open_call_t *call, size_t at) {
  call->at = at;
  call->level = 1;
  call->phase = PHASE_OBJECT;
}

static mlx_call_progress_t open_named(mlx_output_parser_t *p, size_t at) {
  mlx_open_call_t *call = &p->call;
  const char *text = mlx_parser_text(p);
  size_t brace = at;
  while (brace < mlx_parser_left(p) && text[brace] != '{' && brace - at < MLX_MAX_CALL_HEADER) ++brace;
  if (brace == mlx_parser_left(p)) return p->final ? MLX_CALL_TEXT : MLX_CALL_MORE;
  if (text[brace] != '{' || !read_header_name(p, at, brace)) return MLX_CALL_TEXT;
  call->at = brace;
  call->phase = PHASE_ARGUMENTS;
  return MLX_CALL_DONE;
}

// Skips the tags and the fence before a call. Returns false, with *out_progress, if it cannot go on.
static bool skip_tags(mlx_output_parser_t *p, size_t *inout_at, mlx_call_progress_t *out_progress) {
  static const char *const fences[] = {"```json", "```tool_code", "```tool_call", "```"};
  const mlx_tool_syntax_t *syntax = p->format->tools;
  const char *const tags[] = {syntax->section, syntax->begin};
  size_t at = mlx_parser_skip_space(p, 0);
  *out_progress = MLX_CALL_MORE;
  for (int i = 0; i < 2 && !p->call.bare; ++i) {
    const int match = mlx_parser_match(p, at, tags[i]);
    if (match < 0) return false;
    if (match) at = mlx_parser_skip_space(p, at + strlen(tags[i]));
    if (!match && i == 1) {
      *out_progress = at == mlx_parser_left(p) && !p->final ? MLX_CALL_MORE : MLX_CALL_TEXT;
      return false;
    }
  }
  for (int i = 0; i < 4; ++i) {
    const int match = mlx_parser_match(p, at, fences[i]);
    if (match < 0) return false;
    if (!match) continue;
    at = mlx_parser_skip_space(p, at + strlen(fences[i]));
    break;
  }
  *inout_at = at;
  return true;
}

static mlx_status_t open_call(mlx_output_parser_t *p, mlx_call_progress_t *out) {
  mlx_open_call_t *call = &p->call;
  size_t at;
  if (!skip_tags(p, &at, out)) return NULL;
  const size_t left = mlx_parser_left(p);
  *out = p->final ? MLX_CALL_TEXT : MLX_CALL_MORE;
  if (at == left) return NULL;
  if (mlx_parser_text(p)[at] == '[') {
    const size_t item = mlx_parser_skip_space(p, at + 1);
    if (item == left) return NULL;
    if (mlx_parser_text(p)[item] == '{') {
      p->in_list = true;
      at = item;
    }
  }
  if (mlx_parser_text(p)[at] == '{') {
    begin_object(call, at);
    *out = MLX_CALL_DONE;
    return NULL;
  }
  *out = p->format->tools->kind == MLX_SYNTAX_NAMED && !call->bare ? open_named(p, at) : MLX_CALL_TEXT;
  return NULL;
}

mlx_status_t mlx_parser_read_object(mlx_output_parser_t *p, mlx_call_progress_t *out) {
  if (p->call.phase == PHASE_OPEN) {
    MLX_TRY(open_call(p, out));
    if (*out != MLX_CALL_DONE) return NULL;
  }
  if (p->call.phase == PHASE_OBJECT) return read_object(p, out);
  MLX_TRY(mlx_parser_read_arguments(p, out));
  return *out == MLX_CALL_DONE ? mlx_parser_end_call(p) : NULL;
}
