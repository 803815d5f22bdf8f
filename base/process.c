#include "base/process.h"

#include "base/child.h"
#include "base/clock.h"
#include "base/memory.h"
#include "base/text.h"

#define TICK_SECONDS 0.15
#define GRACE_SECONDS 2.0  // between asking and making a child end
#define LONGEST_NAP_MS 20  // how late we may notice that a child has ended

// What is kept of a child's output.
typedef struct intake {
  size_t max_bytes;
  mlx_text_t text;
} intake_t;

// Reads what is there without waiting; keeps |max_bytes| in all and drops the rest, so that the child never
// blocks.
static void drain(const mlx_child_t *child, intake_t *intake) {
  char bytes[4096];
  for (size_t got; child->output >= 0 && (got = mlx_child_read(child, bytes, sizeof bytes));) {
    size_t room = intake->max_bytes - intake->text.length;
    mlx_text_append(&intake->text, bytes, got < room ? got : room);
  }
}

static mlx_status_t watch(const mlx_process_options_t *options, mlx_child_t *child, intake_t *intake,
                          mlx_process_result_t *result) {
  double next_tick = TICK_SECONDS, asked_at = -1;
  int nap_ms = 1;
  while (!mlx_child_has_ended(child)) {
    double elapsed = mlx_seconds() - child->began;
    if (asked_at < 0 && options->time_limit_seconds > 0 && elapsed >= options->time_limit_seconds) {
      result->timed_out = true;
    } else if (asked_at < 0 && options->tick && elapsed >= next_tick) {
      next_tick = elapsed + TICK_SECONDS;
      result->cancelled = !options->tick(options->user, elapsed);
    }
    if (asked_at < 0 && (result->timed_out || result->cancelled)) {
      asked_at = elapsed;
      mlx_child_ask_to_end(child);
    } else if (asked_at >= 0 && elapsed >= asked_at + GRACE_SECONDS) {
      mlx_child_kill(child);
    }
    drain(child, intake);
    mlx_nap(nap_ms);  // short naps at first: most questions are answered within milliseconds
    if (nap_ms < LONGEST_NAP_MS) ++nap_ms;
  }
  mlx_status_t status = mlx_child_reap(child, result);
  drain(child, intake);
  return status;
}

static mlx_status_t run(const mlx_process_options_t *options, const char *log_path, intake_t *intake,
                        mlx_process_result_t *out_result) {
  *out_result = (mlx_process_result_t){0};
  mlx_child_t child;
  mlx_status_t status = mlx_child_start(options, log_path, &child);
  if (!status) status = watch(options, &child, intake, out_result);
  mlx_child_close(&child);
  return status;
}

mlx_status_t mlx_process_run(const mlx_process_options_t *options, mlx_process_result_t *out_result) {
  intake_t nothing = {0};
  return run(options, options->log_path, &nothing, out_result);
}

mlx_status_t mlx_process_capture(const mlx_process_options_t *options, size_t max_bytes, char **out_text,
                                 mlx_process_result_t *out_result) {
  *out_text = NULL;
  intake_t intake = {.max_bytes = max_bytes};
  mlx_status_t status = run(options, NULL, &intake, out_result);
  if (!status) status = mlx_text_take(&intake.text, out_text, NULL);
  mlx_text_clear(&intake.text);
  return status;
}
