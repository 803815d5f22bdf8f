// Counts the indentation of lines, and the time.
#include "server/core/line_limit.h"

size_t mlx_line_limit_take(mlx_line_limit_t *limit, double now, const char *text, size_t length) {
  if (!limit->began) limit->start = now;
  limit->began = true;
  for (size_t i = 0; i < length && !limit->ended; ++i) {
    const bool blank = text[i] == ' ' || text[i] == '\t';
    if (limit->in_indent && blank) {
      ++limit->indent;
      continue;
    }
    if (limit->in_indent && limit->indent < limit->least_indent) {
      limit->ended = true;
      return i;
    }
    limit->in_indent = text[i] == '\n';
    if (!limit->in_indent) continue;
    limit->indent = 0;
    if (limit->most_seconds <= 0 || now - limit->start <= limit->most_seconds) continue;
    limit->ended = true;
    return i + 1;
  }
  return limit->ended ? 0 : length;
}
