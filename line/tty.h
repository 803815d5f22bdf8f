// Tty: the terminal's mode, size, input and signals, for line/prompt.c. line/tty_posix.c and
// line/tty_windows.c implement it. Process-wide state: one user at a time.
#ifndef MLXCEL_LINE_TTY_H_
#define MLXCEL_LINE_TTY_H_

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/status.h"

// Saves the terminal's mode and installs signal handlers. If a signal ends the process, |restore| is written
// to stderr and the mode is restored. Fails if stdin is not a terminal.
mlx_status_t mlx_tty_open(const char *restore) MLX_MUST_USE;
void mlx_tty_close(void);
void mlx_tty_restore(
    void);  // for a signal handler that ends the process; without mlx_tty_open it does nothing

// Sets the mode: with |reading|, every key is input, Ctrl-C included. Otherwise, typed keys are not echoed
// and Ctrl-C is a signal.
void mlx_tty_enter(bool reading);
void mlx_tty_leave(void);    // restores the saved mode
void mlx_tty_suspend(void);  // Ctrl-Z: stops the process, if the system has job control

// Waits for input. Returns no bytes at the end of input, with *|out_end|, and after a signal or resize,
// without it.
mlx_status_t mlx_tty_read(unsigned char *bytes, size_t size, size_t *out_length, bool *out_end) MLX_MUST_USE;

bool mlx_tty_take_interrupt(void);  // true if Ctrl-C was pressed; clears it
bool mlx_tty_is_resized(void);
void mlx_tty_size(int *out_columns, int *out_rows);  // clears is_resized; 80 by 24 if unknown

// True if stdin, which may be a pipe, has data or has ended. Waits for up to |milliseconds|. Does not need
// mlx_tty_open.
bool mlx_tty_input_is_ready(int milliseconds);

// Columns of the terminal of |stream|, STDOUT_FILENO or STDERR_FILENO; 0 if it is not one or does not tell.
// Does not need mlx_tty_open.
int mlx_tty_columns(int stream);
// Whether the terminal of |stream| understands escape sequences; false for a pipe and with TERM=dumb.
static inline bool mlx_tty_can_draw(int stream) {
  const char *term = getenv("TERM");  // base/windows/main.c sets it
  return isatty(stream) && term && term[0] && strcmp(term, "dumb");
}

#endif  // MLXCEL_LINE_TTY_H_
