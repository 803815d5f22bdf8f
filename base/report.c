// Formats messages for the report callback, and passes on requests to cancel.
#include "base/report.h"

#include <stdio.h>

#include "base/memory.h"

static void emit(const mlx_report_t *report, mlx_report_kind_t kind, const char *fmt, va_list args) {
  char text[1024];
  if (!report || !report->emit) return;
  vsnprintf(text, sizeof text, fmt, args);
  report->emit(report->user, kind, text);
}

void mlx_report_progress(const mlx_report_t *report, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  emit(report, MLX_REPORT_PROGRESS, fmt, args);
  va_end(args);
}

void mlx_report_note(const mlx_report_t *report, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  emit(report, MLX_REPORT_NOTE, fmt, args);
  va_end(args);
}

void mlx_report_done(const mlx_report_t *report) { mlx_report_progress(report, "%s", ""); }

mlx_status_t mlx_cancel_create(mlx_cancel_t **out_cancel) {
  return mlx_alloc(1, sizeof **out_cancel, out_cancel);
}

void mlx_cancel_set(mlx_cancel_t *cancel) { atomic_store(&cancel->is_set, true); }

void mlx_cancel_free(mlx_cancel_t *cancel) { mlx_free(cancel); }

const atomic_bool *mlx_report_cancelled(const mlx_report_t *report) {
  return report && report->cancel ? &report->cancel->is_set : NULL;
}

bool mlx_report_is_cancelled(const mlx_report_t *report) {
  const atomic_bool *cancelled = mlx_report_cancelled(report);
  return cancelled && atomic_load(cancelled);
}

mlx_status_t mlx_report_check(const mlx_report_t *report) {
  return mlx_report_is_cancelled(report) ? mlx_error(MLX_CANCELLED, "cancelled") : NULL;
}
