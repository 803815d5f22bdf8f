// Processes: run one child to its end, with all it prints kept, a time limit, and nothing of it left behind.
//
// Deliberately not a job system: one child at a time, the caller's thread waits for it. Two calls:
// mlx_process_run for a tool that works (its output goes to a log file), mlx_process_capture for a tool that
// answers a question.
//
// What a child gets: our environment and working folder, /dev/null or a file as input, default signal
// actions, and none of our files (they are all close-on-exec). It leads its own process group, so that a time
// limit ends what it started too; whatever is left of that group when the child itself ends is killed, so
// nothing writes into a folder we move on from.
//
// Ctrl-C: a group of its own means the terminal does not signal the child. On Linux the child is bound to us
// by PR_SET_PDEATHSIG: however we die (Ctrl-C, SIGTERM, SIGKILL, a crash), it gets SIGKILL. So a caller needs
// no signal handler; one that has its own returns false from |tick| and the child is ended the way a time
// limit ends it.
//
// Threads: any thread may run a child, but the child dies with the thread that started it, so that thread
// must wait.
#ifndef MLXCEL_BASE_PROCESS_H_
#define MLXCEL_BASE_PROCESS_H_

#include <stdint.h>

#include "base/status.h"

typedef struct mlx_process_options {
  const char *const *argv;    // ends with NULL; argv[0] is the path of the executable (PATH is not searched)
  const char *input_path;     // what it reads as input; NULL: nothing
  const char *log_path;       // run only: both streams go here; an older file is emptied first
  const char *log_head;       // run only: written at the top of the log; may be NULL
  double time_limit_seconds;  // 0 or less: none
  // Called about every 150 ms with the seconds gone by; false asks for the child to be ended. May be NULL.
  bool (*tick)(void *user, double elapsed_seconds);
  void *user;
} mlx_process_options_t;

typedef struct mlx_process_result {
  int exit_code;   // meaningful when signal is 0
  int signal;      // what ended the child, or 0
  bool timed_out;  // we ended it, because of the time limit
  bool cancelled;  // we ended it, because tick said so
  double elapsed_seconds;
  uint64_t peak_bytes;  // largest resident size; no smaller than our own was when the child was started
} mlx_process_result_t;

// Fails only when the child could not be started or watched: how it ended is in *|out_result|.
mlx_status_t mlx_process_run(const mlx_process_options_t *options,
                             mlx_process_result_t *out_result) MLX_MUST_USE;

// The same with both streams caught in *|out_text| (NUL-terminated; release with mlx_free), of which at most
// |max_bytes| are kept and the rest is dropped.
mlx_status_t mlx_process_capture(const mlx_process_options_t *options, size_t max_bytes, char **out_text,
                                 mlx_process_result_t *out_result) MLX_MUST_USE;

// "exit status 3", "signal 9 (Killed)": how messages call the end of a child.
void mlx_process_describe(const mlx_process_result_t *result, char *out_text, size_t size);

#endif  // MLXCEL_BASE_PROCESS_H_
