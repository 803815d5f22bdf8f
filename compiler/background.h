// Background: a step of a compilation on a thread of its own, whose reports reach the user from the thread
// that waits for it.
#ifndef MLXCEL_COMPILER_BACKGROUND_H_
#define MLXCEL_COMPILER_BACKGROUND_H_

#include "base/report.h"
#include "base/status.h"

typedef struct mlx_background mlx_background_t;

// The step. |report| keeps the last progress and the last note for mlx_background_join.
typedef mlx_status_t (*mlx_background_fn_t)(void *user, const mlx_report_t *report);

// Calls |run| on a new thread. |report|, which may be NULL, is borrowed until mlx_background_join and can
// cancel the step. *|out_background| is NULL if no thread can be started. End with mlx_background_join.
mlx_status_t mlx_background_start(mlx_background_fn_t run, void *user, const mlx_report_t *report,
                                  mlx_background_t **out_background) MLX_MUST_USE;
// Waits for the thread, passing on its reports, and returns the status of the step.
mlx_status_t mlx_background_join(mlx_background_t *background) MLX_MUST_USE;

#endif  // MLXCEL_COMPILER_BACKGROUND_H_
