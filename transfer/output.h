// Output: a place that a person named for a pull, held by one process while what goes there comes.
//   OUTPUT            made when all of it is checked
//   OUTPUT.*.part/    files on their way; a pull that was killed goes on from here
//   OUTPUT.part.lock  held by the one who pulls, and removed when it is done
#ifndef MLXCEL_TRANSFER_OUTPUT_H_
#define MLXCEL_TRANSFER_OUTPUT_H_

#include "base/report.h"
#include "cache/lock.h"

// Waits for whoever pulls to |path|, with a word to |report| (may be NULL). Fails when something is there,
// before or after. Release the lock with mlx_output_release.
mlx_status_t mlx_output_hold(const char *path, const mlx_report_t *report, mlx_lock_t *out_lock) MLX_MUST_USE;
void mlx_output_release(mlx_lock_t *lock);  // safe when not held

// Makes the folder that files come to, with those that an earlier pull left in it. One that somebody else
// made is refused: they could change what was checked.
mlx_status_t mlx_output_stage(const char *staging) MLX_MUST_USE;

#endif  // MLXCEL_TRANSFER_OUTPUT_H_
