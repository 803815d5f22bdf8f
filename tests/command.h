// Runs a program as a person would and keeps what it printed.
#ifndef MLXCEL_TESTS_COMMAND_H_
#define MLXCEL_TESTS_COMMAND_H_

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"

typedef struct command {
  char out_path[64], err_path[64];
  pid_t pid;
  double started;
  // after command_wait
  char *out, *err;  // owned, NUL-terminated
  size_t out_length;
  int exit_code;    // -signal when it was killed
  double seconds;
  long peak_kib;
} command_t;

static inline double command_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static inline void command_start(command_t *command, const char *const *argv) {
  *command = (command_t){.started = command_now()};
  strcpy(command->out_path, "/tmp/mlxcel-test-out-XXXXXX");
  strcpy(command->err_path, "/tmp/mlxcel-test-err-XXXXXX");
  int out = mkstemp(command->out_path), err = mkstemp(command->err_path);
  command->pid = fork();
  if (command->pid == 0) {
    int null = open("/dev/null", O_RDONLY);
    dup2(null, 0);
    dup2(out, 1);
    dup2(err, 2);
    execv(argv[0], (char *const *)(uintptr_t)argv);
    _exit(127);
  }
  close(out);
  close(err);
}

static inline void command_wait(command_t *command) {
  int status = 0;
  struct rusage usage;
  wait4(command->pid, &status, 0, &usage);
  command->seconds = command_now() - command->started;
  command->exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  command->peak_kib = usage.ru_maxrss;
  mlx_status_free(mlx_read_file(command->out_path, SIZE_MAX, &command->out, &command->out_length));
  mlx_status_free(mlx_read_file(command->err_path, SIZE_MAX, &command->err, NULL));
  unlink(command->out_path);
  unlink(command->err_path);
}

static inline void command_free(command_t *command) {
  mlx_free(command->out);
  mlx_free(command->err);
}

// RUN(&command, "arg", ...): runs MLXCEL_BINARY with these arguments to its end.
#define RUN(command, ...)                                                              \
  do {                                                                                 \
    command_start(command, (const char *const[]){MLXCEL_BINARY, __VA_ARGS__, NULL});   \
    command_wait(command);                                                             \
  } while (0)

#endif  // MLXCEL_TESTS_COMMAND_H_
