// Access log: one JSON line for each request. A thread writes the lines, so that a slow disk delays no
// request. If lines cannot be written, they are dropped and counted; the server goes on.
//
// Threads: any thread, except create and free.
#ifndef MLXCEL_SERVER_CORE_ACCESS_LOG_H_
#define MLXCEL_SERVER_CORE_ACCESS_LOG_H_

#include <stdint.h>

#include "base/report.h"
#include "base/status.h"

typedef struct mlx_access_log mlx_access_log_t;

// Appends to |path|. |report| gets one warning if lines are dropped; it is called on the log's thread.
// Release with mlx_access_log_free.
mlx_status_t mlx_access_log_create(const char *path, const mlx_report_t *report,
                                   mlx_access_log_t **out_log) MLX_MUST_USE;
// Writes what is left, then closes the file. NULL is fine.
void mlx_access_log_free(mlx_access_log_t *log);

// Adds a line, which ends with a line feed. NULL does nothing.
void mlx_access_log_add(mlx_access_log_t *log, const char *line, size_t length);
int64_t mlx_access_log_dropped(mlx_access_log_t *log);  // lines; 0 for NULL

#endif  // MLXCEL_SERVER_CORE_ACCESS_LOG_H_
