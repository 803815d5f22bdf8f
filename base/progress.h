// Progress: how work that takes long tells what it does, and how another thread ends it. Part of the public
// interface; base/report.h has the functions that such work calls.
#ifndef MLXCEL_BASE_PROGRESS_H_
#define MLXCEL_BASE_PROGRESS_H_

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum mlx_report_kind {
  MLX_REPORT_PROGRESS,  // transient: replaces the previous progress text; "" clears it
  MLX_REPORT_NOTE,      // stays on the screen
} mlx_report_kind_t;

typedef struct mlx_cancel mlx_cancel_t;

// Borrowed by the callee; NULL reports nothing.
typedef struct mlx_report {
  // Runs on the thread that called the function with the report. |text| is borrowed for the call. May be
  // NULL.
  void (*emit)(void *user, mlx_report_kind_t kind, const char *text);
  void *user;
  const mlx_cancel_t *cancel;  // once it is set, the work fails with MLX_CANCELLED; may be NULL
} mlx_report_t;

// A request to end work early. Release with mlx_cancel_free, after the work has returned.
mlx_status_t mlx_cancel_create(mlx_cancel_t **out_cancel) MLX_MUST_USE;
void mlx_cancel_set(mlx_cancel_t *cancel);   // any thread, and signal handlers
void mlx_cancel_free(mlx_cancel_t *cancel);  // NULL is fine

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // MLXCEL_BASE_PROGRESS_H_
