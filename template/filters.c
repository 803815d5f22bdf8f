// Filters of text and numbers, with jinja2's names and parameters; tojson is transformers'.
// sequence_filters.c has the filters of sequences.
#include "template/filters.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "template/characters.h"
#include "template/format.h"
#include "template/lookup.h"
#include "template/operators.h"
#include "template/string_methods.h"
#include "template/text.h"
#include "template/value_json.h"
#include "template/value_repr.h"

// ----------------------------------------------------------------------------------------------------------
// Text

static mlx_status_t filter_case(mlx_render_t *r, const mlx_template_call_t *call,
                                mlx_letter_case_t letter_case, mlx_var_t *out) {
  mlx_span_t text;
  mlx_sink_t sink = {.arena = &r->arena};
  MLX_TRY(mlx_call_text(r, call, &text));
  mlx_sink_case(&sink, text, letter_case);
  MLX_TRY(mlx_sink_to_string(r, &sink, out));
  out->markup = call->self.kind == MLX_VAR_STRING && call->self.markup;
  return NULL;
}

static mlx_status_t filter_upper(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  return filter_case(r, call, MLX_UPPER, out);
}

static mlx_status_t filter_lower(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  return filter_case(r, call, MLX_LOWER, out);
}

static mlx_status_t filter_capitalize(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  return filter_case(r, call, MLX_CAPITALIZE, out);
}

// Unlike str.title(), jinja2's words begin only after whitespace, hyphens and opening brackets.
static mlx_status_t filter_title(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  mlx_span_t text;
  mlx_sink_t sink = {.arena = &r->arena};
  MLX_TRY(mlx_call_text(r, call, &text));
  for (size_t at = 0, end; at < text.length; at = end) {
    size_t length;
    uint32_t c = mlx_character_at(text.bytes + at, &length);
    const bool breaks = mlx_codepoint_is_space(c) || (c < 0x80 && c && strchr("-({[<", (int)c));
    for (end = at + length; end < text.length; end += length) {
      c = mlx_character_at(text.bytes + end, &length);
      if (breaks != (mlx_codepoint_is_space(c) || (c < 0x80 && c && strchr("-({[<", (int)c)))) break;
    }
    mlx_character_at(text.bytes + at, &length);
    mlx_sink_case(&sink, (mlx_span_t){text.bytes + at, length}, MLX_UPPER);
    mlx_sink_case(&sink, (mlx_span_t){text.bytes + at + length, end - at - length}, MLX_LOWER);
  }
  return mlx_sink_to_string(r, &sink, out);
}

static mlx_status_t filter_trim(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  mlx_span_t text;
  MLX_TRY(mlx_call_text(r, call, &text));
  if (mlx_call_given(call, 0) && call->parameters[0].kind != MLX_VAR_STRING)
    MLX_FAIL(r, "trim expects a string, not '%s'", mlx_var_type(&call->parameters[0]));
  MLX_TRY(mlx_render_charge_strip(r, text, mlx_call_given(call, 0) ? &call->parameters[0].text : NULL));
  text = mlx_span_strip(text, mlx_call_given(call, 0) ? &call->parameters[0].text : NULL, true, true);
  *out = mlx_string(text.bytes, text.length);
  out->markup = call->self.kind == MLX_VAR_STRING && call->self.markup;
  return NULL;
}

static mlx_status_t filter_string(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  mlx_span_t text;
  MLX_TRY(mlx_call_text(r, call, &text));
  *out = mlx_string(text.bytes, text.length);
  out->markup = call->self.kind == MLX_VAR_STRING && call->self.markup;
  return NULL;
}

static mlx_status_t filter_safe(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  MLX_TRY(filter_string(r, call, out));
  out->markup = true;
  return NULL;
}

static mlx_status_t filter_escape(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  mlx_span_t text;
  *out = call->self;
  if (call->self.kind == MLX_VAR_STRING && call->self.markup) return NULL;
  MLX_TRY(mlx_call_text(r, call, &text));
  return mlx_span_escape(r, text, out);
}

static mlx_status_t filter_forceescape(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  mlx_span_t text;
  MLX_TRY(mlx_call_text(r, call, &text));
  return mlx_span_escape(r, text, out);
}

