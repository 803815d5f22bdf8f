// Functions shared by the files of base/windows and the *_windows.c files.
#ifndef MLXCEL_BASE_WINDOWS_INTERNAL_H_
#define MLXCEL_BASE_WINDOWS_INTERNAL_H_

#include <stdbool.h>
#include <wchar.h>
#include <windows.h>

// |text| as UTF-16, or NULL with errno set. Release with free.
wchar_t *mlx_wide(const char *text);
// A path as UTF-16, or NULL with errno set: '\' for '/', "NUL" for /dev/null, our executable for
// /proc/self/exe, and the prefix for long paths.
wchar_t *mlx_wide_path(const char *path);
// |text| as UTF-8, or NULL with errno set. Release with free.
char *mlx_narrow(const wchar_t *text);
// Sets errno from GetLastError() and returns -1.
int mlx_windows_set_errno(void);

#endif  // MLXCEL_BASE_WINDOWS_INTERNAL_H_
