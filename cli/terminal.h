// Terminal: progress, notes and errors on stderr, and errors about stdout.
#ifndef MLXCEL_CLI_TERMINAL_H_
#define MLXCEL_CLI_TERMINAL_H_

#include <stdint.h>

#include "base/report.h"

// Applies --quiet to everything below except errors. Fails if the user gave both --quiet and --verbose.
// Process-wide; call it once, before the first output.
mlx_status_t mlx_terminal_set_quiet(bool quiet, bool verbose) MLX_MUST_USE;

// Prints progress and notes: progress rewrites one row of a terminal and is cut to its width. On a pipe, in a
// file and with TERM=dumb only notes appear.
const mlx_report_t *mlx_terminal_report(void);
// Prints formatted text, without a newline, unless --quiet was given.
void mlx_terminal_note(const char *fmt, ...) MLX_PRINTF(1, 2);
void mlx_terminal_error(const char *where, mlx_status_t status);  // prints |status|; does not free it

// The status for a failed write to stdout, from errno. If the reader closed the pipe (`| head`), it is
// MLX_CANCELLED, which main does not print.
mlx_status_t mlx_stdout_error(void) MLX_MUST_USE;

// Returns |one| if |count| is 1, else |many|: "1 token", "2 tokens".
static inline const char *mlx_plural(uint64_t count, const char *one, const char *many) {
  return count == 1 ? one : many;
}

#endif  // MLXCEL_CLI_TERMINAL_H_
