// JSON writer: see json_writer.h.
#include "base/json_writer.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void put_break(mlx_json_writer_t *w) { mlx_text_printf(w->out, "\n%*s", 2 * w->depth, ""); }

// Writes what comes before a value: a comma, a line break or a space, and the key.
static void begin_value(mlx_json_writer_t *w, const char *key, size_t key_length) {
  const mlx_json_layout_t layout = w->depth ? w->levels[w->depth - 1].layout : MLX_JSON_ONE_LINE;
  if (w->depth) {
    if (w->levels[w->depth - 1].has_members) mlx_text_puts(w->out, layout == MLX_JSON_ONE_LINE ? ", " : ",");
    w->levels[w->depth - 1].has_members = true;
    if (layout == MLX_JSON_LINES || layout == MLX_JSON_ROWS) put_break(w);
  }
  if (key) {
    mlx_text_json_string(w->out, key, key_length);
    mlx_text_puts(w->out, layout == MLX_JSON_COMPACT || layout == MLX_JSON_ROWS ? ":" : ": ");
  }
}

mlx_text_t *mlx_json_put_value(mlx_json_writer_t *w, const char *key) {
  begin_value(w, key, key ? strlen(key) : 0);
  return w->out;
}

mlx_text_t *mlx_json_put_member(mlx_json_writer_t *w, const char *key, size_t key_length) {
  begin_value(w, key, key_length);
  return w->out;
}

static void begin(mlx_json_writer_t *w, const char *key, mlx_json_layout_t layout, const char *open,
                  char close) {
  mlx_json_put_value(w, key);
  mlx_text_puts(w->out, open);
  if (w->depth == MLX_JSON_WRITER_DEPTH) {
    w->out->failed = true;
    return;
  }
  w->levels[w->depth].layout = (uint8_t)layout;
  w->levels[w->depth].close = close;
  w->levels[w->depth++].has_members = false;
}

void mlx_json_begin_object(mlx_json_writer_t *w, const char *key, mlx_json_layout_t layout) {
  begin(w, key, layout, "{", '}');
}

void mlx_json_begin_list(mlx_json_writer_t *w, const char *key, mlx_json_layout_t layout) {
  begin(w, key, layout, "[", ']');
}

void mlx_json_end(mlx_json_writer_t *w) {
  if (!w->depth) {
    w->out->failed = true;
    return;
  }
  --w->depth;
  if (w->levels[w->depth].layout == MLX_JSON_LINES && w->levels[w->depth].has_members) put_break(w);
  mlx_text_append(w->out, &w->levels[w->depth].close, 1);
}

void mlx_json_set_layout(mlx_json_writer_t *w, mlx_json_layout_t layout) {
  if (w->depth) w->levels[w->depth - 1].layout = (uint8_t)layout;
}

void mlx_json_put_bytes(mlx_json_writer_t *w, const char *key, const char *bytes, size_t length) {
  mlx_json_put_value(w, key);
  mlx_text_json_string(w->out, bytes, length);
}

void mlx_json_put_text(mlx_json_writer_t *w, const char *key, const char *value) {
  if (value) {
    mlx_json_put_bytes(w, key, value, strlen(value));
  } else {
    mlx_json_put_null(w, key);
  }
}

void mlx_json_put_null(mlx_json_writer_t *w, const char *key) { mlx_json_put_raw(w, key, "null", 4); }

// Responses are streamed with several numbers per token: printf would take most of the time.
static void put_digits(mlx_json_writer_t *w, const char *key, bool is_negative, uint64_t value) {
  char digits[21], *at = digits + sizeof digits;
  do *--at = (char)('0' + value % 10);
  while (value /= 10);
  if (is_negative) *--at = '-';
  mlx_json_put_raw(w, key, at, (size_t)(digits + sizeof digits - at));
}

void mlx_json_put_int(mlx_json_writer_t *w, const char *key, int64_t value) {
  put_digits(w, key, value < 0, value < 0 ? 0 - (uint64_t)value : (uint64_t)value);
}

void mlx_json_put_uint(mlx_json_writer_t *w, const char *key, uint64_t value) {
  put_digits(w, key, false, value);
}

void mlx_json_put_number(mlx_json_writer_t *w, const char *key, const char *format, double value) {
  mlx_json_put_value(w, key);
  mlx_text_json_number(w->out, format, value);
}

void mlx_json_put_bool(mlx_json_writer_t *w, const char *key, bool value) {
  mlx_json_put_value(w, key);
  mlx_text_puts(w->out, value ? "true" : "false");
}

void mlx_json_put_ints(mlx_json_writer_t *w, const char *key, const int32_t *values, size_t count) {
  const bool is_compact = w->depth > 0 && w->levels[w->depth - 1].layout == MLX_JSON_COMPACT;
  mlx_json_begin_list(w, key, is_compact ? MLX_JSON_COMPACT : MLX_JSON_ONE_LINE);
  for (size_t i = 0; i < count; ++i) mlx_json_put_int(w, NULL, values[i]);
  mlx_json_end(w);
}

void mlx_json_put_format(mlx_json_writer_t *w, const char *key, const char *format, ...) {
  char text[256];
  va_list args;
  va_start(args, format);
  const int length = vsnprintf(text, sizeof text, format, args);
  va_end(args);
  if (length < 0 || (size_t)length >= sizeof text) {
    w->out->failed = true;
    return;
  }
  mlx_json_put_bytes(w, key, text, (size_t)length);
}

void mlx_json_put_raw(mlx_json_writer_t *w, const char *key, const char *json, size_t length) {
  mlx_json_put_value(w, key);
  mlx_text_append(w->out, json, length);
}
