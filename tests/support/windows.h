// POSIX functions that tests need in addition to base/windows/posix.h. /tmp is a folder of the current drive.
#ifndef MLXCEL_TESTS_WINDOWS_H_
#define MLXCEL_TESTS_WINDOWS_H_

#include <windows.h>

#include "base/file.h"

#define chmod(path, mode) (0)  // Windows has no executable mode
#define mkdtemp mlx_test_mkdtemp
#define mkstemp mlx_test_mkstemp

static inline void mlx_test_name(char *pattern) {
  unsigned number;
  getrandom(&number, sizeof number, 0);
  snprintf(pattern + strlen(pattern) - 6, 7, "%06x", number & 0xffffff);
}
static inline char *mlx_test_mkdtemp(char *pattern) {
  mlx_test_name(pattern);
  return mkdir(pattern, 0700) ? NULL : pattern;
}
static inline int mlx_test_mkstemp(char *pattern) {
  mlx_test_name(pattern);
  return open(pattern, O_RDWR | O_CREAT | O_EXCL, 0600);
}
// Copies the file, because symbolic links need a privilege.
static inline int symlink(const char *target, const char *path) {
  mlx_status_t status = mlx_copy_file(target, path);
  const bool failed = status;
  mlx_status_free(status);
  return failed ? -1 : 0;
}

#endif  // MLXCEL_TESTS_WINDOWS_H_
