// Regular expressions (ECMA-262) as automata, by Thompson's construction.
#include "grammar/regex.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

#define MAX_NESTING 50
#define MAX_REPEAT 10000
#define MAX_RANGES 512

typedef mlx_nfa_range_t range_t;

typedef struct set {
  range_t items[MAX_RANGES];
  size_t count;
} set_t;

// The states from |first| on. |end| is a SPLIT that has no successor yet.
typedef struct fragment {
  uint32_t first, start, end;
} fragment_t;

typedef struct reader {
  mlx_nfa_t *nfa;
  const char *at, *end;
  const char *problem;
  mlx_status_t status;  // of an allocation; |problem| is set too
  int nesting;
  bool negated;                // inside [^ ]
  bool all_anchored_at_start;  // every top-level alternative begins with ^
  bool all_anchored_at_end;    // and ends with $
} reader_t;

static const range_t digits[] = {{'0', '9'}};
static const range_t words[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
// Regular expression engines disagree about spaces, and about letters and digits outside of ASCII. A set
// contains only characters that every engine has in it. Inside [^ ], it contains those that some engine has.
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
  if (from <= MLX_LAST_CHARACTER) add(r, set, from, MLX_LAST_CHARACTER);
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
  // Whether the characters that only some engines have in the set of the small letter belong to it.
  const bool is_wide = is_capital != r->negated;
  if (from == spaces && !is_wide) count = COMMON_SPACES;
  memcpy(copy, from, count * sizeof *copy);
  if (from != spaces && is_wide) copy[count++] = (range_t){128, MLX_LAST_CHARACTER};
  if (!is_capital) {
    for (size_t i = 0; i < count; ++i) add(r, set, copy[i].first, copy[i].last);
  } else {
    add_complement(r, set, copy, count);
  }
  return true;
}

// ----------------------------------------------------------------------------------------------------------
// Fragments

static uint32_t add_state(reader_t *r, mlx_nfa_kind_t kind, uint32_t out0, uint32_t out1) {
  uint32_t state = 0;
  if (r->problem) return 0;
  if (r->nfa->count == MLX_NFA_MAX_STATES) {
    r->problem = "is too large";
    return 0;
  }
  r->status = mlx_nfa_add(r->nfa, kind, out0, out1, &state);
  if (r->status) r->problem = "does not fit into memory";
  return state;
}

static void link_end(reader_t *r, uint32_t end, uint32_t to) {
  if (!r->problem) r->nfa->states[end].out[0] = r->nfa->states[end].out[1] = to;
}

static fragment_t empty_fragment(reader_t *r) {
  const uint32_t end = add_state(r, MLX_NFA_SPLIT, 0, 0);
  return (fragment_t){end, end, end};
}

static fragment_t one_state(reader_t *r, mlx_nfa_kind_t kind) {
  const uint32_t end = add_state(r, MLX_NFA_SPLIT, 0, 0), state = add_state(r, kind, end, 0);
  return (fragment_t){end, state, end};
}

static fragment_t one_character(reader_t *r, set_t *set) {
  fragment_t out = empty_fragment(r);
  if (r->problem) return out;
  if (!set->count) {
    r->problem = "has a character class that no character matches";
    return out;
  }
  r->status = mlx_nfa_add_set(r->nfa, set->items, set->count, out.end, &out.start);
  if (r->status) r->problem = "does not fit into memory";
  return out;
}

static fragment_t join(reader_t *r, fragment_t a, fragment_t b) {
  link_end(r, a.end, b.start);
  return (fragment_t){a.first, a.start, b.end};
}

static fragment_t choose(reader_t *r, fragment_t a, fragment_t b) {
  const uint32_t start = add_state(r, MLX_NFA_SPLIT, a.start, b.start);
  const uint32_t end = add_state(r, MLX_NFA_SPLIT, 0, 0);
  link_end(r, a.end, end);
  link_end(r, b.end, end);
  return (fragment_t){a.first, start, end};
}

// Copies the states [f.first, last) to the end. The sets share their ranges.
static fragment_t copy(reader_t *r, fragment_t f, uint32_t last) {
  const uint32_t shift = (uint32_t)r->nfa->count - f.first;
  for (uint32_t i = f.first; i < last && !r->problem; ++i) {
    const mlx_nfa_state_t from = r->nfa->states[i];
    const uint32_t state = add_state(r, from.kind, from.out[0] + shift, from.out[1] + shift);
    if (r->problem) break;
    r->nfa->states[state].first_range = from.first_range;
    r->nfa->states[state].range_count = from.range_count;
  }
  return (fragment_t){f.first + shift, f.start + shift, f.end + shift};
}

