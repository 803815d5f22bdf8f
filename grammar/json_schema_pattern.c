// Regular expressions (ECMA-262) as GBNF, for the content of a JSON string, where characters that JSON
// escapes are written escaped, or for a plain text. Assertions other than ^ at the start and $ at the end,
// and back references, are not supported.
#include "grammar/json_schema_pattern.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MAX_NESTING 50
#define MAX_REPEAT 10000
#define MAX_RANGES 512
#define LAST_CHARACTER 0x10ffffu

typedef struct range {
  uint32_t first, last;
} range_t;

typedef struct set {
  range_t items[MAX_RANGES];
  size_t count;
} set_t;

typedef struct reader {
  mlx_text_t *out;
  const char *at, *end;
  const char *problem;
  int nesting;
  bool negated;   // inside [^ ]
  bool is_plain;  // a plain text: nothing is escaped
} reader_t;

static const range_t digits[] = {{'0', '9'}};
static const range_t words[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
// Regular expression engines disagree about spaces. The first COMMON_SPACES ranges are spaces in every
// engine; only these match \s. Only characters that are a space in no engine match \S.
#define COMMON_SPACES 2
static const range_t spaces[] = {{9, 13},          {32, 32},         {0x1c, 0x1f},     {0x85, 0x85},
                                 {0xa0, 0xa0},     {0x1680, 0x1680}, {0x180e, 0x180e}, {0x2000, 0x200a},
                                 {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000},
                                 {0xfeff, 0xfeff}};

// ----------------------------------------------------------------------------------------------------------
// Sets of characters

static void add(reader_t *r, set_t *set, uint32_t first, uint32_t last) {
  if (set->count == MAX_RANGES) {
    r->problem = "has a character class with too many ranges";
    return;
  }
  set->items[set->count++] = (range_t){first, last};
}

static int compare(const void *a, const void *b) {
  const range_t *x = a, *y = b;
  return (x->first > y->first) - (x->first < y->first);
}

// Adds the characters that are in none of |ranges|.
static void add_complement(reader_t *r, set_t *set, range_t *ranges, size_t count) {
  qsort(ranges, count, sizeof *ranges, compare);
  uint32_t from = 0;
  for (size_t i = 0; i < count; ++i) {
    if (ranges[i].first > from) add(r, set, from, ranges[i].first - 1);
    if (ranges[i].last + 1 > from) from = ranges[i].last + 1;
  }
  if (from <= LAST_CHARACTER) add(r, set, from, LAST_CHARACTER);
}

// Adds the set of \d, \w, \s or of the complements \D, \W, \S; false for another letter.
static bool add_named(reader_t *r, set_t *set, char name) {
  const range_t *from = NULL;
  size_t count = 0;
  switch (name | 32) {
    case 'd':
      from = digits;
      count = sizeof digits / sizeof *digits;
      break;
    case 'w':
      from = words;
      count = sizeof words / sizeof *words;
      break;
    case 's':
      from = spaces;
      count = sizeof spaces / sizeof *spaces;
      break;
    default: return false;
  }
  range_t copy[16];
  const bool is_capital = !(name & 32);
  if (from == spaces && is_capital == r->negated) count = COMMON_SPACES;
  memcpy(copy, from, count * sizeof *copy);
  if (!is_capital) {
    for (size_t i = 0; i < count; ++i) add(r, set, copy[i].first, copy[i].last);
  } else {
    add_complement(r, set, copy, count);
  }
  return true;
}

static void put_character(mlx_text_t *out, uint32_t c) { mlx_text_printf(out, "\\U%08X", c); }

// The JSON escape of |c| as a GBNF literal; NULL: none.
static const char *escape_of(uint32_t c) {
  switch (c) {
    case '"': return "\"\\\\\\\"\"";
    case '\\': return "\"\\\\\\\\\"";
    case '\b': return "\"\\\\b\"";
    case '\f': return "\"\\\\f\"";
    case '\n': return "\"\\\\n\"";
    case '\r': return "\"\\\\r\"";
    case '\t': return "\"\\\\t\"";
    default: return NULL;
  }
}

// The characters that need no escape.
#define UNESCAPED_RANGES 5
static const range_t in_json[UNESCAPED_RANGES] = {
    {32, '!'}, {'#', '['}, {']', 126}, {128, 0xd7ff}, {0xe000, LAST_CHARACTER}};
static const range_t in_text[UNESCAPED_RANGES] = {
    {9, 13}, {32, 126}, {128, 0xd7ff}, {0xe000, 0xffff}, {0x10000, LAST_CHARACTER}};
static const range_t *unescaped(const reader_t *r) { return r->is_plain ? in_text : in_json; }

static bool needs_no_escape(const reader_t *r, uint32_t c) {
  for (int i = 0; i < UNESCAPED_RANGES; ++i) {
    if (unescaped(r)[i].first <= c && c <= unescaped(r)[i].last) return true;
  }
  return false;
}

static bool has(const set_t *set, uint32_t c) {
  for (size_t i = 0; i < set->count; ++i) {
    if (set->items[i].first <= c && c <= set->items[i].last) return true;
  }
  return false;
}

// Writes a class that matches one character of the set. |with_escapes|: also characters that JSON escapes.
static void put_set(reader_t *r, const set_t *set, bool with_escapes) {
  const range_t *plain = unescaped(r);
  static const uint32_t escaped[] = {'"', '\\', '\b', '\f', '\n', '\r', '\t'};
  const char *separator = "";
  bool open = false;
  mlx_text_puts(r->out, "(");
  for (size_t i = 0; i < set->count; ++i) {
    for (size_t j = 0; j < UNESCAPED_RANGES; ++j) {
      const uint32_t first = set->items[i].first > plain[j].first ? set->items[i].first : plain[j].first;
      const uint32_t last = set->items[i].last < plain[j].last ? set->items[i].last : plain[j].last;
      if (first > last) continue;
      if (!open) mlx_text_puts(r->out, "[");
      open = true;
      put_character(r->out, first);
      if (first < last) mlx_text_puts(r->out, "-");
      if (first < last) put_character(r->out, last);
    }
  }
  if (open) mlx_text_puts(r->out, "]");
  if (open) separator = " | ";
  for (size_t i = 0; with_escapes && !r->is_plain && i < sizeof escaped / sizeof *escaped; ++i) {
    if (!has(set, escaped[i])) continue;
    mlx_text_printf(r->out, "%s%s", separator, escape_of(escaped[i]));
    separator = " | ";
  }
  mlx_text_puts(r->out, ")");
  if (!*separator)
    r->problem = r->is_plain ? "has a character class that no character matches"
                             : "has a character class that no character of a JSON string matches";
}

// ----------------------------------------------------------------------------------------------------------
// Reading

static uint32_t read_utf8(reader_t *r) {
  const int length = mlx_utf8_length(r->at, (size_t)(r->end - r->at));
  const unsigned char *c = (const unsigned char *)r->at;
  if (length <= 0) {
    r->problem = "is not UTF-8";
    r->at = r->end;
    return 0;
  }
  uint32_t out = length == 1 ? c[0] : c[0] & (0xffu >> (length + 1));
  for (int i = 1; i < length; ++i) out = out << 6 | (c[i] & 63);
  r->at += length;
  return out;
}

static uint32_t read_hex(reader_t *r, int count) {
  uint32_t out = 0;
  for (int i = 0; i < count; ++i, ++r->at) {
    const char c = r->at < r->end ? *r->at : 0;
    const char lower = (char)(c | 32);
    const int digit = c >= '0' && c <= '9' ? c - '0' : lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
    if (digit < 0) {
      r->problem = "has \\x or \\u without its hexadecimal digits";
      return 0;
    }
    out = out << 4 | (uint32_t)digit;
  }
  return out;
}

// Reads what follows a backslash. Returns one character, or UINT32_MAX after adding a named set to |set|.
static uint32_t read_escape(reader_t *r, set_t *set) {
  static const char names[] = "nrtfv0", values[] = "\n\r\t\f\v";
  if (r->at == r->end) {
    r->problem = "ends with a backslash";
    return 0;
  }
  const char c = *r->at;
  if (add_named(r, set, c)) {
    ++r->at;
    return UINT32_MAX;
  }
  if (c == 'x' || c == 'u') {
    ++r->at;
    return read_hex(r, c == 'x' ? 2 : 4);
  }
  const char *found = c ? strchr(names, c) : NULL;
  if (found) {
    ++r->at;
    return (uint32_t)(unsigned char)values[found - names];
  }
  if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) {
    r->problem = "uses an escape (\\b, \\1, \\p ...) that is not supported";
    return 0;
  }
  return read_utf8(r);
}

