// The terminal as a prompt needs it: its mode, its size, the keys and signals that come from it.
// line/tty_posix.c and line/tty_windows.c are the two ways to do it. One user a process.
#ifndef MLXCEL_LINE_TTY_H_
#define MLXCEL_LINE_TTY_H_

#include "base/status.h"

// Takes over what |restore| (written to stderr when something ends us) must undo. Fails when stdin is no
// terminal.
mlx_status_t mlx_tty_open(const char *restore) MLX_MUST_USE;
void mlx_tty_close(void);

// While a line is read every key comes to us. While the model writes nothing typed is shown, and Ctrl-C is a
// signal.
void mlx_tty_enter(bool reading);
void mlx_tty_leave(void);    // as it was before us
void mlx_tty_suspend(void);  // Ctrl-Z: waits in the background, where the system has one

// Waits for bytes that keys send. None with *|out_end|: nobody is there any more. None without: a signal
// came.
mlx_status_t mlx_tty_read(unsigned char *bytes, size_t size, size_t *out_length, bool *out_end) MLX_MUST_USE;

bool mlx_tty_take_interrupt(void);  // whether Ctrl-C came; forgets it
bool mlx_tty_is_resized(void);
void mlx_tty_size(int *out_columns,
                  int *out_rows);  // forgets that it was resized; 80 by 24 where nobody knows

// Columns of the terminal that stdout is, 0 for none. At any time.
int mlx_tty_columns(void);

#endif  // MLXCEL_LINE_TTY_H_
