// Strings: Python's str, character by character. The tables are Python's own.
#include <stdlib.h>

#include "template/internal.h"

typedef struct case_range {
  uint32_t first, last, step;
  int32_t delta;
} case_range_t;

typedef struct case_special {
  uint32_t character;
  const char *text;
} case_special_t;

#include "template/unicode_tables.h"

#define COUNT(table) (sizeof(table) / sizeof *(table))
#define IN_TABLE(table, character) in_ranges(table, COUNT(table), character)

// ----------------------------------------------------------------------------------------------------------
// Characters

uint32_t mlx_template_character(const char *bytes, size_t *out_length) {
  const unsigned char *b = (const unsigned char *)bytes;
  if (b[0] < 0x80) {
    *out_length = 1;
    return b[0];
  }
  const size_t length = b[0] < 0xe0 ? 2 : b[0] < 0xf0 ? 3 : 4;
  uint32_t character = b[0] & (0x7fu >> length);
  for (size_t i = 1; i < length; ++i) character = character << 6 | (b[i] & 0x3fu);
  *out_length = length;
  return character;
}

size_t mlx_span_characters(mlx_span_t span) {
  size_t count = 0;
  for (size_t i = 0; i < span.length; ++i) count += ((unsigned char)span.bytes[i] & 0xc0) != 0x80;
  return count;
}

static bool in_ranges(const uint32_t (*table)[2], size_t count, uint32_t character) {
  size_t low = 0, high = count;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (character > table[middle][1]) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < count && character >= table[low][0];
}

bool mlx_template_space(uint32_t character) { return IN_TABLE(spaces, character); }
bool mlx_printable(uint32_t character) { return !IN_TABLE(unprintable, character); }

static void put_case(mlx_sink_t *sink, uint32_t character, const case_range_t *ranges, size_t range_count,
                     const case_special_t *special, size_t special_count) {
  for (size_t i = 0; character >= 0x80 && i < special_count; ++i) {
    if (special[i].character != character) continue;
    mlx_sink_puts(sink, special[i].text);
    return;
  }
  size_t low = 0, high = range_count;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (character > ranges[middle].last) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  const case_range_t *range = &ranges[low < range_count ? low : 0];
  const bool inside =
      character >= range->first && character <= range->last && (character - range->first) % range->step == 0;
  mlx_sink_character(sink, inside ? (uint32_t)((int32_t)character + range->delta) : character);
}

