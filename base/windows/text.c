// Conversion between UTF-8 and UTF-16, and from Windows errors to errno.
#include <errno.h>

#include "base/windows/internal.h"

wchar_t *mlx_wide(const char *text) {
  const int length = MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, text, -1, NULL, 0);
  if (!length) {
    errno = EILSEQ;
    return NULL;
  }
  wchar_t *wide = malloc((size_t)length * sizeof *wide);
  if (wide) MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, text, -1, wide, length);
  return wide;
}

char *mlx_narrow(const wchar_t *text) {
  const int length = WideCharToMultiByte(CP_UTF8, 0, text, -1, NULL, 0, NULL, NULL);
  char *narrow = length ? malloc((size_t)length) : NULL;
  if (!length) errno = EILSEQ;
  if (narrow) WideCharToMultiByte(CP_UTF8, 0, text, -1, narrow, length, NULL, NULL);
  return narrow;
}

// Longer paths must be absolute and have the prefix \\?\, which disables path processing.
#define PLAIN_PATH 240

static wchar_t *with_prefix(wchar_t *path) {
  static const wchar_t prefix[] = L"\\\\?\\", share[] = L"\\\\?\\UNC";
  const DWORD size = GetFullPathNameW(path, 0, NULL, NULL);
  wchar_t *whole = size ? malloc((size + 8) * sizeof *whole) : NULL;
  if (!whole) return path;
  GetFullPathNameW(path, size, whole + 8, NULL);
  free(path);
  const wchar_t *head = wcsncmp(whole + 8, L"\\\\", 2) ? prefix : share;
  wchar_t *body = head == prefix ? whole + 8 : whole + 9;  // the prefix replaces one backslash of "\\server"
  const size_t length = wcslen(head);
  wmemmove(whole + length, body, wcslen(body) + 1);
  wmemcpy(whole, head, length);
  return whole;
}

// The file that has this code: the program, or libmlxcel.dll.
static wchar_t *executable_path(void) {
  HMODULE module = NULL;
  wchar_t *path = malloc(32768 * sizeof *path);
  GetModuleHandleExW(GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | GET_MODULE_HANDLE_EX_FLAG_UNCHANGED_REFCOUNT,
                     (const wchar_t *)(uintptr_t)executable_path, &module);
  if (path && !GetModuleFileNameW(module, path, 32768)) mlx_windows_set_errno();
  return path;
}

wchar_t *mlx_wide_path(const char *path) {
  wchar_t *wide = !strcmp(path, "/proc/self/exe") ? executable_path()
                                                  : mlx_wide(strcmp(path, "/dev/null") ? path : "NUL");
  if (!wide) return NULL;
  for (wchar_t *c = wide; *c; ++c) {
    if (*c == L'/') *c = L'\\';
  }
  return wcslen(wide) < PLAIN_PATH || !wcsncmp(wide, L"\\\\?\\", 4) ? wide : with_prefix(wide);
}

int mlx_windows_set_errno(void) {
  static const struct {
    DWORD error;
    int number;
  } rows[] = {
      {ERROR_FILE_NOT_FOUND, ENOENT},
      {ERROR_PATH_NOT_FOUND, ENOENT},
      {ERROR_INVALID_NAME, ENOENT},
      {ERROR_BAD_NETPATH, ENOENT},
      {ERROR_INVALID_DRIVE, ENOENT},
      {ERROR_ACCESS_DENIED, EACCES},
      {ERROR_SHARING_VIOLATION, EACCES},
      {ERROR_USER_MAPPED_FILE, EACCES},
      {ERROR_PRIVILEGE_NOT_HELD, EPERM},
      {ERROR_FILE_EXISTS, EEXIST},
      {ERROR_ALREADY_EXISTS, EEXIST},
      {ERROR_DIR_NOT_EMPTY, ENOTEMPTY},
      {ERROR_DIRECTORY, ENOTDIR},
      {ERROR_DISK_FULL, ENOSPC},
      {ERROR_HANDLE_DISK_FULL, ENOSPC},
      {ERROR_NOT_ENOUGH_MEMORY, ENOMEM},
      {ERROR_OUTOFMEMORY, ENOMEM},
      {ERROR_LOCK_VIOLATION, EAGAIN},
      {ERROR_BROKEN_PIPE, EPIPE},
      {ERROR_NO_DATA, EPIPE},
      {ERROR_TOO_MANY_OPEN_FILES, EMFILE},
      {ERROR_INVALID_HANDLE, EBADF},
      {ERROR_INVALID_FUNCTION, EINVAL},
      {ERROR_INVALID_PARAMETER, EINVAL},
      {ERROR_WRITE_PROTECT, EROFS},
      {ERROR_NOT_SAME_DEVICE, EXDEV},
      {ERROR_FILENAME_EXCED_RANGE, ENAMETOOLONG},
      {ERROR_BAD_EXE_FORMAT, ENOEXEC},
      {ERROR_EXE_MACHINE_TYPE_MISMATCH, ENOEXEC},
      {ERROR_NOT_SUPPORTED, EINVAL},
  };
  const DWORD error = GetLastError();
  errno = EIO;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    if (rows[i].error == error) errno = rows[i].number;
  }
  return -1;
}
