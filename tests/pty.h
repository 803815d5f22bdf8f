// Drives a program through a pseudo-terminal, as a person would: types bytes, and waits for what is shown.
#ifndef MLXCEL_TESTS_PTY_H_
#define MLXCEL_TESTS_PTY_H_

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/text.h"
#include "tests/check.h"
#include "tests/command.h"

#define PTY_PATIENCE 120.0  // seconds: machines that run tests are busy ones

typedef struct pty {
  pid_t pid;
  int fd;
  mlx_text_t shown;  // everything so far, stderr and, where it is not a file, stdout
  size_t seen;       // up to where pty_wait_for has looked
} pty_t;

// |out_path| is where stdout goes; NULL: to the terminal. |term| is $TERM.
static inline void pty_start(pty_t *pty, const char *const *argv, const char *out_path, const char *term) {
  struct winsize size = {.ws_row = 24, .ws_col = 80};
  *pty = (pty_t){0};
  pty->pid = forkpty(&pty->fd, NULL, NULL, &size);
  CHECK(pty->pid >= 0);
  if (pty->pid == 0) {
    setenv("TERM", term, 1);
    unsetenv("NO_COLOR");
    if (out_path) dup2(open(out_path, O_WRONLY | O_CREAT | O_TRUNC, 0600), STDOUT_FILENO);
    execv(argv[0], (char *const *)(uintptr_t)argv);
    _exit(127);
  }
}

// Reads what is there; false when the program is gone.
static inline bool pty_read(pty_t *pty, int milliseconds) {
  struct pollfd ready = {.fd = pty->fd, .events = POLLIN};
  char bytes[4096];
  if (poll(&ready, 1, milliseconds) <= 0) return true;
  const ssize_t got = read(pty->fd, bytes, sizeof bytes);
  if (got <= 0) return false;
  mlx_text_append(&pty->shown, bytes, (size_t)got);
  return true;
}

static inline void pty_send(pty_t *pty, const char *bytes) {
  const size_t length = strlen(bytes);
  CHECK_INT(write(pty->fd, bytes, length), length);
}

// Waits until |text| is shown after what was waited for before.
static inline void pty_wait_for(pty_t *pty, const char *text) {
  const double end = command_now() + PTY_PATIENCE;
  for (bool there = true;;) {
    const char *found = pty->shown.data ? strstr(pty->shown.data + pty->seen, text) : NULL;
    if (found) {
      pty->seen = (size_t)(found - pty->shown.data) + strlen(text);
      return;
    }
    if (!there || command_now() > end)
      CHECK_FAIL("'%s' was not shown%s; after what was waited for before came:\n%s", text,
                 there ? "" : " before the program ended",
                 pty->shown.data ? pty->shown.data + pty->seen : "");
    there = pty_read(pty, 100);
  }
}

// The exit status, or -signal.
static inline int pty_end(pty_t *pty) {
  const double end = command_now() + PTY_PATIENCE;
  int status = 0;
  while (command_now() < end && pty_read(pty, 100)) continue;
  if (command_now() >= end) kill(pty->pid, SIGKILL);
  waitpid(pty->pid, &status, 0);
  close(pty->fd);
  mlx_text_clear(&pty->shown);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

#endif  // MLXCEL_TESTS_PTY_H_