// |f|, which has the last states, from |min| to |max| times; |max| is SIZE_MAX for no limit.
static fragment_t repeat(reader_t *r, fragment_t f, size_t min, size_t max) {
  const bool is_endless = max == SIZE_MAX;
  const size_t copies = is_endless ? (min ? min : 1) : max;
  const uint32_t last = (uint32_t)r->nfa->count;
  if (r->problem) return f;
  if (!copies) return empty_fragment(r);
  if (copies * (last - f.first + 1) > MLX_NFA_MAX_STATES) {
    r->problem = "is too large";
    return f;
  }
  // All copies are made before the first end is linked.
  const uint32_t end = add_state(r, MLX_NFA_SPLIT, 0, 0);
  const uint32_t first_copy = (uint32_t)r->nfa->count, size = last - f.first;
  for (size_t i = 1; i < copies; ++i) copy(r, f, last);
  uint32_t start = f.start, previous = 0;
  for (size_t i = 0; i < copies && !r->problem; ++i) {
    const uint32_t shift = i ? first_copy + (uint32_t)(i - 1) * size - f.first : 0;
    uint32_t entry = f.start + shift;
    if (i >= min) entry = add_state(r, MLX_NFA_SPLIT, entry, end);
    if (i) link_end(r, previous, entry);
    if (!i) start = entry;
    previous = f.end + shift;
  }
  uint32_t after = end;
  if (is_endless) {
    const uint32_t shift = copies > 1 ? first_copy + (uint32_t)(copies - 2) * size - f.first : 0;
    after = add_state(r, MLX_NFA_SPLIT, f.start + shift, end);
  }
  link_end(r, previous, after);
  return (fragment_t){f.first, start, end};
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

static fragment_t read_class(reader_t *r) {
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
  if (r->problem) return (fragment_t){0};
  ++r->at;
  if (negated) add_complement(r, &others, set.items, set.count);
  return one_character(r, negated ? &others : &set);
}

static fragment_t read_alternates(reader_t *r);

// Skips ?: or the name of a group, ?<name> or ?P<name>.
static void skip_group_kind(reader_t *r) {
  if (r->at == r->end || *r->at != '?') return;
  const char *at = r->at + 1;
  if (at < r->end && *at == 'P') ++at;
  if (at < r->end && *at == ':' && at == r->at + 1) {
    r->at = at + 1;
    return;
  }
  const char *name_end = at < r->end && *at == '<' ? memchr(at, '>', (size_t)(r->end - at)) : NULL;
  if (name_end && at[1] != '=' && at[1] != '!') {
    r->at = name_end + 1;
  } else {
    r->problem = "has a lookahead or lookbehind ((?=, (?!, (?<), which is not supported";
  }
}

static fragment_t read_group(reader_t *r) {
  fragment_t out = {0};
  skip_group_kind(r);
  if (++r->nesting > MAX_NESTING && !r->problem) r->problem = "is nested too deeply";
  if (r->problem) return out;
  out = read_alternates(r);
  if (!r->problem && (r->at == r->end || *r->at != ')')) r->problem = "has a ( without )";
  if (r->problem) return out;
  ++r->at;
  --r->nesting;
  return out;
}

static fragment_t read_atom(reader_t *r) {
  set_t set = {.count = 0};
  const char c = *r->at;
  if (c == '*' || c == '+' || c == '?' || c == '{') {
    r->problem = "has a repetition with nothing before it";
    return (fragment_t){0};
  }
  if (c == '(') {
    ++r->at;
    return read_group(r);
  }
  if (c == '[') {
    ++r->at;
    return read_class(r);
  }
  if (c == '.') {
    ++r->at;
    add_complement(r, &set, (range_t[]){{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}, 3);
    return one_character(r, &set);
  }
  const bool is_escape = c == '\\';
  if (is_escape) ++r->at;
  const uint32_t character = is_escape ? read_escape(r, &set) : read_utf8(r);
  if (!r->problem && character != UINT32_MAX) add(r, &set, character, character);
  return one_character(r, &set);
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
static fragment_t read_counts(reader_t *r, fragment_t f) {
  size_t min, max;
  ++r->at;
  read_count(r, &min);
  const bool has_comma = r->at < r->end && *r->at == ',';
  if (has_comma) ++r->at;
  if (!r->problem) read_count(r, &max);
  if (r->problem) return f;
  if (min == SIZE_MAX || r->at == r->end || *r->at != '}' || max < min) {
    r->problem = "has a { that does not begin a repetition";
    return f;
  }
  ++r->at;
  return repeat(r, f, min, has_comma ? max : min);
}

static fragment_t read_quantifier(reader_t *r, fragment_t f) {
  if (r->at == r->end || !memchr("*+?{", *r->at, 4)) return f;
  const char c = *r->at;
  if (c == '{') {
    f = read_counts(r, f);
  } else {
    ++r->at;
    f = repeat(r, f, c == '+', c == '?' ? 1 : SIZE_MAX);
  }
  if (!r->problem && r->at < r->end && *r->at == '?') ++r->at;  // a lazy quantifier matches the same texts
  return f;
}

static fragment_t read_sequence(reader_t *r) {
  fragment_t out = empty_fragment(r);
  const char *const start = r->at, *last = NULL;
  while (!r->problem && r->at < r->end && *r->at != ')' && *r->at != '|') {
    const char c = *(last = r->at);
    const bool is_anchor = c == '^' || c == '$';
    if (is_anchor) ++r->at;
    fragment_t next = is_anchor ? one_state(r, c == '^' ? MLX_NFA_BEGIN : MLX_NFA_END) : read_atom(r);
    if (!r->problem && !is_anchor) next = read_quantifier(r, next);
    if (!r->problem) out = join(r, out, next);
  }
  if (r->nesting) return out;
  r->all_anchored_at_start &= start < r->end && *start == '^';
  r->all_anchored_at_end &= last && *last == '$';
  return out;
}

static fragment_t read_alternates(reader_t *r) {
  fragment_t out = read_sequence(r);
  while (!r->problem && r->at < r->end && *r->at == '|') {
    ++r->at;
    const fragment_t next = read_sequence(r);
    if (!r->problem) out = choose(r, out, next);
  }
  return out;
}

static fragment_t any_text(reader_t *r) {
  set_t set = {.items = {{0, MLX_LAST_CHARACTER}}, .count = 1};
  return repeat(r, one_character(r, &set), 0, SIZE_MAX);
}

mlx_status_t mlx_regex_parse(const char *regex, size_t length, bool whole, mlx_nfa_t *out_nfa,
                             const char **out_problem) {
  *out_nfa = (mlx_nfa_t){0};
  reader_t r = {.nfa = out_nfa, .at = regex, .end = regex + length};
  r.all_anchored_at_start = r.all_anchored_at_end = true;
  fragment_t out = read_alternates(&r);
  if (!r.problem && r.at < r.end) r.problem = "has a ) without (";
  if (!whole && !r.problem && !r.all_anchored_at_start) out = join(&r, any_text(&r), out);
  if (!whole && !r.problem && !r.all_anchored_at_end) out = join(&r, out, any_text(&r));
  link_end(&r, out.end, add_state(&r, MLX_NFA_ACCEPT, 0, 0));
  out_nfa->start = out.start;
  *out_problem = r.problem;
  if (r.problem) mlx_nfa_free(out_nfa);
  return r.status;
}

mlx_status_t mlx_regex_to_gbnf(const char *name, const char *regex, size_t length, char **out_gbnf,
                               size_t *out_length) {
  mlx_text_t out = {0};
  mlx_budget_t budget;
  mlx_nfa_t nfa;
  const char *problem;
  size_t rule = 0;
  *out_gbnf = NULL;
  mlx_budget_begin_file(&budget, name, length);
  MLX_TRY(mlx_regex_parse(regex, length, true, &nfa, &problem));
  mlx_nfa_writer_t writer = {.out = &out, .budget = &budget};
  mlx_status_t status = NULL;
  if (!problem) {
    status = mlx_nfa_write(&writer, &(const mlx_nfa_t *){&nfa}, 1, 0, UINT64_MAX, MLX_NFA_IN_TEXT, &rule,
                           &problem);
  }
  if (!status && problem) {
    status = mlx_error(MLX_UNSUPPORTED, "%s: the regular expression %s", name, problem);
  }
  mlx_text_printf(&out, "root ::= p%zu\n", rule);
  if (!status) status = mlx_text_take(&out, out_gbnf, out_length);
  mlx_text_clear(&out);
  mlx_nfa_writer_free(&writer);
  mlx_nfa_free(&nfa);
  return status;
}
