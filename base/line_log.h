// Line log: a file of lines that only grows, so that a process that is killed loses at most the line that it
// was writing. The next one removes that torn line and goes on.
//
// One process at a time has a log open: it holds a lock, which ends with the process.
#ifndef MLXCEL_BASE_LINE_LOG_H_
#define MLXCEL_BASE_LINE_LOG_H_

#include "base/file.h"

typedef struct mlx_line_log {
  mlx_writer_t file;
  double synced;  // mlx_seconds of the last sync
} mlx_line_log_t;

// |is_whole| is called with each line, without its line feed, before anything is written. A last line that is
// not whole, or that does not end with a line feed, is removed; any other line that is not whole is an error.
typedef bool (*mlx_line_fn_t)(void *user, const char *line, size_t length);

// Opens or creates |path|. Fails with MLX_UNAVAILABLE if another process has it open. Release with
// mlx_line_log_close.
mlx_status_t mlx_line_log_open(const char *path, mlx_line_fn_t is_whole, void *user,
                               mlx_line_log_t *out_log) MLX_MUST_USE;
// Appends bytes that end with a line feed. Synced to the disk every few seconds: the lines of a process that
// is killed stay anyway, because the system has them.
mlx_status_t mlx_line_log_append(mlx_line_log_t *log, const char *bytes, size_t length) MLX_MUST_USE;
void mlx_line_log_close(mlx_line_log_t *log);  // safe for a log of zeros

// Calls |line| with each line of |bytes|, also with a last one without a line feed. |end| is the offset after
// it. An error ends the walk.
typedef mlx_status_t (*mlx_line_visit_fn_t)(void *user, const char *line, size_t length, uint64_t end);
mlx_status_t mlx_lines_visit(const char *bytes, size_t length, mlx_line_visit_fn_t visit,
                             void *user) MLX_MUST_USE;

#endif  // MLXCEL_BASE_LINE_LOG_H_
