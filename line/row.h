// Row: cuts a line of progress to the width of a terminal. It has no access to a terminal.
#ifndef MLXCEL_LINE_ROW_H_
#define MLXCEL_LINE_ROW_H_

#include "base/text.h"

// Appends |text|, up to its first newline, in at most |columns| columns. Texts have the form "TITLE:
// NUMBERS"; if the row is too short, the title is cut, because the numbers change. Control characters become
// '?'.
void mlx_row_fit(const char *text, int columns, mlx_text_t *out);

#endif  // MLXCEL_LINE_ROW_H_
