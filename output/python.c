// Tool calls as a list of Python calls: [get_weather(city="Paris", days=3), get_time()]. The arguments of a
// call are known when the call is complete.
#include <string.h>

#include "base/memory.h"
#include "output/parser_state.h"

#define MAX_DEPTH 64

// ----------------------------------------------------------------------------------------------------------
// Python literals as JSON

typedef struct reader {
  const char *at, *end;
  mlx_text_t *out;
  int depth;
} reader_t;

static void skip_space(reader_t *r) {
  while (r->at < r->end && mlx_is_space(*r->at)) ++r->at;
}

static bool take(reader_t *r, char c) {
  skip_space(r);
  if (r->at == r->end || *r->at != c) return false;
  ++r->at;
  return true;
}

static bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}
static bool begins_word(char c) { return is_word(c) && !(c >= '0' && c <= '9'); }

static void put_utf8(mlx_text_t *out, uint32_t c) {
  const char bytes[3] = {(char)(c < 0x80    ? c
                                : c < 0x800 ? 0xc0 | c >> 6
                                            : 0xe0 | c >> 12),
                         (char)(0x80 | (c < 0x800 ? c & 63 : c >> 6 & 63)), (char)(0x80 | (c & 63))};
  mlx_text_append(out, bytes, c < 0x80 ? 1 : c < 0x800 ? 2 : 3);
}

// \xNN or \uNNNN, after the letter. A surrogate is not a character.
static bool read_hex(reader_t *r, int digits, mlx_text_t *out) {
  uint32_t c = 0;
  for (; digits; --digits, ++r->at) {
    const char d = r->at < r->end ? *r->at : 0, lower = (char)(d | 32);
    if (!((d >= '0' && d <= '9') || (lower >= 'a' && lower <= 'f'))) return false;
    c = c << 4 | (uint32_t)(d <= '9' ? d - '0' : lower - 'a' + 10);
  }
  if (c >= 0xd800 && c <= 0xdfff) return false;
  put_utf8(out, c);
  return true;
}

static bool read_escape(reader_t *r, mlx_text_t *out) {
  static const char names[] = "ntrbf\\'\"0", values[] = "\n\t\r\b\f\\'\"";
  const char c = *r->at++;
  const char *found = strchr(names, c);
  if (c == 'x' || c == 'u') return read_hex(r, c == 'x' ? 2 : 4, out);
  if (found && c)
    mlx_text_append(out, &values[found - names], 1);
  else
    mlx_text_append(out, r->at - 2, 2);  // Python keeps the backslash of an unknown escape
  return true;
}

static bool read_string(reader_t *r) {
  const char quote = *r->at++;
  mlx_text_t text = {0};
  bool fine = true;
  while (fine && r->at < r->end && *r->at != quote) {
    if (*r->at == '\\' && r->end - r->at > 1) {
      ++r->at;
      fine = read_escape(r, &text);
    } else {
      mlx_text_append(&text, r->at++, 1);
    }
  }
  fine = fine && r->at < r->end && !text.failed;
  if (fine) mlx_text_json_string(r->out, text.data ? text.data : "", text.length);
  mlx_text_clear(&text);
  ++r->at;
  return fine;
}

