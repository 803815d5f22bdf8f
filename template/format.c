// Python's str.format and % operator: the fields, flags and types that chat templates use. A format that
// needs another one is an error.
#include "template/format.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "template/characters.h"
#include "template/lookup.h"
#include "template/value_repr.h"

#define MAX_WIDTH 10000

typedef struct spec {
  mlx_span_t fill;
  char align, sign, type;  // 0: not given
  bool alternate, zero, comma;
  int64_t width, precision;  // -1: not given
} spec_t;

static mlx_status_t unsupported_format(const mlx_render_t *r, char type, const mlx_var_t *v) {
  return mlx_render_error(r, MLX_UNSUPPORTED, "format '%c' is not supported for '%s'", type, mlx_var_type(v));
}

static const char *read_digits(const char *at, const char *end, int64_t *out) {
  for (*out = 0; at < end && *at >= '0' && *at <= '9'; ++at) {
    if (*out <= MAX_WIDTH) *out = *out * 10 + (*at - '0');
  }
  return at;
}

// Reads [[fill]align][sign][#][0][width][,][.precision][type].
static mlx_status_t read_spec(const mlx_render_t *r, mlx_span_t text, spec_t *out) {
  const char *at = text.bytes, *end = at + text.length;
  size_t length = 0;
  *out = (spec_t){.fill = {" ", 1}, .width = -1, .precision = -1};
  if (at < end) mlx_character_at(at, &length);
  if (at < end && at + length < end && strchr("<>=^", at[length]) && at[length]) {
    out->fill = (mlx_span_t){at, length};
    out->align = at[length];
    at += length + 1;
  } else if (at < end && *at && strchr("<>=^", *at)) {
    out->align = *at++;
  }
  if (at < end && *at && strchr("+- ", *at)) out->sign = *at++;
  if (at < end && *at == '#') out->alternate = *at++;
  if (at < end && *at == '0') {
    out->zero = true;
    ++at;
  }
  if (at < end && *at >= '0' && *at <= '9') at = read_digits(at, end, &out->width);
  if (at < end && *at == ',') out->comma = *at++;
  if (at < end && *at == '.') at = read_digits(at + 1, end, &out->precision);
  if (at < end) out->type = *at++;
  if (at < end) MLX_FAIL(r, "invalid format specifier '%.*s'", (int)text.length, text.bytes);
  if (out->width > MAX_WIDTH || out->precision > 200)
    return mlx_render_error(r, MLX_UNSUPPORTED, "the width or precision of a format is too large");
  return NULL;
}

static void write_padded(mlx_sink_t *sink, mlx_span_t sign, mlx_span_t body, const spec_t *spec, char align) {
  const int64_t length = (int64_t)(mlx_span_characters(sign) + mlx_span_characters(body));
  const int64_t missing = spec->width > length ? spec->width - length : 0;
  const int64_t left = align == '>' ? missing : align == '^' ? missing / 2 : 0;
  mlx_sink_fill(sink, spec->fill.bytes, spec->fill.length, left);
  mlx_sink_append(sink, sign.bytes, sign.length);
  if (align == '=') mlx_sink_fill(sink, spec->fill.bytes, spec->fill.length, missing);
  mlx_sink_append(sink, body.bytes, body.length);
  if (align != '=') mlx_sink_fill(sink, spec->fill.bytes, spec->fill.length, missing - left);
}

static void write_text(mlx_sink_t *sink, mlx_span_t text, const spec_t *spec) {
  size_t end = text.length;
  if (spec->precision >= 0) {
    end = 0;
    for (int64_t n = 0; n < spec->precision && end < text.length; ++n) {
      size_t length;
      mlx_character_at(text.bytes + end, &length);
      end += length;
    }
  }
  write_padded(sink, (mlx_span_t){"", 0}, (mlx_span_t){text.bytes, end}, spec,
               spec->align ? spec->align : '<');
}

