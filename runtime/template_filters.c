// Filters, tests and globals, under jinja2's names and with its parameters; tojson, strftime_now, namespace and dict are transformers'.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "runtime/template_internal.h"

// ---------------------------------------------------------------------------------------------------------------------
// Parameters

static bool flag(const mlx_call_t *call, size_t index) { return call->given[index] && mlx_var_truth(&call->parameters[index]); }
static bool is_given(const mlx_call_t *call, size_t index) { return call->given[index] && call->parameters[index].kind != MLX_VAR_NONE; }

static mlx_status_t whole(mlx_render_t *r, const mlx_call_t *call, size_t index, int64_t fallback, int64_t *out) {
  *out = fallback;
  if (!call->given[index]) return NULL;
  MLX_TRY(mlx_need_defined(r, &call->parameters[index]));
  if (!mlx_is_whole(&call->parameters[index])) {
    MLX_FAIL(r, "'%s' object cannot be interpreted as an integer", mlx_var_type(&call->parameters[index]));
  }
  *out = mlx_whole(&call->parameters[index]);
  return NULL;
}

static mlx_status_t self_text(mlx_render_t *r, const mlx_call_t *call, mlx_span_t *out) { return mlx_var_text(r, &call->self, out); }
static mlx_status_t self_items(mlx_render_t *r, const mlx_call_t *call, const mlx_var_t **out_items, size_t *out_count) {
  return mlx_var_items(r, &call->self, out_items, out_count);
}

// One item by a path such as "function.name" or 0, as make_attrgetter has it; |fallback| (or NULL) where a step is undefined.
static mlx_status_t get_path(mlx_render_t *r, const mlx_var_t *item, const mlx_var_t *path, const mlx_var_t *fallback, mlx_var_t *out) {
  *out = *item;
  if (path->kind != MLX_VAR_STRING) {
    MLX_TRY(mlx_var_item(r, item, path, out));
    if (out->kind == MLX_VAR_UNDEFINED && fallback) *out = *fallback;
    return NULL;
  }
  for (size_t start = 0, at = 0; at <= path->text.length; ++at) {
    if (at < path->text.length && path->text.bytes[at] != '.') continue;
    mlx_var_t object = *out, key = mlx_string(path->text.bytes + start, at - start);
    bool digits = at > start && at - start < 18;
    int64_t index = 0;
    for (size_t i = start; i < at && digits; ++i) {
      digits = path->text.bytes[i] >= '0' && path->text.bytes[i] <= '9';
      index = index * 10 + (path->text.bytes[i] - '0');
    }
    if (digits) key = mlx_int(index);
    MLX_TRY(mlx_var_item(r, &object, &key, out));
    if (out->kind == MLX_VAR_UNDEFINED && fallback) *out = *fallback;
    start = at + 1;
  }
  return NULL;
}

static mlx_status_t ignore_case(mlx_render_t *r, mlx_var_t *inout) {
  if (inout->kind != MLX_VAR_STRING) return NULL;
  mlx_sink_t sink = {.arena = &r->arena};
  mlx_sink_case(&sink, inout->text, MLX_LOWER);
  return mlx_sink_take(r, &sink, inout);
}

// What an item is sorted or compared by: itself or an attribute, in small letters unless case matters.
static mlx_status_t key_of(mlx_render_t *r, const mlx_var_t *item, const mlx_var_t *attribute, bool case_sensitive, mlx_var_t *out) {
  *out = *item;
  if (attribute) MLX_TRY(get_path(r, item, attribute, NULL, out));
  return case_sensitive ? NULL : ignore_case(r, out);
}

// ---------------------------------------------------------------------------------------------------------------------
// Text

static mlx_status_t filter_case(mlx_render_t *r, const mlx_call_t *call, mlx_letter_case_t letter_case, mlx_var_t *out) {
  mlx_span_t text;
  mlx_sink_t sink = {.arena = &r->arena};
  MLX_TRY(self_text(r, call, &text));
  mlx_sink_case(&sink, text, letter_case);
  return mlx_sink_take(r, &sink, out);
}

static mlx_status_t filter_upper(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) { return filter_case(r, call, MLX_UPPER, out); }
static mlx_status_t filter_lower(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) { return filter_case(r, call, MLX_LOWER, out); }
static mlx_status_t filter_capitalize(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) { return filter_case(r, call, MLX_CAPITALIZE, out); }

// jinja2's own idea of words: they begin after spaces, hyphens and opening brackets only.
static mlx_status_t filter_title(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  mlx_span_t text;
  mlx_sink_t sink = {.arena = &r->arena};
  MLX_TRY(self_text(r, call, &text));
  for (size_t at = 0, end; at < text.length; at = end) {
    size_t length;
    uint32_t c = mlx_template_character(text.bytes + at, &length);
    const bool breaks = mlx_template_space(c) || (c < 0x80 && c && strchr("-({[<", (int)c));
    for (end = at + length; end < text.length; end += length) {
      c = mlx_template_character(text.bytes + end, &length);
      if (breaks != (mlx_template_space(c) || (c < 0x80 && c && strchr("-({[<", (int)c)))) break;
    }
    mlx_template_character(text.bytes + at, &length);
    mlx_sink_case(&sink, (mlx_span_t){text.bytes + at, length}, MLX_UPPER);
    mlx_sink_case(&sink, (mlx_span_t){text.bytes + at + length, end - at - length}, MLX_LOWER);
  }
  return mlx_sink_take(r, &sink, out);
}

static mlx_status_t filter_trim(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  mlx_span_t text;
  MLX_TRY(self_text(r, call, &text));
  MLX_TRY(mlx_render_charge(r, text.length));
  if (is_given(call, 0) && call->parameters[0].kind != MLX_VAR_STRING) MLX_FAIL(r, "trim wants a string, not '%s'", mlx_var_type(&call->parameters[0]));
  text = mlx_span_strip(text, is_given(call, 0) ? &call->parameters[0].text : NULL, true, true);
  *out = mlx_string(text.bytes, text.length);
  out->markup = call->self.kind == MLX_VAR_STRING && call->self.markup;
  return NULL;
}

static mlx_status_t filter_string(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  mlx_span_t text;
  MLX_TRY(self_text(r, call, &text));
  *out = mlx_string(text.bytes, text.length);
  out->markup = call->self.kind == MLX_VAR_STRING && call->self.markup;
  return NULL;
}

static mlx_status_t filter_safe(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  MLX_TRY(filter_string(r, call, out));
  out->markup = true;
  return NULL;
}

static mlx_status_t filter_escape(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  mlx_span_t text;
  *out = call->self;
  if (call->self.kind == MLX_VAR_STRING && call->self.markup) return NULL;
  MLX_TRY(self_text(r, call, &text));
  return mlx_span_escape(r, text, out);
}

