// Processes: runs one child to its end, captures its output, enforces a time limit and leaves no process
// behind.
//
// This is not a job system: one child at a time, and the caller's thread waits for it. mlx_process_run is for
// a tool whose output goes to a log file. mlx_process_capture is for a query whose output is the answer.
//
// A child gets our environment and working folder, /dev/null or a file as stdin, default signal actions, and
// none of mlxcel's open files (all are close-on-exec). It leads its own process group, so that a time limit
// also ends the processes it started. When the child ends, the rest of its group is killed, so that no
// process keeps writing into a folder that mlxcel has finished with.
//
// Ctrl-C: the terminal does not signal the child, because it has its own process group. On Linux the child
// has PR_SET_PDEATHSIG: it gets SIGKILL whenever mlxcel dies (Ctrl-C, SIGTERM, SIGKILL, a crash). So a caller
// needs no signal handler. A caller with its own handler returns false from |tick| to end the child as a time
// limit does.
//
// Threads: any thread may run a child. The child dies with the thread that started it, so that thread must
// wait.
#ifndef MLXCEL_BASE_PROCESS_H_
#define MLXCEL_BASE_PROCESS_H_

#include <stdint.h>

#include "base/status.h"

typedef struct mlx_process_options {
  const char *const *argv;  // ends with NULL; argv[0] is the path of the executable (PATH is not searched)
  const char *input_path;   // stdin of the child; NULL for no input
  // TMPDIR of the child; NULL, and always on Windows: as in our environment.
  const char *temporary_folder;
  const char *log_path;       // run only: file for stdout and stderr; an older file is replaced
  const char *log_head;       // run only: written at the top of the log; may be NULL
  double time_limit_seconds;  // 0 or less: no limit
  // Called about every 150 ms with the elapsed seconds; false ends the child. May be NULL.
  bool (*tick)(void *user, double elapsed_seconds);
  void *user;
} mlx_process_options_t;

typedef struct mlx_process_result {
  int exit_code;   // valid if signal is 0
  int signal;      // signal that ended the child, or 0
  bool timed_out;  // mlxcel ended the child because of the time limit
  bool cancelled;  // mlxcel ended the child because |tick| returned false
  double elapsed_seconds;
  double cpu_seconds;   // user and system time of the child, all threads
  uint64_t peak_bytes;  // peak resident size; on POSIX at least the size of mlxcel at the fork
} mlx_process_result_t;

// Fails only if the child cannot be started or watched; *|out_result| describes how the child ended.
mlx_status_t mlx_process_run(const mlx_process_options_t *options,
                             mlx_process_result_t *out_result) MLX_MUST_USE;

// The same with stdout and stderr in *|out_text| (NUL-terminated; release with mlx_free). Keeps the first
// |max_bytes| and drops the rest.
mlx_status_t mlx_process_capture(const mlx_process_options_t *options, size_t max_bytes, char **out_text,
                                 mlx_process_result_t *out_result) MLX_MUST_USE;

// "exit status 3", "signal 9 (Killed)": the end of a child, for messages.
void mlx_process_describe(const mlx_process_result_t *result, char *out_text, size_t size);

#endif  // MLXCEL_BASE_PROCESS_H_