static mlx_status_t filter_replace(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  mlx_span_t text, old, new;
  int64_t count = -1;
  MLX_TRY(mlx_call_text(r, call, &text));
  MLX_TRY(mlx_var_text(r, &call->parameters[0], &old));
  MLX_TRY(mlx_var_text(r, &call->parameters[1], &new));
  if (mlx_call_given(call, 2)) MLX_TRY(mlx_call_integer(r, call, 2, -1, &count));
  return mlx_span_replace(r, text, old, new, count, out);
}

static mlx_status_t filter_indent(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  mlx_sink_t sink = {.arena = &r->arena};
  mlx_span_t text, with = {NULL, 0};
  mlx_var_t lines;
  int64_t width = 4;
  if (call->given[0] && call->parameters[0].kind == MLX_VAR_STRING) {
    with = call->parameters[0].text;
    width = 1;
  } else {
    MLX_TRY(mlx_call_integer(r, call, 0, 4, &width));
    with = (mlx_span_t){" ", 1};
  }
  if (call->self.kind != MLX_VAR_STRING)
    MLX_FAIL(r, "indent expects a string, not '%s'", mlx_var_type(&call->self));
  text = call->self.text;
  const bool first = mlx_call_flag(call, 1), blank = mlx_call_flag(call, 2);
  mlx_sink_append(&sink, text.bytes, text.length);
  mlx_sink_puts(&sink, "\n");
  MLX_TRY(mlx_sink_to_string(r, &sink, &lines));
  MLX_TRY(mlx_span_split_lines(r, lines.text, false, &lines));
  sink = (mlx_sink_t){.arena = &r->arena};
  for (size_t i = 0; i < lines.list->count; ++i) {
    const mlx_span_t line = lines.list->items[i].text;
    if (i) mlx_sink_puts(&sink, "\n");
    if (i ? line.length || blank : first) mlx_sink_fill(&sink, with.bytes, with.length, width);
    mlx_sink_append(&sink, line.bytes, line.length);
  }
  return mlx_sink_to_string(r, &sink, out);
}

static mlx_status_t filter_center(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  mlx_span_t text;
  int64_t width;
  mlx_var_t argument;
  MLX_TRY(mlx_call_text(r, call, &text));
  MLX_TRY(mlx_call_integer(r, call, 0, 80, &width));
  argument = mlx_int(width);
  const mlx_var_t self = mlx_string(text.bytes, text.length);
  return mlx_builtin_call(r, mlx_string_method_find((mlx_span_t){"center", 6}), &self,
                          &(mlx_args_t){&argument, 1, NULL}, out);
}

static mlx_status_t filter_truncate(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  const mlx_var_t none = mlx_none();
  int64_t length, leeway, count;
  mlx_var_t self, stop, cut;
  mlx_span_t end = {"...", 3};
  MLX_TRY(mlx_call_integer(r, call, 0, 255, &length));
  MLX_TRY(mlx_call_integer(r, call, 3, 5, &leeway));
  if (call->given[2]) MLX_TRY(mlx_var_text(r, &call->parameters[2], &end));
  self = call->self;
  MLX_TRY(mlx_var_length(r, &self, &count));
  const int64_t keep = length - (int64_t)mlx_span_characters(end);
  if (keep < 0 || leeway < 0)
    MLX_FAIL(r, "truncate: expected a length of at least %zu", mlx_span_characters(end));
  *out = self;
  if (count <= length + leeway) return NULL;
  if (self.kind != MLX_VAR_STRING) MLX_FAIL(r, "truncate expects a string, not '%s'", mlx_var_type(&self));
  stop = mlx_int(keep);
  MLX_TRY(mlx_var_slice(r, &self, &none, &stop, &none, &cut));
  if (!mlx_call_flag(call, 1)) {
    for (size_t at = cut.text.length; at-- > 0;) {
      if (cut.text.bytes[at] != ' ') continue;
      cut.text.length = at;
      break;
    }
  }
  mlx_sink_t sink = {.arena = &r->arena};
  mlx_sink_append(&sink, cut.text.bytes, cut.text.length);
  mlx_sink_append(&sink, end.bytes, end.length);
  return mlx_sink_to_string(r, &sink, out);
}