static mlx_status_t filter_forceescape(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  mlx_span_t text;
  MLX_TRY(self_text(r, call, &text));
  return mlx_span_escape(r, text, out);
}

static mlx_status_t filter_replace(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  mlx_span_t text, old, new;
  int64_t count = -1;
  MLX_TRY(self_text(r, call, &text));
  MLX_TRY(mlx_var_text(r, &call->parameters[0], &old));
  MLX_TRY(mlx_var_text(r, &call->parameters[1], &new));
  if (is_given(call, 2)) MLX_TRY(whole(r, call, 2, -1, &count));
  return mlx_replace(r, text, old, new, count, out);
}

static mlx_status_t filter_indent(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  mlx_sink_t sink = {.arena = &r->arena};
  mlx_span_t text, with = {NULL, 0};
  mlx_var_t lines;
  int64_t width = 4;
  if (call->given[0] && call->parameters[0].kind == MLX_VAR_STRING) {
    with = call->parameters[0].text;
    width = 1;
  } else {
    MLX_TRY(whole(r, call, 0, 4, &width));
    with = (mlx_span_t){" ", 1};
  }
  if (call->self.kind != MLX_VAR_STRING) MLX_FAIL(r, "indent wants a string, not '%s'", mlx_var_type(&call->self));
  text = call->self.text;
  const bool first = flag(call, 1), blank = flag(call, 2);
  mlx_sink_append(&sink, text.bytes, text.length);
  mlx_sink_puts(&sink, "\n");
  MLX_TRY(mlx_sink_take(r, &sink, &lines));
  MLX_TRY(mlx_split_lines(r, lines.text, false, &lines));
  sink = (mlx_sink_t){.arena = &r->arena};
  for (size_t i = 0; i < lines.list->count; ++i) {
    const mlx_span_t line = lines.list->items[i].text;
    if (i) mlx_sink_puts(&sink, "\n");
    if (i ? line.length || blank : first) mlx_sink_fill(&sink, with.bytes, with.length, width);
    mlx_sink_append(&sink, line.bytes, line.length);
  }
  return mlx_sink_take(r, &sink, out);
}

static mlx_status_t filter_center(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  mlx_span_t text;
  int64_t width;
  mlx_var_t argument;
  MLX_TRY(self_text(r, call, &text));
  MLX_TRY(whole(r, call, 0, 80, &width));
  argument = mlx_int(width);
  const mlx_var_t self = mlx_string(text.bytes, text.length);
  return mlx_builtin_call(r, mlx_string_method_find((mlx_span_t){"center", 6}), &self, &(mlx_args_t){&argument, 1, NULL}, out);
}

static mlx_status_t filter_truncate(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  const mlx_var_t none = mlx_none();
  int64_t length, leeway, count;
  mlx_var_t self, stop, cut;
  mlx_span_t end = {"...", 3};
  MLX_TRY(whole(r, call, 0, 255, &length));
  MLX_TRY(whole(r, call, 3, 5, &leeway));
  if (call->given[2]) MLX_TRY(mlx_var_text(r, &call->parameters[2], &end));
  self = call->self;
  MLX_TRY(mlx_var_length(r, &self, &count));
  const int64_t keep = length - (int64_t)mlx_span_characters(end);
  if (keep < 0 || leeway < 0) MLX_FAIL(r, "truncate: expected a length of at least %zu", mlx_span_characters(end));
  *out = self;
  if (count <= length + leeway) return NULL;
  if (self.kind != MLX_VAR_STRING) MLX_FAIL(r, "truncate wants a string, not '%s'", mlx_var_type(&self));
  stop = mlx_int(keep);
  MLX_TRY(mlx_var_slice(r, &self, &none, &stop, &none, &cut));
  if (!flag(call, 1)) {
    for (size_t at = cut.text.length; at-- > 0;) {
      if (cut.text.bytes[at] != ' ') continue;
      cut.text.length = at;
      break;
    }
  }
  mlx_sink_t sink = {.arena = &r->arena};
  mlx_sink_append(&sink, cut.text.bytes, cut.text.length);
  mlx_sink_append(&sink, end.bytes, end.length);
  return mlx_sink_take(r, &sink, out);
}

static mlx_status_t filter_format(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  mlx_span_t text;
  mlx_var_t values = {.kind = MLX_VAR_DICT, .dict = call->args->named};
  if (call->args->named && call->args->count) MLX_FAIL(r, "can't handle positional and keyword arguments at the same time");
  MLX_TRY(self_text(r, call, &text));
  if (!call->args->named) {
    MLX_TRY(mlx_new_list(r, MLX_SHAPE_TUPLE, 0, &values));
    for (size_t i = 0; i < call->args->count; ++i) MLX_TRY(mlx_list_push(r, values.list, call->args->positional[i]));
  }
  return mlx_format_percent(r, text, &values, out);
}

static mlx_status_t filter_tojson(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  mlx_json_style_t style = {.ascii = flag(call, 0), .sorted = flag(call, 3), .pretty = is_given(call, 1),
                            .item_separator = {", ", 2}, .key_separator = {": ", 2}};
  mlx_sink_t sink = {.arena = &r->arena}, indent = {.arena = &r->arena};
  if (style.pretty) {
    mlx_var_t text = call->parameters[1];
    style.item_separator.length = 1;
    if (text.kind != MLX_VAR_STRING) {
      int64_t width;
      MLX_TRY(whole(r, call, 1, 0, &width));
      mlx_sink_fill(&indent, " ", 1, width);
      MLX_TRY(mlx_sink_take(r, &indent, &text));
    }
    style.indent = text.text;
  }
  if (is_given(call, 2)) {
    const mlx_var_t *items;
    size_t count;
    MLX_TRY(mlx_var_items(r, &call->parameters[2], &items, &count));
    if (count != 2 || items[0].kind != MLX_VAR_STRING || items[1].kind != MLX_VAR_STRING) MLX_FAIL(r, "tojson: separators are two strings");
    style.item_separator = items[0].text;
    style.key_separator = items[1].text;
  }
  MLX_TRY(mlx_var_json(r, &sink, &call->self, &style, 0));
  return mlx_sink_take(r, &sink, out);
}

// ---------------------------------------------------------------------------------------------------------------------
// Numbers

