// History file: one entry per line; \n is a newline in an entry and \\ a backslash. The file has mode 0600.
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/user.h"
#include "line/line.h"

#define MAX_FILE ((size_t)256 << 20)  // bytes

static void drop_oldest(mlx_history_t *history) {
  mlx_free(history->entries[0]);
  memmove(history->entries, history->entries + 1, --history->count * sizeof *history->entries);
}

static mlx_status_t keep(mlx_history_t *history, const char *text, size_t length) {
  char *copy;
  MLX_TRY(mlx_reserve(history->count + 1, sizeof *history->entries, &history->capacity, &history->entries));
  MLX_TRY(mlx_copy_text(text, length, &copy));
  history->entries[history->count++] = copy;
  if (history->count > MLX_HISTORY_ENTRIES) drop_oldest(history);
  return NULL;
}

// A recalled entry is drawn unchanged, so entries with control characters or invalid UTF-8 are not kept.
static bool is_plain(const char *text, size_t length) {
  for (size_t at = 0; at < length;) {
    const int size = mlx_utf8_length(text + at, length - at);
    const unsigned char byte = (unsigned char)text[at];
    if (size <= 0 || byte == 0x7f || (byte < 0x20 && byte != '\n' && byte != '\t')) return false;
    if (byte == 0xc2 && (unsigned char)text[at + 1] < 0xa0) return false;
    at += (size_t)size;
  }
  return true;
}

static mlx_status_t parse_entry(mlx_history_t *history, const char *text, size_t length) {
  mlx_text_t entry = {0};
  for (size_t i = 0; i < length; ++i) {
    const bool escaped = text[i] == '\\' && i + 1 < length;
    if (escaped) ++i;
    mlx_text_append(&entry, escaped && text[i] == 'n' ? "\n" : text + i, 1);
  }
  mlx_status_t status = mlx_text_finish(&entry);
  if (!status && entry.length && entry.length <= MLX_HISTORY_BYTES && is_plain(entry.data, entry.length)) {
    status = keep(history, entry.data, entry.length);
  }
  mlx_text_clear(&entry);
  return status;
}

mlx_status_t mlx_history_parse(mlx_history_t *history, const char *text, size_t length) {
  for (size_t at = 0; at < length;) {
    const char *newline = memchr(text + at, '\n', length - at);
    const size_t size = newline ? (size_t)(newline - text) - at : length - at;
    MLX_TRY(parse_entry(history, text + at, size));
    at += size + 1;
  }
  return NULL;
}

static void format_entry(mlx_text_t *out, const char *text, size_t length) {
  for (size_t i = 0; i < length; ++i) {
    mlx_text_append(out,
                    text[i] == '\n'   ? "\\n"
                    : text[i] == '\\' ? "\\\\"
                                      : text + i,
                    text[i] == '\n' || text[i] == '\\' ? 2 : 1);
  }
  mlx_text_puts(out, "\n");
}

// Writes all entries to a new file and renames it.
static mlx_status_t rewrite(const mlx_history_t *history) {
  mlx_text_t text = {0};
  for (size_t i = 0; i < history->count; ++i)
    format_entry(&text, history->entries[i], strlen(history->entries[i]));
  mlx_status_t status = mlx_text_finish(&text);
  if (!status) status = mlx_write_file(history->path, text.data ? text.data : "", text.length);
  mlx_text_clear(&text);
  return status;
}

static size_t count_lines(const char *text, size_t length) {
  size_t lines = 0;
  for (size_t i = 0; i < length; ++i) lines += text[i] == '\n';
  return lines;
}

mlx_status_t mlx_history_open(mlx_history_t *history, const char *path) {
  char *text = NULL;
  size_t length = 0;
  MLX_TRY(mlx_copy_text(path, strlen(path), &history->path));
  if (!mlx_is_file(path)) return NULL;
  MLX_TRY(mlx_read_file(path, MAX_FILE, &text, &length));
  mlx_status_t status = mlx_history_parse(history, text, length);
  if (!status && count_lines(text, length) > 2 * MLX_HISTORY_ENTRIES) status = rewrite(history);
  mlx_free(text);
  return status;
}

// Appends with a single write, so that entries of concurrent chats do not mix within a line.
static mlx_status_t append(const char *path, const char *text, size_t length) {
  char *folder;
  MLX_TRY(mlx_folder_of(path, &folder));
  mlx_status_t status = mlx_make_dirs(folder, 0700);
  mlx_free(folder);
  if (status) return status;
  const int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return mlx_io_error("open", path);
  (void)!fchmod(fd, 0600);  // fails for a file of another owner, which keeps its mode
  const ssize_t written = write(fd, text, length);
  if (written != (ssize_t)length) status = mlx_io_error("write", path);
  close(fd);
  return status;
}

mlx_status_t mlx_history_add(mlx_history_t *history, const char *text, size_t length) {
  const char *last = history->count ? history->entries[history->count - 1] : "";
  if (!length || length > MLX_HISTORY_BYTES || !is_plain(text, length)) return NULL;
  if (strlen(last) == length && !memcmp(last, text, length)) return NULL;
  MLX_TRY(keep(history, text, length));
  if (!history->path) return NULL;
  mlx_text_t line = {0};
  format_entry(&line, text, length);
  mlx_status_t status = mlx_text_finish(&line);
  if (!status) status = append(history->path, line.data, line.length);
  mlx_text_clear(&line);
  return status;
}

void mlx_history_clear(mlx_history_t *history) {
  for (size_t i = 0; i < history->count; ++i) mlx_free(history->entries[i]);
  mlx_free(history->entries);
  mlx_free(history->path);
  *history = (mlx_history_t){0};
}

mlx_status_t mlx_history_path(char **out_path) {
  char *folder;
  *out_path = NULL;
  MLX_TRY(mlx_user_folder(MLX_USER_STATE, &folder));
  mlx_status_t status = folder && mlx_is_absolute(folder) ? mlx_join_path(folder, "history", out_path) : NULL;
  mlx_free(folder);
  return status;
}