static void read_class(reader_t *r) {
  set_t set = {.count = 0}, others = {.count = 0};
  const bool negated = r->at < r->end && *r->at == '^';
  if (negated) ++r->at;
  r->negated = negated;
  while (!r->problem && r->at < r->end && *r->at != ']') {
    uint32_t first, last;
    const bool is_escape = *r->at == '\\';
    if (is_escape) ++r->at;
    first = last = is_escape ? read_escape(r, &set) : read_utf8(r);
    if (first == UINT32_MAX) continue;
    if (r->end - r->at > 1 && *r->at == '-' && r->at[1] != ']') {
      ++r->at;
      const bool escape_again = *r->at == '\\';
      if (escape_again) ++r->at;
      last = escape_again ? read_escape(r, &set) : read_utf8(r);
      if (last == UINT32_MAX || last < first) r->problem = "has an invalid range";
    }
    if (!r->problem) add(r, &set, first, last);
  }
  r->negated = false;
  if (r->at == r->end && !r->problem) r->problem = "has a [ without ]";
  if (r->problem) return;
  ++r->at;
  if (negated) add_complement(r, &others, set.items, set.count);
  put_set(r, negated ? &others : &set, !negated);
}

static void read_alternates(reader_t *r);

static void read_group(reader_t *r) {
  if (r->end - r->at >= 2 && r->at[0] == '?' && r->at[1] == ':') {
    r->at += 2;
  } else if (r->at < r->end && *r->at == '?') {
    r->problem = "has a lookahead or lookbehind ((?=, (?!, (?<), which is not supported";
    return;
  }
  if (++r->nesting > MAX_NESTING) {
    r->problem = "is nested too deeply";
    return;
  }
  mlx_text_puts(r->out, "(");
  read_alternates(r);
  if (!r->problem && (r->at == r->end || *r->at != ')')) r->problem = "has a ( without )";
  if (r->problem) return;
  ++r->at;
  --r->nesting;
  mlx_text_puts(r->out, ")");
}