// Python's int() or float() of a text; false where it is none.
static bool read_number(mlx_span_t text, bool whole_only, int base, mlx_var_t *out) {
  char digits[128], *end;
  size_t count = 0;
  text = mlx_span_strip(text, NULL, true, true);
  for (size_t i = 0; i < text.length; ++i) {
    const char c = text.bytes[i];
    const bool between = c == '_' && i && i + 1 < text.length && text.bytes[i - 1] != '_' && text.bytes[i + 1] != '_';
    if (between) continue;
    if (c == '_' || (unsigned char)c >= 0x80 || !c || c == ' ' || count + 1 == sizeof digits) return false;
    digits[count++] = c;
  }
  digits[count] = 0;
  if (!count) return false;
  if (!whole_only) {
    if (strpbrk(digits, "xXpP(")) return false;
    *out = mlx_float(strtod(digits, &end));
    return !*end;
  }
  const char *start = digits + (digits[0] == '-' || digits[0] == '+');
  if (strspn(start, base == 10 ? "0123456789" : "0123456789abcdefABCDEFxXoObB") != strlen(start) || !*start) return false;
  if (base != 10 && start[0] == '0' && strchr(base == 16 ? "xX" : base == 8 ? "oO" : "bB", start[1]) && start[1]) {
    memmove((char *)(uintptr_t)start, start + 2, strlen(start + 2) + 1);
  }
  *out = mlx_int(strtoll(digits, &end, base));
  return !*end && strlen(start) < 19;
}

static mlx_status_t filter_int(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  const mlx_var_t *v = &call->self;
  mlx_var_t number;
  int64_t base;
  MLX_TRY(mlx_need_defined(r, v));
  MLX_TRY(whole(r, call, 1, 10, &base));
  if (base != 10 && base != 16 && base != 8 && base != 2) return mlx_render_error(r, MLX_UNSUPPORTED, "int: base %lld is not supported", (long long)base);
  *out = call->given[0] ? call->parameters[0] : mlx_int(0);
  if (v->kind == MLX_VAR_STRING) {
    if (read_number(v->text, true, (int)base, out)) return NULL;
    *out = call->given[0] ? call->parameters[0] : mlx_int(0);
    if (!read_number(v->text, false, 10, &number)) return NULL;
  } else if (mlx_is_whole(v)) {
    *out = mlx_int(mlx_whole(v));
    return NULL;
  } else if (v->kind == MLX_VAR_FLOAT) {
    number = *v;
  } else {
    return NULL;
  }
  if (!isfinite(number.number)) {
    if (v->kind == MLX_VAR_FLOAT && isinf(number.number)) MLX_FAIL(r, "cannot convert float infinity to integer");
    return NULL;
  }
  if (fabs(number.number) >= 9.2e18) return mlx_render_error(r, MLX_UNSUPPORTED, "an integer does not fit 64 bits");
  *out = mlx_int((int64_t)number.number);
  return NULL;
}

static mlx_status_t filter_float(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  MLX_TRY(mlx_need_defined(r, &call->self));
  *out = call->given[0] ? call->parameters[0] : mlx_float(0);
  mlx_var_t number;
  if (mlx_is_number(&call->self)) *out = mlx_float(mlx_number(&call->self));
  if (call->self.kind == MLX_VAR_STRING && read_number(call->self.text, false, 10, &number)) *out = number;
  return NULL;
}

static mlx_status_t need_number(mlx_render_t *r, const mlx_var_t *v) {
  MLX_TRY(mlx_need_defined(r, v));
  if (!mlx_is_number(v)) MLX_FAIL(r, "a number is wanted, not '%s'", mlx_var_type(v));
  return NULL;
}

static mlx_status_t filter_abs(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  MLX_TRY(need_number(r, &call->self));
  if (call->self.kind == MLX_VAR_FLOAT) {
    *out = mlx_float(fabs(call->self.number));
    return NULL;
  }
  return mlx_var_sign(r, mlx_whole(&call->self) < 0, &call->self, out);
}

static mlx_status_t filter_round(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  int64_t precision;
  const mlx_var_t method = call->given[1] ? call->parameters[1] : mlx_literal("common");
  MLX_TRY(need_number(r, &call->self));
  MLX_TRY(whole(r, call, 0, 0, &precision));
  const bool ceils = method.kind == MLX_VAR_STRING && mlx_span_is(method.text, "ceil");
  const bool floors = method.kind == MLX_VAR_STRING && mlx_span_is(method.text, "floor");
  if (!ceils && !floors && !(method.kind == MLX_VAR_STRING && mlx_span_is(method.text, "common"))) MLX_FAIL(r, "method must be common, ceil or floor");
  if (precision < -300 || precision > 300) return mlx_render_error(r, MLX_UNSUPPORTED, "round: such a precision is not supported");
  if (ceils || floors) {
    const double scale = pow(10, (double)precision), scaled = mlx_number(&call->self) * scale;
    *out = mlx_float((ceils ? ceil(scaled) : floor(scaled)) / scale);
  } else if (mlx_is_whole(&call->self)) {
    if (precision < 0) return mlx_render_error(r, MLX_UNSUPPORTED, "round: a negative precision is not supported for integers");
    *out = mlx_int(mlx_whole(&call->self));
  } else if (precision < 0 || !isfinite(call->self.number)) {
    const double scale = pow(10, (double)-precision);
    *out = mlx_float(isfinite(call->self.number) ? nearbyint(call->self.number / scale) * scale : call->self.number);
  } else {
    char text[800];
    snprintf(text, sizeof text, "%.*f", (int)precision, call->self.number);
    *out = mlx_float(strtod(text, NULL));
  }
  return NULL;
}

static mlx_status_t filter_sum(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  const mlx_var_t *items;
  size_t count;
  *out = call->given[1] ? call->parameters[1] : mlx_int(0);
  MLX_TRY(self_items(r, call, &items, &count));
  if (out->kind == MLX_VAR_STRING) MLX_FAIL(r, "sum() can't sum strings: use join");
  for (size_t i = 0; i < count; ++i) {
    mlx_var_t item = items[i], sum = *out;
    if (is_given(call, 0)) MLX_TRY(get_path(r, &items[i], &call->parameters[0], NULL, &item));
    MLX_TRY(mlx_var_binary(r, MLX_OP_ADD, &sum, &item, out));
  }
  return NULL;
}

// ---------------------------------------------------------------------------------------------------------------------
// Sequences

static mlx_status_t filter_length(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  int64_t length;
  MLX_TRY(mlx_var_length(r, &call->self, &length));
  *out = mlx_int(length);
  return NULL;
}

static mlx_status_t copy_items(mlx_render_t *r, const mlx_var_t *from, mlx_list_shape_t shape, mlx_var_t *out) {
  const mlx_var_t *items;
  size_t count;
  mlx_var_t list;
  MLX_TRY(mlx_var_items(r, from, &items, &count));
  MLX_TRY(mlx_new_list(r, shape, count, &list));
  for (size_t i = 0; i < count; ++i) MLX_TRY(mlx_list_push(r, list.list, items[i]));
  *out = list;
  return NULL;
}