static mlx_status_t filter_format(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  mlx_span_t text;
  mlx_var_t values = {.kind = MLX_VAR_DICT, .dict = call->args->named};
  if (call->args->named && call->args->count)
    MLX_FAIL(r, "can't handle positional and keyword arguments at the same time");
  MLX_TRY(mlx_call_text(r, call, &text));
  if (!call->args->named) {
    MLX_TRY(mlx_list_create(r, MLX_PY_TUPLE, 0, &values));
    for (size_t i = 0; i < call->args->count; ++i)
      MLX_TRY(mlx_list_push(r, values.list, call->args->positional[i]));
  }
  return mlx_format_percent(r, text, &values, out);
}

static mlx_status_t filter_tojson(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  mlx_json_style_t style = {.ascii = mlx_call_flag(call, 0),
                            .sorted = mlx_call_flag(call, 3),
                            .pretty = mlx_call_given(call, 1),
                            .item_separator = {", ", 2},
                            .key_separator = {": ", 2}};
  mlx_sink_t sink = {.arena = &r->arena}, indent = {.arena = &r->arena};
  if (style.pretty) {
    mlx_var_t text = call->parameters[1];
    style.item_separator.length = 1;
    if (text.kind != MLX_VAR_STRING) {
      int64_t width;
      MLX_TRY(mlx_call_integer(r, call, 1, 0, &width));
      mlx_sink_fill(&indent, " ", 1, width);
      MLX_TRY(mlx_sink_to_string(r, &indent, &text));
    }
    style.indent = text.text;
  }
  if (mlx_call_given(call, 2)) {
    const mlx_var_t *items;
    size_t count;
    MLX_TRY(mlx_var_items(r, &call->parameters[2], &items, &count));
    if (count != 2 || items[0].kind != MLX_VAR_STRING || items[1].kind != MLX_VAR_STRING)
      MLX_FAIL(r, "tojson: expected two strings as separators");
    style.item_separator = items[0].text;
    style.key_separator = items[1].text;
  }
  MLX_TRY(mlx_var_json(r, &sink, &call->self, &style, 0));
  return mlx_sink_to_string(r, &sink, out);
}

// ----------------------------------------------------------------------------------------------------------
// Numbers

