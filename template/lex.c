// Tokens of a template. jinja2 uses regular expressions here, and this lexer keeps their order: the end of a
// tag before operators (except inside brackets), floats before integers, raw blocks before other tags.
#include "template/lex.h"

#include "template/characters.h"
#include "template/error.h"

#define MAX_BRACKETS 200

typedef struct lexer {
  mlx_template_t *template;
  const char *source;
  size_t length, at;
  int line;
  mlx_lexeme_t *tokens;  // in the template's arena
  size_t count, capacity;
  char brackets[MAX_BRACKETS];  // the closing brackets that are still expected
  size_t depth;
} lexer_t;

static mlx_status_t fail(const lexer_t *l, const char *what) {
  return mlx_template_error(l->template->name, l->line, MLX_INVALID_INPUT, "%s", what);
}

static mlx_status_t put(lexer_t *l, mlx_token_kind_t kind, size_t start, size_t end) {
  if (l->count == l->capacity) {
    mlx_lexeme_t *larger;
    size_t capacity = l->capacity ? l->capacity * 2 : 256;
    MLX_TRY(mlx_arena_take(&l->template->arena, capacity, sizeof *larger, &larger));
    if (l->count) memcpy(larger, l->tokens, l->count * sizeof *larger);
    l->tokens = larger;
    l->capacity = capacity;
  }
  l->tokens[l->count++] =
      (mlx_lexeme_t){.kind = kind, .text = {l->source + start, end - start}, .line = l->line};
  return NULL;
}

static char peek(const lexer_t *l, size_t at) { return at < l->length ? l->source[at] : 0; }

static bool starts(const lexer_t *l, size_t at, const char *text) {
  size_t length = strlen(text);
  return l->length - at >= length && !memcmp(l->source + at, text, length);
}

static void advance(lexer_t *l, size_t to) {
  for (; l->at < to; ++l->at) l->line += l->source[l->at] == '\n';
}

static size_t skip_spaces(const lexer_t *l, size_t at) {
  while (at < l->length) {
    size_t length;
    if (!mlx_codepoint_is_space(mlx_character_at(l->source + at, &length))) break;
    at += length;
  }
  return at;
}

// ----------------------------------------------------------------------------------------------------------
// Text between tags

// Returns the end of the text [start, end) before a tag, after stripping. '-' strips all whitespace before
// the tag, '+' none. A block or comment without a sign strips the whitespace before it if nothing else
// precedes it on its line (lstrip_blocks).
static size_t text_end(const lexer_t *l, size_t start, size_t end, char sign, bool is_print) {
  const mlx_span_t text = {l->source + start, end - start};
  if (sign == '-') return start + mlx_span_strip(text, NULL, false, true).length;
  if (sign == '+' || is_print) return end;
  size_t line = end;
  while (line > start && l->source[line - 1] != '\n') --line;
  if (line == start && start > 0 && l->source[start - 1] != '\n') return end;
  return skip_spaces(l, line) >= end ? line : end;
}

static size_t tag_sign(const lexer_t *l, size_t at, char *out_sign) {
  char sign = peek(l, at);
  *out_sign = sign == '-' || sign == '+' ? sign : 0;
  return *out_sign ? at + 1 : at;
}

// Returns the start of the text after the end mark at |at|: "-%}" strips all whitespace after it, "%}" strips
// one newline if |trims| (trim_blocks), "+%}" none. 0 if there is no end mark.
static size_t tag_end(const lexer_t *l, size_t at, const char *mark, bool trims) {
  if (peek(l, at) == '-' && starts(l, at + 1, mark)) return skip_spaces(l, at + 3);
  if (trims && peek(l, at) == '+' && starts(l, at + 1, mark)) return at + 3;
  if (!starts(l, at, mark)) return 0;
  return at + 2 + (trims && peek(l, at + 2) == '\n');
}

// Returns the start of the text of the "{% raw %}" at |at|; 0 if there is no such tag.
static size_t raw_start(const lexer_t *l, size_t at) {
  char sign;
  at = skip_spaces(l, tag_sign(l, at + 2, &sign));
  if (!starts(l, at, "raw")) return 0;
  at = skip_spaces(l, at + 3);
  if (starts(l, at, "-%}")) return skip_spaces(l, at + 3);
  return starts(l, at, "%}") ? at + 2 : 0;
}