static mlx_status_t filter_list(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) { return copy_items(r, &call->self, MLX_SHAPE_LIST, out); }

static mlx_status_t filter_items(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  if (call->self.kind == MLX_VAR_UNDEFINED) return mlx_new_list(r, MLX_SHAPE_GENERATOR, 0, out);
  if (call->self.kind != MLX_VAR_DICT) MLX_FAIL(r, "Can only get item pairs from a mapping.");
  MLX_TRY(mlx_builtin_call(r, mlx_method_find(&call->self, (mlx_span_t){"items", 5}), &call->self, &(mlx_args_t){0}, out));
  out->list->shape = MLX_SHAPE_GENERATOR;
  return NULL;
}

static mlx_status_t filter_first(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  const mlx_var_t *items;
  size_t count;
  const bool is_generator = mlx_is_list(&call->self, MLX_SHAPE_GENERATOR);
  MLX_TRY(self_items(r, call, &items, &count));
  if (!count) return mlx_undefined(r, out, "No first item, sequence was empty.");
  *out = items[0];
  if (is_generator) {  // takes one and leaves the others
    ++call->self.list->items;
    call->self.list->count = count - 1;
    call->self.list->capacity = 0;
  }
  return NULL;
}

static mlx_status_t need_reversible(mlx_render_t *r, const mlx_var_t *v) {
  if (!mlx_var_iterable(v) || mlx_is_list(v, MLX_SHAPE_GENERATOR)) MLX_FAIL(r, "'%s' object is not reversible", mlx_var_type(v));
  return NULL;
}

static mlx_status_t filter_last(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  const mlx_var_t *items;
  size_t count;
  MLX_TRY(need_reversible(r, &call->self));
  MLX_TRY(self_items(r, call, &items, &count));
  if (!count) return mlx_undefined(r, out, "No last item, sequence was empty.");
  *out = items[count - 1];
  return NULL;
}

static mlx_status_t filter_reverse(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  const mlx_var_t none = mlx_none(), step = mlx_int(-1);
  if (call->self.kind == MLX_VAR_STRING) return mlx_var_slice(r, &call->self, &none, &none, &step, out);
  mlx_var_t list;
  const bool is_generator = mlx_is_list(&call->self, MLX_SHAPE_GENERATOR);
  MLX_TRY(copy_items(r, &call->self, is_generator ? MLX_SHAPE_LIST : MLX_SHAPE_GENERATOR, &list));
  for (size_t i = 0, j = list.list->count; i + 1 < j; ++i) {
    mlx_var_t swapped = list.list->items[i];
    list.list->items[i] = list.list->items[--j];
    list.list->items[j] = swapped;
  }
  *out = list;
  return NULL;
}

static mlx_status_t filter_join(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  const mlx_var_t *items;
  size_t count;
  mlx_span_t separator = {"", 0};
  mlx_sink_t sink = {.arena = &r->arena};
  if (call->given[0]) MLX_TRY(mlx_var_text(r, &call->parameters[0], &separator));
  MLX_TRY(self_items(r, call, &items, &count));
  for (size_t i = 0; i < count; ++i) {
    mlx_var_t item = items[i];
    if (is_given(call, 1)) MLX_TRY(get_path(r, &items[i], &call->parameters[1], NULL, &item));
    if (i) mlx_sink_append(&sink, separator.bytes, separator.length);
    MLX_TRY(mlx_var_write(r, &sink, &item));
  }
  return mlx_sink_take(r, &sink, out);
}

typedef struct sorted {
  mlx_var_t key, item;
} sorted_t;

// Stable, by merging. Python sorts in reverse by keeping equal items in their order.
static mlx_status_t merge_sort(mlx_render_t *r, sorted_t *rows, sorted_t *spare, size_t count, bool reverse) {
  for (size_t width = 1; width < count; width *= 2) {
    for (size_t start = 0; start < count; start += 2 * width) {
      const size_t middle = start + width < count ? start + width : count, end = middle + width < count ? middle + width : count;
      size_t a = start, b = middle;
      for (size_t i = start; i < end; ++i) {
        int order = -1;
        if (a < middle && b < end) MLX_TRY(mlx_var_order(r, &rows[a].key, &rows[b].key, &order));
        if (reverse) order = -order;
        const bool take_a = a < middle && (b == end || (a < middle && order <= 0));
        spare[i] = take_a ? rows[a++] : rows[b++];
      }
    }
    memcpy(rows, spare, count * sizeof *rows);
  }
  return NULL;
}

static mlx_status_t sort_rows(mlx_render_t *r, sorted_t *rows, size_t count, bool reverse, mlx_var_t *out) {
  sorted_t *spare;
  MLX_TRY(mlx_arena_take(&r->arena, count ? count : 1, sizeof *spare, &spare));
  MLX_TRY(merge_sort(r, rows, spare, count, reverse));
  MLX_TRY(mlx_new_list(r, MLX_SHAPE_LIST, count, out));
  for (size_t i = 0; i < count; ++i) MLX_TRY(mlx_list_push(r, out->list, rows[i].item));
  return NULL;
}

// The attributes of "a,b" together, as a list.
static mlx_status_t multi_key(mlx_render_t *r, const mlx_var_t *item, const mlx_var_t *attribute, bool case_sensitive, mlx_var_t *out) {
  if (!attribute || attribute->kind != MLX_VAR_STRING || !memchr(attribute->text.bytes, ',', attribute->text.length)) {
    return key_of(r, item, attribute, case_sensitive, out);
  }
  mlx_var_t keys, key;
  MLX_TRY(mlx_new_list(r, MLX_SHAPE_LIST, 0, &keys));
  for (size_t start = 0, at = 0; at <= attribute->text.length; ++at) {
    if (at < attribute->text.length && attribute->text.bytes[at] != ',') continue;
    const mlx_var_t part = mlx_string(attribute->text.bytes + start, at - start);
    MLX_TRY(key_of(r, item, &part, case_sensitive, &key));
    MLX_TRY(mlx_list_push(r, keys.list, key));
    start = at + 1;
  }
  *out = keys;
  return NULL;
}

static mlx_status_t filter_sort(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  const mlx_var_t *items;
  size_t count;
  sorted_t *rows;
  MLX_TRY(self_items(r, call, &items, &count));
  MLX_TRY(mlx_arena_take(&r->arena, count ? count : 1, sizeof *rows, &rows));
  for (size_t i = 0; i < count; ++i) {
    rows[i].item = items[i];
    MLX_TRY(multi_key(r, &items[i], is_given(call, 2) ? &call->parameters[2] : NULL, flag(call, 1), &rows[i].key));
  }
  return sort_rows(r, rows, count, flag(call, 0), out);
}

