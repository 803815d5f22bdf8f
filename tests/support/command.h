// Runs a program with /dev/null as stdin and captures its output.
#ifndef MLXCEL_TESTS_COMMAND_H_
#define MLXCEL_TESTS_COMMAND_H_

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "tests/support/check.h"
#ifdef _WIN32
#include "tests/support/windows.h"
#else
#include <sys/wait.h>
#endif

typedef struct command {
  char out_path[64], err_path[64];
  intptr_t pid;  // Windows: a process handle
  double started;
  // Set by command_wait:
  char *out, *err;  // owned, NUL-terminated
  size_t out_length;
  int exit_code;  // -signal if a signal killed it
  double seconds;
  double cpu_seconds;  // 0 on Windows
  long peak_kib;
} command_t;

static inline double command_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

#ifdef _WIN32
static inline HANDLE command_file(char *path) {
  SECURITY_ATTRIBUTES inherited = {.nLength = sizeof inherited, .bInheritHandle = TRUE};
  mlx_test_name(path);
  return CreateFileA(path, GENERIC_WRITE, FILE_SHARE_READ | FILE_SHARE_WRITE, &inherited, CREATE_ALWAYS, 0,
                     NULL);
}

// Quotes each argument. Arguments of tests do not end with a backslash.
static inline void command_line(const char *const *argv, wchar_t *line, size_t size) {
  char narrow[16384] = "";
  for (size_t at = 0; *argv; ++argv) {
    narrow[at++] = '"';
    for (const char *c = *argv; *c && at < sizeof narrow - 8; ++c) {
      if (*c == '"') narrow[at++] = '\\';
      narrow[at++] = *c;
    }
    narrow[at++] = '"';
    narrow[at++] = ' ';
    narrow[at] = 0;
  }
  MultiByteToWideChar(CP_UTF8, 0, narrow, -1, line, (int)size);
}

static inline void command_start(command_t *command, const char *const *argv) {
  *command = (command_t){.started = command_now()};
  strcpy(command->out_path, "/tmp/mlxcel-test-out-XXXXXX");
  strcpy(command->err_path, "/tmp/mlxcel-test-err-XXXXXX");
  HANDLE out = command_file(command->out_path), err = command_file(command->err_path);
  STARTUPINFOW info = {
      .cb = sizeof info, .dwFlags = STARTF_USESTDHANDLES, .hStdOutput = out, .hStdError = err};
  PROCESS_INFORMATION process = {0};
  wchar_t line[16384];
  command_line(argv, line, 16384);
  CreateProcessW(NULL, line, NULL, NULL, TRUE, 0, NULL, NULL, &info, &process);
  CloseHandle(process.hThread);
  CloseHandle(out);
  CloseHandle(err);
  command->pid = (intptr_t)process.hProcess;
}

static inline void command_end(command_t *command) {
  DWORD code = 127;
  WaitForSingleObject((HANDLE)command->pid, INFINITE);
  GetExitCodeProcess((HANDLE)command->pid, &code);
  CloseHandle((HANDLE)command->pid);
  command->exit_code = (int)code;
}
#else
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
    execvp(argv[0], (char *const *)(uintptr_t)argv);
    _exit(127);
  }
  close(out);
  close(err);
}

static inline void command_end(command_t *command) {
  int status = 0;
  struct rusage usage;
  wait4((pid_t)command->pid, &status, 0, &usage);
  command->exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  command->peak_kib = usage.ru_maxrss;
  command->cpu_seconds = (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                         (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}
#endif

static inline void command_wait(command_t *command) {
  command_end(command);
  command->seconds = command_now() - command->started;
  mlx_status_free(mlx_read_file(command->out_path, SIZE_MAX, &command->out, &command->out_length));
  mlx_status_free(mlx_read_file(command->err_path, SIZE_MAX, &command->err, NULL));
  unlink(command->out_path);
  unlink(command->err_path);
}

static inline void command_free(command_t *command) {
  mlx_free(command->out);
  mlx_free(command->err);
}

// Checks that it succeeded and discards the output.
static inline void command_done(command_t *command) {
  if (command->exit_code) CHECK_FAIL("%s", command->err);
  command_free(command);
}

// Runs a shell script in the folder |where|; it must succeed.
static inline void command_shell(const char *where, const char *script) {
  command_t run;
  char whole[4096];
  snprintf(whole, sizeof whole, "set -e; cd %s; %s", where, script);
  command_start(&run, (const char *const[]){"/bin/sh", "-c", whole, NULL});
  command_wait(&run);
  if (run.exit_code) CHECK_FAIL("%s: %s", script, run.err);
  command_free(&run);
}

// RUN(&command, "arg", ...): runs MLXCEL_BINARY with these arguments and waits for its end.
#define RUN(command, ...)                                                            \
  do {                                                                               \
    command_start(command, (const char *const[]){MLXCEL_BINARY, __VA_ARGS__, NULL}); \
    command_wait(command);                                                           \
  } while (0)

#endif  // MLXCEL_TESTS_COMMAND_H_