static mlx_status_t put_raw(lexer_t *l, size_t start) {
  advance(l, start);
  if (start >= l->length) return NULL;  // jinja2 accepts a raw block without an end here
  for (size_t at = start; at < l->length; ++at) {
    char sign;
    if (!starts(l, at, "{%")) continue;
    size_t word = skip_spaces(l, tag_sign(l, at + 2, &sign));
    if (!starts(l, word, "endraw")) continue;
    size_t end = tag_end(l, skip_spaces(l, word + 6), "%}", true);
    if (!end) continue;
    size_t cut = text_end(l, start, at, sign, false);
    if (cut > start) MLX_TRY(put(l, MLX_TOKEN_TEXT, start, cut));
    advance(l, end);
    return NULL;
  }
  return fail(l, "the raw block has no {% endraw %}");
}

static mlx_status_t skip_comment(lexer_t *l, size_t start) {
  advance(l, start);
  if (start >= l->length) return NULL;
  for (size_t at = start; at < l->length; ++at) {
    size_t end = tag_end(l, at, "#}", true);
    if (!end) continue;
    advance(l, end);
    return NULL;
  }
  return fail(l, "a comment is not closed: #} is missing");
}

// ----------------------------------------------------------------------------------------------------------
// Inside tags

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static bool is_name(char c) {
  return is_digit(c) || c == '_' || ((c | 32) >= 'a' && (c | 32) <= 'z') || (unsigned char)c >= 0x80;
}

static bool is_digit_of(char c, int base) {
  if (base == 16) return is_digit(c) || ((c | 32) >= 'a' && (c | 32) <= 'f');
  return c >= '0' && c < '0' + base;
}

// The end of the digits at |at|, with single underscores between them; |at| if there is no digit.
static size_t digits(const lexer_t *l, size_t at, int base) {
  if (!is_digit_of(peek(l, at), base)) return at;
  while (is_digit_of(peek(l, at), base) || (peek(l, at) == '_' && is_digit_of(peek(l, at + 1), base))) ++at;
  return at;
}

static size_t float_end(const lexer_t *l, size_t at) {
  if (at && l->source[at - 1] == '.') return at;
  size_t end = digits(l, at, 10), fraction = end;
  if (end == at) return at;
  if (peek(l, end) == '.') fraction = digits(l, end + 1, 10);
  bool has_fraction = fraction > end + 1;
  size_t whole = has_fraction ? fraction : end;
  if ((peek(l, whole) | 32) == 'e') {
    size_t power = whole + 1 + (peek(l, whole + 1) == '+' || peek(l, whole + 1) == '-');
    size_t power_end = digits(l, power, 10);
    if (power_end > power) return power_end;
  }
  return has_fraction ? fraction : at;
}

static size_t int_end(const lexer_t *l, size_t at) {
  if (peek(l, at) != '0') return digits(l, at, 10);
  const char letter = (char)(peek(l, at + 1) | 32);
  const int base = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
  if (base) {
    size_t start = at + 2 + (peek(l, at + 2) == '_'), end = digits(l, start, base);
    if (end > start) return end;
  }
  for (++at; peek(l, at) == '0' || (peek(l, at) == '_' && peek(l, at + 1) == '0');) ++at;
  return at;
}

static size_t string_end(const lexer_t *l, size_t at) {
  const char quote = l->source[at];
  for (++at; at < l->length; ++at) {
    if (l->source[at] == '\\') {
      ++at;
    } else if (l->source[at] == quote) {
      return at + 1;
    }
  }
  return 0;
}

static size_t operator_length(const lexer_t *l, size_t at) {
  static const char *const pairs[] = {"//", "**", "==", "!=", ">=", "<="};
  for (size_t i = 0; i < sizeof pairs / sizeof *pairs; ++i) {
    if (starts(l, at, pairs[i])) return 2;
  }
  return strchr("+-/*%~[](){}><=.:|,;", l->source[at]) ? 1 : 0;
}

