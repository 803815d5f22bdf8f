// Formats messages for the report callback.
#include "base/report.h"

#include <stdio.h>

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