// Inserts commas between the thousands of the integer part.
static size_t group(const char *digits, char *out) {
  const size_t whole = strspn(digits, "0123456789");
  size_t count = 0;
  for (size_t i = 0; digits[i]; ++i) {
    if (i && i < whole && (whole - i) % 3 == 0) out[count++] = ',';
    out[count++] = digits[i];
  }
  out[count] = 0;
  return count;
}

static mlx_status_t digits_of(mlx_render_t *r, const mlx_var_t *v, const spec_t *spec, char *out, size_t size,
                              bool *out_negative) {
  const char type = spec->type;
  if (mlx_var_is_integer(v) && (!type || strchr("dixXo", type))) {
    const int64_t value = mlx_var_integer(v);
    const uint64_t magnitude = value < 0 ? -(uint64_t)value : (uint64_t)value;
    *out_negative = value < 0;
    const char *prefix = !spec->alternate ? ""
                         : type == 'x'    ? "0x"
                         : type == 'X'    ? "0X"
                         : type == 'o'    ? "0o"
                                          : "";
    snprintf(out, size,
             type == 'x'   ? "%s%" PRIx64
             : type == 'X' ? "%s%" PRIX64
             : type == 'o' ? "%s%" PRIo64
                           : "%s%" PRIu64,
             prefix, magnitude);
    return NULL;
  }
  if (!strchr("feEFgG%", type) || !type) return unsupported_format(r, type ? type : ' ', v);
  double number = mlx_var_number(v);
  *out_negative = signbit(number);
  number = fabs(number);
  const int precision = spec->precision < 0 ? 6 : (int)spec->precision;
  const char format[] = {'%', '.', '*', type == '%' ? 'f' : type, 0};
  snprintf(out, size, format, precision, type == '%' ? number * 100 : number);
  if (type == '%' && strlen(out) + 1 < size) strcat(out, "%");
  return NULL;
}

static mlx_status_t write_number(mlx_render_t *r, mlx_sink_t *sink, const mlx_var_t *v, spec_t *spec) {
  char digits[640], grouped[900];
  bool negative = false;
  if (v->kind == MLX_VAR_FLOAT && !spec->type) {
    if (spec->precision >= 0) return unsupported_format(r, ' ', v);
    mlx_sink_t plain = {.arena = &r->arena};
    mlx_var_t text;
    mlx_float_write(&plain, fabs(v->number));
    MLX_TRY(mlx_sink_to_string(r, &plain, &text));
    snprintf(digits, sizeof digits, "%.*s", (int)text.text.length, text.text.bytes);
    negative = signbit(v->number);
  } else {
    MLX_TRY(digits_of(r, v, spec, digits, sizeof digits, &negative));
  }
  const char *body = digits;
  if (spec->comma) {
    group(digits, grouped);
    body = grouped;
  }
  const char *sign = negative ? "-" : spec->sign == '+' ? "+" : spec->sign == ' ' ? " " : "";
  if (spec->zero && !spec->align) {
    spec->fill = (mlx_span_t){"0", 1};
    spec->align = '=';
  }
  write_padded(sink, (mlx_span_t){sign, strlen(sign)}, (mlx_span_t){body, strlen(body)}, spec,
               spec->align ? spec->align : '>');
  return NULL;
}

