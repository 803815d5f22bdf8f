// Child process: the system calls that base/process.c needs. base/child_posix.c and base/child_windows.c
// implement them.
#ifndef MLXCEL_BASE_CHILD_H_
#define MLXCEL_BASE_CHILD_H_

#include "base/process.h"

typedef struct mlx_child {
  intptr_t id, group;  // POSIX: process id, unused; Windows: handles of the process and of its job object
  intptr_t output;     // our end of the output pipe, or -1
  double began;
} mlx_child_t;

// Starts a child with stdout and stderr in a new log file, or in a pipe if |log_path| is NULL.
mlx_status_t mlx_child_start(const mlx_process_options_t *options, const char *log_path,
                             mlx_child_t *out_child) MLX_MUST_USE;
// True if the child has ended, or if its state cannot be queried.
bool mlx_child_has_ended(const mlx_child_t *child);
void mlx_child_terminate(const mlx_child_t *child);
void mlx_child_kill(const mlx_child_t *child);
// Reads the bytes that are in the pipe now, without blocking; returns 0 if there are none.
size_t mlx_child_read(const mlx_child_t *child, char *bytes, size_t size);
// For a child that has ended: kills the rest of its process group and stores how the child ended.
mlx_status_t mlx_child_reap(mlx_child_t *child, mlx_process_result_t *result) MLX_MUST_USE;
void mlx_child_close(mlx_child_t *child);  // safe if the child never started

#endif  // MLXCEL_BASE_CHILD_H_
