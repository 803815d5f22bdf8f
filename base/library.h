// Shared libraries opened at run time: NVIDIA's driver and compiler are used if installed, and never linked.
// base/library_posix.c and base/library_windows.c implement this.
#ifndef MLXCEL_BASE_LIBRARY_H_
#define MLXCEL_BASE_LIBRARY_H_

#include "base/status.h"

// |name| is a path, or a name for the system's search. MLX_NOT_FOUND if there is no such file. Release with
// mlx_library_close.
mlx_status_t mlx_library_open(const char *name, void **out_library) MLX_MUST_USE;
void *mlx_library_symbol(void *library, const char *name);  // NULL if there is none
void mlx_library_close(void *library);
// Path from which the library was loaded, or NULL if the system does not report it. Release with mlx_free.
mlx_status_t mlx_library_path(void *library, char **out_path) MLX_MUST_USE;

#endif  // MLXCEL_BASE_LIBRARY_H_
