// Columns: whether the columns of a printed table begin at the same place in every line.
#ifndef MLXCEL_TESTS_COLUMNS_H_
#define MLXCEL_TESTS_COLUMNS_H_

#include <string.h>

#include "line/line.h"
#include "tests/support/check.h"
#include "unicode/utf8.h"
#include "unicode/width.h"

// The terminal column of byte |at| of the line |text|.
static inline int column_of(const char *text, size_t at) {
  int column = 0;
  for (size_t i = 0, size; i < at; i += size) {
    const uint32_t code = mlx_character_or_byte_at(text + i, at - i, &size);
    column += mlx_char_width(code);
  }
  return column;
}

// Expects the |number|th |mark| of every line at the same terminal column.
static inline void check_aligned(const char *text, char mark) {
  int columns[32], count = 0;
  for (size_t line = 0; *text; ++line) {
    const size_t length = strcspn(text, "\n");
    int found = 0;
    for (size_t i = 0; i < length; ++i) {
      if (text[i] != mark) continue;
      const int column = column_of(text, i);
      CHECK(found < 32);
      if (!line) columns[count++] = column;
      if (found >= count || columns[found] != column)
        CHECK_FAIL("mark %d of line %zu is at column %d: %.*s", found, line, column, (int)length, text);
      ++found;
    }
    CHECK_INT(found, count);
    text += length + (text[length] == '\n');
  }
}

#endif  // MLXCEL_TESTS_COLUMNS_H_
