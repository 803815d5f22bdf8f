// Aligns cells by the columns of their characters, not by bytes.
#include "cli/table.h"

#include <string.h>

#include "line/line.h"
#include "unicode/utf8.h"
#include "unicode/width.h"

static bool is_control(uint32_t code) { return code < 0x20 || code == 0x7f; }

// Terminal columns of |text|. A wide character takes two, a combining one none.
static int columns_of(const char *text) {
  const size_t length = strlen(text);
  int columns = 0;
  for (size_t at = 0, size; at < length; at += size) {
    const uint32_t code = mlx_character_or_byte_at(text + at, length - at, &size);
    columns += is_control(code) ? 1 : mlx_char_width(code);
  }
  return columns;
}

void mlx_cell_widen(const char *text, int *inout_width) {
  const int columns = columns_of(text);
  if (columns > *inout_width) *inout_width = columns;
}

void mlx_cell_put(mlx_text_t *out, const char *text, int width, bool right, char forbidden) {
  const int columns = columns_of(text), pad = columns < width ? width - columns : 0;
  mlx_text_printf(out, "%*s", right ? pad : 0, "");
  for (; *text; ++text) {
    const bool bad = is_control((unsigned char)*text) || (forbidden && *text == forbidden);
    mlx_text_append(out, bad ? "?" : text, 1);
  }
  mlx_text_printf(out, "%*s", right ? 0 : pad, "");
}
