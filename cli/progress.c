// Shows the progress of a long prompt on the terminal. See progress.h.
#include "cli/progress.h"

#include <stdbool.h>

#include "base/clock.h"
#include "cli/terminal.h"

#define SILENT_SECONDS 1.0  // a prompt that is read faster shows nothing

void mlx_cli_show_prompt(void *user, size_t done, size_t total) {
  static double start;
  static bool reading, shown;
  (void)user;
  if (!reading) start = mlx_seconds();
  reading = done < total;
  if (reading && mlx_seconds() - start >= SILENT_SECONDS) {
    mlx_report_progress(mlx_terminal_report(), "reading the prompt: %zu of %zu tokens", done, total);
    shown = true;
  }
  if (reading || !shown) return;
  mlx_report_done(mlx_terminal_report());
  shown = false;
}
