// Report: how code below cli/ shows progress and notes to the user without printing itself, and learns that
// the user does not want its result any more.
#ifndef MLXCEL_BASE_REPORT_H_
#define MLXCEL_BASE_REPORT_H_

#include <stdatomic.h>

#include "base/progress.h"

struct mlx_cancel {
  atomic_bool is_set;
};

void mlx_report_progress(const mlx_report_t *report, const char *fmt, ...) MLX_PRINTF(2, 3);
void mlx_report_note(const mlx_report_t *report, const char *fmt, ...) MLX_PRINTF(2, 3);
void mlx_report_done(const mlx_report_t *report);  // clears the progress line

// True if the work that |report| is about should end. Any thread. |report| may be NULL.
bool mlx_report_is_cancelled(const mlx_report_t *report);
// Fails with MLX_CANCELLED if it should.
mlx_status_t mlx_report_check(const mlx_report_t *report) MLX_MUST_USE;
// The flag that becomes true then; NULL if the work cannot be cancelled.
const atomic_bool *mlx_report_cancelled(const mlx_report_t *report);

#endif  // MLXCEL_BASE_REPORT_H_
