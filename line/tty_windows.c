// The Windows console. Output uses escape sequences, which base/windows/main.c enables. Keys arrive as
// events; keys that are not characters become the escape sequences of a terminal.
#include <stdatomic.h>
#include <windows.h>

#include "base/file.h"
#include "line/tty.h"

#define EVENTS 128

static DWORD saved_mode;
static const char *restore_text;
static bool mode_is_changed, takes_keys, resized;
static atomic_bool interrupted;
static wchar_t high;  // the high surrogate of an incomplete character

static HANDLE input(void) { return GetStdHandle(STD_INPUT_HANDLE); }

// ----------------------------------------------------------------------------------------------------------
// The mode

void mlx_tty_leave(void) {
  if (mode_is_changed) SetConsoleMode(input(), saved_mode);
  mode_is_changed = takes_keys = false;
}

void mlx_tty_enter(bool reading) {
  const DWORD common = ENABLE_WINDOW_INPUT | ENABLE_EXTENDED_FLAGS |
                       (saved_mode & (ENABLE_QUICK_EDIT_MODE | ENABLE_INSERT_MODE));
  const DWORD mode = reading ? common : common | ENABLE_PROCESSED_INPUT;
  // Virtual terminal input marks a paste. A console without it sends plain key events.
  takes_keys = reading;
  mode_is_changed =
      SetConsoleMode(input(), mode | ENABLE_VIRTUAL_TERMINAL_INPUT) || SetConsoleMode(input(), mode);
}

void mlx_tty_suspend(void) {}

void mlx_tty_restore(void) {
  if (!mode_is_changed) return;
  (void)!write(STDERR_FILENO, restore_text, strlen(restore_text));
  SetConsoleMode(input(), saved_mode);
}

// Runs on a thread of the system.
static BOOL WINAPI on_control(DWORD event) {
  if (event == CTRL_C_EVENT || event == CTRL_BREAK_EVENT) {
    atomic_store(&interrupted, true);
    return TRUE;
  }
  mlx_tty_restore();  // the window closes
  return FALSE;
}

mlx_status_t mlx_tty_open(const char *restore) {
  if (!GetConsoleMode(input(), &saved_mode)) return mlx_error(MLX_IO, "stdin is not a terminal");
  restore_text = restore;
  SetConsoleCtrlHandler(on_control, TRUE);
  return NULL;
}

void mlx_tty_close(void) {
  mlx_tty_leave();
  SetConsoleCtrlHandler(on_control, FALSE);
}

bool mlx_tty_take_interrupt(void) { return atomic_exchange(&interrupted, false); }

// ----------------------------------------------------------------------------------------------------------
// Size

static bool window_of(DWORD stream, int *out_columns, int *out_rows) {
  CONSOLE_SCREEN_BUFFER_INFO info;
  if (!GetConsoleScreenBufferInfo(GetStdHandle(stream), &info)) return false;
  *out_columns = info.srWindow.Right - info.srWindow.Left + 1;
  *out_rows = info.srWindow.Bottom - info.srWindow.Top + 1;
  return *out_columns > 0 && *out_rows > 0;
}

bool mlx_tty_is_resized(void) { return resized; }

void mlx_tty_size(int *out_columns, int *out_rows) {
  resized = false;
  if (window_of(STD_ERROR_HANDLE, out_columns, out_rows)) return;
  *out_columns = 80;
  *out_rows = 24;
}

int mlx_tty_columns(int stream) {
  int columns, rows;
  return window_of(stream == STDERR_FILENO ? STD_ERROR_HANDLE : STD_OUTPUT_HANDLE, &columns, &rows) ? columns
                                                                                                    : 0;
}

bool mlx_tty_input_is_ready(int milliseconds) {
  const ULONGLONG end = GetTickCount64() + (ULONGLONG)milliseconds;
  DWORD available = 0;
  if (GetFileType(input()) != FILE_TYPE_PIPE) return true;  // a file, NUL or a console
  do {
    if (!PeekNamedPipe(input(), NULL, 0, NULL, &available, NULL) || available) return true;  // ended, or data
    Sleep(10);
  } while (GetTickCount64() < end);
  return false;
}