static void put_literal(reader_t *r, uint32_t c) {
  if (needs_no_escape(r, c)) {
    mlx_text_puts(r->out, "\"");
    put_character(r->out, c);
    mlx_text_puts(r->out, "\"");
  } else if (!r->is_plain && escape_of(c)) {
    mlx_text_puts(r->out, escape_of(c));
  } else {
    r->problem = "matches a control character, which is not supported";
  }
}

static void read_atom(reader_t *r) {
  set_t set = {.count = 0};
  const char c = *r->at;
  if (c == '^' || c == '$') {
    r->problem = "has a ^ or $ in the middle, which is not supported";
  } else if (c == '*' || c == '+' || c == '?' || c == '{') {
    r->problem = "has a repetition with nothing before it";
  } else if (c == '(') {
    ++r->at;
    read_group(r);
  } else if (c == '[') {
    ++r->at;
    read_class(r);
  } else if (c == '.') {
    ++r->at;
    add_complement(r, &set, (range_t[]){{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}, 3);
    put_set(r, &set, false);
  } else if (c == '\\') {
    ++r->at;
    const uint32_t character = read_escape(r, &set);
    if (r->problem) return;
    if (character == UINT32_MAX) {
      put_set(r, &set, true);
    } else {
      put_literal(r, character);
    }
  } else {
    const uint32_t character = read_utf8(r);
    if (!r->problem) put_literal(r, character);
  }
}

// *|out| is SIZE_MAX if there are no digits.
static void read_count(reader_t *r, size_t *out) {
  *out = SIZE_MAX;
  for (; r->at < r->end && *r->at >= '0' && *r->at <= '9'; ++r->at) {
    *out = (*out == SIZE_MAX ? 0 : *out * 10) + (size_t)(*r->at - '0');
    if (*out > MAX_REPEAT) r->problem = "repeats more than 10000 times";
    if (r->problem) return;
  }
}

// Reads {m}, {m,} or {m,n}.
static void read_counts(reader_t *r) {
  size_t min, max;
  ++r->at;
  read_count(r, &min);
  const bool has_comma = r->at < r->end && *r->at == ',';
  if (has_comma) ++r->at;
  if (!r->problem) read_count(r, &max);
  if (r->problem) return;
  if (min == SIZE_MAX || r->at == r->end || *r->at != '}' || max < min) {
    r->problem = "has a { that does not begin a repetition";
    return;
  }
  ++r->at;
  mlx_text_printf(r->out, has_comma ? "{%zu," : "{%zu", min);
  if (max != SIZE_MAX) mlx_text_printf(r->out, "%zu", max);
  mlx_text_puts(r->out, "}");
}

static void read_quantifier(reader_t *r) {
  if (r->at == r->end || !memchr("*+?{", *r->at, 4)) return;
  if (*r->at == '{') {
    read_counts(r);
  } else {
    mlx_text_append(r->out, r->at++, 1);
  }
  if (!r->problem && r->at < r->end && *r->at == '?') ++r->at;  // a lazy quantifier matches the same texts
}

static void read_alternates(reader_t *r) {
  bool first = true;
  while (!r->problem && r->at < r->end && *r->at != ')') {
    if (*r->at == '|') {
      mlx_text_puts(r->out, " | ");
      ++r->at;
      first = true;
      continue;
    }
    if (!first) mlx_text_puts(r->out, " ");
    read_atom(r);
    if (!r->problem) read_quantifier(r);
    first = false;
  }
}

// Whether there is a | outside of all parentheses and classes.
static bool has_outer_bar(const char *at, const char *end) {
  int nesting = 0;
  bool in_class = false;
  for (; at < end; ++at) {
    if (*at == '\\') {
      ++at;
    } else if (in_class) {
      in_class = *at != ']';
    } else if (*at == '[') {
      in_class = true;
    } else if (*at == '|' && !nesting) {
      return true;
    } else {
      nesting += (*at == '(') - (*at == ')');
    }
  }
  return false;
}

// Writes the rule for |pattern|. Returns the reason if it is not supported, or NULL. A plain text must match
// as a whole; in a JSON string, the anchors decide.
static const char *put_pattern(reader_t r, const char *pattern, size_t length) {
  const bool from_start = length && pattern[0] == '^';
  size_t backslashes = 0;
  while (length > backslashes + 1 && pattern[length - 2 - backslashes] == '\\') ++backslashes;
  const bool to_end = length > (size_t)from_start && pattern[length - 1] == '$' && backslashes % 2 == 0;
  r.at = pattern + from_start;
  r.end = pattern + length - to_end;
  if ((from_start || to_end) && has_outer_bar(r.at, r.end)) {
    r.problem = "has ^ or $ together with a top-level |: put the alternatives in parentheses";
  }
  if (!from_start && !r.is_plain) mlx_text_puts(r.out, "char* ");
  mlx_text_puts(r.out, "(");
  read_alternates(&r);
  if (!r.problem && r.at < r.end) r.problem = "has a ) without (";
  mlx_text_puts(r.out, to_end || r.is_plain ? ")" : ") char*");
  return r.problem;
}

void mlx_gbnf_put_pattern(mlx_text_t *out, const char *pattern, size_t length, const char **out_problem) {
  *out_problem = put_pattern((reader_t){.out = out}, pattern, length);
}

mlx_status_t mlx_regex_to_gbnf(const char *name, const char *regex, size_t length, char **out_gbnf,
                               size_t *out_length) {
  mlx_text_t out = {0};
  *out_gbnf = NULL;
  mlx_text_puts(&out, "root ::= ");
  const char *problem = put_pattern((reader_t){.out = &out, .is_plain = true}, regex, length);
  mlx_status_t status = problem ? mlx_error(MLX_UNSUPPORTED, "%s: the regular expression %s", name, problem)
                                : mlx_text_take(&out, out_gbnf, out_length);
  mlx_text_clear(&out);
  return status;
}
