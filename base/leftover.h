// Leftovers: temporary files that a killed process did not remove. Their names end in the suffix of
// mlx_temporary_path, which contains the process id.
#ifndef MLXCEL_BASE_LEFTOVER_H_
#define MLXCEL_BASE_LEFTOVER_H_

#include <stdbool.h>

// Removes the temporary files beside |path| that were to become |path|. Files of running processes stay.
// Failures are ignored: a leftover does no harm. Call it before writing |path|.
void mlx_leftover_remove(const char *path);
// The same for every file in |folder|.
void mlx_leftover_remove_in(const char *folder);

// True if a process with this id is running, or if that cannot be determined (base/child_posix.c,
// base/child_windows.c).
bool mlx_process_is_running(long pid);

#endif  // MLXCEL_BASE_LEFTOVER_H_
