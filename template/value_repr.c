// Python's str() and repr() of values.
#include "template/value_repr.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "template/characters.h"
#include "template/node.h"

// Writes the shortest digits that parse to the same number, in Python's notation.
void mlx_float_write(mlx_sink_t *sink, double number) {
  char text[64], digits[64];
  int precision = 1;
  if (isnan(number) || isinf(number)) {
    mlx_sink_puts(sink, isnan(number) ? "nan" : number < 0 ? "-inf" : "inf");
    return;
  }
  do {
    snprintf(text, sizeof text, "%.*e", precision - 1, number);
  } while (strtod(text, NULL) != number && ++precision <= 17);
  const int exponent = atoi(strchr(text, 'e') + 1);
  const bool negative = text[0] == '-';
  int count = 0;
  for (const char *c = text; *c != 'e'; ++c) {
    if (*c >= '0' && *c <= '9') digits[count++] = *c;
  }
  digits[count] = 0;
  if (negative) mlx_sink_puts(sink, "-");
  if (exponent < -4 || exponent >= 16) {
    char power[16];
    mlx_sink_append(sink, digits, 1);
    if (count > 1) mlx_sink_puts(sink, ".");
    mlx_sink_puts(sink, digits + 1);
    snprintf(power, sizeof power, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
    mlx_sink_puts(sink, power);
  } else if (exponent < 0) {
    mlx_sink_puts(sink, "0.");
    mlx_sink_fill(sink, "0", 1, -exponent - 1);
    mlx_sink_puts(sink, digits);
  } else {
    int whole = exponent + 1;
    mlx_sink_append(sink, digits, (size_t)(count < whole ? count : whole));
    mlx_sink_fill(sink, "0", 1, whole - count);
    mlx_sink_puts(sink, ".");
    mlx_sink_puts(sink, count > whole ? digits + whole : "0");
  }
}

static void escape_code(mlx_sink_t *sink, uint32_t c) {
  char text[16];
  snprintf(text, sizeof text,
           c < 0x100     ? "\\x%02" PRIx32
           : c < 0x10000 ? "\\u%04" PRIx32
                         : "\\U%08" PRIx32,
           c);
  mlx_sink_puts(sink, text);
}

static void repr_text(mlx_sink_t *sink, mlx_span_t text) {
  const char quote =
      memchr(text.bytes, '\'', text.length) && !memchr(text.bytes, '"', text.length) ? '"' : '\'';
  mlx_sink_append(sink, &quote, 1);
  for (size_t at = 0, length; at < text.length; at += length) {
    const uint32_t c = mlx_character_at(text.bytes + at, &length);
    if (c == (unsigned char)quote || c == '\\') {
      mlx_sink_append(sink, (const char[]){'\\', (char)c}, 2);
    } else if (c == '\n' || c == '\r' || c == '\t') {
      mlx_sink_puts(sink, c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t");
    } else if (mlx_codepoint_is_printable(c)) {
      mlx_sink_append(sink, text.bytes + at, length);
    } else {
      escape_code(sink, c);
    }
  }
  mlx_sink_append(sink, &quote, 1);
}

static mlx_status_t repr_dict(mlx_render_t *r, mlx_sink_t *sink, const mlx_dict_t *dict) {
  mlx_sink_puts(sink, "{");
  for (size_t i = 0; i < dict->count; ++i) {
    if (i) mlx_sink_puts(sink, ", ");
    MLX_TRY(mlx_var_repr(r, sink, &dict->entries[i].key));
    mlx_sink_puts(sink, ": ");
    MLX_TRY(mlx_var_repr(r, sink, &dict->entries[i].value));
  }
  mlx_sink_puts(sink, "}");
  return NULL;
}

static mlx_status_t repr_range(mlx_sink_t *sink, const mlx_list_t *list) {
  char text[96];
  const int64_t first = list->count ? list->items[0].integer : 0,
                step = list->count > 1 ? list->items[1].integer - first : 1;
  const int64_t stop = list->count ? list->items[list->count - 1].integer + step : 0;
  snprintf(text, sizeof text,
           step == 1 ? "range(%" PRId64 ", %" PRId64 ")" : "range(%" PRId64 ", %" PRId64 ", %" PRId64 ")",
           first, stop, step);
  mlx_sink_puts(sink, text);
  return NULL;
}

static mlx_status_t repr_list(mlx_render_t *r, mlx_sink_t *sink, const mlx_list_t *list) {
  static const char *const starts[] = {"[", "(", "", "dict_keys([", "dict_values([", "dict_items(["};
  static const char *const ends[] = {"]", ")", "", "])", "])", "])"};
  if (list->type == MLX_PY_RANGE) return repr_range(sink, list);
  if (list->type == MLX_PY_GENERATOR) MLX_FAIL(r, "a generator cannot be printed: convert it with |list");
  mlx_sink_puts(sink, starts[list->type]);
  for (size_t i = 0; i < list->count; ++i) {
    if (i) mlx_sink_puts(sink, ", ");
    MLX_TRY(mlx_var_repr(r, sink, &list->items[i]));
  }
  if (list->type == MLX_PY_TUPLE && list->count == 1) mlx_sink_puts(sink, ",");
  mlx_sink_puts(sink, ends[list->type]);
  return NULL;
}

static mlx_status_t repr_kind(mlx_render_t *r, mlx_sink_t *sink, const mlx_var_t *v) {
  char text[64];
  switch (v->kind) {
    case MLX_VAR_UNDEFINED: mlx_sink_puts(sink, "Undefined"); return NULL;
    case MLX_VAR_NONE: mlx_sink_puts(sink, "None"); return NULL;
    case MLX_VAR_BOOL: mlx_sink_puts(sink, v->truth ? "True" : "False"); return NULL;
    case MLX_VAR_INT:
      snprintf(text, sizeof text, "%" PRId64, v->integer);
      mlx_sink_puts(sink, text);
      return NULL;
    case MLX_VAR_FLOAT: mlx_float_write(sink, v->number); return NULL;
    case MLX_VAR_STRING:
      if (v->markup) mlx_sink_puts(sink, "Markup(");
      repr_text(sink, v->text);
      if (v->markup) mlx_sink_puts(sink, ")");
      return NULL;
    case MLX_VAR_LIST: return repr_list(r, sink, v->list);
    case MLX_VAR_DICT: return repr_dict(r, sink, v->dict);
    case MLX_VAR_NAMESPACE:
      mlx_sink_puts(sink, "<Namespace ");
      MLX_TRY(repr_dict(r, sink, v->dict));
      mlx_sink_puts(sink, ">");
      return NULL;
    case MLX_VAR_LOOP:
      snprintf(text, sizeof text, "<LoopContext %zu/%zu>", v->loop->index + 1, v->loop->count);
      mlx_sink_puts(sink, text);
      return NULL;
    default:
      if (!v->function->macro) MLX_FAIL(r, "a function cannot be printed: call it with ()");
      mlx_sink_puts(sink, "<Macro ");
      repr_text(sink, v->function->macro->text);
      mlx_sink_puts(sink, ">");
      return NULL;
  }
}

mlx_status_t mlx_var_repr(mlx_render_t *r, mlx_sink_t *sink, const mlx_var_t *v) {
  MLX_TRY(mlx_render_enter(r));
  MLX_TRY(mlx_render_charge(r, 1));
  MLX_TRY(repr_kind(r, sink, v));
  --r->depth;
  return NULL;
}

mlx_status_t mlx_var_write(mlx_render_t *r, mlx_sink_t *sink, const mlx_var_t *v) {
  if (v->kind == MLX_VAR_UNDEFINED) return NULL;
  if (v->kind != MLX_VAR_STRING) return mlx_var_repr(r, sink, v);
  mlx_sink_append(sink, v->text.bytes, v->text.length);
  return mlx_render_charge(r, v->text.length);
}

mlx_status_t mlx_var_text(mlx_render_t *r, const mlx_var_t *v, mlx_span_t *out) {
  mlx_sink_t sink = {.arena = &r->arena};
  mlx_var_t text = *v;
  if (v->kind != MLX_VAR_STRING) {
    MLX_TRY(mlx_var_write(r, &sink, v));
    MLX_TRY(mlx_sink_to_string(r, &sink, &text));
  }
  *out = text.text;
  return NULL;
}
