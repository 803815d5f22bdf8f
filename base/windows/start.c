// Signals, environment and machine information on Windows.
#include <windows.h>

#include <bcrypt.h>  // this header and the next one need windows.h first
#include <psapi.h>

#include <errno.h>
#include <stdatomic.h>

#include "base/windows/internal.h"

mlx_posix_handler_t mlx_posix_signal(int number, mlx_posix_handler_t handler) {
#undef signal
  // The C library terminates a program that installs a handler for an unknown signal.
  return number == SIGPIPE ? SIG_DFL : signal(number, handler);
}

// ----------------------------------------------------------------------------------------------------------
// The environment

// Strings that getenv returned must stay valid. So each distinct value of a variable is kept and never freed.
typedef struct value {
  struct value *next;
  char *name, *text;
} value_t;

static const char *keep_value(const char *name, char *text) {
  static _Atomic(value_t *) values;
  for (value_t *v = values; v; v = v->next) {
    if (strcmp(v->name, name) || strcmp(v->text, text)) continue;
    free(text);
    return v->text;
  }
  value_t *v = malloc(sizeof *v);
  char *copy = _strdup(name);
  if (!v || !copy) return text;
  *v = (value_t){.next = values, .name = copy, .text = text};
  while (!atomic_compare_exchange_weak(&values, &v->next, v)) continue;
  return text;
}

char *mlx_posix_getenv(const char *name) {
  wchar_t *wide = mlx_wide(name);
  const wchar_t *value = wide ? _wgetenv(wide) : NULL;
  char *text = value ? mlx_narrow(value) : NULL;
  free(wide);
  if (text) return (char *)(uintptr_t)keep_value(name, text);
  return strcmp(name, "HOME") ? NULL : mlx_posix_getenv("USERPROFILE");
}

int setenv(const char *name, const char *value, int overwrite) {
  if (!overwrite && mlx_posix_getenv(name)) return 0;
  wchar_t *wide_name = mlx_wide(name), *wide = mlx_wide(value);
  const int failed = wide_name && wide ? _wputenv_s(wide_name, wide) : ENOMEM;
  free(wide_name);
  free(wide);
  if (failed) errno = failed;
  return failed ? -1 : 0;
}

int unsetenv(const char *name) { return setenv(name, "", 1); }  // an empty value removes the variable

// ----------------------------------------------------------------------------------------------------------
// The machine

long sysconf(int name) {
  MEMORYSTATUSEX memory = {.dwLength = sizeof memory};
  if (name == _SC_PAGESIZE) return 4096;
  return GlobalMemoryStatusEx(&memory) ? (long)(memory.ullTotalPhys / 4096) : -1;  // long holds up to 8 TiB
}

int getrusage(int who, struct rusage *out) {
  PROCESS_MEMORY_COUNTERS memory;
  (void)who;
  if (!K32GetProcessMemoryInfo(GetCurrentProcess(), &memory, sizeof memory)) return mlx_windows_set_errno();
  *out = (struct rusage){.ru_maxrss = (long)(memory.PeakWorkingSetSize / 1024)};
  return 0;
}

ssize_t getrandom(void *bytes, size_t length, unsigned flags) {
  (void)flags;
  if (!BCryptGenRandom(NULL, bytes, (ULONG)length, BCRYPT_USE_SYSTEM_PREFERRED_RNG)) return (ssize_t)length;
  errno = EIO;
  return -1;
}

void *memmem(const void *where, size_t length, const void *what, size_t what_length) {
  const char *cursor = where;
  if (!what_length) return (void *)(uintptr_t)cursor;
  for (; length >= what_length; ++cursor, --length) {
    const char *found = memchr(cursor, *(const unsigned char *)what, length - what_length + 1);
    if (!found) return NULL;
    length -= (size_t)(found - cursor);
    cursor = found;
    if (!memcmp(cursor, what, what_length)) return (void *)(uintptr_t)cursor;
  }
  return NULL;
}
