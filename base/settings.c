// Parser of the configuration file format that settings.h describes.
#include "base/settings.h"

#include <stdint.h>
#include <string.h>

#include "base/memory.h"

typedef struct reading {
  const char *name;
  mlx_setting_fn_t visit;
  void *user;
  const char *section;
  int line;
} reading_t;

static mlx_status_t parse_error(const reading_t *r, const char *what, const char *hint) {
  return mlx_status_hint(mlx_error(MLX_INVALID_INPUT, "%s:%d: %s", r->name, r->line, what), "%s", hint);
}

static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

static char *skip_blanks(char *text) {
  while (is_blank(*text)) ++text;
  return text;
}

static void drop_blanks_at_end(char *text) {
  size_t length = strlen(text);
  while (length && is_blank(text[length - 1])) text[--length] = 0;
}

static size_t name_length(const char *text) {
  return strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_");
}

static bool ends_here(const char *text) { return !*text || *text == '#'; }

// "[run]   # and a comment"
static mlx_status_t read_section(reading_t *r, char *line) {
  char *name = skip_blanks(line + 1);
  const size_t length = name_length(name);
  char *close = skip_blanks(name + length);
  if (!length || *close != ']' || !ends_here(skip_blanks(close + 1)))
    return parse_error(r, "invalid section header", "write a section as [name]");
  name[length] = 0;
  r->section = name;
  return r->visit(r->user, &(mlx_setting_t){.line = r->line, .section = name});
}

// Removes the quotes and escapes in place. *|out_end| points after the closing quote, or is NULL without one.
static bool unquote(char *value, char **out_end) {
  char *to = value;
  *out_end = NULL;
  for (const char *from = value + 1; *from; ++from) {
    if (*from == '"') {
      *out_end = (char *)(uintptr_t)from + 1;
      *to = 0;
      return true;
    }
    if (*from != '\\') {
      *to++ = *from;
      continue;
    }
    const char *found = *++from ? strchr("\"\\nt", *from) : NULL;
    if (!found) return false;
    *to++ = *from == 'n' ? '\n' : *from == 't' ? '\t' : *from;
  }
  return true;
}

static mlx_status_t read_value(const reading_t *r, char *value) {
  char *end;
  if (*value != '"') {
    for (end = value; *end && !(*end == '#' && (end == value || is_blank(end[-1]))); ++end) continue;
    *end = 0;
    drop_blanks_at_end(value);
    return *value ? NULL
                  : parse_error(r, "missing value",
                                "write an empty value as \"\", or comment the line out with '#'");
  }
  if (!unquote(value, &end))
    return parse_error(r, "unknown escape sequence", "use only \\\" \\\\ \\n and \\t in a quoted value");
  if (!end) return parse_error(r, "unterminated quoted value", "close the quote on the same line");
  if (!ends_here(skip_blanks(end)))
    return parse_error(r, "unexpected text after a quoted value", "write a quote inside the value as \\\"");
  return NULL;
}

static mlx_status_t read_line(reading_t *r, char *line) {
  line = skip_blanks(line);
  if (ends_here(line)) return NULL;
  if (*line == '[') return read_section(r, line);
  const size_t length = name_length(line);
  char *equals = skip_blanks(line + length);
  if (!length || *equals != '=')
    return parse_error(r, "expected 'key = value' or '[section]'", "write a setting as key = value");
  char *value = skip_blanks(equals + 1);
  MLX_TRY(read_value(r, value));
  line[length] = 0;
  return r->visit(r->user,
                  &(mlx_setting_t){.line = r->line, .section = r->section, .key = line, .value = value});
}

static mlx_status_t read_lines(reading_t *r, char *text, size_t length) {
  if (length >= 3 && !memcmp(text, "\xef\xbb\xbf", 3)) text += 3, length -= 3;  // UTF-8 byte order mark
  while (length) {
    char *end = memchr(text, '\n', length);
    const size_t line_length = end ? (size_t)(end - text) : length;
    ++r->line;
    if (memchr(text, 0, line_length))
      return parse_error(r, "contains a NUL byte, so it is not a text file", "save the file as UTF-8 text");
    text[line_length] = 0;
    MLX_TRY(read_line(r, text));
    if (!end) return NULL;
    length -= line_length + 1;
    text = end + 1;
  }
  return NULL;
}

mlx_status_t mlx_settings_read(const char *name, const char *bytes, size_t length, mlx_setting_fn_t visit,
                               void *user) {
  char *text;
  MLX_TRY(mlx_copy_text(bytes, length, &text));
  reading_t reading = {.name = name, .visit = visit, .user = user, .section = ""};
  mlx_status_t status = read_lines(&reading, text, length);
  mlx_free(text);
  return status;
}