static mlx_status_t filter_dictsort(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  sorted_t *rows;
  MLX_TRY(mlx_need_defined(r, &call->self));
  if (call->self.kind != MLX_VAR_DICT) MLX_FAIL(r, "dictsort wants a mapping, not '%s'", mlx_var_type(&call->self));
  const mlx_dict_t *dict = call->self.dict;
  const mlx_var_t by = call->given[1] ? call->parameters[1] : mlx_literal("key");
  const bool by_value = by.kind == MLX_VAR_STRING && mlx_span_is(by.text, "value");
  if (!by_value && !(by.kind == MLX_VAR_STRING && mlx_span_is(by.text, "key"))) MLX_FAIL(r, "You can only sort by either \"key\" or \"value\"");
  MLX_TRY(mlx_arena_take(&r->arena, dict->count ? dict->count : 1, sizeof *rows, &rows));
  for (size_t i = 0; i < dict->count; ++i) {
    MLX_TRY(mlx_new_tuple(r, dict->entries[i].key, dict->entries[i].value, &rows[i].item));
    MLX_TRY(key_of(r, by_value ? &dict->entries[i].value : &dict->entries[i].key, NULL, flag(call, 0), &rows[i].key));
  }
  return sort_rows(r, rows, dict->count, flag(call, 2), out);
}

static mlx_status_t filter_unique(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  const mlx_var_t *items;
  size_t count;
  mlx_var_t seen, kept, key;
  MLX_TRY(self_items(r, call, &items, &count));
  MLX_TRY(mlx_new_dict(r, MLX_VAR_DICT, &seen));
  MLX_TRY(mlx_new_list(r, MLX_SHAPE_GENERATOR, 0, &kept));
  for (size_t i = 0; i < count; ++i) {
    const size_t before = seen.dict->count;
    MLX_TRY(key_of(r, &items[i], is_given(call, 1) ? &call->parameters[1] : NULL, flag(call, 0), &key));
    MLX_TRY(mlx_dict_put(r, seen.dict, key, mlx_none()));
    if (seen.dict->count > before) MLX_TRY(mlx_list_push(r, kept.list, items[i]));
  }
  *out = kept;
  return NULL;
}

static mlx_status_t pick_extreme(mlx_render_t *r, const mlx_call_t *call, int wanted, mlx_var_t *out) {
  const mlx_var_t *items, *attribute = is_given(call, 1) ? &call->parameters[1] : NULL;
  size_t count;
  mlx_var_t best, key;
  MLX_TRY(self_items(r, call, &items, &count));
  if (!count) return mlx_undefined(r, out, "No aggregated item, sequence was empty.");
  *out = items[0];
  MLX_TRY(key_of(r, &items[0], attribute, flag(call, 0), &best));
  for (size_t i = 1; i < count; ++i) {
    int order;
    MLX_TRY(key_of(r, &items[i], attribute, flag(call, 0), &key));
    MLX_TRY(mlx_var_order(r, &key, &best, &order));
    if (order != wanted) continue;
    best = key;
    *out = items[i];
  }
  return NULL;
}

static mlx_status_t filter_min(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) { return pick_extreme(r, call, -1, out); }
static mlx_status_t filter_max(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) { return pick_extreme(r, call, 1, out); }

static mlx_status_t filter_default(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  (void)r;
  const bool replaces = call->self.kind == MLX_VAR_UNDEFINED || (flag(call, 1) && !mlx_var_truth(&call->self));
  *out = !replaces ? call->self : call->given[0] ? call->parameters[0] : mlx_literal("");
  return NULL;
}

static mlx_status_t filter_attr(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  mlx_span_t name;
  MLX_TRY(mlx_var_text(r, &call->parameters[0], &name));
  if (call->self.kind == MLX_VAR_DICT && !mlx_method_find(&call->self, name)) {  // never an item
    return mlx_undefined(r, out, "'dict object' has no attribute '%.*s'", (int)name.length, name.bytes);
  }
  return mlx_var_attribute(r, &call->self, name, out);
}

static mlx_status_t filter_batch(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  const mlx_var_t *items;
  size_t count;
  int64_t size;
  mlx_var_t rows, row = mlx_none();
  MLX_TRY(whole(r, call, 0, 0, &size));
  if (size < 1) MLX_FAIL(r, "batch wants at least 1 item a row");
  MLX_TRY(self_items(r, call, &items, &count));
  MLX_TRY(mlx_new_list(r, MLX_SHAPE_GENERATOR, 0, &rows));
  for (size_t i = 0; i < count; ++i) {
    if (i % (size_t)size == 0) {
      MLX_TRY(mlx_new_list(r, MLX_SHAPE_LIST, 0, &row));
      MLX_TRY(mlx_list_push(r, rows.list, row));
    }
    MLX_TRY(mlx_list_push(r, row.list, items[i]));
  }
  for (; count && is_given(call, 1) && (int64_t)row.list->count < size;) MLX_TRY(mlx_list_push(r, row.list, call->parameters[1]));
  *out = rows;
  return NULL;
}

static mlx_status_t filter_slice(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  const mlx_var_t *items;
  size_t count, at = 0;
  int64_t slices;
  mlx_var_t rows, row;
  MLX_TRY(whole(r, call, 0, 0, &slices));
  if (slices < 1) MLX_FAIL(r, "slice wants at least 1 slice");
  MLX_TRY(self_items(r, call, &items, &count));
  MLX_TRY(mlx_new_list(r, MLX_SHAPE_GENERATOR, 0, &rows));
  const size_t each = count / (size_t)slices, extra = count % (size_t)slices;
  for (size_t n = 0; n < (size_t)slices; ++n) {
    const size_t end = at + each + (n < extra);
    MLX_TRY(mlx_new_list(r, MLX_SHAPE_LIST, 0, &row));
    while (at < end) MLX_TRY(mlx_list_push(r, row.list, items[at++]));
    if (is_given(call, 1) && n >= extra) MLX_TRY(mlx_list_push(r, row.list, call->parameters[1]));
    MLX_TRY(mlx_list_push(r, rows.list, row));
  }
  *out = rows;
  return NULL;
}

