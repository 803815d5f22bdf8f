// Handles SIGINT with a flag.
#include "cli/interrupt.h"

#include <signal.h>
#include <stdio.h>

static volatile sig_atomic_t requested;
static bool watching;

static void on_interrupt(int number) {
  signal(number, SIG_DFL);
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
