// Report: how the rooms below cli/ tell a person what is going on without printing themselves.
#ifndef MLXCEL_BASE_REPORT_H_
#define MLXCEL_BASE_REPORT_H_

#include "base/status.h"

typedef enum mlx_report_kind {
  MLX_REPORT_PROGRESS,  // transient: replaces the progress before it; "" ends it
  MLX_REPORT_NOTE,      // worth keeping on the screen
} mlx_report_kind_t;

// Borrowed by whoever is called with it; may be NULL, which reports nothing. Called on the caller's thread
// only.
typedef struct mlx_report {
  void (*say)(void *user, mlx_report_kind_t kind, const char *text);
  void *user;
} mlx_report_t;

void mlx_report_progress(const mlx_report_t *report, const char *fmt, ...) MLX_PRINTF(2, 3);
void mlx_report_note(const mlx_report_t *report, const char *fmt, ...) MLX_PRINTF(2, 3);
void mlx_report_done(const mlx_report_t *report);  // clears the progress line

#endif  // MLXCEL_BASE_REPORT_H_