// A number or a word: JSON as it stands, or one of Python's words.
static bool read_plain(reader_t *r) {
  static const char *const words[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"}};
  const char *begin = r->at;
  while (r->at < r->end && (is_word(*r->at) || strchr("+-.", *r->at))) ++r->at;
  const size_t length = (size_t)(r->at - begin);
  for (int i = 0; i < 3; ++i) {
    if (strlen(words[i][0]) != length || memcmp(words[i][0], begin, length)) continue;
    mlx_text_puts(r->out, words[i][1]);
    return true;
  }
  yyjson_doc *doc = length ? yyjson_read(begin, length, 0) : NULL;
  if (doc) mlx_text_append(r->out, begin, length);
  yyjson_doc_free(doc);
  return doc != NULL;
}

static bool read_value(reader_t *r);

// The items of a dictionary, a list or a tuple, after the opening bracket. A comma may follow the last one.
static bool read_items(reader_t *r, char close) {
  const bool object = close == '}';
  mlx_text_puts(r->out, object ? "{" : "[");
  for (bool first = true; !take(r, close); first = false) {
    if (!first) {
      if (!take(r, ',')) return false;
      if (take(r, close)) break;
      mlx_text_puts(r->out, ", ");
    }
    skip_space(r);
    if (object && (r->at == r->end || !strchr("'\"", *r->at))) return false;  // JSON's keys are strings
    if (object && !(read_string(r) && take(r, ':'))) return false;
    if (object) mlx_text_puts(r->out, ": ");
    if (!read_value(r)) return false;
  }
  mlx_text_puts(r->out, object ? "}" : "]");
  return true;
}

static bool read_value(reader_t *r) {
  skip_space(r);
  if (r->at >= r->end || r->depth == MAX_DEPTH) return false;
  const char c = *r->at;
  if (c == '"' || c == '\'') return read_string(r);
  if (c != '{' && c != '[' && c != '(') return read_plain(r);
  ++r->at;
  ++r->depth;
  const bool fine = read_items(r, c == '{' ? '}' : c == '[' ? ']' : ')');
  --r->depth;
  return fine;
}

// key=value, ... between the parentheses of a call, as a JSON object.
static bool read_arguments(reader_t *r) {
  mlx_text_puts(r->out, "{");
  for (bool first = true; skip_space(r), r->at < r->end; first = false) {
    if (!first && !take(r, ',')) return false;
    skip_space(r);
    if (r->at == r->end) break;
    const char *key = r->at;
    if (!begins_word(*key)) return false;
    while (r->at < r->end && is_word(*r->at)) ++r->at;
    const size_t length = (size_t)(r->at - key);
    if (!first) mlx_text_puts(r->out, ", ");
    mlx_text_json_string(r->out, key, length);
    mlx_text_puts(r->out, ": ");
    if (!take(r, '=') || !read_value(r)) return false;
  }
  mlx_text_puts(r->out, "}");
  return true;
}

// ----------------------------------------------------------------------------------------------------------
// Calls

// The position of the name, after white space, the tag and the bracket of the list.
static size_t name_position(const mlx_output_parser_t *p) {
  size_t at = mlx_parser_skip_space(p, p->call.bare ? 0 : p->call.opened);
  if (!p->in_python && at < mlx_parser_left(p) && mlx_parser_text(p)[at] == '[')
    at = mlx_parser_skip_space(p, at + 1);
  return at;
}

int mlx_parser_is_python(const mlx_output_parser_t *p) {
  const char *text = mlx_parser_text(p);
  const size_t left = mlx_parser_left(p), first = mlx_parser_skip_space(p, p->call.bare ? 0 : p->call.opened);
  if (first == left) return p->final ? 0 : -1;
  if (!p->in_python && text[first] != '[') return 0;
  const size_t name = name_position(p);
  size_t at = name;
  if (at < left && !begins_word(text[at])) return 0;
  while (at < left && (is_word(text[at]) || text[at] == '.')) ++at;
  if (at - name > MLX_MAX_TOOL_NAME) return 0;
  if (at == left) return p->final ? 0 : -1;
  return text[at] == '(';
}

// Reads on to the ')' of the call. call.level counts open brackets; call.role is the quote of an open string.
static bool find_end(mlx_output_parser_t *p) {
  mlx_open_call_t *call = &p->call;
  const char *text = mlx_parser_text(p);
  for (; call->at < mlx_parser_left(p); ++call->at) {
    const char c = text[call->at];
    if (call->role) {
      if (c == '\\' && call->at + 1 == mlx_parser_left(p)) return false;
      if (c == '\\')
        ++call->at;
      else if (c == (char)call->role)
        call->role = 0;
    } else if (c == '"' || c == '\'') {
      call->role = c;
    } else if (c == '(' || c == '[' || c == '{') {
      ++call->level;
    } else if ((c == ')' || c == ']' || c == '}') && !--call->level) {
      return true;
    }
  }
  return false;
}

mlx_status_t mlx_parser_read_python(mlx_output_parser_t *p, mlx_call_progress_t *out) {
  mlx_open_call_t *call = &p->call;
  const size_t name = name_position(p);
  const char *text = mlx_parser_text(p);
  *out = MLX_CALL_TEXT;
  if (!call->phase) {
    const char *open = memchr(text + name, '(', mlx_parser_left(p) - name);
    if (!open || !mlx_parser_set_name(p, text + name, (size_t)(open - text) - name)) return NULL;
    if (call->bare && !mlx_parser_find_tool(p, call->name)) return NULL;
    call->at = (size_t)(open - text);
    call->phase = 1;
  }
  if (!find_end(p)) {
    if (!p->final) *out = MLX_CALL_MORE;
    return NULL;
  }
  const size_t open =
      name + (size_t)((const char *)memchr(text + name, '(', call->at - name) - (text + name));
  reader_t r = {.at = text + open + 1, .end = text + call->at, .out = &call->arguments};
  if (!read_arguments(&r)) return NULL;
  ++call->at;
  p->in_python = p->in_list = true;
  *out = MLX_CALL_DONE;
  return mlx_parser_end_call(p);
}
