// Output: the place that the user named for a pull (-o), locked while one process pulls to it.
//   OUTPUT            created once all files are checked
//   OUTPUT.*.part/    files being pulled; an interrupted pull resumes from here
//   OUTPUT.part.lock  held by the pulling process, removed at the end
#ifndef MLXCEL_TRANSFER_OUTPUT_H_
#define MLXCEL_TRANSFER_OUTPUT_H_

#include "base/report.h"
#include "cache/lock.h"

// Path of a bundle called |name|: |output| if not NULL, else NAME.mlxb in the current folder. Release with
// mlx_free.
mlx_status_t mlx_output_bundle_path(const char *name, const char *output, char **out_path) MLX_MUST_USE;

// Waits until no other process pulls to |path|, and reports the wait to |report| (may be NULL). Fails if
// |path| exists, before or after the wait. Release with mlx_output_unlock.
mlx_status_t mlx_output_lock(const char *path, const mlx_report_t *report, mlx_lock_t *out_lock) MLX_MUST_USE;
void mlx_output_unlock(mlx_lock_t *lock);  // safe when not held

// Removes what a killed pull to |path| left beside it, if |path| exists and no process pulls to it: a lock
// and staging folders. Failures are ignored.
void mlx_output_remove_leftovers(const char *path);

// Removes every file below the folder |staging| for which |is_kept| is false, and empty folders: temporary
// files of a killed pull, and files of an earlier pull with other options. |name| is relative to |staging|.
typedef bool (*mlx_output_keep_fn_t)(const void *user, const char *name);
mlx_status_t mlx_output_sweep(const char *staging, mlx_output_keep_fn_t is_kept,
                              const void *user) MLX_MUST_USE;

// Creates the staging folder, or keeps an existing one with its files. Fails if another user owns it: that
// user could change files after they were checked.
mlx_status_t mlx_output_make_staging(const char *staging) MLX_MUST_USE;

#endif  // MLXCEL_TRANSFER_OUTPUT_H_