#define PUT_CASE(sink, character, table) \
  put_case(sink, character, table##_ranges, COUNT(table##_ranges), table##_special, COUNT(table##_special))

// Whether the first letter with a case before (or after) |at| exists, whatever does not end a word left
// aside.
static bool cased_before(mlx_span_t text, size_t at) {
  while (at > 0) {
    size_t length;
    do --at;
    while (at && ((unsigned char)text.bytes[at] & 0xc0) == 0x80);
    const uint32_t c = mlx_template_character(text.bytes + at, &length);
    if (IN_TABLE(cased, c)) return true;
    if (!IN_TABLE(case_ignorable, c)) return false;
  }
  return false;
}

static bool cased_after(mlx_span_t text, size_t at) {
  for (size_t length; at < text.length; at += length) {
    const uint32_t c = mlx_template_character(text.bytes + at, &length);
    if (IN_TABLE(case_ignorable, c)) continue;
    return IN_TABLE(cased, c);
  }
  return false;
}

static void put_lower(mlx_sink_t *sink, mlx_span_t text, size_t at, uint32_t c, size_t length) {
  if (c != 0x3a3) {
    PUT_CASE(sink, c, lower);
  } else {  // a sigma at the end of a word
    mlx_sink_character(sink, cased_before(text, at) && !cased_after(text, at + length) ? 0x3c2 : 0x3c3);
  }
}

void mlx_sink_case(mlx_sink_t *sink, mlx_span_t text, mlx_letter_case_t letter_case) {
  bool inside = false;  // a word
  for (size_t at = 0, length; at < text.length; at += length) {
    const uint32_t c = mlx_template_character(text.bytes + at, &length);
    const bool small = letter_case == MLX_LOWER || (letter_case == MLX_CAPITALIZE && at) ||
                       (letter_case == MLX_TITLE && inside);
    if (small) {
      put_lower(sink, text, at, c, length);
    } else if (letter_case == MLX_UPPER) {
      PUT_CASE(sink, c, upper);
    } else {
      PUT_CASE(sink, c, title);
    }
    inside = IN_TABLE(cased, c);
  }
}

// ----------------------------------------------------------------------------------------------------------
// Parts

static bool strips(mlx_span_t character, const mlx_span_t *characters) {
  size_t length;
  if (!characters) return mlx_template_space(mlx_template_character(character.bytes, &length));
  return memmem(characters->bytes, characters->length, character.bytes, character.length) != NULL;
}

mlx_span_t mlx_span_strip(mlx_span_t text, const mlx_span_t *characters, bool left, bool right) {
  while (left && text.length) {
    size_t length;
    mlx_template_character(text.bytes, &length);
    if (!strips((mlx_span_t){text.bytes, length}, characters)) break;
    text.bytes += length;
    text.length -= length;
  }
  while (right && text.length) {
    size_t start = text.length - 1;
    while (((unsigned char)text.bytes[start] & 0xc0) == 0x80) --start;
    if (!strips((mlx_span_t){text.bytes + start, text.length - start}, characters)) break;
    text.length = start;
  }
  return text;
}

mlx_status_t mlx_span_escape(mlx_render_t *r, mlx_span_t text, mlx_var_t *out) {
  static const char letters[] = "&<>'\"";
  static const char *const names[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
  mlx_sink_t sink = {.arena = &r->arena};
  for (size_t i = 0; i < text.length; ++i) {
    const char *known = text.bytes[i] ? strchr(letters, text.bytes[i]) : NULL;
    if (known) {
      mlx_sink_puts(&sink, names[known - letters]);
    } else {
      mlx_sink_append(&sink, &text.bytes[i], 1);
    }
  }
  MLX_TRY(mlx_sink_take(r, &sink, out));
  out->markup = true;
  return NULL;
}

static bool ends_line(uint32_t c) {
  return (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

mlx_status_t mlx_split_lines(mlx_render_t *r, mlx_span_t text, bool keep_ends, mlx_var_t *out) {
  mlx_var_t lines;
  MLX_TRY(mlx_new_list(r, MLX_SHAPE_LIST, 0, &lines));
  for (size_t start = 0, at = 0, length; at < text.length;) {
    const uint32_t c = mlx_template_character(text.bytes + at, &length);
    const size_t end = at;
    at += length;
    const bool ends = ends_line(c);
    if (c == '\r' && at < text.length && text.bytes[at] == '\n') ++at;
    if (!ends && at < text.length) continue;
    MLX_TRY(mlx_list_push(r, lines.list,
                          mlx_string(text.bytes + start, (ends && !keep_ends ? end : at) - start)));
    start = at;
  }
  *out = lines;
  return NULL;
}

mlx_status_t mlx_replace(mlx_render_t *r, mlx_span_t text, mlx_span_t old, mlx_span_t new, int64_t count,
                         mlx_var_t *out) {
  mlx_sink_t sink = {.arena = &r->arena};
  size_t at = 0;
  while (count && at <= text.length) {
    const char *found =
        old.length
            ? (at < text.length ? memmem(text.bytes + at, text.length - at, old.bytes, old.length) : NULL)
            : text.bytes + at;  // the empty string is before every character and at the end
    if (!found) break;
    const size_t place = (size_t)(found - text.bytes);
    mlx_sink_append(&sink, text.bytes + at, place - at);
    mlx_sink_append(&sink, new.bytes, new.length);
    at = place + old.length;
    if (!old.length) {
      size_t length = 1;
      if (at < text.length) mlx_template_character(text.bytes + at, &length);
      if (at < text.length) mlx_sink_append(&sink, text.bytes + at, length);
      at += length;
    }
    if (count > 0) --count;
    if (sink.failed) break;
  }
  if (at < text.length) mlx_sink_append(&sink, text.bytes + at, text.length - at);
  MLX_TRY(mlx_render_charge(r, text.length));
  return mlx_sink_take(r, &sink, out);
}

// ----------------------------------------------------------------------------------------------------------
// Methods

static mlx_status_t need_text(mlx_render_t *r, const mlx_var_t *v, const char *what) {
  MLX_TRY(mlx_need_defined(r, v));
  if (v->kind != MLX_VAR_STRING) MLX_FAIL(r, "%s wants a string, not '%s'", what, mlx_var_type(v));
  return NULL;
}

static mlx_status_t need_whole(mlx_render_t *r, const mlx_var_t *v, int64_t *out) {
  MLX_TRY(mlx_need_defined(r, v));
  if (!mlx_is_whole(v)) MLX_FAIL(r, "'%s' object cannot be interpreted as an integer", mlx_var_type(v));
  *out = mlx_whole(v);
  return NULL;
}

// A part of the method's own string, which keeps what it was.
static mlx_status_t give(const mlx_call_t *call, mlx_span_t part, mlx_var_t *out) {
  *out = mlx_string(part.bytes, part.length);
  out->markup = call->self.markup;
  return NULL;
}

static mlx_status_t strip_sides(mlx_render_t *r, const mlx_call_t *call, bool left, bool right,
                                mlx_var_t *out) {
  const bool by_space = !call->given[0] || call->parameters[0].kind == MLX_VAR_NONE;
  if (!by_space) MLX_TRY(need_text(r, &call->parameters[0], "strip()"));
  MLX_TRY(mlx_render_charge(r, call->self.text.length));
  return give(call, mlx_span_strip(call->self.text, by_space ? NULL : &call->parameters[0].text, left, right),
              out);
}

static mlx_status_t text_strip(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  return strip_sides(r, call, true, true, out);
}
static mlx_status_t text_lstrip(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  return strip_sides(r, call, true, false, out);
}
static mlx_status_t text_rstrip(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  return strip_sides(r, call, false, true, out);
}

static mlx_status_t change_case(mlx_render_t *r, const mlx_call_t *call, mlx_letter_case_t letter_case,
                                mlx_var_t *out) {
  mlx_sink_t sink = {.arena = &r->arena};
  mlx_sink_case(&sink, call->self.text, letter_case);
  MLX_TRY(mlx_sink_take(r, &sink, out));
  out->markup = call->self.markup;
  return NULL;
}

static mlx_status_t text_lower(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  return change_case(r, call, MLX_LOWER, out);
}
static mlx_status_t text_upper(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  return change_case(r, call, MLX_UPPER, out);
}
static mlx_status_t text_title(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  return change_case(r, call, MLX_TITLE, out);
}
static mlx_status_t text_capitalize(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  return change_case(r, call, MLX_CAPITALIZE, out);
}

// The parts of Markup are Markup.
static mlx_status_t mark_parts(mlx_render_t *r, const mlx_call_t *call, const mlx_var_t *list) {
  for (size_t i = 0; call->self.markup && i < list->list->count; ++i) list->list->items[i].markup = true;
  return mlx_render_charge(r, list->list->count);
}

typedef struct splitting {
  mlx_span_t text, separator;
  bool by_space;
  int64_t most;  // cuts; -1: all
} splitting_t;

static mlx_status_t read_splitting(mlx_render_t *r, const mlx_call_t *call, splitting_t *out) {
  *out = (splitting_t){.text = call->self.text,
                       .by_space = !call->given[0] || call->parameters[0].kind == MLX_VAR_NONE,
                       .most = -1};
  if (!out->by_space) {
    MLX_TRY(need_text(r, &call->parameters[0], "split()"));
    out->separator = call->parameters[0].text;
    if (!out->separator.length) MLX_FAIL(r, "empty separator");
  }
  if (call->given[1]) MLX_TRY(need_whole(r, &call->parameters[1], &out->most));
  return mlx_render_charge(r, call->self.text.length);
}

static mlx_status_t split_spaces(mlx_render_t *r, const splitting_t *s, mlx_list_t *list) {
  mlx_span_t rest = mlx_span_strip(s->text, NULL, true, false);
  for (int64_t cuts = 0; rest.length; ++cuts) {
    size_t end = 0, length;
    if (s->most >= 0 && cuts >= s->most) {
      return mlx_list_push(r, list, mlx_string(rest.bytes, rest.length));
    }
    for (; end < rest.length && !mlx_template_space(mlx_template_character(rest.bytes + end, &length));
         end += length)
      continue;
    MLX_TRY(mlx_list_push(r, list, mlx_string(rest.bytes, end)));
    rest = mlx_span_strip((mlx_span_t){rest.bytes + end, rest.length - end}, NULL, true, false);
  }
  return NULL;
}

static mlx_status_t text_split(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  splitting_t s;
  mlx_var_t list;
  MLX_TRY(read_splitting(r, call, &s));
  MLX_TRY(mlx_new_list(r, MLX_SHAPE_LIST, 0, &list));
  *out = list;
  if (s.by_space) {
    MLX_TRY(split_spaces(r, &s, list.list));
    return mark_parts(r, call, out);
  }
  mlx_span_t rest = s.text;
  for (int64_t cuts = 0; s.most < 0 || cuts < s.most; ++cuts) {
    const char *found = memmem(rest.bytes, rest.length, s.separator.bytes, s.separator.length);
    if (!found) break;
    MLX_TRY(mlx_list_push(r, list.list, mlx_string(rest.bytes, (size_t)(found - rest.bytes))));
    rest.length -= (size_t)(found - rest.bytes) + s.separator.length;
    rest.bytes = found + s.separator.length;
  }
  MLX_TRY(mlx_list_push(r, list.list, mlx_string(rest.bytes, rest.length)));
  return mark_parts(r, call, out);
}

// Where the last |part| begins; -1: nowhere.
static int64_t find_last(mlx_span_t text, mlx_span_t part) {
  for (size_t at = text.length - part.length + 1; part.length <= text.length && at-- > 0;) {
    if (!memcmp(text.bytes + at, part.bytes, part.length)) return (int64_t)at;
  }
  return -1;
}

static size_t last_space(mlx_span_t text) {  // the start of the last word
  size_t at = text.length;
  while (at) {
    size_t start = at - 1, length;
    while (((unsigned char)text.bytes[start] & 0xc0) == 0x80) --start;
    if (mlx_template_space(mlx_template_character(text.bytes + start, &length))) return at;
    at = start;
  }
  return 0;
}

static mlx_status_t text_rsplit(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  splitting_t s;
  mlx_var_t list;
  MLX_TRY(read_splitting(r, call, &s));
  MLX_TRY(mlx_new_list(r, MLX_SHAPE_LIST, 0, &list));
  mlx_span_t rest = s.by_space ? mlx_span_strip(s.text, NULL, false, true) : s.text;
  for (int64_t cuts = 0; s.most < 0 || cuts < s.most; ++cuts) {
    int64_t at = s.by_space ? (int64_t)last_space(rest) - 1 : find_last(rest, s.separator);
    if (at < 0) break;
    const size_t start = (size_t)at + (s.by_space ? 1 : s.separator.length);
    MLX_TRY(mlx_list_push(r, list.list, mlx_string(rest.bytes + start, rest.length - start)));
    MLX_TRY(mlx_render_charge(r, rest.length));
    rest.length = s.by_space ? start : (size_t)at;
    if (s.by_space) rest = mlx_span_strip(rest, NULL, false, true);
  }
  if (!s.by_space || rest.length) MLX_TRY(mlx_list_push(r, list.list, mlx_string(rest.bytes, rest.length)));
  for (size_t i = 0, j = list.list->count; i + 1 < j; ++i) {
    mlx_var_t swapped = list.list->items[i];
    list.list->items[i] = list.list->items[--j];
    list.list->items[j] = swapped;
  }
  *out = list;
  return mark_parts(r, call, out);
}

static mlx_status_t text_splitlines(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  MLX_TRY(mlx_split_lines(r, call->self.text, call->given[0] && mlx_var_truth(&call->parameters[0]), out));
  return mark_parts(r, call, out);
}

static mlx_status_t text_replace(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  int64_t count = -1;
  MLX_TRY(need_text(r, &call->parameters[0], "replace()"));
  MLX_TRY(need_text(r, &call->parameters[1], "replace()"));
  if (call->given[2]) MLX_TRY(need_whole(r, &call->parameters[2], &count));
  mlx_var_t new = call->parameters[1];
  if (call->self.markup && !new.markup) MLX_TRY(mlx_span_escape(r, new.text, &new));
  MLX_TRY(mlx_replace(r, call->self.text, call->parameters[0].text, new.text, count, out));
  out->markup = call->self.markup;
  return NULL;
}

// The place of character |index| in bytes; a negative one counts from the end.
static size_t byte_place(mlx_span_t text, int64_t index) {
  const int64_t count = (int64_t)mlx_span_characters(text);
  if (index < 0) index = index + count < 0 ? 0 : index + count;
  size_t at = 0;
  for (size_t length; index > 0 && at < text.length; --index, at += length)
    mlx_template_character(text.bytes + at, &length);
  return at;
}

// The stretch of the string that start and end, from parameter |first| on, leave. Not valid: it starts past
// its end.
static mlx_status_t read_stretch(mlx_render_t *r, const mlx_call_t *call, size_t first, mlx_span_t *out,
                                 size_t *out_start, bool *out_valid) {
  int64_t start = 0, end = INT64_MAX;
  MLX_TRY(mlx_render_charge(r, call->self.text.length));
  if (call->given[first] && call->parameters[first].kind != MLX_VAR_NONE)
    MLX_TRY(need_whole(r, &call->parameters[first], &start));
  if (call->given[first + 1] && call->parameters[first + 1].kind != MLX_VAR_NONE)
    MLX_TRY(need_whole(r, &call->parameters[first + 1], &end));
  const size_t from = byte_place(call->self.text, start), to = byte_place(call->self.text, end);
  *out_valid = from <= to && start <= (int64_t)mlx_span_characters(call->self.text);
  *out_start = from;
  *out = (mlx_span_t){call->self.text.bytes + from, *out_valid ? to - from : 0};
  return NULL;
}

static mlx_status_t has_affix(mlx_render_t *r, const mlx_call_t *call, bool at_end, mlx_var_t *out) {
  const mlx_var_t *affixes = &call->parameters[0];
  size_t count = 1, start;
  mlx_span_t text;
  bool valid, found = false;
  if (mlx_is_list(affixes, MLX_SHAPE_TUPLE)) {
    count = affixes->list->count;
    affixes = affixes->list->items;
  }
  MLX_TRY(read_stretch(r, call, 1, &text, &start, &valid));
  for (size_t i = 0; i < count; ++i) {
    MLX_TRY(need_text(r, &affixes[i], at_end ? "endswith()" : "startswith()"));
    const mlx_span_t affix = affixes[i].text;
    found =
        found || (valid && affix.length <= text.length &&
                  !memcmp(text.bytes + (at_end ? text.length - affix.length : 0), affix.bytes, affix.length));
  }
  *out = mlx_bool(found);
  return NULL;
}

static mlx_status_t text_startswith(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  return has_affix(r, call, false, out);
}
static mlx_status_t text_endswith(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  return has_affix(r, call, true, out);
}

static mlx_status_t remove_affix(mlx_render_t *r, const mlx_call_t *call, bool at_end, mlx_var_t *out) {
  mlx_span_t text = call->self.text;
  MLX_TRY(need_text(r, &call->parameters[0], at_end ? "removesuffix()" : "removeprefix()"));
  const mlx_span_t affix = call->parameters[0].text;
  if (affix.length && affix.length <= text.length &&
      !memcmp(text.bytes + (at_end ? text.length - affix.length : 0), affix.bytes, affix.length)) {
    if (!at_end) text.bytes += affix.length;
    text.length -= affix.length;
  }
  return give(call, text, out);
}

static mlx_status_t text_removeprefix(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  return remove_affix(r, call, false, out);
}
static mlx_status_t text_removesuffix(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  return remove_affix(r, call, true, out);
}

static mlx_status_t find_place(mlx_render_t *r, const mlx_call_t *call, bool last, bool must,
                               mlx_var_t *out) {
  mlx_span_t text;
  size_t start;
  bool valid;
  int64_t place = -1;
  MLX_TRY(need_text(r, &call->parameters[0], "find()"));
  MLX_TRY(read_stretch(r, call, 1, &text, &start, &valid));
  const mlx_span_t part = call->parameters[0].text;
  if (valid && last) {
    place = find_last(text, part);
  } else if (valid) {
    const char *found = part.length ? memmem(text.bytes, text.length, part.bytes, part.length) : text.bytes;
    if (found) place = found - text.bytes;
  }
  if (place < 0 && must) MLX_FAIL(r, "substring not found");
  *out = mlx_int(
      place < 0 ? -1
                : (int64_t)mlx_span_characters((mlx_span_t){call->self.text.bytes, start + (size_t)place}));
  return NULL;
}

static mlx_status_t text_find(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  return find_place(r, call, false, false, out);
}
static mlx_status_t text_rfind(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  return find_place(r, call, true, false, out);
}
static mlx_status_t text_index(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  return find_place(r, call, false, true, out);
}
static mlx_status_t text_rindex(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  return find_place(r, call, true, true, out);
}

static mlx_status_t text_count(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  mlx_span_t text;
  size_t start;
  bool valid;
  int64_t count = 0;
  MLX_TRY(need_text(r, &call->parameters[0], "count()"));
  MLX_TRY(read_stretch(r, call, 1, &text, &start, &valid));
  const mlx_span_t part = call->parameters[0].text;
  if (!part.length) {
    count = valid ? (int64_t)mlx_span_characters(text) + 1 : 0;
  } else {
    for (const char *found; (found = memmem(text.bytes, text.length, part.bytes, part.length)); ++count) {
      text.length -= (size_t)(found - text.bytes) + part.length;
      text.bytes = found + part.length;
    }
  }
  *out = mlx_int(count);
  return NULL;
}

static mlx_status_t text_join(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  const mlx_var_t *items;
  size_t count;
  mlx_sink_t sink = {.arena = &r->arena};
  MLX_TRY(mlx_var_items(r, &call->parameters[0], &items, &count));
  for (size_t i = 0; i < count; ++i) {
    if (items[i].kind != MLX_VAR_STRING)
      MLX_FAIL(r, "sequence item %zu: expected str instance, %s found", i, mlx_var_type(&items[i]));
    if (i) mlx_sink_append(&sink, call->self.text.bytes, call->self.text.length);
    mlx_sink_append(&sink, items[i].text.bytes, items[i].text.length);
  }
  return mlx_sink_take(r, &sink, out);
}

static mlx_status_t text_format(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  if (call->self.markup)
    return mlx_render_error(r, MLX_UNSUPPORTED, "format() of text marked safe is not supported");
  return mlx_format_braces(r, call->self.text, call->args, out);
}

static mlx_status_t pad(mlx_render_t *r, const mlx_call_t *call, int side, mlx_var_t *out) {
  int64_t width;
  mlx_span_t fill = {" ", 1};
  MLX_TRY(need_whole(r, &call->parameters[0], &width));
  if (call->given[1]) {
    MLX_TRY(need_text(r, &call->parameters[1], "the fill character"));
    fill = call->parameters[1].text;
    if (mlx_span_characters(fill) != 1) MLX_FAIL(r, "The fill character must be exactly one character long");
  }
  const int64_t length = (int64_t)mlx_span_characters(call->self.text),
                missing = width > length ? width - length : 0;
  const int64_t left = side < 0 ? missing : side > 0 ? 0 : missing / 2 + (missing & width & 1);
  mlx_sink_t sink = {.arena = &r->arena};
  mlx_sink_fill(&sink, fill.bytes, fill.length, left);
  mlx_sink_append(&sink, call->self.text.bytes, call->self.text.length);
  mlx_sink_fill(&sink, fill.bytes, fill.length, missing - left);
  return mlx_sink_take(r, &sink, out);
}

static mlx_status_t text_center(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  return pad(r, call, 0, out);
}
static mlx_status_t text_ljust(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  return pad(r, call, 1, out);
}
static mlx_status_t text_rjust(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  return pad(r, call, -1, out);
}

static mlx_status_t text_zfill(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  int64_t width;
  MLX_TRY(need_whole(r, &call->parameters[0], &width));
  const mlx_span_t text = call->self.text;
  const bool has_sign = text.length && (text.bytes[0] == '-' || text.bytes[0] == '+');
  mlx_sink_t sink = {.arena = &r->arena};
  mlx_sink_append(&sink, text.bytes, has_sign);
  mlx_sink_fill(&sink, "0", 1, width - (int64_t)mlx_span_characters(text));
  mlx_sink_append(&sink, text.bytes + has_sign, text.length - has_sign);
  return mlx_sink_take(r, &sink, out);
}

static mlx_status_t partition(mlx_render_t *r, const mlx_call_t *call, bool last, mlx_var_t *out) {
  MLX_TRY(need_text(r, &call->parameters[0], "partition()"));
  const mlx_span_t text = call->self.text, part = call->parameters[0].text;
  if (!part.length) MLX_FAIL(r, "empty separator");
  const char *first = memmem(text.bytes, text.length, part.bytes, part.length);
  const int64_t place = last ? find_last(text, part) : first ? first - text.bytes : -1;
  const size_t at = place < 0 ? 0 : (size_t)place;
  mlx_var_t whole = mlx_string(text.bytes, text.length), empty = mlx_literal("");
  MLX_TRY(mlx_render_charge(r, text.length));
  MLX_TRY(mlx_new_list(r, MLX_SHAPE_TUPLE, 3, out));
  MLX_TRY(mlx_list_push(r, out->list, place >= 0 ? mlx_string(text.bytes, at) : last ? empty : whole));
  MLX_TRY(mlx_list_push(r, out->list, place >= 0 ? call->parameters[0] : empty));
  const size_t after = at + part.length;
  MLX_TRY(mlx_list_push(r, out->list,
                        place >= 0 ? mlx_string(text.bytes + after, text.length - after)
                        : last     ? whole
                                   : empty));
  return mark_parts(r, call, out);
}

static mlx_status_t text_partition(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  return partition(r, call, false, out);
}
static mlx_status_t text_rpartition(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  return partition(r, call, true, out);
}

typedef bool (*character_test_t)(uint32_t character);

static bool is_alpha(uint32_t c) { return IN_TABLE(alphas, c); }
static bool is_decimal(uint32_t c) { return IN_TABLE(decimals, c); }
static bool is_digit(uint32_t c) { return IN_TABLE(digits, c); }
static bool is_numeric(uint32_t c) { return IN_TABLE(numerics, c); }
static bool is_alnum(uint32_t c) { return is_alpha(c) || is_numeric(c) || is_digit(c) || is_decimal(c); }

static mlx_status_t all_are(mlx_render_t *r, const mlx_call_t *call, character_test_t test, mlx_var_t *out) {
  const mlx_span_t text = call->self.text;
  bool all = text.length > 0;
  for (size_t at = 0, length; at < text.length && all; at += length)
    all = test(mlx_template_character(text.bytes + at, &length));
  *out = mlx_bool(all);
  return mlx_render_charge(r, text.length);
}

static mlx_status_t text_isalpha(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  return all_are(r, call, is_alpha, out);
}
static mlx_status_t text_isdecimal(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  return all_are(r, call, is_decimal, out);
}
static mlx_status_t text_isdigit(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  return all_are(r, call, is_digit, out);
}
static mlx_status_t text_isnumeric(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  return all_are(r, call, is_numeric, out);
}
static mlx_status_t text_isalnum(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  return all_are(r, call, is_alnum, out);
}

static mlx_status_t text_isspace(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  MLX_TRY(mlx_render_charge(r, call->self.text.length));
  *out = mlx_bool(call->self.text.length && !mlx_span_strip(call->self.text, NULL, true, false).length);
  return NULL;
}

static mlx_status_t same_case(mlx_render_t *r, const mlx_call_t *call, mlx_letter_case_t letter_case,
                              mlx_var_t *out) {
  mlx_sink_t sink = {.arena = &r->arena};
  mlx_var_t changed;
  bool has_letter = false;
  const mlx_span_t text = call->self.text;
  mlx_sink_case(&sink, text, letter_case);
  MLX_TRY(mlx_sink_take(r, &sink, &changed));
  for (size_t at = 0, length; at < text.length && !has_letter; at += length) {
    has_letter = IN_TABLE(cased, mlx_template_character(text.bytes + at, &length));
  }
  *out = mlx_bool(has_letter && mlx_span_equal(changed.text, text));
  return NULL;
}

static mlx_status_t text_islower(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  return same_case(r, call, MLX_LOWER, out);
}
static mlx_status_t text_isupper(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  return same_case(r, call, MLX_UPPER, out);
}

const mlx_builtin_t *mlx_string_method_find(mlx_span_t name) {
  static const mlx_builtin_t methods[] = {{"strip", text_strip, "|chars"},
                                          {"lstrip", text_lstrip, "|chars"},
                                          {"rstrip", text_rstrip, "|chars"},
                                          {"lower", text_lower, ""},
                                          {"upper", text_upper, ""},
                                          {"title", text_title, ""},
                                          {"capitalize", text_capitalize, ""},
                                          {"split", text_split, "|sep maxsplit"},
                                          {"rsplit", text_rsplit, "|sep maxsplit"},
                                          {"splitlines", text_splitlines, "|keepends"},
                                          {"replace", text_replace, "old new |count"},
                                          {"startswith", text_startswith, "prefix |start end"},
                                          {"endswith", text_endswith, "suffix |start end"},
                                          {"removeprefix", text_removeprefix, "prefix"},
                                          {"removesuffix", text_removesuffix, "suffix"},
                                          {"find", text_find, "sub |start end"},
                                          {"rfind", text_rfind, "sub |start end"},
                                          {"index", text_index, "sub |start end"},
                                          {"rindex", text_rindex, "sub |start end"},
                                          {"count", text_count, "sub |start end"},
                                          {"join", text_join, "iterable"},
                                          {"format", text_format, "*"},
                                          {"center", text_center, "width |fillchar"},
                                          {"ljust", text_ljust, "width |fillchar"},
                                          {"rjust", text_rjust, "width |fillchar"},
                                          {"zfill", text_zfill, "width"},
                                          {"partition", text_partition, "sep"},
                                          {"rpartition", text_rpartition, "sep"},
                                          {"isspace", text_isspace, ""},
                                          {"islower", text_islower, ""},
                                          {"isupper", text_isupper, ""},
                                          {"isalpha", text_isalpha, ""},
                                          {"isdigit", text_isdigit, ""},
                                          {"isnumeric", text_isnumeric, ""},
                                          {"isdecimal", text_isdecimal, ""},
                                          {"isalnum", text_isalnum, ""},
                                          {0}};
  return mlx_builtin_find(methods, name);
}