static mlx_status_t filter_groupby(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  const mlx_var_t *items, *fallback = is_given(call, 1) ? &call->parameters[1] : NULL;
  size_t count;
  sorted_t *rows;
  mlx_var_t sorted, groups, group = mlx_none(), last = mlx_none(), entry;
  MLX_TRY(self_items(r, call, &items, &count));
  MLX_TRY(mlx_arena_take(&r->arena, count ? count : 1, sizeof *rows, &rows));
  for (size_t i = 0; i < count; ++i) {
    rows[i].item = items[i];
    MLX_TRY(get_path(r, &items[i], &call->parameters[0], fallback, &rows[i].key));
    if (!flag(call, 2)) MLX_TRY(ignore_case(r, &rows[i].key));
  }
  MLX_TRY(sort_rows(r, rows, count, false, &sorted));
  MLX_TRY(mlx_new_list(r, MLX_SHAPE_LIST, 0, &groups));
  for (size_t i = 0; i < count; ++i) {
    bool same = false;
    if (i) MLX_TRY(mlx_var_equal(r, &last, &rows[i].key, &same));
    if (!same) {
      mlx_var_t shown;
      MLX_TRY(get_path(r, &rows[i].item, &call->parameters[0], fallback, &shown));
      MLX_TRY(mlx_new_list(r, MLX_SHAPE_LIST, 0, &group));
      MLX_TRY(mlx_new_tuple(r, shown, group, &entry));
      MLX_TRY(mlx_list_push(r, groups.list, entry));
    }
    last = rows[i].key;
    MLX_TRY(mlx_list_push(r, group.list, rows[i].item));
  }
  *out = groups;
  return NULL;
}

// The arguments of map, select and their kin from |first| on: a name, and what goes to the filter or test of that name.
static mlx_status_t named_builtin(mlx_render_t *r, const mlx_call_t *call, size_t first, bool is_filter, const mlx_builtin_t **out,
                                  mlx_args_t *out_args) {
  const mlx_var_t *name = &call->args->positional[first];
  if (name->kind != MLX_VAR_STRING) MLX_FAIL(r, "a %s's name is wanted, not '%s'", is_filter ? "filter" : "test", mlx_var_type(name));
  *out = is_filter ? mlx_filter_find(name->text) : mlx_test_find(name->text);
  *out_args = (mlx_args_t){call->args->positional + first + 1, call->args->count - first - 1, call->args->named};
  if (*out) return NULL;
  return mlx_render_error(r, MLX_UNSUPPORTED, "there is no %s named '%.*s'", is_filter ? "filter" : "test", (int)name->text.length, name->text.bytes);
}

static mlx_status_t filter_map(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  const mlx_var_t *items, *attribute = NULL, *fallback = NULL;
  const mlx_builtin_t *builtin = NULL;
  size_t count;
  mlx_args_t args;
  mlx_var_t mapped, value;
  MLX_TRY(mlx_new_list(r, MLX_SHAPE_GENERATOR, 0, &mapped));
  *out = mapped;
  if (!mlx_var_truth(&call->self)) return NULL;
  if (call->args->count) {
    MLX_TRY(named_builtin(r, call, 0, true, &builtin, &args));
  } else {
    attribute = mlx_dict_named(call->args->named, (mlx_span_t){"attribute", 9});
    fallback = mlx_dict_named(call->args->named, (mlx_span_t){"default", 7});
    if (fallback && fallback->kind == MLX_VAR_NONE) fallback = NULL;
    if (!attribute) MLX_FAIL(r, "map requires a filter argument");
  }
  MLX_TRY(self_items(r, call, &items, &count));
  for (size_t i = 0; i < count; ++i) {
    MLX_TRY(builtin ? mlx_builtin_call(r, builtin, &items[i], &args, &value) : get_path(r, &items[i], attribute, fallback, &value));
    MLX_TRY(mlx_list_push(r, mapped.list, value));
  }
  return NULL;
}

static mlx_status_t select_items(mlx_render_t *r, const mlx_call_t *call, bool by_attribute, bool wanted, mlx_var_t *out) {
  const mlx_var_t *items;
  const mlx_builtin_t *test = NULL;
  size_t count;
  mlx_args_t args;
  mlx_var_t kept, value;
  MLX_TRY(mlx_new_list(r, MLX_SHAPE_GENERATOR, 0, &kept));
  *out = kept;
  if (!mlx_var_truth(&call->self)) return NULL;
  if (by_attribute && !call->args->count) MLX_FAIL(r, "Missing parameter for attribute name");
  if (call->args->count > by_attribute) MLX_TRY(named_builtin(r, call, by_attribute, false, &test, &args));
  MLX_TRY(self_items(r, call, &items, &count));
  for (size_t i = 0; i < count; ++i) {
    mlx_var_t item = items[i];
    if (by_attribute) MLX_TRY(get_path(r, &items[i], &call->args->positional[0], NULL, &item));
    value = item;
    if (test) MLX_TRY(mlx_builtin_call(r, test, &item, &args, &value));
    if (mlx_var_truth(&value) == wanted) MLX_TRY(mlx_list_push(r, kept.list, items[i]));
  }
  return NULL;
}

static mlx_status_t filter_select(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) { return select_items(r, call, false, true, out); }
static mlx_status_t filter_reject(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) { return select_items(r, call, false, false, out); }
static mlx_status_t filter_selectattr(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) { return select_items(r, call, true, true, out); }
static mlx_status_t filter_rejectattr(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) { return select_items(r, call, true, false, out); }

const mlx_builtin_t *mlx_filter_find(mlx_span_t name) {
  static const mlx_builtin_t filters[] = {
      {"abs", filter_abs, ""}, {"attr", filter_attr, "name"}, {"batch", filter_batch, "linecount |fill_with"},
      {"capitalize", filter_capitalize, ""}, {"center", filter_center, "|width"}, {"count", filter_length, ""},
      {"d", filter_default, "|default_value boolean"}, {"default", filter_default, "|default_value boolean"},
      {"dictsort", filter_dictsort, "|case_sensitive by reverse"}, {"e", filter_escape, ""}, {"escape", filter_escape, ""},
      {"first", filter_first, ""}, {"float", filter_float, "|default"}, {"forceescape", filter_forceescape, ""},
      {"format", filter_format, "*"}, {"groupby", filter_groupby, "attribute |default case_sensitive"},
      {"indent", filter_indent, "|width first blank"}, {"int", filter_int, "|default base"}, {"items", filter_items, ""},
      {"join", filter_join, "|d attribute"}, {"last", filter_last, ""}, {"length", filter_length, ""}, {"list", filter_list, ""},
      {"lower", filter_lower, ""}, {"map", filter_map, "*"}, {"max", filter_max, "|case_sensitive attribute"},
      {"min", filter_min, "|case_sensitive attribute"}, {"reject", filter_reject, "*"}, {"rejectattr", filter_rejectattr, "*"},
      {"replace", filter_replace, "old new |count"}, {"reverse", filter_reverse, ""}, {"round", filter_round, "|precision method"},
      {"safe", filter_safe, ""}, {"select", filter_select, "*"}, {"selectattr", filter_selectattr, "*"},
      {"slice", filter_slice, "slices |fill_with"}, {"sort", filter_sort, "|reverse case_sensitive attribute"},
      {"string", filter_string, ""}, {"sum", filter_sum, "|attribute start"}, {"title", filter_title, ""},
      {"tojson", filter_tojson, "|ensure_ascii indent separators sort_keys"}, {"trim", filter_trim, "|chars"},
      {"truncate", filter_truncate, "|length killwords end leeway"}, {"unique", filter_unique, "|case_sensitive attribute"},
      {"upper", filter_upper, ""}, {0}};
  return mlx_builtin_find(filters, name);
}

