// Shows the progress of a long prompt on the terminal. See progress.h.
#include "cli/progress.h"

#include <stdbool.h>

#include "base/meter.h"
#include "cli/terminal.h"

void mlx_cli_show_prompt(void *user, size_t done, size_t total) {
  static mlx_meter_t meter;
  static bool reading;
  (void)user;
  if (!reading) {
    mlx_meter_begin(&meter, mlx_terminal_report(), "reading the prompt", total);
    meter.unit = "tokens";
    meter.last = done;  // an earlier turn may have read these
  }
  reading = done < total;
  if (reading)
    mlx_meter_show(&meter, done);
  else if (meter.when > meter.start)  // a short prompt shows nothing
    mlx_meter_end(&meter);
}