static mlx_status_t balance(lexer_t *l, char c) {
  if (strchr("([{", c)) {
    if (l->depth == MAX_BRACKETS) return fail(l, "brackets are nested too deep");
    l->brackets[l->depth++] = c == '(' ? ')' : c == '[' ? ']' : '}';
  } else if (strchr(")]}", c)) {
    if (!l->depth || l->brackets[--l->depth] != c) {
      return mlx_template_error(l->template->name, l->line, MLX_INVALID_INPUT, "unexpected '%c'", c);
    }
  }
  return NULL;
}

static mlx_status_t lex_word(lexer_t *l) {
  const size_t at = l->at;
  const char c = l->source[at];
  mlx_token_kind_t kind;
  size_t end;
  if ((end = float_end(l, at)) > at) {
    kind = MLX_TOKEN_FLOAT;
  } else if (is_digit(c)) {
    kind = MLX_TOKEN_INT;
    end = int_end(l, at);
  } else if (is_name(c)) {
    kind = MLX_TOKEN_NAME;
    for (end = at; end < l->length && is_name(l->source[end]);) ++end;
  } else if (c == '\'' || c == '"') {
    kind = MLX_TOKEN_STRING;
    end = string_end(l, at);
    if (!end) return fail(l, "a string is not closed");
  } else {
    kind = MLX_TOKEN_OPERATOR;
    size_t length = c ? operator_length(l, at) : 0;
    if (!length)
      return mlx_template_error(l->template->name, l->line, MLX_INVALID_INPUT, "unexpected character '%c'",
                                c);
    end = at + length;
    if (length == 1) MLX_TRY(balance(l, c));
  }
  MLX_TRY(put(l, kind, at, end));
  advance(l, end);
  return NULL;
}

static mlx_status_t lex_tag(lexer_t *l, bool is_print) {
  l->depth = 0;
  for (;;) {
    advance(l, skip_spaces(l, l->at));
    if (l->at >= l->length)
      return fail(l, is_print ? "a tag is not closed: }} is missing" : "a tag is not closed: %} is missing");
    size_t end = l->depth ? 0 : tag_end(l, l->at, is_print ? "}}" : "%}", !is_print);
    if (!end) {
      MLX_TRY(lex_word(l));
      continue;
    }
    MLX_TRY(put(l, is_print ? MLX_TOKEN_PRINT_END : MLX_TOKEN_TAG_END, l->at, l->at));
    advance(l, end);
    return NULL;
  }
}

// Reads the text up to the next tag, and that tag.
static mlx_status_t lex_next(lexer_t *l) {
  size_t start = l->at, at = start;
  while (at < l->length && !(l->source[at] == '{' && at + 1 < l->length && strchr("{%#", l->source[at + 1]) &&
                             l->source[at + 1]))
    ++at;
  if (at >= l->length) {
    MLX_TRY(put(l, MLX_TOKEN_TEXT, start, l->length));
    advance(l, l->length);
    return NULL;
  }
  char sign;
  const char kind = l->source[at + 1];
  size_t inside = tag_sign(l, at + 2, &sign), cut = text_end(l, start, at, sign, kind == '{');
  if (cut > start) MLX_TRY(put(l, MLX_TOKEN_TEXT, start, cut));
  advance(l, at);
  size_t raw = kind == '%' ? raw_start(l, at) : 0;
  if (raw) return put_raw(l, raw);
  if (kind == '#') return skip_comment(l, inside);
  MLX_TRY(put(l, kind == '{' ? MLX_TOKEN_PRINT : MLX_TOKEN_TAG, at, inside));
  advance(l, inside);
  return lex_tag(l, kind == '{');
}

mlx_status_t mlx_template_lex(mlx_template_t *template, mlx_lexeme_t **out_tokens) {
  lexer_t l = {
      .template = template, .source = template->source, .length = template->source_length, .line = 1};
  while (l.at < l.length) MLX_TRY(lex_next(&l));
  MLX_TRY(put(&l, MLX_TOKEN_END, l.at, l.at));
  *out_tokens = l.tokens;
  return NULL;
}
