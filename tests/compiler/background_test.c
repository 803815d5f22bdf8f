// A step of a compilation on another thread: its status and its reports reach the thread that waits for it.
#include "compiler/background.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#include "tests/support/check.h"

typedef struct seen {
  pthread_t thread;  // that must report
  bool from_other;
  char notes[256], progress[256];
} seen_t;

static void see(void *user, mlx_report_kind_t kind, const char *text) {
  seen_t *seen = user;
  if (!pthread_equal(seen->thread, pthread_self())) seen->from_other = true;
  if (kind == MLX_REPORT_NOTE) snprintf(seen->notes, sizeof seen->notes, "%s", text);
  if (kind == MLX_REPORT_PROGRESS && *text) snprintf(seen->progress, sizeof seen->progress, "%s", text);
}

static atomic_bool went_on;  // the caller, while the step runs

static mlx_status_t step(void *user, const mlx_report_t *report) {
  while (!atomic_load(&went_on)) continue;
  mlx_report_progress(report, "1 of 2");
  mlx_report_progress(report, "2 of 2");
  mlx_report_note(report, "made");
  return user ? mlx_error(MLX_IO, "%s", (const char *)user) : NULL;
}

TEST(a_step_runs_beside_its_caller_and_reports_from_the_thread_that_joins_it) {
  seen_t seen = {.thread = pthread_self()};
  const mlx_report_t report = {.emit = see, .user = &seen};
  mlx_background_t *background;
  CHECK_OK(mlx_background_start(step, NULL, &report, &background));
  CHECK(background);
  atomic_store(&went_on, true);
  CHECK_OK(mlx_background_join(background));
  CHECK(!seen.from_other);
  CHECK_TEXT(seen.notes, "made");
  CHECK_TEXT(seen.progress, "2 of 2");
}

TEST(the_error_of_a_step_is_the_error_of_its_join) {
  mlx_background_t *background;
  atomic_store(&went_on, true);
  CHECK_OK(mlx_background_start(step, (void *)(uintptr_t)"no space", NULL, &background));
  CHECK_ERROR(mlx_background_join(background), MLX_IO, "no space");
}

TEST_MAIN(CASE(a_step_runs_beside_its_caller_and_reports_from_the_thread_that_joins_it),
          CASE(the_error_of_a_step_is_the_error_of_its_join))
