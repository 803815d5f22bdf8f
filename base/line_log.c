// Appends lines to a file, and repairs its end.
#include "base/line_log.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"

#define SYNC_SECONDS 5.0

mlx_status_t mlx_lines_visit(const char *bytes, size_t length, mlx_line_visit_fn_t visit, void *user) {
  for (size_t at = 0; at < length;) {
    const char *end = memchr(bytes + at, '\n', length - at);
    const size_t line = end ? (size_t)(end - bytes) - at : length - at, next = at + line + (end != NULL);
    MLX_TRY(visit(user, bytes + at, line, next));
    at = next;
  }
  return NULL;
}

typedef struct check {
  const char *path;
  mlx_line_fn_t is_whole;
  void *user;
  uint64_t size;    // of all lines that end with a line feed
  uint64_t whole;   // bytes of the lines that are whole
  uint64_t number;  // of the line
} check_t;

static mlx_status_t check_line(void *user, const char *line, size_t length, uint64_t end) {
  check_t *check = user;
  ++check->number;
  if (check->is_whole(check->user, line, length)) {
    check->whole = end;
    return NULL;
  }
  if (end == check->size) return NULL;  // a machine that lost power may leave a line of zeros
  return mlx_status_hint(mlx_error(MLX_INVALID_INPUT, "%s:%llu: this is not a line that was written here",
                                   check->path, (unsigned long long)check->number),
                         "remove the file to begin again, or remove this line to have it made again");
}

// Removes the torn line of a process that was killed.
static mlx_status_t repair(mlx_line_log_t *log, mlx_line_fn_t is_whole, void *user) {
  check_t check = {.path = log->file.path, .is_whole = is_whole, .user = user};
  mlx_map_t map;
  MLX_TRY(mlx_map_file(log->file.path, &map));
  const char *bytes = (const char *)map.data;
  const size_t size = map.size;
  check.size = size;
  while (check.size && bytes[check.size - 1] != '\n') --check.size;  // without a torn line
  mlx_status_t status = mlx_lines_visit(bytes, check.size, check_line, &check);
  mlx_unmap(&map);
  if (!status && check.whole < size && ftruncate(log->file.fd, (off_t)check.whole))
    status = mlx_io_error("remove the last line of", log->file.path);
  return status;
}

static mlx_status_t open_locked(const char *path, mlx_line_log_t *log) {
  log->file.fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (log->file.fd < 0) return mlx_io_error("write", path);
  if (!flock(log->file.fd, LOCK_EX | LOCK_NB)) return NULL;
  if (errno != EWOULDBLOCK && errno != EINTR) return NULL;  // a file system without locks
  return mlx_status_hint(mlx_error(MLX_UNAVAILABLE, "another process is writing '%s'", path),
                         "wait for it, or end it; its work is kept");
}

mlx_status_t mlx_line_log_open(const char *path, mlx_line_fn_t is_whole, void *user, mlx_line_log_t *out) {
  *out = (mlx_line_log_t){.file = {.fd = -1}, .synced = mlx_seconds()};
  MLX_TRY(mlx_copy_text(path, strlen(path), &out->file.path));
  mlx_status_t status = open_locked(path, out);
  if (!status) status = repair(out, is_whole, user);
  if (status) mlx_line_log_close(out);
  return status;
}

mlx_status_t mlx_line_log_append(mlx_line_log_t *log, const char *bytes, size_t length) {
  MLX_TRY(mlx_writer_write(&log->file, bytes, length));
  if (mlx_seconds() - log->synced < SYNC_SECONDS) return NULL;
  log->synced = mlx_seconds();
  return fsync(log->file.fd) ? mlx_io_error("sync", log->file.path) : NULL;
}

void mlx_line_log_close(mlx_line_log_t *log) {
  if (!log->file.path) return;
  if (log->file.fd >= 0) close(log->file.fd);
  mlx_free(log->file.path);
  *log = (mlx_line_log_t){0};
}
