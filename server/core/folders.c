// Finds absolute paths in a text.
#include "server/core/folders.h"

#include <ctype.h>
#include <string.h>

static bool is_separator(char c) { return c == '/' || c == '\\'; }

// True if an absolute path begins at |at|: "/...", or "C:\\..." on Windows.
static bool begins_path(const char *at) {
  if (at[0] == '/') return at[1] && !isspace((unsigned char)at[1]);
  return isalpha((unsigned char)at[0]) && at[1] == ':' && is_separator(at[2]);
}

void mlx_hide_folders(const char *text, mlx_text_t *out) {
  char before = ' ';
  for (const char *at = text; *at;) {
    const bool starts = isspace((unsigned char)before) || strchr("'\"`([=:", before);
    if (!starts || !begins_path(at)) {
      before = *at;
      mlx_text_append(out, at++, 1);
      continue;
    }
    const char quote[2] = {strchr("'\"`", before) ? before : ' ', 0};
    const size_t drive = is_separator(*at) ? 0 : 2;
    const size_t length = drive + strcspn(at + drive, *quote == ' ' ? " \t\n'\"`)]:;," : quote);
    size_t start = length;
    while (start && is_separator(at[start - 1])) --start;  // a folder may end with a separator
    while (start && !is_separator(at[start - 1])) --start;
    mlx_text_append(out, at + start, length - start);
    before = at[length - 1];
    at += length;
  }
}
