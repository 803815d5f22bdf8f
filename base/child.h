// Child: what base/process.c needs of the system to run one. base/child_posix.c and base/child_windows.c are
// the two ways to do it.
#ifndef MLXCEL_BASE_CHILD_H_
#define MLXCEL_BASE_CHILD_H_

#include "base/process.h"

typedef struct mlx_child {
  intptr_t id, group;  // a process id; on Windows the handles of a process and of its job
  intptr_t output;     // the end of a pipe that is ours, or -1
  double began;
} mlx_child_t;

// Starts a child with both its streams in a new log file, or in a pipe when |log_path| is NULL.
mlx_status_t mlx_child_start(const mlx_process_options_t *options, const char *log_path,
                             mlx_child_t *out_child) MLX_MUST_USE;
// True when it has ended, and also when it cannot be asked.
bool mlx_child_has_ended(const mlx_child_t *child);
void mlx_child_ask_to_end(const mlx_child_t *child);
void mlx_child_kill(const mlx_child_t *child);
// What is in the pipe now; 0 for nothing.
size_t mlx_child_read(const mlx_child_t *child, char *bytes, size_t size);
// Of one that has ended: ends what is left of its group and tells how it ended.
mlx_status_t mlx_child_reap(mlx_child_t *child, mlx_process_result_t *result) MLX_MUST_USE;
void mlx_child_close(mlx_child_t *child);  // safe when it never started

#endif  // MLXCEL_BASE_CHILD_H_
