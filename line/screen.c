// Draws the prompt and the line. The terminal itself wraps long rows, so that it can rewrap them when its
// width changes; this file only computes where it wraps.
#include <string.h>

#include "line/line.h"
#include "unicode/utf8.h"
#include "unicode/width.h"

// ----------------------------------------------------------------------------------------------------------
// A walk over prompt and text: one pass finds the cursor's row, a second one writes the rows that fit

typedef struct walk {
  int columns;
  size_t row;
  int column;                 // may equal |columns|: the next character wraps
  size_t first_row, end_row;  // rows to write; none if they are equal
  mlx_text_t *out;
} walk_t;

static bool is_shown(const walk_t *walk) { return walk->row >= walk->first_row && walk->row < walk->end_row; }

static void put(walk_t *walk, const char *bytes, size_t length, int width) {
  if (walk->column + width > walk->columns) {
    ++walk->row;
    walk->column = 0;
  }
  walk->column += width;
  if (is_shown(walk)) mlx_text_append(walk->out, bytes, length);
}

static void put_newline(walk_t *walk) {
  ++walk->row;
  walk->column = 0;
  if (is_shown(walk) && walk->row > walk->first_row) mlx_text_puts(walk->out, "\r\n");
}

static void put_text(walk_t *walk, const char *text, size_t length, const char *more) {
  for (size_t at = 0; at < length;) {
    size_t size;
    const uint32_t code = mlx_character_or_byte_at(text + at, length - at, &size);
    if (code == '\n') {
      put_newline(walk);
      put_text(walk, more, strlen(more), "");
    } else if (code == '\t') {
      for (int i = 0; i < 4; ++i) put(walk, " ", 1, 1);
    } else if (code >= 0x20) {
      put(walk, text + at, size, mlx_char_width(code));
    }
    at += size;
  }
}

// Moves a cursor after the last column to the start of the next row.
static void normalize(walk_t *walk) {
  if (walk->column < walk->columns) return;
  if (is_shown(walk) && walk->row + 1 < walk->end_row) mlx_text_puts(walk->out, " \r");
  ++walk->row;
  walk->column = 0;
}

static walk_t walk_to(const mlx_screen_t *screen, const char *prompt, const char *more,
                      const mlx_line_t *line, size_t end) {
  walk_t walk = {.columns = screen->columns < 2 ? 2 : screen->columns};
  put_text(&walk, prompt, strlen(prompt), "");
  if (line->text.data) put_text(&walk, line->text.data, end, more);
  normalize(&walk);
  return walk;
}

// Selects the rows around the cursor that fit on the screen.
static void choose_rows(walk_t *walk, size_t cursor_row, size_t total, int height) {
  const size_t max_rows = height > 1 ? (size_t)height : 1;
  walk->first_row = 0;
  if (total > max_rows) {
    walk->first_row = cursor_row < max_rows / 2 ? 0 : cursor_row - max_rows / 2;
    if (walk->first_row > total - max_rows) walk->first_row = total - max_rows;
  }
  walk->end_row = walk->first_row + (total < max_rows ? total : max_rows);
}

void mlx_screen_draw(mlx_screen_t *screen, const char *prompt, const char *more, const mlx_line_t *line,
                     mlx_text_t *out) {
  const walk_t cursor = walk_to(screen, prompt, more, line, line->cursor),
               end = walk_to(screen, prompt, more, line, line->text.length);
  walk_t walk = {.columns = cursor.columns, .out = out};
  choose_rows(&walk, cursor.row, end.row + 1, screen->rows);
  if (screen->cursor_row) mlx_text_printf(out, "\033[%zuA", screen->cursor_row);
  mlx_text_puts(out, "\r\033[J");
  put_text(&walk, prompt, strlen(prompt), "");
  if (line->text.data) put_text(&walk, line->text.data, line->text.length, more);
  normalize(&walk);
  const size_t last = walk.row < walk.end_row ? walk.row : walk.end_row - 1;
  if (last > cursor.row) mlx_text_printf(out, "\033[%zuA", last - cursor.row);
  mlx_text_puts(out, "\r");
  if (cursor.column) mlx_text_printf(out, "\033[%dC", cursor.column);
  screen->cursor_row = cursor.row - walk.first_row;
}

void mlx_screen_resize(mlx_screen_t *screen, const char *prompt, const char *more, const mlx_line_t *line,
                       int columns, int rows) {
  screen->columns = columns;
  screen->rows = rows;
  const walk_t cursor = walk_to(screen, prompt, more, line, line->cursor),
               end = walk_to(screen, prompt, more, line, line->text.length);
  walk_t shown = {0};
  choose_rows(&shown, cursor.row, end.row + 1, rows);
  screen->cursor_row = cursor.row - shown.first_row;
}
