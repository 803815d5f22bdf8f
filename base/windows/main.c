// Program start on Windows: the console and the arguments. A file of its own: libmlxcel.dll has no main.
#include <windows.h>

#include <shellapi.h>  // needs windows.h first

#include <errno.h>

#include "base/windows/internal.h"

// ----------------------------------------------------------------------------------------------------------
// The console

static struct original_console {
  UINT code_page;
  DWORD modes[2];
  bool changed[2];
} original_console;

static HANDLE stream(int index) { return GetStdHandle(index ? STD_ERROR_HANDLE : STD_OUTPUT_HANDLE); }

static void restore_console(void) {
  for (int i = 0; i < 2; ++i) {
    if (original_console.changed[i]) SetConsoleMode(stream(i), original_console.modes[i]);
  }
  if (original_console.code_page) SetConsoleOutputCP(original_console.code_page);
}

// Output is UTF-8 with escape sequences, as on any terminal. A console that does not support escape sequences
// is treated as a dumb terminal.
static void prepare_console(void) {
  bool supports_escapes = false;
  original_console.code_page = GetConsoleOutputCP();
  if (original_console.code_page) SetConsoleOutputCP(CP_UTF8);
  for (int i = 0; i < 2; ++i) {
    const DWORD wanted = ENABLE_PROCESSED_OUTPUT | ENABLE_VIRTUAL_TERMINAL_PROCESSING;
    if (!GetConsoleMode(stream(i), &original_console.modes[i])) continue;
    original_console.changed[i] = SetConsoleMode(stream(i), original_console.modes[i] | wanted) != 0;
    supports_escapes |= original_console.changed[i];
  }
  atexit(restore_console);
  if (supports_escapes && !getenv("TERM")) setenv("TERM", "xterm-256color", 1);
}

// ----------------------------------------------------------------------------------------------------------
// The arguments

static void plain_program_name(char *name) {
  for (char *c = name; *c; ++c) {
    if (*c == '\\') *c = '/';
  }
  const size_t length = strlen(name);
  if (length > 4 && !_stricmp(name + length - 4, ".exe")) name[length - 4] = 0;
}

static char **take_arguments(int *out_count) {
  wchar_t **wide = CommandLineToArgvW(GetCommandLineW(), out_count);
  char **list = wide ? calloc((size_t)*out_count + 1, sizeof *list) : NULL;
  for (int i = 0; list && i < *out_count; ++i) {
    list[i] = mlx_narrow(wide[i]);
    if (!list[i]) return NULL;
  }
  if (wide) LocalFree(wide);
  if (list && *out_count) plain_program_name(list[0]);
  return list;
}

#undef main
int main(void) {
  int count;
  char **list = take_arguments(&count);  // never freed
  if (!list) return ENOMEM;
  for (int fd = 0; fd < 3; ++fd) _setmode(fd, _O_BINARY);
  prepare_console();
  return mlx_posix_main(count, list);
}
