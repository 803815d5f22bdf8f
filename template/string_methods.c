// The methods of Python's str. Methods of Markup return Markup.
#include "template/string_methods.h"

#include "template/characters.h"
#include "template/format.h"
#include "template/text.h"

// ----------------------------------------------------------------------------------------------------------
// Arguments

static mlx_status_t expect_text(mlx_render_t *r, const mlx_var_t *v, const char *what) {
  MLX_TRY(mlx_var_expect_defined(r, v));
  if (v->kind != MLX_VAR_STRING) MLX_FAIL(r, "%s expects a string, not '%s'", what, mlx_var_type(v));
  return NULL;
}

static mlx_status_t expect_integer(mlx_render_t *r, const mlx_var_t *v, int64_t *out) {
  MLX_TRY(mlx_var_expect_defined(r, v));
  if (!mlx_var_is_integer(v)) MLX_FAIL(r, "'%s' object cannot be interpreted as an integer", mlx_var_type(v));
  *out = mlx_var_integer(v);
  return NULL;
}

// A part of the method's string; Markup if the string is Markup.
static mlx_status_t copy_part(const mlx_template_call_t *call, mlx_span_t part, mlx_var_t *out) {
  *out = mlx_string(part.bytes, part.length);
  out->markup = call->self.markup;
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Case and whitespace

static mlx_status_t strip_sides(mlx_render_t *r, const mlx_template_call_t *call, bool left, bool right,
                                mlx_var_t *out) {
  const bool by_space = !call->given[0] || call->parameters[0].kind == MLX_VAR_NONE;
  if (!by_space) MLX_TRY(expect_text(r, &call->parameters[0], "strip()"));
  MLX_TRY(mlx_render_charge_strip(r, call->self.text, by_space ? NULL : &call->parameters[0].text));
  return copy_part(
      call, mlx_span_strip(call->self.text, by_space ? NULL : &call->parameters[0].text, left, right), out);
}

static mlx_status_t text_strip(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  return strip_sides(r, call, true, true, out);
}

static mlx_status_t text_lstrip(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  return strip_sides(r, call, true, false, out);
}

static mlx_status_t text_rstrip(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  return strip_sides(r, call, false, true, out);
}

static mlx_status_t change_case(mlx_render_t *r, const mlx_template_call_t *call,
                                mlx_letter_case_t letter_case, mlx_var_t *out) {
  mlx_sink_t sink = {.arena = &r->arena};
  mlx_sink_case(&sink, call->self.text, letter_case);
  MLX_TRY(mlx_sink_to_string(r, &sink, out));
  out->markup = call->self.markup;
  return NULL;
}

static mlx_status_t text_lower(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  return change_case(r, call, MLX_LOWER, out);
}

static mlx_status_t text_upper(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  return change_case(r, call, MLX_UPPER, out);
}

static mlx_status_t text_title(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  return change_case(r, call, MLX_TITLE, out);
}

static mlx_status_t text_capitalize(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  return change_case(r, call, MLX_CAPITALIZE, out);
}

// ----------------------------------------------------------------------------------------------------------
// Splitting

// Makes the parts Markup if the string is Markup.
static mlx_status_t copy_markup(mlx_render_t *r, const mlx_template_call_t *call, const mlx_var_t *list) {
  for (size_t i = 0; call->self.markup && i < list->list->count; ++i) list->list->items[i].markup = true;
  return mlx_render_charge(r, list->list->count);
}

typedef struct split {
  mlx_span_t text, separator;
  bool by_space;
  int64_t max_splits;  // -1: no limit
} split_t;

static mlx_status_t read_split(mlx_render_t *r, const mlx_template_call_t *call, split_t *out) {
  *out = (split_t){.text = call->self.text,
                   .by_space = !call->given[0] || call->parameters[0].kind == MLX_VAR_NONE,
                   .max_splits = -1};
  if (!out->by_space) {
    MLX_TRY(expect_text(r, &call->parameters[0], "split()"));
    out->separator = call->parameters[0].text;
    if (!out->separator.length) MLX_FAIL(r, "empty separator");
  }
  if (call->given[1]) MLX_TRY(expect_integer(r, &call->parameters[1], &out->max_splits));
  return mlx_render_charge(r, call->self.text.length);
}

static mlx_status_t split_spaces(mlx_render_t *r, const split_t *s, mlx_list_t *list) {
  mlx_span_t rest = mlx_span_strip(s->text, NULL, true, false);
  for (int64_t splits = 0; rest.length; ++splits) {
    size_t end = 0, length;
    if (s->max_splits >= 0 && splits >= s->max_splits) {
      return mlx_list_push(r, list, mlx_string(rest.bytes, rest.length));
    }
    for (; end < rest.length && !mlx_codepoint_is_space(mlx_character_at(rest.bytes + end, &length));
         end += length)
      continue;
    MLX_TRY(mlx_list_push(r, list, mlx_string(rest.bytes, end)));
    rest = mlx_span_strip((mlx_span_t){rest.bytes + end, rest.length - end}, NULL, true, false);
  }
  return NULL;
}

static mlx_status_t text_split(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  split_t s;
  mlx_var_t list;
  MLX_TRY(read_split(r, call, &s));
  MLX_TRY(mlx_list_create(r, MLX_PY_LIST, 0, &list));
  *out = list;
  if (s.by_space) {
    MLX_TRY(split_spaces(r, &s, list.list));
    return copy_markup(r, call, out);
  }
  mlx_span_t rest = s.text;
  for (int64_t splits = 0; s.max_splits < 0 || splits < s.max_splits; ++splits) {
    const char *found = memmem(rest.bytes, rest.length, s.separator.bytes, s.separator.length);
    if (!found) break;
    MLX_TRY(mlx_list_push(r, list.list, mlx_string(rest.bytes, (size_t)(found - rest.bytes))));
    rest.length -= (size_t)(found - rest.bytes) + s.separator.length;
    rest.bytes = found + s.separator.length;
  }
  MLX_TRY(mlx_list_push(r, list.list, mlx_string(rest.bytes, rest.length)));
  return copy_markup(r, call, out);
}

// The offset of the last |part|, or -1. Charges for every comparison: a text of one letter needs as many as
// it has letters, each as long as |part|.
static mlx_status_t find_last(mlx_render_t *r, mlx_span_t text, mlx_span_t part, int64_t *out) {
  *out = -1;
  if (part.length > text.length) return NULL;
  for (size_t at = text.length - part.length + 1; at-- > 0;) {
    if (part.length && text.bytes[at] != part.bytes[0]) continue;
    MLX_TRY(mlx_render_charge(r, part.length));
    if (part.length && memcmp(text.bytes + at, part.bytes, part.length)) continue;
    *out = (int64_t)at;
    return NULL;
  }
  return NULL;
}

// The offset of the last word.
static size_t last_word(mlx_span_t text) {
  size_t at = text.length;
  while (at) {
    size_t start = at - 1, length;
    while (((unsigned char)text.bytes[start] & 0xc0) == 0x80) --start;
    if (mlx_codepoint_is_space(mlx_character_at(text.bytes + start, &length))) return at;
    at = start;
  }
  return 0;
}

static mlx_status_t text_rsplit(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  split_t s;
  mlx_var_t list;
  MLX_TRY(read_split(r, call, &s));
  MLX_TRY(mlx_list_create(r, MLX_PY_LIST, 0, &list));
  mlx_span_t rest = s.by_space ? mlx_span_strip(s.text, NULL, false, true) : s.text;
  for (int64_t splits = 0; s.max_splits < 0 || splits < s.max_splits; ++splits) {
    int64_t at = (int64_t)last_word(rest) - 1;
    if (!s.by_space) MLX_TRY(find_last(r, rest, s.separator, &at));
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
  return copy_markup(r, call, out);
}

static mlx_status_t text_splitlines(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  MLX_TRY(
      mlx_span_split_lines(r, call->self.text, call->given[0] && mlx_var_truth(&call->parameters[0]), out));
  return copy_markup(r, call, out);
}

static mlx_status_t text_replace(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  int64_t count = -1;
  MLX_TRY(expect_text(r, &call->parameters[0], "replace()"));
  MLX_TRY(expect_text(r, &call->parameters[1], "replace()"));
  if (call->given[2]) MLX_TRY(expect_integer(r, &call->parameters[2], &count));
  mlx_var_t new = call->parameters[1];
  if (call->self.markup && !new.markup) MLX_TRY(mlx_span_escape(r, new.text, &new));
  MLX_TRY(mlx_span_replace(r, call->self.text, call->parameters[0].text, new.text, count, out));
  out->markup = call->self.markup;
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Searching

// The byte offset of character |index|; a negative index counts from the end.
static size_t byte_offset(mlx_span_t text, int64_t index) {
  const int64_t count = (int64_t)mlx_span_characters(text);
  if (index < 0) index = index + count < 0 ? 0 : index + count;
  size_t at = 0;
  for (size_t length; index > 0 && at < text.length; --index, at += length)
    mlx_character_at(text.bytes + at, &length);
  return at;
}

// The part of the string between the parameters start and end, which are number |first| and the next. Not
// valid if it starts after its end.
static mlx_status_t read_range(mlx_render_t *r, const mlx_template_call_t *call, size_t first,
                               mlx_span_t *out, size_t *out_start, bool *out_valid) {
  int64_t start = 0, end = INT64_MAX;
  MLX_TRY(mlx_render_charge(r, call->self.text.length));
  if (call->given[first] && call->parameters[first].kind != MLX_VAR_NONE)
    MLX_TRY(expect_integer(r, &call->parameters[first], &start));
  if (call->given[first + 1] && call->parameters[first + 1].kind != MLX_VAR_NONE)
    MLX_TRY(expect_integer(r, &call->parameters[first + 1], &end));
  const size_t from = byte_offset(call->self.text, start), to = byte_offset(call->self.text, end);
  *out_valid = from <= to && start <= (int64_t)mlx_span_characters(call->self.text);
  *out_start = from;
  *out = (mlx_span_t){call->self.text.bytes + from, *out_valid ? to - from : 0};
  return NULL;
}

static mlx_status_t has_affix(mlx_render_t *r, const mlx_template_call_t *call, bool at_end, mlx_var_t *out) {
  const mlx_var_t *affixes = &call->parameters[0];
  size_t count = 1, start;
  mlx_span_t text;
  bool valid, found = false;
  if (mlx_var_is_list(affixes, MLX_PY_TUPLE)) {
    count = affixes->list->count;
    affixes = affixes->list->items;
  }
  MLX_TRY(read_range(r, call, 1, &text, &start, &valid));
  for (size_t i = 0; i < count; ++i) {
    MLX_TRY(expect_text(r, &affixes[i], at_end ? "endswith()" : "startswith()"));
    const mlx_span_t affix = affixes[i].text;
    MLX_TRY(mlx_render_charge(r, affix.length));
    found =
        found || (valid && affix.length <= text.length &&
                  !memcmp(text.bytes + (at_end ? text.length - affix.length : 0), affix.bytes, affix.length));
  }
  *out = mlx_bool(found);
  return NULL;
}

static mlx_status_t text_startswith(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  return has_affix(r, call, false, out);
}

static mlx_status_t text_endswith(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  return has_affix(r, call, true, out);
}

static mlx_status_t remove_affix(mlx_render_t *r, const mlx_template_call_t *call, bool at_end,
                                 mlx_var_t *out) {
  mlx_span_t text = call->self.text;
  MLX_TRY(expect_text(r, &call->parameters[0], at_end ? "removesuffix()" : "removeprefix()"));
  const mlx_span_t affix = call->parameters[0].text;
  MLX_TRY(mlx_render_charge(r, affix.length));
  if (affix.length && affix.length <= text.length &&
      !memcmp(text.bytes + (at_end ? text.length - affix.length : 0), affix.bytes, affix.length)) {
    if (!at_end) text.bytes += affix.length;
    text.length -= affix.length;
  }
  return copy_part(call, text, out);
}

static mlx_status_t text_removeprefix(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  return remove_affix(r, call, false, out);
}

static mlx_status_t text_removesuffix(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  return remove_affix(r, call, true, out);
}

static mlx_status_t find_offset(mlx_render_t *r, const mlx_template_call_t *call, bool last, bool required,
                                mlx_var_t *out) {
  mlx_span_t text;
  size_t start;
  bool valid;
  int64_t offset = -1;
  MLX_TRY(expect_text(r, &call->parameters[0], "find()"));
  MLX_TRY(read_range(r, call, 1, &text, &start, &valid));
  const mlx_span_t part = call->parameters[0].text;
  if (valid && last) {
    MLX_TRY(find_last(r, text, part, &offset));
  } else if (valid) {
    const char *found = part.length ? memmem(text.bytes, text.length, part.bytes, part.length) : text.bytes;
    if (found) offset = found - text.bytes;
  }
  if (offset < 0 && required) MLX_FAIL(r, "substring not found");
  *out = mlx_int(
      offset < 0 ? -1
                 : (int64_t)mlx_span_characters((mlx_span_t){call->self.text.bytes, start + (size_t)offset}));
  return NULL;
}

static mlx_status_t text_find(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  return find_offset(r, call, false, false, out);
}

static mlx_status_t text_rfind(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  return find_offset(r, call, true, false, out);
}

static mlx_status_t text_index(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  return find_offset(r, call, false, true, out);
}

static mlx_status_t text_rindex(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  return find_offset(r, call, true, true, out);
}

static mlx_status_t text_count(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  mlx_span_t text;
  size_t start;
  bool valid;
  int64_t count = 0;
  MLX_TRY(expect_text(r, &call->parameters[0], "count()"));
  MLX_TRY(read_range(r, call, 1, &text, &start, &valid));
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

// ----------------------------------------------------------------------------------------------------------
// Joining and padding

static mlx_status_t text_join(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
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
  return mlx_sink_to_string(r, &sink, out);
}

static mlx_status_t text_format(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  if (call->self.markup)
    return mlx_render_error(r, MLX_UNSUPPORTED, "format() of text marked safe is not supported");
  return mlx_format_braces(r, call->self.text, call->args, out);
}

static mlx_status_t pad(mlx_render_t *r, const mlx_template_call_t *call, int side, mlx_var_t *out) {
  int64_t width;
  mlx_span_t fill = {" ", 1};
  MLX_TRY(expect_integer(r, &call->parameters[0], &width));
  if (call->given[1]) {
    MLX_TRY(expect_text(r, &call->parameters[1], "the fill character"));
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
  return mlx_sink_to_string(r, &sink, out);
}

static mlx_status_t text_center(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  return pad(r, call, 0, out);
}

static mlx_status_t text_ljust(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  return pad(r, call, 1, out);
}

static mlx_status_t text_rjust(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  return pad(r, call, -1, out);
}

static mlx_status_t text_zfill(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  int64_t width;
  MLX_TRY(expect_integer(r, &call->parameters[0], &width));
  const mlx_span_t text = call->self.text;
  const bool has_sign = text.length && (text.bytes[0] == '-' || text.bytes[0] == '+');
  mlx_sink_t sink = {.arena = &r->arena};
  mlx_sink_append(&sink, text.bytes, has_sign);
  mlx_sink_fill(&sink, "0", 1, width - (int64_t)mlx_span_characters(text));
  mlx_sink_append(&sink, text.bytes + has_sign, text.length - has_sign);
  return mlx_sink_to_string(r, &sink, out);
}

static mlx_status_t partition(mlx_render_t *r, const mlx_template_call_t *call, bool last, mlx_var_t *out) {
  MLX_TRY(expect_text(r, &call->parameters[0], "partition()"));
  const mlx_span_t text = call->self.text, part = call->parameters[0].text;
  if (!part.length) MLX_FAIL(r, "empty separator");
  const char *first = memmem(text.bytes, text.length, part.bytes, part.length);
  int64_t offset = first ? first - text.bytes : -1;
  if (last) MLX_TRY(find_last(r, text, part, &offset));
  const size_t at = offset < 0 ? 0 : (size_t)offset;
  mlx_var_t whole = mlx_string(text.bytes, text.length), empty = mlx_literal("");
  MLX_TRY(mlx_render_charge(r, text.length));
  MLX_TRY(mlx_list_create(r, MLX_PY_TUPLE, 3, out));
  MLX_TRY(mlx_list_push(r, out->list, offset >= 0 ? mlx_string(text.bytes, at) : last ? empty : whole));
  MLX_TRY(mlx_list_push(r, out->list, offset >= 0 ? call->parameters[0] : empty));
  const size_t after = at + part.length;
  MLX_TRY(mlx_list_push(r, out->list,
                        offset >= 0 ? mlx_string(text.bytes + after, text.length - after)
                        : last      ? whole
                                    : empty));
  return copy_markup(r, call, out);
}

static mlx_status_t text_partition(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  return partition(r, call, false, out);
}

static mlx_status_t text_rpartition(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  return partition(r, call, true, out);
}

// ----------------------------------------------------------------------------------------------------------
// Classification

typedef bool (*character_test_t)(uint32_t character);

static bool is_alnum(uint32_t c) {
  return mlx_codepoint_is_alpha(c) || mlx_codepoint_is_numeric(c) || mlx_codepoint_is_digit(c) ||
         mlx_codepoint_is_decimal(c);
}

static mlx_status_t all_are(mlx_render_t *r, const mlx_template_call_t *call, character_test_t test,
                            mlx_var_t *out) {
  const mlx_span_t text = call->self.text;
  bool all = text.length > 0;
  for (size_t at = 0, length; at < text.length && all; at += length)
    all = test(mlx_character_at(text.bytes + at, &length));
  *out = mlx_bool(all);
  return mlx_render_charge(r, text.length);
}

static mlx_status_t text_isalpha(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  return all_are(r, call, mlx_codepoint_is_alpha, out);
}

static mlx_status_t text_isdecimal(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  return all_are(r, call, mlx_codepoint_is_decimal, out);
}

static mlx_status_t text_isdigit(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  return all_are(r, call, mlx_codepoint_is_digit, out);
}

static mlx_status_t text_isnumeric(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  return all_are(r, call, mlx_codepoint_is_numeric, out);
}

static mlx_status_t text_isalnum(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  return all_are(r, call, is_alnum, out);
}

static mlx_status_t text_isspace(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  MLX_TRY(mlx_render_charge(r, call->self.text.length));
  *out = mlx_bool(call->self.text.length && !mlx_span_strip(call->self.text, NULL, true, false).length);
  return NULL;
}

static mlx_status_t same_case(mlx_render_t *r, const mlx_template_call_t *call, mlx_letter_case_t letter_case,
                              mlx_var_t *out) {
  mlx_sink_t sink = {.arena = &r->arena};
  mlx_var_t changed;
  bool has_letter = false;
  const mlx_span_t text = call->self.text;
  mlx_sink_case(&sink, text, letter_case);
  MLX_TRY(mlx_sink_to_string(r, &sink, &changed));
  for (size_t at = 0, length; at < text.length && !has_letter; at += length) {
    has_letter = mlx_codepoint_is_cased(mlx_character_at(text.bytes + at, &length));
  }
  *out = mlx_bool(has_letter && mlx_span_equal(changed.text, text));
  return NULL;
}

static mlx_status_t text_islower(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  return same_case(r, call, MLX_LOWER, out);
}

static mlx_status_t text_isupper(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  return same_case(r, call, MLX_UPPER, out);
}

// ----------------------------------------------------------------------------------------------------------
// Table

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
