// Drives a program through a pseudo-terminal: sends typed bytes and waits for output.
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
#include "tests/support/check.h"
#include "tests/support/command.h"

#define PTY_TIMEOUT 120.0  // seconds; generous, because test machines are busy

typedef struct pty {
  pid_t pid;
  int fd;
  mlx_text_t shown;  // all output so far: stderr, and stdout unless it goes to a file
  size_t seen;       // end of the text that pty_wait_for found last
} pty_t;

static unsigned short pty_columns = 80;  // of terminals that are started later

// |out_path| is the file for stdout; NULL for the terminal. |term| is $TERM.
static inline void pty_start(pty_t *pty, const char *const *argv, const char *out_path, const char *term) {
  struct winsize size = {.ws_row = 24, .ws_col = pty_columns};
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

// Reads available output. False if the program has ended.
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

// Waits until |text| appears after the text of the last wait.
static inline void pty_wait_for(pty_t *pty, const char *text) {
  const double end = command_now() + PTY_TIMEOUT;
  for (bool running = true;;) {
    const char *found = pty->shown.data ? strstr(pty->shown.data + pty->seen, text) : NULL;
    if (found) {
      pty->seen = (size_t)(found - pty->shown.data) + strlen(text);
      return;
    }
    if (!running || command_now() > end)
      CHECK_FAIL("'%s' did not appear%s; output since the last wait:\n%s", text,
                 running ? "" : " before the program ended",
                 pty->shown.data ? pty->shown.data + pty->seen : "");
    running = pty_read(pty, 100);
  }
}

// Waits for the end of the program and returns its exit status, or -signal.
static inline int pty_end(pty_t *pty) {
  const double end = command_now() + PTY_TIMEOUT;
  int status = 0;
  while (command_now() < end && pty_read(pty, 100)) continue;
  if (command_now() >= end) kill(pty->pid, SIGKILL);
  waitpid(pty->pid, &status, 0);
  close(pty->fd);
  mlx_text_clear(&pty->shown);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

#endif  // MLXCEL_TESTS_PTY_H_
