// Runs a step of a compilation on another thread and relays its reports. See background.h.
#include "compiler/background.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"

struct mlx_background {
  pthread_t thread;
  mlx_background_fn_t run;
  void *user;
  const mlx_report_t *outer;  // of the thread that waits
  mlx_report_t report;        // of the step
  mlx_status_t status;
  pthread_mutex_t mutex;  // guards the rest
  pthread_cond_t changed;
  bool done, has_progress, has_note;
  char progress[256], note[256];  // the last ones that were not yet relayed
};

static void keep_report(void *user, mlx_report_kind_t kind, const char *text) {
  mlx_background_t *background = user;
  pthread_mutex_lock(&background->mutex);
  if (kind == MLX_REPORT_NOTE) {
    snprintf(background->note, sizeof background->note, "%s", text);
    background->has_note = true;
  } else {
    snprintf(background->progress, sizeof background->progress, "%s", text);
    background->has_progress = true;
  }
  pthread_cond_signal(&background->changed);
  pthread_mutex_unlock(&background->mutex);
}

static void *run_thread(void *user) {
  mlx_background_t *background = user;
  background->status = background->run(background->user, &background->report);
  pthread_mutex_lock(&background->mutex);
  background->done = true;
  pthread_cond_signal(&background->changed);
  pthread_mutex_unlock(&background->mutex);
  return NULL;
}

static void free_background(mlx_background_t *background) {
  pthread_mutex_destroy(&background->mutex);
  pthread_cond_destroy(&background->changed);
  mlx_free(background);
}

mlx_status_t mlx_background_start(mlx_background_fn_t run, void *user, const mlx_report_t *report,
                                  mlx_background_t **out_background) {
  mlx_background_t *background;
  *out_background = NULL;
  MLX_TRY(mlx_alloc(1, sizeof *background, &background));
  background->run = run;
  background->user = user;
  background->outer = report;
  background->report =
      (mlx_report_t){.emit = keep_report, .user = background, .cancel = report ? report->cancel : NULL};
  pthread_mutex_init(&background->mutex, NULL);
  pthread_cond_init(&background->changed, NULL);
  if (pthread_create(&background->thread, NULL, run_thread, background))
    free_background(background);
  else
    *out_background = background;
  return NULL;
}

// Reports what the thread reports, on the calling thread, until it is done.
static void relay_reports(mlx_background_t *background) {
  for (bool done = false; !done;) {
    char progress[sizeof background->progress] = "", note[sizeof background->note] = "";
    pthread_mutex_lock(&background->mutex);
    while (!background->done && !background->has_progress && !background->has_note)
      pthread_cond_wait(&background->changed, &background->mutex);
    if (background->has_progress) memcpy(progress, background->progress, sizeof progress);
    if (background->has_note) memcpy(note, background->note, sizeof note);
    background->has_progress = background->has_note = false;
    done = background->done;
    pthread_mutex_unlock(&background->mutex);
    if (note[0]) mlx_report_note(background->outer, "%s", note);
    if (progress[0]) mlx_report_progress(background->outer, "%s", progress);
  }
  mlx_report_done(background->outer);
}

mlx_status_t mlx_background_join(mlx_background_t *background) {
  relay_reports(background);
  pthread_join(background->thread, NULL);
  mlx_status_t status = background->status;
  free_background(background);
  return status;
}