// ----------------------------------------------------------------------------------------------------------
// Keys

// The escape sequence of a key that is not a character; "" for other keys.
static const char *sequence_of(const KEY_EVENT_RECORD *key) {
  const bool control = key->dwControlKeyState & (LEFT_CTRL_PRESSED | RIGHT_CTRL_PRESSED);
  switch (key->wVirtualKeyCode) {
    case VK_UP: return "\033[A";
    case VK_DOWN: return "\033[B";
    case VK_RIGHT: return control ? "\033[1;5C" : "\033[C";
    case VK_LEFT: return control ? "\033[1;5D" : "\033[D";
    case VK_HOME: return "\033[H";
    case VK_END: return "\033[F";
    case VK_DELETE: return "\033[3~";
    default: return "";
  }
}

static size_t put_character(wchar_t unit, unsigned char *bytes) {
  wchar_t pair[2] = {high, unit};
  const bool is_high = unit >= 0xd800 && unit < 0xdc00, is_low = unit >= 0xdc00 && unit < 0xe000;
  const bool whole = is_low && high;
  high = is_high ? unit : 0;
  if (is_high || (is_low && !whole)) return 0;
  return (size_t)WideCharToMultiByte(CP_UTF8, 0, whole ? pair : pair + 1, whole ? 2 : 1, (char *)bytes, 4,
                                     NULL, NULL);
}

// Appends at most 8 bytes.
static size_t put_key(const KEY_EVENT_RECORD *key, unsigned char *bytes) {
  const bool composed = key->wVirtualKeyCode == VK_MENU && !key->bKeyDown &&
                        key->uChar.UnicodeChar;  // Alt with digits, or a paste
  if (!key->bKeyDown && !composed) return 0;
  if (!key->uChar.UnicodeChar) {
    const char *sequence = sequence_of(key);
    memcpy(bytes, sequence, strlen(sequence));
    return strlen(sequence);
  }
  const bool alt =
      key->dwControlKeyState & LEFT_ALT_PRESSED && !(key->dwControlKeyState & RIGHT_CTRL_PRESSED) &&
      !(key->dwControlKeyState & LEFT_CTRL_PRESSED) && !composed && key->uChar.UnicodeChar != L'\033';
  bytes[0] = '\033';  // a terminal sends ESC for Alt
  return (alt ? 1 : 0) + put_character(key->uChar.UnicodeChar == L'\b' ? L'\177' : key->uChar.UnicodeChar,
                                       bytes + (alt ? 1 : 0));
}

mlx_status_t mlx_tty_read(unsigned char *bytes, size_t size, size_t *out_length, bool *out_end) {
  INPUT_RECORD events[EVENTS];
  DWORD count = 0;
  *out_length = 0;
  *out_end = false;
  const DWORD room = size / 8 < EVENTS ? (DWORD)(size / 8) : EVENTS;
  while (!*out_length && !resized) {
    if (atomic_load(&interrupted)) {  // in reading mode: Ctrl-Break, or a Ctrl-C from another process
      if (takes_keys && mlx_tty_take_interrupt()) bytes[(*out_length)++] = 3;
      return NULL;
    }
    if (WaitForSingleObject(input(), 100) == WAIT_TIMEOUT) continue;
    if (!ReadConsoleInputW(input(), events, room, &count)) {
      *out_end = true;
      return NULL;
    }
    for (DWORD i = 0; i < count; ++i) {
      if (events[i].EventType == WINDOW_BUFFER_SIZE_EVENT) resized = true;
      if (events[i].EventType == KEY_EVENT)
        *out_length += put_key(&events[i].Event.KeyEvent, bytes + *out_length);
    }
  }
  return NULL;
}
