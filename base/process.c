// Runs a child process to its end: polls it, enforces the time limit and collects its output.
#include "base/process.h"

#include "base/child.h"
#include "base/clock.h"
#include "base/memory.h"
#include "base/text.h"

#define TICK_SECONDS 0.15
#define GRACE_SECONDS 2.0  // between the termination request and the kill
#define MAX_SLEEP_MS 20    // maximum delay before the end of a child is noticed

// The collected output of a child.
typedef struct output {
  size_t max_bytes;
  mlx_text_t text;
} output_t;

// Reads the available output without blocking. Keeps |max_bytes| in total and drops the rest, so that the
// child never blocks on a full pipe.
static void drain(const mlx_child_t *child, output_t *output) {
  char bytes[4096];
  for (size_t got; child->output >= 0 && (got = mlx_child_read(child, bytes, sizeof bytes));) {
    size_t room = output->max_bytes - output->text.length;
    mlx_text_append(&output->text, bytes, got < room ? got : room);
  }
}

static mlx_status_t watch(const mlx_process_options_t *options, mlx_child_t *child, output_t *output,
                          mlx_process_result_t *result) {
  double next_tick = TICK_SECONDS, terminated_at = -1;
  int sleep_ms = 1;
  while (!mlx_child_has_ended(child)) {
    double elapsed = mlx_seconds() - child->began;
    if (terminated_at < 0 && options->time_limit_seconds > 0 && elapsed >= options->time_limit_seconds) {
      result->timed_out = true;
    } else if (terminated_at < 0 && options->tick && elapsed >= next_tick) {
      next_tick = elapsed + TICK_SECONDS;
      result->cancelled = !options->tick(options->user, elapsed);
    }
    if (terminated_at < 0 && (result->timed_out || result->cancelled)) {
      terminated_at = elapsed;
      mlx_child_terminate(child);
    } else if (terminated_at >= 0 && elapsed >= terminated_at + GRACE_SECONDS) {
      mlx_child_kill(child);
    }
    drain(child, output);
    mlx_sleep_ms(sleep_ms);  // short sleeps at first, because most queries end within milliseconds
    if (sleep_ms < MAX_SLEEP_MS) ++sleep_ms;
  }
  mlx_status_t status = mlx_child_reap(child, result);
  drain(child, output);
  return status;
}

static mlx_status_t run(const mlx_process_options_t *options, const char *log_path, output_t *output,
                        mlx_process_result_t *out_result) {
  *out_result = (mlx_process_result_t){0};
  mlx_child_t child;
  mlx_status_t status = mlx_child_start(options, log_path, &child);
  if (!status) status = watch(options, &child, output, out_result);
  mlx_child_close(&child);
  return status;
}

mlx_status_t mlx_process_run(const mlx_process_options_t *options, mlx_process_result_t *out_result) {
  output_t nothing = {0};
  return run(options, options->log_path, &nothing, out_result);
}

mlx_status_t mlx_process_capture(const mlx_process_options_t *options, size_t max_bytes, char **out_text,
                                 mlx_process_result_t *out_result) {
  *out_text = NULL;
  output_t output = {.max_bytes = max_bytes};
  mlx_status_t status = run(options, NULL, &output, out_result);
  if (!status) status = mlx_text_take(&output.text, out_text, NULL);
  mlx_text_clear(&output.text);
  return status;
}
