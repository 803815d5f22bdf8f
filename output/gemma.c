// Gemma 4's tool calls: call:NAME{key:<|"|>text<|"|>,other:[1,2]}. FunctionGemma has other quotes. The
// arguments are known when the call is complete.
#include <string.h>

#include "base/memory.h"
#include "output/parser_state.h"

#define MAX_DEPTH 64

typedef struct reader {
  const char *at, *end;
  const char *quote;
  mlx_text_t *out;
  int depth;
} reader_t;

static void skip_space(reader_t *r) {
  while (r->at < r->end && mlx_is_space(*r->at)) ++r->at;
}

static bool take(reader_t *r, const char *text) {
  const size_t length = strlen(text);
  if ((size_t)(r->end - r->at) < length || memcmp(r->at, text, length)) return false;
  r->at += length;
  return true;
}

static const char *find(const reader_t *r, const char *text) {
  const size_t length = strlen(text);
  for (const char *at = r->at; (size_t)(r->end - at) >= length; ++at) {
    if (!memcmp(at, text, length)) return at;
  }
  return NULL;
}

static bool read_string(reader_t *r) {
  const char *end = find(r, r->quote);
  if (!end) return false;
  mlx_text_json_string(r->out, r->at, (size_t)(end - r->at));
  r->at = end + strlen(r->quote);
  return true;
}

// A number, a word, or a text in plain quotes: JSON as it stands. Other text is a string.
static bool read_plain(reader_t *r) {
  const char *begin = r->at;
  if (*begin == '"') {
    for (++r->at; r->at < r->end && *r->at != '"'; ++r->at) r->at += *r->at == '\\' && r->at + 1 < r->end;
    if (r->at == r->end) return false;
    ++r->at;
  } else {
    while (r->at < r->end && !strchr(",}]", *r->at)) ++r->at;
  }
  size_t length = (size_t)(r->at - begin);
  while (length && mlx_is_space(begin[length - 1])) --length;
  if (!length) return false;
  yyjson_doc *doc = yyjson_read(begin, length, 0);
  if (doc)
    mlx_text_append(r->out, begin, length);
  else
    mlx_text_json_string(r->out, begin, length);
  yyjson_doc_free(doc);
  return true;
}

static bool read_value(reader_t *r);

static bool read_key(reader_t *r) {
  skip_space(r);
  if (take(r, r->quote)) {
    if (!read_string(r)) return false;
  } else {
    const char *begin = r->at;
    while (r->at < r->end && *r->at != ':' && !strchr(",{}[]", *r->at)) ++r->at;
    size_t length = (size_t)(r->at - begin);
    while (length && mlx_is_space(begin[length - 1])) --length;
    if (length >= 2 && *begin == '"' && begin[length - 1] == '"') ++begin, length -= 2;
    if (!length) return false;
    mlx_text_json_string(r->out, begin, length);
  }
  skip_space(r);
  if (!take(r, ":")) return false;
  mlx_text_puts(r->out, ": ");
  return true;
}

// The items of an object or a list, after its opening bracket.
static bool read_items(reader_t *r, bool object) {
  const char *close = object ? "}" : "]";
  mlx_text_puts(r->out, object ? "{" : "[");
  skip_space(r);
  for (bool first = true; !take(r, close); first = false) {
    if (!first && !take(r, ",")) return false;
    if (!first) mlx_text_puts(r->out, ", ");
    if (object && !read_key(r)) return false;
    if (!read_value(r)) return false;
    skip_space(r);
  }
  mlx_text_puts(r->out, close);
  return true;
}

static bool read_value(reader_t *r) {
  skip_space(r);
  if (r->at == r->end || r->depth == MAX_DEPTH) return false;
  if (take(r, r->quote)) return read_string(r);
  const bool object = *r->at == '{';
  if (!object && *r->at != '[') return read_plain(r);
  ++r->at;
  ++r->depth;
  const bool fine = read_items(r, object);
  --r->depth;
  return fine;
}

static bool convert(mlx_output_parser_t *p, const char *text, size_t length) {
  reader_t r = {
      .at = text, .end = text + length, .quote = p->format->tools->quote, .out = &p->call.arguments};
  skip_space(&r);
  if (!take(&r, "call:")) return false;
  const char *name = r.at, *brace = find(&r, "{");
  if (!brace || !mlx_parser_set_name(p, name, (size_t)(brace - name))) return false;
  r.at = brace;
  if (!read_value(&r)) return false;
  skip_space(&r);
  return r.at == r.end;
}

mlx_status_t mlx_parser_read_gemma(mlx_output_parser_t *p, mlx_call_progress_t *out) {
  const mlx_tool_syntax_t *syntax = p->format->tools;
  mlx_open_call_t *call = &p->call;
  const char *tag, *const ends[] = {syntax->end};
  const size_t begin = mlx_parser_skip_space(p, 0) + strlen(syntax->begin);
  const size_t end = mlx_parser_find(p, call->searched > begin ? call->searched : begin, ends, 1, &tag);
  call->searched = end;
  *out = MLX_CALL_MORE;
  if (!tag && !p->final) return NULL;
  *out = MLX_CALL_TEXT;
  if (!convert(p, mlx_parser_text(p) + begin, end - begin)) return NULL;
  call->at = tag ? end + strlen(tag) : end;
  *out = MLX_CALL_DONE;
  return mlx_parser_end_call(p);
}
