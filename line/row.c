// Cuts a line of progress to the width of a terminal. See row.h.
#include "line/row.h"

#include <string.h>

#include "line/line.h"
#include "unicode/utf8.h"
#include "unicode/width.h"

#define CUT "..."
#define CUT_COLUMNS 3

static bool is_control(uint32_t code) { return code < 0x20 || code == 0x7f; }

// Bytes of |text| that fit into |columns|: whole graphemes. *|out_columns|: the columns that they take. The
// columns of the code points of a grapheme are added, because some terminals show them one by one.
static size_t fitting(const char *text, size_t length, int columns, int *out_columns) {
  size_t at = 0;
  *out_columns = 0;
  while (at < length) {
    const size_t end = mlx_grapheme_end(text, length, at);
    int width = 0;
    for (size_t i = at, size; i < end; i += size) {
      const uint32_t code = mlx_character_or_byte_at(text + i, end - i, &size);
      width += is_control(code) ? 1 : mlx_char_width(code);
    }
    if (*out_columns + width > columns) break;
    *out_columns += width;
    at = end;
  }
  return at;
}

static void put(const char *text, size_t length, mlx_text_t *out) {
  for (size_t i = 0; i < length; ++i)
    mlx_text_append(out, is_control((unsigned char)text[i]) ? "?" : text + i, 1);
}

void mlx_row_fit(const char *text, int columns, mlx_text_t *out) {
  const size_t length = strcspn(text, "\n");
  size_t title = length;
  int used, numbers;
  if (fitting(text, length, columns, &used) == length) {
    put(text, length, out);
    return;
  }
  for (size_t i = 0; i + 1 < length; ++i) {
    if (text[i] == ':' && text[i + 1] == ' ') title = i;
  }
  const bool fits =
      fitting(text + title, length - title, columns - CUT_COLUMNS - 1, &numbers) == length - title;
  if (!fits) title = length, numbers = 0;
  put(text, fitting(text, title, columns - numbers - CUT_COLUMNS, &used), out);
  if (columns >= CUT_COLUMNS) mlx_text_puts(out, CUT);
  put(text + title, length - title, out);
}
