// Shared libraries through LoadLibraryEx.
#include <errno.h>

#include "base/library.h"
#include "base/memory.h"
#include "base/windows/internal.h"

static mlx_status_t cannot_open(const char *name, DWORD error) {
  wchar_t wide[256] = L"";
  const DWORD length = FormatMessageW(FORMAT_MESSAGE_FROM_SYSTEM | FORMAT_MESSAGE_IGNORE_INSERTS, NULL, error,
                                      0, wide, 256, NULL);
  for (DWORD i = length; i > 0 && wide[i - 1] <= L' '; --i) wide[i - 1] = 0;
  char *message = mlx_narrow(wide);
  const mlx_code_t code =
      error == ERROR_MOD_NOT_FOUND || error == ERROR_FILE_NOT_FOUND ? MLX_NOT_FOUND : MLX_UNAVAILABLE;
  mlx_status_t status = mlx_error(code, "cannot open library '%s': %s (error %lu)", name,
                                  message && *message ? message : "unknown reason", error);
  free(message);
  return status;
}

// A library given by path finds its dependencies in its own folder. A library given by name is searched in
// the system folders, not in the current folder.
mlx_status_t mlx_library_open(const char *name, void **out_library) {
  *out_library = NULL;
  wchar_t *wide = mlx_wide_path(name);
  if (!wide) return mlx_error(MLX_NOT_FOUND, "cannot open library '%s': %s", name, strerror(errno));
  wchar_t whole[32768];
  const bool is_path = wcschr(wide, L'\\') && GetFullPathNameW(wide, 32768, whole, NULL);
  HMODULE module =
      is_path ? LoadLibraryExW(whole, NULL, LOAD_WITH_ALTERED_SEARCH_PATH)
              : LoadLibraryExW(wide, NULL, LOAD_LIBRARY_SEARCH_DEFAULT_DIRS | LOAD_LIBRARY_SEARCH_SYSTEM32);
  const DWORD error = GetLastError();
  free(wide);
  *out_library = module;
  return module ? NULL : cannot_open(name, error);
}

void *mlx_library_symbol(void *library, const char *name) {
  void *symbol;
  FARPROC found = GetProcAddress(library, name);
  memcpy(&symbol, &found, sizeof symbol);  // C has no cast from a function pointer
  return symbol;
}

void mlx_library_close(void *library) { FreeLibrary(library); }

mlx_status_t mlx_library_path(void *library, char **out_path) {
  wchar_t wide[32768];
  *out_path = NULL;
  const DWORD length = GetModuleFileNameW(library, wide, 32768);
  if (!length || length == 32768) return NULL;
  for (wchar_t *c = wide; *c; ++c) {
    if (*c == L'\\') *c = L'/';
  }
  char *narrow = mlx_narrow(wide);
  mlx_status_t status = narrow ? mlx_copy_text(narrow, strlen(narrow), out_path) : NULL;
  free(narrow);
  return status;
}
