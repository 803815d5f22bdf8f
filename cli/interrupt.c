// Handles SIGINT with a flag, and the signals that end the process.
#include "cli/interrupt.h"

#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "base/unfinished.h"

static volatile sig_atomic_t requested;
static bool watching;

static void end_process(int number) {
  mlx_unfinished_unlink();  // NOLINT(bugprone-signal-handler): it only calls getpid and unlink
  signal(number, SIG_DFL);
#ifndef _WIN32
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, number);
  sigprocmask(SIG_UNBLOCK, &set, NULL);
  raise(number);
  _exit(128 + number);  // the kernel keeps the default action from process 1, the first one of a container
#else
  raise(number);
#endif
}

void mlx_interrupt_clean_up(void) {
#ifndef _WIN32  // there, an open file cannot be removed; the next process removes it
  static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
  for (size_t i = 0; i < sizeof signals / sizeof *signals; ++i) {
    if (signal(signals[i], end_process) == SIG_IGN) signal(signals[i], SIG_IGN);
  }
#endif
}

static void on_interrupt(int number) {
  signal(number, end_process);
  requested = 1;
}

void mlx_interrupt_watch(void) {
  if (watching) return;
  watching = true;
  if (signal(SIGINT, on_interrupt) == SIG_IGN) signal(SIGINT, SIG_IGN);
}

bool mlx_interrupt_requested(void) { return requested; }

int mlx_interrupt_end(void) {
#ifndef _WIN32  // there, raise would end the process with exit status 3
  fflush(NULL);
  signal(SIGINT, SIG_DFL);
  raise(SIGINT);
#endif
  return MLX_EXIT_INTERRUPTED;
}