// Python's int() (|whole_only|) or float() of a string; false if it is not a number.
static bool read_number(mlx_span_t text, bool whole_only, int base, mlx_var_t *out) {
  char digits[128], *end;
  size_t count = 0;
  text = mlx_span_strip(text, NULL, true, true);
  for (size_t i = 0; i < text.length; ++i) {
    const char c = text.bytes[i];
    const bool between =
        c == '_' && i && i + 1 < text.length && text.bytes[i - 1] != '_' && text.bytes[i + 1] != '_';
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
  if (strspn(start, base == 10 ? "0123456789" : "0123456789abcdefABCDEFxXoObB") != strlen(start) || !*start)
    return false;
  if (base != 10 && start[0] == '0' &&
      strchr(base == 16  ? "xX"
             : base == 8 ? "oO"
                         : "bB",
             start[1]) &&
      start[1]) {
    memmove((char *)(uintptr_t)start, start + 2, strlen(start + 2) + 1);
  }
  *out = mlx_int(strtoll(digits, &end, base));
  return !*end && strlen(start) < 19;
}

static mlx_status_t filter_int(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  const mlx_var_t *v = &call->self;
  mlx_var_t number;
  int64_t base;
  MLX_TRY(mlx_var_expect_defined(r, v));
  MLX_TRY(mlx_call_integer(r, call, 1, 10, &base));
  if (base != 10 && base != 16 && base != 8 && base != 2)
    return mlx_render_error(r, MLX_UNSUPPORTED, "int: base %lld is not supported", (long long)base);
  *out = call->given[0] ? call->parameters[0] : mlx_int(0);
  if (v->kind == MLX_VAR_STRING) {
    MLX_TRY(mlx_render_charge(r, v->text.length));
    if (read_number(v->text, true, (int)base, out)) return NULL;
    *out = call->given[0] ? call->parameters[0] : mlx_int(0);
    if (!read_number(v->text, false, 10, &number)) return NULL;
  } else if (mlx_var_is_integer(v)) {
    *out = mlx_int(mlx_var_integer(v));
    return NULL;
  } else if (v->kind == MLX_VAR_FLOAT) {
    number = *v;
  } else {
    return NULL;
  }
  if (!isfinite(number.number)) {
    if (v->kind == MLX_VAR_FLOAT && isinf(number.number))
      MLX_FAIL(r, "cannot convert float infinity to integer");
    return NULL;
  }
  if (fabs(number.number) >= 9.2e18)
    return mlx_render_error(r, MLX_UNSUPPORTED, "an integer does not fit 64 bits");
  *out = mlx_int((int64_t)number.number);
  return NULL;
}

static mlx_status_t filter_float(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  MLX_TRY(mlx_var_expect_defined(r, &call->self));
  *out = call->given[0] ? call->parameters[0] : mlx_float(0);
  mlx_var_t number;
  if (call->self.kind == MLX_VAR_STRING) MLX_TRY(mlx_render_charge(r, call->self.text.length));
  if (mlx_var_is_number(&call->self)) *out = mlx_float(mlx_var_number(&call->self));
  if (call->self.kind == MLX_VAR_STRING && read_number(call->self.text, false, 10, &number)) *out = number;
  return NULL;
}

static mlx_status_t filter_abs(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  MLX_TRY(mlx_var_expect_number(r, &call->self));
  if (call->self.kind == MLX_VAR_FLOAT) {
    *out = mlx_float(fabs(call->self.number));
    return NULL;
  }
  return mlx_var_sign(r, mlx_var_integer(&call->self) < 0, &call->self, out);
}

static mlx_status_t filter_round(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  int64_t precision;
  const mlx_var_t method = call->given[1] ? call->parameters[1] : mlx_literal("common");
  MLX_TRY(mlx_var_expect_number(r, &call->self));
  MLX_TRY(mlx_call_integer(r, call, 0, 0, &precision));
  const bool ceils = method.kind == MLX_VAR_STRING && mlx_span_is(method.text, "ceil");
  const bool floors = method.kind == MLX_VAR_STRING && mlx_span_is(method.text, "floor");
  if (!ceils && !floors && !(method.kind == MLX_VAR_STRING && mlx_span_is(method.text, "common")))
    MLX_FAIL(r, "round: method must be common, ceil or floor");
  if (precision < -300 || precision > 300)
    return mlx_render_error(r, MLX_UNSUPPORTED, "round: precision %lld is not supported",
                            (long long)precision);
  if (ceils || floors) {
    const double scale = pow(10, (double)precision), scaled = mlx_var_number(&call->self) * scale;
    *out = mlx_float((ceils ? ceil(scaled) : floor(scaled)) / scale);
  } else if (mlx_var_is_integer(&call->self)) {
    if (precision < 0)
      return mlx_render_error(r, MLX_UNSUPPORTED,
                              "round: a negative precision is not supported for integers");
    *out = mlx_int(mlx_var_integer(&call->self));
  } else if (precision < 0 || !isfinite(call->self.number)) {
    const double scale = pow(10, (double)-precision);
    *out = mlx_float(isfinite(call->self.number) ? nearbyint(call->self.number / scale) * scale
                                                 : call->self.number);
  } else {
    char text[800];
    snprintf(text, sizeof text, "%.*f", (int)precision, call->self.number);
    *out = mlx_float(strtod(text, NULL));
  }
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Table

const mlx_builtin_t *mlx_filter_find(mlx_span_t name) {
  static const mlx_builtin_t filters[] = {
      {"abs", filter_abs, ""},
      {"capitalize", filter_capitalize, ""},
      {"center", filter_center, "|width"},
      {"e", filter_escape, ""},
      {"escape", filter_escape, ""},
      {"float", filter_float, "|default"},
      {"forceescape", filter_forceescape, ""},
      {"format", filter_format, "*"},
      {"indent", filter_indent, "|width first blank"},
      {"int", filter_int, "|default base"},
      {"lower", filter_lower, ""},
      {"replace", filter_replace, "old new |count"},
      {"round", filter_round, "|precision method"},
      {"safe", filter_safe, ""},
      {"string", filter_string, ""},
      {"title", filter_title, ""},
      {"tojson", filter_tojson, "|ensure_ascii indent separators sort_keys"},
      {"trim", filter_trim, "|chars"},
      {"truncate", filter_truncate, "|length killwords end leeway"},
      {"upper", filter_upper, ""},
      {0}};
  const mlx_builtin_t *found = mlx_builtin_find(filters, name);
  return found ? found : mlx_sequence_filter_find(name);
}
