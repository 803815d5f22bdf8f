// Report: how code below cli/ shows progress and notes to the user without printing itself.
#ifndef MLXCEL_BASE_REPORT_H_
#define MLXCEL_BASE_REPORT_H_

#include "base/status.h"

typedef enum mlx_report_kind {
  MLX_REPORT_PROGRESS,  // transient: replaces the previous progress text; "" clears it
  MLX_REPORT_NOTE,      // stays on the screen
} mlx_report_kind_t;

// Borrowed by the callee; NULL reports nothing. The callback runs on the caller's thread.
typedef struct mlx_report {
  void (*emit)(void *user, mlx_report_kind_t kind, const char *text);
  void *user;
} mlx_report_t;

void mlx_report_progress(const mlx_report_t *report, const char *fmt, ...) MLX_PRINTF(2, 3);
void mlx_report_note(const mlx_report_t *report, const char *fmt, ...) MLX_PRINTF(2, 3);
void mlx_report_done(const mlx_report_t *report);  // clears the progress line

#endif  // MLXCEL_BASE_REPORT_H_