static mlx_status_t write_value(mlx_render_t *r, mlx_sink_t *sink, const mlx_var_t *v, spec_t *spec) {
  mlx_span_t text;
  if (mlx_var_is_number(v) && spec->type != 's') return write_number(r, sink, v, spec);
  if (spec->type && spec->type != 's')
    MLX_FAIL(r, "Unknown format code '%c' for object of type '%s'", spec->type, mlx_var_type(v));
  MLX_TRY(mlx_var_text(r, v, &text));
  write_text(sink, text, spec);
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// "{0.name[key]!r:spec}"

typedef struct field {
  mlx_span_t name, spec;
  char conversion;
} field_t;

static mlx_status_t first_value(mlx_render_t *r, mlx_span_t name, const mlx_args_t *args, size_t *inout_next,
                                mlx_var_t *out) {
  int64_t index = -1;
  const mlx_var_t *named;
  if (!name.length) {
    index = (int64_t)(*inout_next)++;
  } else if (name.bytes[0] >= '0' && name.bytes[0] <= '9') {
    if (read_digits(name.bytes, name.bytes + name.length, &index) != name.bytes + name.length)
      MLX_FAIL(r, "malformed field in a format string");
  }
  if (index >= 0) {
    if ((size_t)index >= args->count)
      MLX_FAIL(r, "Replacement index %lld out of range for positional args tuple", (long long)index);
    *out = args->positional[index];
    return NULL;
  }
  named = mlx_dict_get(r, args->named, name);
  MLX_TRY(mlx_render_charge(r, 0));
  if (!named) MLX_FAIL(r, "format() has no argument '%.*s'", (int)name.length, name.bytes);
  *out = *named;
  return NULL;
}

static mlx_status_t field_value(mlx_render_t *r, mlx_span_t path, const mlx_args_t *args, size_t *inout_next,
                                mlx_var_t *out) {
  size_t at = 0;
  while (at < path.length && path.bytes[at] != '.' && path.bytes[at] != '[') ++at;
  MLX_TRY(first_value(r, (mlx_span_t){path.bytes, at}, args, inout_next, out));
  while (at < path.length) {
    const bool is_item = path.bytes[at++] == '[';
    const size_t start = at;
    while (at < path.length &&
           (is_item ? path.bytes[at] != ']' : path.bytes[at] != '.' && path.bytes[at] != '['))
      ++at;
    const mlx_span_t name = {path.bytes + start, at - start};
    mlx_var_t object = *out, key = mlx_string(name.bytes, name.length);
    if (is_item) {
      if (at++ == path.length) MLX_FAIL(r, "expected ']' in a field of a format string");
      int64_t index;
      if (name.length &&
          read_digits(name.bytes, name.bytes + name.length, &index) == name.bytes + name.length)
        key = mlx_int(index);
      MLX_TRY(mlx_var_item(r, &object, &key, out));
    } else {
      MLX_TRY(mlx_var_attribute(r, &object, name, out));
    }
  }
  return NULL;
}

static field_t read_field(mlx_span_t text) {
  field_t field = {.name = text, .spec = {"", 0}};
  size_t at = 0;
  for (bool in_brackets = false;
       at < text.length && (in_brackets || (text.bytes[at] != '!' && text.bytes[at] != ':')); ++at) {
    in_brackets = in_brackets ? text.bytes[at] != ']' : text.bytes[at] == '[';
  }
  field.name.length = at;
  if (at + 1 < text.length && text.bytes[at] == '!') {
    field.conversion = text.bytes[at + 1];
    at += 2;
  }
  if (at < text.length && text.bytes[at] == ':')
    field.spec = (mlx_span_t){text.bytes + at + 1, text.length - at - 1};
  return field;
}

static mlx_status_t write_field(mlx_render_t *r, mlx_sink_t *sink, mlx_span_t text, const mlx_args_t *args,
                                size_t *inout_next) {
  const field_t field = read_field(text);
  spec_t spec;
  mlx_var_t value;
  MLX_TRY(field_value(r, field.name, args, inout_next, &value));
  if (field.conversion == 'r') {
    mlx_sink_t repr = {.arena = &r->arena};
    MLX_TRY(mlx_var_repr(r, &repr, &value));
    MLX_TRY(mlx_sink_to_string(r, &repr, &value));
  } else if (field.conversion == 's') {
    mlx_span_t plain;
    MLX_TRY(mlx_var_text(r, &value, &plain));
    value = mlx_string(plain.bytes, plain.length);
  } else if (field.conversion) {
    MLX_FAIL(r, "Unknown conversion specifier %c", field.conversion);
  }
  if (memchr(field.spec.bytes, '{', field.spec.length)) {
    return mlx_render_error(r, MLX_UNSUPPORTED, "nested fields in a format string are not supported");
  }
  MLX_TRY(read_spec(r, field.spec, &spec));
  if (!field.spec.length) return mlx_var_write(r, sink, &value);
  if (value.kind != MLX_VAR_STRING && !mlx_var_is_number(&value))
    MLX_FAIL(r, "unsupported format string passed to %s.__format__", mlx_var_type(&value));
  if (value.kind == MLX_VAR_BOOL && !spec.type) return unsupported_format(r, ' ', &value);
  return write_value(r, sink, &value, &spec);
}

mlx_status_t mlx_format_braces(mlx_render_t *r, mlx_span_t format, const mlx_args_t *args, mlx_var_t *out) {
  mlx_sink_t sink = {.arena = &r->arena};
  size_t next = 0;
  for (size_t i = 0; i < format.length; ++i) {
    const char c = format.bytes[i];
    if (c != '{' && c != '}') {
      mlx_sink_append(&sink, &c, 1);
    } else if (i + 1 < format.length && format.bytes[i + 1] == c) {
      mlx_sink_append(&sink, &c, 1);
      ++i;
    } else if (c == '}') {
      MLX_FAIL(r, "Single '}' encountered in format string");
    } else {
      const size_t start = i + 1;
      int depth = 1;
      for (++i; i < format.length; ++i) {
        depth += (format.bytes[i] == '{') - (format.bytes[i] == '}');
        if (!depth) break;
      }
      if (i == format.length) MLX_FAIL(r, "expected '}' before end of string");
      MLX_TRY(write_field(r, &sink, (mlx_span_t){format.bytes + start, i - start}, args, &next));
    }
  }
  return mlx_sink_to_string(r, &sink, out);
}

// ----------------------------------------------------------------------------------------------------------
// "%(name)-5.2f"

typedef struct percent {
  mlx_span_t format;
  size_t at;
  const mlx_var_t *values;  // the operand
  const mlx_var_t *items;   // the items of a tuple, or the operand itself
  size_t count, next;
  bool by_name;
} percent_t;

static mlx_status_t next_value(mlx_render_t *r, percent_t *p, const mlx_var_t **out) {
  if (p->next == p->count) MLX_FAIL(r, "not enough arguments for format string");
  *out = &p->items[p->next++];
  return NULL;
}

static mlx_status_t named_value(mlx_render_t *r, percent_t *p, const mlx_var_t **out) {
  const size_t start = ++p->at;
  while (p->at < p->format.length && p->format.bytes[p->at] != ')') ++p->at;
  const mlx_span_t name = {p->format.bytes + start, p->at - start};
  if (p->at++ >= p->format.length) MLX_FAIL(r, "incomplete format key");
  if (p->values->kind != MLX_VAR_DICT) MLX_FAIL(r, "format requires a mapping");
  *out = mlx_dict_get(r, p->values->dict, name);
  MLX_TRY(mlx_render_charge(r, 0));
  if (!*out) MLX_FAIL(r, "'%.*s' is not in the mapping", (int)name.length, name.bytes);
  p->by_name = true;
  return NULL;
}

static mlx_status_t read_size(mlx_render_t *r, percent_t *p, int64_t *out) {
  const char *end = p->format.bytes + p->format.length, *at = p->format.bytes + p->at;
  if (at < end && *at == '*')
    return mlx_render_error(r, MLX_UNSUPPORTED, "* in a format string is not supported");
  if (at < end && *at >= '0' && *at <= '9') at = read_digits(at, end, out);
  p->at = (size_t)(at - p->format.bytes);
  if (*out > MAX_WIDTH)
    return mlx_render_error(r, MLX_UNSUPPORTED, "the width or precision of a format is too large");
  return NULL;
}

static mlx_status_t write_percent(mlx_render_t *r, percent_t *p, mlx_sink_t *sink) {
  spec_t spec = {.fill = {" ", 1}, .align = '>', .width = -1, .precision = -1};
  const mlx_var_t *value = NULL;
  bool left = false;
  if (p->at < p->format.length && p->format.bytes[p->at] == '(') MLX_TRY(named_value(r, p, &value));
  for (; p->at < p->format.length && strchr("-+ #0", p->format.bytes[p->at]) && p->format.bytes[p->at];
       ++p->at) {
    const char flag = p->format.bytes[p->at];
    left = left || flag == '-';
    spec.zero = spec.zero || flag == '0';
    spec.alternate = spec.alternate || flag == '#';
    if (flag == '+' || (flag == ' ' && !spec.sign)) spec.sign = flag;
  }
  MLX_TRY(read_size(r, p, &spec.width));
  if (p->at < p->format.length && p->format.bytes[p->at] == '.') {
    ++p->at;
    spec.precision = 0;
    MLX_TRY(read_size(r, p, &spec.precision));
  }
  if (p->at >= p->format.length) MLX_FAIL(r, "incomplete format");
  spec.type = p->format.bytes[p->at++];
  if (spec.type == '%') {
    mlx_sink_puts(sink, "%");
    return NULL;
  }
  if (!value) MLX_TRY(next_value(r, p, &value));
  if (left) spec.align = '<';
  if (spec.type == 's' || spec.type == 'r') {
    mlx_sink_t text = {.arena = &r->arena};
    mlx_var_t value_text;
    MLX_TRY(spec.type == 's' ? mlx_var_write(r, &text, value) : mlx_var_repr(r, &text, value));
    MLX_TRY(mlx_sink_to_string(r, &text, &value_text));
    write_text(sink, value_text.text, &spec);
    return NULL;
  }
  MLX_TRY(mlx_var_expect_defined(r, value));
  if (!strchr("dixXofFeEgG", spec.type)) MLX_FAIL(r, "unsupported format character '%c'", spec.type);
  if (!mlx_var_is_number(value))
    MLX_FAIL(r, "%%%c format: a number is required, not %s", spec.type, mlx_var_type(value));
  mlx_var_t number = *value;
  if (strchr("di", spec.type) && value->kind == MLX_VAR_FLOAT) {
    if (!(fabs(value->number) < 9e18)) MLX_FAIL(r, "cannot convert float to integer");
    number = mlx_int((int64_t)value->number);
  }
  if (spec.zero && !left) spec.align = 0;
  return write_number(r, sink, &number, &spec);
}

mlx_status_t mlx_format_percent(mlx_render_t *r, mlx_span_t format, const mlx_var_t *values, mlx_var_t *out) {
  const bool is_tuple = mlx_var_is_list(values, MLX_PY_TUPLE);
  percent_t p = {.format = format,
                 .values = values,
                 .items = is_tuple ? values->list->items : values,
                 .count = is_tuple ? values->list->count : 1};
  mlx_sink_t sink = {.arena = &r->arena};
  while (p.at < format.length) {
    const char c = format.bytes[p.at++];
    if (c == '%') {
      MLX_TRY(write_percent(r, &p, &sink));
    } else {
      mlx_sink_append(&sink, &c, 1);
    }
  }
  // Python allows unused arguments if the operand is a mapping or a sequence other than a tuple or string.
  const bool has_items = values->kind == MLX_VAR_DICT || values->kind == MLX_VAR_UNDEFINED ||
                         (values->kind == MLX_VAR_LIST && !is_tuple && values->list->type <= MLX_PY_RANGE);
  if (p.next < p.count && !p.by_name && !has_items)
    MLX_FAIL(r, "not all arguments converted during string formatting");
  return mlx_sink_to_string(r, &sink, out);
}
