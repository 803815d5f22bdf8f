// The licence that a model declares: general.license in GGUF, the front matter of README.md in a directory.
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "models/import/licence.h"
#include "models/model.h"

#define MAX_README (4u << 20)

// One word without spaces or control characters.
static bool is_word(const char *text, size_t length) {
  for (size_t i = 0; i < length; ++i) {
    if ((unsigned char)text[i] <= ' ' || text[i] == 0x7f) return false;
  }
  return length > 0;
}

// Copies the value after "license:", without quotes, if it is one word that fits.
static void copy_value(const char *line, size_t length, char *out, size_t size) {
  while (length && (*line == ' ' || *line == '\t')) ++line, --length;
  while (length && (line[length - 1] == ' ' || line[length - 1] == '\r')) --length;
  if (length > 1 && (*line == '"' || *line == '\'') && line[length - 1] == *line) ++line, length -= 2;
  if (length < size && is_word(line, length)) snprintf(out, size, "%.*s", (int)length, line);
}

static size_t line_length(const char *text, const char *end) {
  const char *stop = memchr(text, '\n', (size_t)(end - text));
  return (size_t)((stop ? stop : end) - text);
}

// The front matter is between two lines of "---" at the start of the text.
void mlx_readme_licence(const char *text, size_t length, char *out, size_t size) {
  static const char key[] = "license:", fence[] = "---";
  const char *end = text + length, *line = text;
  out[0] = 0;
  if (length < strlen(fence) || memcmp(text, fence, strlen(fence))) return;
  for (size_t here = line_length(line, end); (size_t)(end - line) > here;) {
    line += here + 1;
    here = line_length(line, end);
    if (here >= strlen(fence) && !memcmp(line, fence, strlen(fence))) return;
    if (here > strlen(key) && !memcmp(line, key, strlen(key)))
      copy_value(line + strlen(key), here - strlen(key), out, size);
  }
}

static mlx_status_t read_readme(const char *folder, char *out, size_t size) {
  char *path, *text = NULL;
  size_t length;
  MLX_TRY(mlx_join_path(folder, "README.md", &path));
  mlx_status_t status = mlx_is_file(path) ? mlx_read_file(path, MAX_README, &text, &length) : NULL;
  if (text) mlx_readme_licence(text, length, out, size);
  mlx_free(text);
  mlx_free(path);
  return status;
}

mlx_status_t mlx_source_licence(const mlx_source_t *source, char *out, size_t size) {
  const char *text = "";
  bool found = false;
  out[0] = 0;
  if (!mlx_source_is_gguf(source)) return read_readme(mlx_source_path(source), out, size);
  MLX_TRY(mlx_source_string(source, NULL, "general.license", &text, &found));
  if (found && strlen(text) < size && is_word(text, strlen(text))) snprintf(out, size, "%s", text);
  return NULL;
}
