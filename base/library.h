// Library: a shared library of somebody else's, opened at run time: NVIDIA's driver and compiler are used
// where they are installed and never linked. base/library_posix.c and base/library_windows.c are the two ways
// to do it.
#ifndef MLXCEL_BASE_LIBRARY_H_
#define MLXCEL_BASE_LIBRARY_H_

#include "base/status.h"

// |name| is a path, or a name for the system to look for. MLX_NOT_FOUND: there is no such file. Release with
// mlx_library_close.
mlx_status_t mlx_library_open(const char *name, void **out_library) MLX_MUST_USE;
void *mlx_library_symbol(void *library, const char *name);  // NULL when there is none
void mlx_library_close(void *library);
// Where the system found it. Release with mlx_free; NULL where it does not tell.
mlx_status_t mlx_library_path(void *library, char **out_path) MLX_MUST_USE;

#endif  // MLXCEL_BASE_LIBRARY_H_