// ---------------------------------------------------------------------------------------------------------------------
// Tests

#define TEST(name, expression)                                                              \
  static mlx_status_t name(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {       \
    const mlx_var_t *v = &call->self;                                                       \
    (void)r;                                                                                \
    *out = mlx_bool(expression);                                                            \
    return NULL;                                                                            \
  }

TEST(test_defined, v->kind != MLX_VAR_UNDEFINED)
TEST(test_undefined, v->kind == MLX_VAR_UNDEFINED)
TEST(test_none, v->kind == MLX_VAR_NONE)
TEST(test_boolean, v->kind == MLX_VAR_BOOL)
TEST(test_true, v->kind == MLX_VAR_BOOL && v->truth)
TEST(test_false, v->kind == MLX_VAR_BOOL && !v->truth)
TEST(test_integer, v->kind == MLX_VAR_INT)
TEST(test_float, v->kind == MLX_VAR_FLOAT)
TEST(test_number, mlx_is_number(v))
TEST(test_string, v->kind == MLX_VAR_STRING)
TEST(test_mapping, v->kind == MLX_VAR_DICT)
TEST(test_iterable, mlx_var_iterable(v) || v->kind == MLX_VAR_LOOP)
TEST(test_callable, v->kind == MLX_VAR_FUNCTION || v->kind == MLX_VAR_LOOP || v->kind == MLX_VAR_UNDEFINED)
TEST(test_escaped, v->kind == MLX_VAR_STRING && v->markup)
TEST(test_sequence, v->kind == MLX_VAR_UNDEFINED || v->kind == MLX_VAR_STRING || v->kind == MLX_VAR_DICT ||
                        (v->kind == MLX_VAR_LIST && v->list->shape <= MLX_SHAPE_RANGE))
TEST(test_filter, v->kind == MLX_VAR_STRING && mlx_filter_find(v->text))
TEST(test_test, v->kind == MLX_VAR_STRING && mlx_test_find(v->text))

static mlx_status_t has_remainder(mlx_render_t *r, const mlx_var_t *v, int64_t by, int64_t wanted, mlx_var_t *out) {
  const mlx_var_t divisor = mlx_int(by);
  mlx_var_t rest;
  MLX_TRY(need_number(r, v));
  MLX_TRY(mlx_var_binary(r, MLX_OP_MOD, v, &divisor, &rest));
  *out = mlx_bool(mlx_number(&rest) == (double)wanted);
  return NULL;
}

static mlx_status_t test_odd(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) { return has_remainder(r, &call->self, 2, 1, out); }
static mlx_status_t test_even(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) { return has_remainder(r, &call->self, 2, 0, out); }

static mlx_status_t test_divisibleby(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  int64_t by;
  MLX_TRY(whole(r, call, 0, 1, &by));
  return has_remainder(r, &call->self, by, 0, out);
}

static mlx_status_t test_compare(mlx_render_t *r, const mlx_call_t *call, mlx_op_t op, mlx_var_t *out) {
  bool holds;
  MLX_TRY(mlx_var_compare(r, op, &call->self, &call->parameters[0], &holds));
  *out = mlx_bool(holds);
  return NULL;
}

static mlx_status_t test_eq(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) { return test_compare(r, call, MLX_OP_EQ, out); }
static mlx_status_t test_ne(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) { return test_compare(r, call, MLX_OP_NE, out); }
static mlx_status_t test_lt(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) { return test_compare(r, call, MLX_OP_LT, out); }
static mlx_status_t test_le(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) { return test_compare(r, call, MLX_OP_LE, out); }
static mlx_status_t test_gt(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) { return test_compare(r, call, MLX_OP_GT, out); }
static mlx_status_t test_ge(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) { return test_compare(r, call, MLX_OP_GE, out); }
static mlx_status_t test_in(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) { return test_compare(r, call, MLX_OP_IN, out); }

static mlx_status_t test_sameas(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  const mlx_var_t *a = &call->self, *b = &call->parameters[0];
  bool same = a->kind == b->kind;
  if (same && (a->kind == MLX_VAR_LIST || a->kind == MLX_VAR_DICT)) {
    same = a->list == b->list;
  } else if (same) {
    MLX_TRY(mlx_var_equal(r, a, b, &same));
  }
  *out = mlx_bool(same);
  return NULL;
}

static mlx_status_t text_test(mlx_render_t *r, const mlx_call_t *call, const char *method, mlx_var_t *out) {
  mlx_span_t text;
  MLX_TRY(self_text(r, call, &text));
  const mlx_var_t self = mlx_string(text.bytes, text.length);
  return mlx_builtin_call(r, mlx_string_method_find((mlx_span_t){method, strlen(method)}), &self, &(mlx_args_t){0}, out);
}

static mlx_status_t test_lower(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) { return text_test(r, call, "islower", out); }
static mlx_status_t test_upper(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) { return text_test(r, call, "isupper", out); }

const mlx_builtin_t *mlx_test_find(mlx_span_t name) {
  static const mlx_builtin_t tests[] = {
      {"boolean", test_boolean, ""}, {"callable", test_callable, ""}, {"defined", test_defined, ""},
      {"divisibleby", test_divisibleby, "num"}, {"eq", test_eq, "other"}, {"==", test_eq, "other"}, {"equalto", test_eq, "other"},
      {"escaped", test_escaped, ""}, {"even", test_even, ""}, {"false", test_false, ""}, {"filter", test_filter, ""},
      {"float", test_float, ""}, {"ge", test_ge, "other"}, {">=", test_ge, "other"}, {"gt", test_gt, "other"}, {">", test_gt, "other"},
      {"greaterthan", test_gt, "other"}, {"in", test_in, "seq"}, {"integer", test_integer, ""}, {"iterable", test_iterable, ""},
      {"le", test_le, "other"}, {"<=", test_le, "other"}, {"lower", test_lower, ""}, {"lt", test_lt, "other"}, {"<", test_lt, "other"},
      {"lessthan", test_lt, "other"}, {"mapping", test_mapping, ""}, {"ne", test_ne, "other"}, {"!=", test_ne, "other"},
      {"none", test_none, ""}, {"number", test_number, ""}, {"odd", test_odd, ""}, {"sameas", test_sameas, "other"},
      {"sequence", test_sequence, ""}, {"string", test_string, ""}, {"test", test_test, ""}, {"true", test_true, ""},
      {"undefined", test_undefined, ""}, {"upper", test_upper, ""}, {0}};
  return mlx_builtin_find(tests, name);
}

// ---------------------------------------------------------------------------------------------------------------------
// Globals

static mlx_status_t global_range(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  int64_t start = 0, stop, step = 1;
  MLX_TRY(whole(r, call, 0, 0, &stop));
  if (call->given[1]) {
    start = stop;
    MLX_TRY(whole(r, call, 1, 0, &stop));
  }
  MLX_TRY(whole(r, call, 2, 1, &step));
  if (!step) MLX_FAIL(r, "range() arg 3 must not be zero");
  MLX_TRY(mlx_new_list(r, MLX_SHAPE_RANGE, 0, out));
  for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
    if (out->list->count == MLX_RANGE_MOST) MLX_FAIL(r, "Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).", MLX_RANGE_MOST);
    MLX_TRY(mlx_list_push(r, out->list, mlx_int(i)));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return NULL;
}

// dict(pairs, a=1) and namespace(pairs, a=1).
static mlx_status_t fill_dict(mlx_render_t *r, const mlx_call_t *call, mlx_dict_t *dict) {
  if (call->args->count > 1) MLX_FAIL(r, "dict expected at most 1 argument, got %zu", call->args->count);
  if (call->args->count && call->args->positional[0].kind == MLX_VAR_DICT) {
    const mlx_dict_t *from = call->args->positional[0].dict;
    for (size_t i = 0; i < from->count; ++i) MLX_TRY(mlx_dict_put(r, dict, from->entries[i].key, from->entries[i].value));
  } else if (call->args->count) {
    const mlx_var_t *pairs, *pair;
    size_t count, length;
    MLX_TRY(mlx_var_items(r, &call->args->positional[0], &pairs, &count));
    for (size_t i = 0; i < count; ++i) {
      MLX_TRY(mlx_var_items(r, &pairs[i], &pair, &length));
      if (length != 2) MLX_FAIL(r, "dictionary update sequence element #%zu has length %zu; 2 is required", i, length);
      MLX_TRY(mlx_dict_put(r, dict, pair[0], pair[1]));
    }
  }
  for (size_t i = 0; call->args->named && i < call->args->named->count; ++i) {
    MLX_TRY(mlx_dict_put(r, dict, call->args->named->entries[i].key, call->args->named->entries[i].value));
  }
  return NULL;
}

static mlx_status_t global_dict(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  MLX_TRY(mlx_new_dict(r, MLX_VAR_DICT, out));
  return fill_dict(r, call, out->dict);
}

static mlx_status_t global_namespace(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  MLX_TRY(mlx_new_dict(r, MLX_VAR_NAMESPACE, out));
  MLX_TRY(fill_dict(r, call, out->dict));
  for (size_t i = 0; i < out->dict->count; ++i) {
    const mlx_var_t *key = &out->dict->entries[i].key;
    if (key->kind == MLX_VAR_STRING && key->text.length && key->text.bytes[0] == '_') {
      MLX_FAIL(r, "a namespace does not take names that begin with an underscore");
    }
  }
  return NULL;
}

static mlx_status_t global_raise_exception(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  mlx_span_t text;
  *out = mlx_none();
  MLX_TRY(mlx_var_text(r, &call->parameters[0], &text));
  return mlx_status_hint(mlx_render_error(r, MLX_INVALID_INPUT, "the template refuses the conversation: %.*s", (int)text.length, text.bytes),
                         "the message is the model's own: see which roles and which order its template takes (mlxcel template --show)");
}

static mlx_status_t global_strftime_now(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  char format[256], text[1024];
  if (call->parameters[0].kind != MLX_VAR_STRING) MLX_FAIL(r, "strftime_now wants a string, not '%s'", mlx_var_type(&call->parameters[0]));
  const mlx_span_t wanted = call->parameters[0].text;
  if (wanted.length + 2 > sizeof format || memchr(wanted.bytes, 0, wanted.length)) MLX_FAIL(r, "strftime_now: the format is too long");
  memcpy(format, wanted.bytes, wanted.length);
  memcpy(format + wanted.length, "|", 2);  // an empty result is told from one that does not fit
  const time_t now = r->now ? (time_t)r->now : time(NULL);
  struct tm local;
  if (!localtime_r(&now, &local)) MLX_FAIL(r, "strftime_now: there is no such time");
#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
#endif
  const size_t length = strftime(text, sizeof text, format, &local);
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif
  if (!length) MLX_FAIL(r, "strftime_now: the result is too long");
  for (size_t i = 0; i + 1 < length;) {  // names of days and months may come in any encoding
    int step = mlx_utf8_length(text + i, length - 1 - i);
    if (step <= 0) MLX_FAIL(r, "strftime_now: the result is not UTF-8");
    i += (size_t)step;
  }
  mlx_sink_t sink = {.arena = &r->arena};
  mlx_sink_append(&sink, text, length - 1);
  return mlx_sink_take(r, &sink, out);
}

// A joiner says nothing the first time it is called and its separator from then on.
static mlx_status_t call_joiner(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  (void)r;
  mlx_list_t *state = call->self.list;
  *out = state->items[1].truth ? state->items[0] : mlx_literal("");
  state->items[1] = mlx_bool(true);
  return NULL;
}

static mlx_status_t global_joiner(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  static const mlx_builtin_t joiner = {"joiner", call_joiner, ""};
  mlx_function_t *function;
  mlx_var_t state;
  MLX_TRY(mlx_new_tuple(r, call->given[0] ? call->parameters[0] : mlx_literal(", "), mlx_bool(false), &state));
  MLX_TRY(mlx_arena_take(&r->arena, 1, sizeof *function, &function));
  *function = (mlx_function_t){.builtin = &joiner, .self = state};
  *out = (mlx_var_t){.kind = MLX_VAR_FUNCTION, .function = function};
  return NULL;
}

mlx_status_t mlx_globals_add(mlx_render_t *r, mlx_scope_t *scope) {
  static const mlx_builtin_t globals[] = {{"range", global_range, "start |stop step"}, {"dict", global_dict, "*"},
                                          {"namespace", global_namespace, "*"}, {"raise_exception", global_raise_exception, "message"},
                                          {"strftime_now", global_strftime_now, "format"}, {"joiner", global_joiner, "|sep"}, {0}};
  for (const mlx_builtin_t *g = globals; g->name; ++g) {
    mlx_function_t *function;
    MLX_TRY(mlx_arena_take(&r->arena, 1, sizeof *function, &function));
    function->builtin = g;
    MLX_TRY(mlx_scope_set(r, scope, (mlx_span_t){g->name, strlen(g->name)}, (mlx_var_t){.kind = MLX_VAR_FUNCTION, .function = function}));
  }
  return NULL;
}
