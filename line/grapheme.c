// Graphemes of the line that is edited.
#include "unicode/grapheme.h"
#include "line/line.h"

size_t mlx_grapheme_end(const char *text, size_t length, size_t at) {
  mlx_grapheme_state_t state = {0};
  return at < length ? at + mlx_grapheme_length(text + at, length - at, &state) : length;
}

// Graphemes can only be found from left to right. The search starts between two ASCII characters, which are
// never joined, or at most this many bytes before |at|.
#define MAX_BACK 1024

size_t mlx_grapheme_start(const char *text, size_t length, size_t at) {
  size_t start = at, next;
  while (start > 0 && at - start < MAX_BACK) {
    --start;
    if (start > 0 && !((unsigned char)text[start] & 0x80) && !((unsigned char)text[start - 1] & 0x80)) break;
  }
  while (start > 0 && ((unsigned char)text[start] & 0xc0) == 0x80) --start;
  while ((next = mlx_grapheme_end(text, length, start)) < at) start = next;
  return start;
}
