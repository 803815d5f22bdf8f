// GBNF parser: source text to rules over bytes.
//
//   rule       ::= name "::=" alternates newline
//   alternates ::= sequence ("|" sequence)*
//   sequence   ::= (item repetition*)*
//   item       ::= literal | class | "." | name | "(" alternates ")"
//   repetition ::= "*" | "+" | "?" | "{" m "}" | "{" m "," n? "}" | "{," n "}"
//
// Groups and repetitions become separate rules. A line may end inside parentheses, after "::=" and around
// "|".
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "grammar/char_class.h"
#include "grammar/check.h"
#include "grammar/rules.h"

typedef struct parser {
  mlx_grammar_t *grammar;
  const char *text, *at, *end;
  uint32_t name;  // of the rule being read
  int nesting;
  const char *counted;  // |line| counts the lines up to here
  uint32_t line;
} parser_t;

typedef struct sequence {
  mlx_symbol_t *symbols;
  size_t count, capacity;
} sequence_t;

static mlx_status_t push(sequence_t *sequence, mlx_symbol_t symbol) {
  MLX_TRY(
      mlx_reserve(sequence->count + 1, sizeof *sequence->symbols, &sequence->capacity, &sequence->symbols));
  sequence->symbols[sequence->count++] = symbol;
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Characters

static uint32_t line_of(parser_t *p) {
  if (p->counted > p->at) {
    p->counted = p->text;
    p->line = 1;
  }
  for (; p->counted < p->at; ++p->counted) p->line += *p->counted == '\n';
  return p->line;
}

static mlx_status_t parse_error(parser_t *p, const char *what) {
  const char *line = p->at;
  while (line > p->text && line[-1] != '\n') --line;
  return mlx_error(MLX_INVALID_INPUT, "%s: line %u, column %zu: %s", p->grammar->source, line_of(p),
                   (size_t)(p->at - line) + 1, what);
}

static bool is_at(const parser_t *p, char c) { return p->at < p->end && *p->at == c; }

static bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

static void skip_space(parser_t *p, bool over_lines) {
  for (; p->at < p->end; ++p->at) {
    if (*p->at == '#') {
      while (p->at < p->end && *p->at != '\n') ++p->at;
      if (p->at == p->end) return;
    }
    if (*p->at != ' ' && *p->at != '\t' && *p->at != '\r' && !(over_lines && *p->at == '\n')) return;
  }
}

static mlx_status_t read_hex(parser_t *p, int digits, uint32_t *out) {
  *out = 0;
  for (int i = 0; i < digits; ++i, ++p->at) {
    const char c = p->at < p->end ? *p->at : 0;
    const char lower = (char)(c | 32);
    const int digit = c >= '0' && c <= '9' ? c - '0' : lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
    if (digit < 0) return parse_error(p, "expected 2 hexadecimal digits after \\x, 4 after \\u, 8 after \\U");
    *out = *out << 4 | (uint32_t)digit;
  }
  if (*out > 0x10ffff || (*out >= 0xd800 && *out <= 0xdfff))
    return parse_error(p, "this number is not a Unicode character");
  return NULL;
}

static mlx_status_t read_escape(parser_t *p, uint32_t *out) {
  static const char from[] = "trn\\\"[]-^", to[] = "\t\r\n\\\"[]-^";
  if (p->at == p->end) return parse_error(p, "the grammar ends after a backslash");
  const char c = *p->at;
  if (c == 'x' || c == 'u' || c == 'U') {
    ++p->at;
    return read_hex(p, c == 'x' ? 2 : c == 'u' ? 4 : 8, out);
  }
  const char *found = c ? strchr(from, c) : NULL;
  if (!found)
    return parse_error(p, "unknown escape; expected \\t \\r \\n \\\\ \\\" \\[ \\] \\- \\^ \\x \\u \\U");
  *out = (uint32_t)(unsigned char)to[found - from];
  ++p->at;
  return NULL;
}

static mlx_status_t read_character(parser_t *p, uint32_t *out) {
  if (is_at(p, '\\')) {
    ++p->at;
    return read_escape(p, out);
  }
  const int length = mlx_utf8_length(p->at, (size_t)(p->end - p->at));
  if (length <= 0) return parse_error(p, "invalid UTF-8");
  const unsigned char *c = (const unsigned char *)p->at;
  *out = length == 1 ? c[0] : c[0] & (0xffu >> (length + 1));
  for (int i = 1; i < length; ++i) *out = *out << 6 | (c[i] & 63);
  p->at += length;
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Items

static mlx_status_t push_character(sequence_t *sequence, uint32_t c) {
  if (c < 0x80) return push(sequence, (mlx_symbol_t){MLX_SYMBOL_BYTE, c & 0x7f});
  const uint8_t bytes[4] = {(uint8_t)(c < 0x800     ? 0xc0 | c >> 6
                                      : c < 0x10000 ? 0xe0 | c >> 12
                                                    : 0xf0 | c >> 18)};
  MLX_TRY(push(sequence, (mlx_symbol_t){MLX_SYMBOL_BYTE, bytes[0]}));
  for (int shift = c < 0x800 ? 0 : c < 0x10000 ? 6 : 12; shift >= 0; shift -= 6) {
    MLX_TRY(push(sequence, (mlx_symbol_t){MLX_SYMBOL_BYTE, 0x80 | (c >> shift & 63)}));
  }
  return NULL;
}

static mlx_status_t read_literal(parser_t *p, sequence_t *sequence) {
  const char *start = p->at++;
  while (!is_at(p, '"')) {
    uint32_t c;
    if (p->at == p->end || *p->at == '\n') {
      p->at = start;
      return parse_error(p, "this \" is not closed on its line");
    }
    MLX_TRY(read_character(p, &c));
    MLX_TRY(push_character(sequence, c));
  }
  ++p->at;
  return NULL;
}

typedef struct ranges {
  mlx_char_range_t *items;
  size_t count, capacity;
} ranges_t;

static mlx_status_t read_ranges(parser_t *p, ranges_t *ranges) {
  const char *start = p->at - 1;
  while (!is_at(p, ']')) {
    mlx_char_range_t range;
    if (p->at == p->end || *p->at == '\n') {
      p->at = start;
      return parse_error(p, "this [ is not closed on its line");
    }
    MLX_TRY(read_character(p, &range.first));
    range.last = range.first;
    if (is_at(p, '-') && p->end - p->at > 1 && p->at[1] != ']') {
      ++p->at;
      MLX_TRY(read_character(p, &range.last));
      if (range.last < range.first) return parse_error(p, "this range ends before it begins");
    }
    MLX_TRY(mlx_reserve(ranges->count + 1, sizeof *ranges->items, &ranges->capacity, &ranges->items));
    ranges->items[ranges->count++] = range;
  }
  ++p->at;
  return NULL;
}

static mlx_status_t read_class(parser_t *p, sequence_t *sequence) {
  ranges_t ranges = {0};
  mlx_symbol_t symbol;
  const bool any = *p->at++ == '.', negated = !any && is_at(p, '^');
  if (negated) ++p->at;
  mlx_status_t status = any ? NULL : read_ranges(p, &ranges);
  if (!status) {
    status = mlx_grammar_add_class(p->grammar, ranges.items, ranges.count, any || negated, p->name,
                                   line_of(p), &symbol);
  }
  if (!status) status = push(sequence, symbol);
  mlx_free(ranges.items);
  return status;
}

static mlx_status_t read_name(parser_t *p, uint32_t *out_rule) {
  const char *start = p->at;
  while (p->at < p->end && is_word(*p->at)) ++p->at;
  return mlx_grammar_find_or_add_name(p->grammar, start, (size_t)(p->at - start), line_of(p), out_rule);
}

// ----------------------------------------------------------------------------------------------------------
// Repetitions

// Adds R ::= item R | "".
static mlx_status_t add_star(parser_t *p, mlx_symbol_t item, mlx_symbol_t *out) {
  uint32_t rule;
  MLX_TRY(mlx_grammar_add_rule(p->grammar, p->name, line_of(p), &rule));
  *out = mlx_rule_symbol(rule);
  MLX_TRY(mlx_grammar_add_alternate(p->grammar, rule, (const mlx_symbol_t[]){item, *out}, 2));
  return mlx_grammar_add_alternate(p->grammar, rule, NULL, 0);
}

// Adds |count| nested rules R ::= item R' | "".
static mlx_status_t add_optionals(parser_t *p, mlx_symbol_t item, uint32_t count, mlx_symbol_t *out) {
  for (uint32_t i = 0; i < count; ++i) {
    uint32_t rule;
    MLX_TRY(mlx_grammar_add_rule(p->grammar, p->name, line_of(p), &rule));
    MLX_TRY(mlx_grammar_add_alternate(p->grammar, rule, (const mlx_symbol_t[]){item, *out}, i ? 2 : 1));
    MLX_TRY(mlx_grammar_add_alternate(p->grammar, rule, NULL, 0));
    *out = mlx_rule_symbol(rule);
  }
  return NULL;
}

// Replaces the symbols from |start| on by one symbol.
static mlx_status_t replace_item(parser_t *p, sequence_t *sequence, size_t start, mlx_symbol_t *out) {
  const size_t count = sequence->count - start;
  if (count == 1) {
    *out = sequence->symbols[start];
  } else {
    uint32_t rule;
    MLX_TRY(mlx_grammar_add_rule(p->grammar, p->name, line_of(p), &rule));
    MLX_TRY(mlx_grammar_add_alternate(p->grammar, rule, count ? sequence->symbols + start : NULL, count));
    *out = mlx_rule_symbol(rule);
  }
  sequence->count = start;
  return NULL;
}

static mlx_status_t read_count(parser_t *p, uint32_t *out) {
  *out = 0;
  for (; p->at < p->end && *p->at >= '0' && *p->at <= '9'; ++p->at) {
    *out = *out * 10 + (uint32_t)(*p->at - '0');
    if (*out > MLX_GRAMMAR_MAX_REPEAT)
      return parse_error(p, "a repetition of more than 10000 times is not supported");
  }
  return NULL;
}

// Reads "{m}", "{m,}", "{,n}" or "{m,n}".
static mlx_status_t read_counts(parser_t *p, uint32_t *out_min, uint32_t *out_max, bool *out_open) {
  ++p->at;
  skip_space(p, p->nesting > 0);
  const char *digits = p->at;
  MLX_TRY(read_count(p, out_min));
  const bool has_min = p->at > digits;
  skip_space(p, p->nesting > 0);
  *out_max = *out_min;
  *out_open = false;
  if (is_at(p, ',')) {
    ++p->at;
    skip_space(p, p->nesting > 0);
    digits = p->at;
    MLX_TRY(read_count(p, out_max));
    *out_open = p->at == digits;
    skip_space(p, p->nesting > 0);
  } else if (!has_min) {
    return parse_error(p, "expected a number in this repetition: {3}, {3,}, {,3} or {1,3}");
  }
  if (!is_at(p, '}')) return parse_error(p, "expected } at the end of this repetition");
  if (!*out_open && *out_max < *out_min)
    return parse_error(p, "this repetition's maximum is less than its minimum");
  ++p->at;
  return NULL;
}

static mlx_status_t read_repetition(parser_t *p, sequence_t *sequence, size_t start) {
  uint32_t min = 0, max = 0;
  bool open = false;
  if (start == SIZE_MAX) return parse_error(p, "nothing to repeat before this");
  switch (*p->at) {
    case '*':
      open = true;
      ++p->at;
      break;
    case '+':
      min = 1;
      open = true;
      ++p->at;
      break;
    case '?':
      max = 1;
      ++p->at;
      break;
    default: MLX_TRY(read_counts(p, &min, &max, &open));
  }
  mlx_symbol_t item, rest = {0};
  MLX_TRY(replace_item(p, sequence, start, &item));
  for (uint32_t i = 0; i < min; ++i) MLX_TRY(push(sequence, item));
  if (open) {
    MLX_TRY(add_star(p, item, &rest));
    return push(sequence, rest);
  }
  if (max == min) return NULL;
  MLX_TRY(add_optionals(p, item, max - min, &rest));
  return push(sequence, rest);
}

// ----------------------------------------------------------------------------------------------------------
// Rules

static mlx_status_t read_alternates(parser_t *p, uint32_t rule);

static mlx_status_t read_group(parser_t *p, sequence_t *sequence) {
  const char *start = p->at++;
  uint32_t rule;
  if (++p->nesting > MLX_GRAMMAR_MAX_NESTING)
    return parse_error(p, "parentheses nested deeper than 100 are not supported");
  MLX_TRY(mlx_grammar_add_rule(p->grammar, p->name, line_of(p), &rule));
  skip_space(p, true);
  MLX_TRY(read_alternates(p, rule));
  if (!is_at(p, ')')) {
    if (p->at == p->end) p->at = start;
    return parse_error(p, p->at == start ? "this ( is not closed" : "expected )");
  }
  ++p->at;
  --p->nesting;
  return push(sequence, mlx_rule_symbol(rule));
}

static mlx_status_t read_item(parser_t *p, sequence_t *sequence, bool *out_found) {
  *out_found = true;
  if (is_at(p, '"')) return read_literal(p, sequence);
  if (is_at(p, '[') || is_at(p, '.')) return read_class(p, sequence);
  if (is_at(p, '(')) return read_group(p, sequence);
  if (is_at(p, '<') || is_at(p, '!')) {
    return parse_error(
        p, "tokens (<think>, <[1000]>, !<...>) are not supported; write the token's text as a literal");
  }
  *out_found = p->at < p->end && is_word(*p->at);
  if (!*out_found) return NULL;
  uint32_t rule;
  MLX_TRY(read_name(p, &rule));
  return push(sequence, mlx_rule_symbol(rule));
}

static mlx_status_t read_sequence(parser_t *p, sequence_t *sequence) {
  size_t last = SIZE_MAX;  // index of the last item's first symbol
  for (;;) {
    const size_t start = sequence->count;
    bool found;
    if (p->at < p->end && memchr("*+?{", *p->at, 4)) {
      MLX_TRY(read_repetition(p, sequence, last));
    } else {
      MLX_TRY(read_item(p, sequence, &found));
      if (!found) return NULL;
      last = start;
    }
    skip_space(p, p->nesting > 0);
  }
}

// A rule continues on the next line if that line begins with "|".
static bool has_next_alternate(parser_t *p) {
  const char *here = p->at;
  skip_space(p, true);
  if (is_at(p, '|')) return true;
  p->at = here;
  return false;
}

static mlx_status_t read_alternates(parser_t *p, uint32_t rule) {
  sequence_t sequence = {0};
  mlx_status_t status;
  for (;;) {
    sequence.count = 0;
    status = read_sequence(p, &sequence);
    if (!status) status = mlx_grammar_add_alternate(p->grammar, rule, sequence.symbols, sequence.count);
    if (status || !has_next_alternate(p)) break;
    ++p->at;
    skip_space(p, true);
  }
  mlx_free(sequence.symbols);
  return status;
}

static mlx_status_t read_rule(parser_t *p) {
  const char *start = p->at;
  uint32_t rule;
  if (!is_word(*p->at)) return parse_error(p, "expected a rule: name ::= ...");
  MLX_TRY(read_name(p, &rule));
  if (p->grammar->rules[rule].first >= 0) {
    p->at = start;
    return parse_error(p, "this rule is already defined");
  }
  p->name = p->grammar->rules[rule].name;
  skip_space(p, false);
  if (p->end - p->at < 3 || memcmp(p->at, "::=", 3)) return parse_error(p, "expected ::=");
  p->at += 3;
  skip_space(p, true);
  MLX_TRY(read_alternates(p, rule));
  if (p->at < p->end && *p->at != '\n') return parse_error(p, "expected the end of the line");
  return NULL;
}

static mlx_status_t check_names(const mlx_grammar_t *g) {
  for (size_t i = 0; i < g->rule_count; ++i) {
    if (g->rules[i].first >= 0) continue;
    const char *name = g->names + g->rules[i].name;
    if (!mlx_grammar_is_named(g, (uint32_t)i)) {
      return mlx_error(MLX_INVALID_INPUT, "%s: line %u: an empty [] in rule '%s' matches nothing", g->source,
                       g->rules[i].line, name);
    }
    return mlx_error(MLX_INVALID_INPUT, "%s: line %u: rule '%s' is used but not defined", g->source,
                     g->rules[i].line, name);
  }
  return NULL;
}

static mlx_status_t find_root(mlx_grammar_t *g) {
  for (uint32_t i = 0; i < g->rule_count; ++i) {
    if (strcmp(g->names + g->rules[i].name, "root")) continue;
    g->root = i;
    return NULL;
  }
  return mlx_status_hint(mlx_error(MLX_INVALID_INPUT, "%s: there is no rule 'root'", g->source),
                         "add the rule that matches the whole text: root ::= ...");
}

static mlx_status_t parse(mlx_grammar_t *g, const char *text, size_t length) {
  parser_t p = {.grammar = g, .text = text, .at = text, .end = text + length, .counted = text, .line = 1};
  mlx_budget_t budget;
  mlx_budget_begin_file(&budget, g->source, length);
  MLX_TRY(mlx_grammar_add_bytes(g));
  skip_space(&p, true);
  for (const char *start = p.at; p.at < p.end; start = p.at) {
    MLX_TRY(read_rule(&p));
    MLX_TRY(mlx_budget_step(&budget, (uint64_t)(p.at - start)));
    skip_space(&p, true);
  }
  MLX_TRY(find_root(g));
  MLX_TRY(check_names(g));
  mlx_grammar_find_byte_classes(g);
  return mlx_grammar_check(g, &budget);
}

mlx_status_t mlx_grammar_create(const char *name, const char *gbnf, size_t length, mlx_grammar_t **out) {
  *out = NULL;
  mlx_grammar_t *g;
  MLX_TRY(mlx_alloc(1, sizeof *g, &g));
  mlx_status_t status = mlx_copy_text(name, strlen(name), &g->source);
  if (!status) status = parse(g, gbnf, length);
  mlx_name_table_free(&g->name_table);
  if (status) {
    mlx_grammar_free(g);
    return status;
  }
  *out = g;
  return NULL;
}
