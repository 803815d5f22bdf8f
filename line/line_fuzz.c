// Fuzz target for the line editor. Input: two bytes for the terminal's size, a history file up to a zero
// byte, then typed bytes. The cursor must stay between characters, and the output must be valid UTF-8.
#include <stdint.h>
#include <string.h>

#include "line/line.h"
#include "line/stream.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_utf8(const char *text, size_t length) {
  for (size_t i = 0; i < length;) {
    const int step = mlx_utf8_length(text + i, length - i);
    if (step <= 0) __builtin_trap();
    i += (size_t)step;
  }
}

static void draw(mlx_screen_t *screen, const mlx_line_t *line) {
  mlx_text_t out = {0};
  mlx_screen_draw(screen, "> ", ". ", line, &out);
  check_utf8(out.data, out.length);
  if (screen->rows > 0 && screen->cursor_row >= (size_t)screen->rows && screen->rows > 1) __builtin_trap();
  mlx_text_clear(&out);
}

static void type(mlx_line_t *line, mlx_screen_t *screen, const uint8_t *data, size_t size) {
  mlx_keys_t keys = {0};
  const char *text;
  size_t length;
  for (size_t i = 0; i < size; ++i) {
    const mlx_key_t key = mlx_keys_push(&keys, data[i]);
    const mlx_line_event_t event = mlx_line_press(line, key, keys.bytes, keys.length);
    if (line->cursor > line->text.length) __builtin_trap();
    if (line->text.length) check_utf8(line->text.data, line->cursor);
    if (line->text.length) check_utf8(line->text.data + line->cursor, line->text.length - line->cursor);
    if (size < 512 || i % 64 == 0) draw(screen, line);
    if (event != MLX_LINE_DONE) continue;
    if (mlx_line_value(line, &text, &length)) __builtin_trap();
    check_utf8(text, length);
    mlx_line_clear(line);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size < 2) return 0;
  mlx_screen_t screen = {.columns = data[0], .rows = data[1]};
  const uint8_t *zero = memchr(data + 2, 0, size - 2), *typed = zero ? zero + 1 : data + 2;
  mlx_history_t history = {0};
  static const char *const words[] = {"/save", "/stats", "/exit", NULL};
  mlx_line_t line = {.history = &history, .words = words};
  if (zero && mlx_history_parse(&history, (const char *)data + 2, (size_t)(zero - data) - 2))
    __builtin_trap();
  for (size_t i = 0; i < history.count; ++i) check_utf8(history.entries[i], strlen(history.entries[i]));
  type(&line, &screen, typed, size - (size_t)(typed - data));
  mlx_screen_resize(&screen, "> ", ". ", &line, data[1], data[0]);
  draw(&screen, &line);
  mlx_stream_t stream = {.terminal = true, .colours = true, .columns = data[0]};
  mlx_text_t out = {0};
  mlx_stream_format(&stream, (const char *)data, size, &out);
  mlx_stream_finish(&stream, &out);
  if (out.length && memchr(out.data, 7, out.length)) __builtin_trap();
  mlx_text_clear(&out);
  mlx_text_clear(&stream.word);
  mlx_line_clear(&line);
  mlx_history_clear(&history);
  return 0;
}
