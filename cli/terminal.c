#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/cli.h"

static bool progress_shown;

// In a log, progress is a line every few seconds, and none for what is quickly done.
static bool log_line_is_due(bool running) {
  static time_t started, last_line;
  time_t now = time(NULL);
  if (!running) {
    started = 0;
    return false;
  }
  if (!started) started = now;
  if (now < started + 2 || now < last_line + 5) return false;
  last_line = now;
  return true;
}

// Messages quote names from foreign files and servers: nothing of them may steer the terminal.
static void print_plain(const char *text, const char *end) {
  for (; *text; ++text)
    fputc((unsigned char)*text < 0x20 && *text != '\n' ? '?' : *text == 0x7f ? '?' : *text, stderr);
  fputs(end, stderr);
}

static void say(void *user, mlx_report_kind_t kind, const char *text) {
  (void)user;
  bool terminal = isatty(STDERR_FILENO);
  if (terminal && progress_shown) fputs("\r\033[K", stderr);
  if (kind == MLX_REPORT_NOTE) {
    print_plain(text, "\n");
    progress_shown = false;
  } else if (terminal) {
    print_plain(text, "");
    progress_shown = text[0] != 0;
  } else if (log_line_is_due(text[0] != 0)) {
    print_plain(text, "\n");
  }
  fflush(stderr);
}

const mlx_report_t *mlx_terminal_report(void) {
  static const mlx_report_t report = {.emit = say};
  return &report;
}

mlx_status_t mlx_stdout_error(void) {
  return errno == EPIPE ? mlx_error(MLX_CANCELLED, "nobody reads stdout")
                        : mlx_error(MLX_IO, "cannot write to stdout");
}

void mlx_terminal_error(const char *where, mlx_status_t status) {
  mlx_report_done(mlx_terminal_report());
  fprintf(stderr, "%s: ", where);
  print_plain(mlx_status_message(status), "\n");
  if (mlx_status_hint_text(status)[0]) {
    fputs("hint: ", stderr);
    print_plain(mlx_status_hint_text(status), "\n");
  }
  if (mlx_status_code(status) == MLX_INTERNAL) {
    fprintf(stderr, "this is a bug in mlxcel (%s:%d); please report it with the command you ran\n",
            mlx_status_file(status), mlx_status_line(status));
  }
}
