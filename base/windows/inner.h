// What the files of this folder share.
#ifndef MLXCEL_BASE_WINDOWS_INNER_H_
#define MLXCEL_BASE_WINDOWS_INNER_H_

#include <stdbool.h>
#include <wchar.h>
#include <windows.h>

// UTF-16 of |text|, or NULL with errno set. Release with free.
wchar_t *mlx_wide(const char *text);
// The same of a path: '\' for '/', "NUL" for /dev/null, our own for /proc/self/exe, and the prefix that long
// paths want.
wchar_t *mlx_wide_path(const char *path);
// UTF-8 of |text|, or NULL with errno set. Release with free.
char *mlx_narrow(const wchar_t *text);
// errno for what the system said last; -1.
int mlx_windows_failed(void);

#endif  // MLXCEL_BASE_WINDOWS_INNER_H_
