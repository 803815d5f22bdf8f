// Two buffers: other threads fill one while the log's thread writes the other.
#include "server/core/access_log.h"

#include <string.h>
#include <uv.h>

#include "base/memory.h"
#include "base/text.h"

#define MAX_PENDING ((size_t)4 << 20)  // bytes that wait to be written

struct mlx_access_log {
  uv_file file;
  const mlx_report_t *report;
  char *path;  // owned
  uv_thread_t thread;
  bool has_thread, warned;  // |warned|: the log's thread only
  uv_mutex_t mutex;
  uv_cond_t wake;
  mlx_text_t pending;
  bool stopping;
  int64_t dropped;
};

static int64_t count_lines(const char *text, size_t length) {
  int64_t lines = 0;
  for (size_t i = 0; i < length; ++i) lines += text[i] == '\n';
  return lines;
}

// Returns how many bytes were written, and the error of the first write that failed.
static size_t write_all(uv_file file, char *bytes, size_t length, int *out_error) {
  size_t done = 0;
  *out_error = 0;
  while (done < length) {
    const uv_buf_t buffer = uv_buf_init(bytes + done, (unsigned)(length - done));
    uv_fs_t request;
    const int written = uv_fs_write(NULL, &request, file, &buffer, 1, -1, NULL);
    uv_fs_req_cleanup(&request);
    if (written <= 0) {
      *out_error = written ? written : UV_EIO;
      break;
    }
    done += (size_t)written;
  }
  return done;
}

static void write_out(mlx_access_log_t *log, mlx_text_t *lines) {
  int error;
  const size_t done = write_all(log->file, lines->data, lines->length, &error);
  if (error) {
    const int64_t lost = count_lines(lines->data + done, lines->length - done);
    uv_mutex_lock(&log->mutex);
    log->dropped += lost;
    uv_mutex_unlock(&log->mutex);
    if (!log->warned)
      mlx_report_note(log->report, "cannot write '%s': %s; lines of the access log are dropped", log->path,
                      uv_strerror(error));
    log->warned = true;
  }
  lines->length = 0;
}

static void work(void *user) {
  mlx_access_log_t *log = user;
  mlx_text_t lines = {0};
  uv_mutex_lock(&log->mutex);
  for (;;) {
    while (!log->pending.length && !log->stopping) uv_cond_wait(&log->wake, &log->mutex);
    if (!log->pending.length) break;
    const mlx_text_t full = log->pending;
    log->pending = lines;
    lines = full;
    uv_mutex_unlock(&log->mutex);
    write_out(log, &lines);
    uv_mutex_lock(&log->mutex);
  }
  uv_mutex_unlock(&log->mutex);
  mlx_text_clear(&lines);
}

mlx_status_t mlx_access_log_create(const char *path, const mlx_report_t *report, mlx_access_log_t **out_log) {
  mlx_access_log_t *log;
  uv_fs_t request;
  *out_log = NULL;
  MLX_TRY(mlx_alloc(1, sizeof *log, &log));
  uv_mutex_init(&log->mutex);
  uv_cond_init(&log->wake);
  log->report = report;
  log->file = uv_fs_open(NULL, &request, path, UV_FS_O_WRONLY | UV_FS_O_CREAT | UV_FS_O_APPEND, 0600, NULL);
  uv_fs_req_cleanup(&request);
  mlx_status_t status = mlx_copy_text(path, strlen(path), &log->path);
  if (!status && log->file < 0)
    status = mlx_error(MLX_IO, "cannot open the log '%s': %s", path, uv_strerror(log->file));
  const int error = status ? 0 : uv_thread_create(&log->thread, work, log);
  if (error) status = mlx_error(MLX_OUT_OF_MEMORY, "cannot start a thread: %s", uv_strerror(error));
  log->has_thread = !status;
  if (status) {
    mlx_access_log_free(log);
    return status;
  }
  *out_log = log;
  return NULL;
}

void mlx_access_log_free(mlx_access_log_t *log) {
  uv_fs_t request;
  if (!log) return;
  uv_mutex_lock(&log->mutex);
  log->stopping = true;
  uv_cond_signal(&log->wake);
  uv_mutex_unlock(&log->mutex);
  if (log->has_thread) uv_thread_join(&log->thread);
  if (log->file >= 0) {
    uv_fs_close(NULL, &request, log->file, NULL);
    uv_fs_req_cleanup(&request);
  }
  mlx_text_clear(&log->pending);
  uv_cond_destroy(&log->wake);
  uv_mutex_destroy(&log->mutex);
  mlx_free(log->path);
  mlx_free(log);
}

void mlx_access_log_add(mlx_access_log_t *log, const char *line, size_t length) {
  if (!log) return;
  uv_mutex_lock(&log->mutex);
  if (log->pending.length + length > MAX_PENDING || log->pending.failed) {
    ++log->dropped;
  } else {
    mlx_text_append(&log->pending, line, length);
    uv_cond_signal(&log->wake);
  }
  uv_mutex_unlock(&log->mutex);
}

int64_t mlx_access_log_dropped(mlx_access_log_t *log) {
  if (!log) return 0;
  uv_mutex_lock(&log->mutex);
  const int64_t dropped = log->dropped;
  uv_mutex_unlock(&log->mutex);
  return dropped;
}
