// Prints progress, notes and errors on stderr. --quiet silences all but errors.
#include "cli/terminal.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "line/row.h"
#include "line/tty.h"

#define DEFAULT_COLUMNS 80

static bool is_quiet;
static bool progress_shown;

mlx_status_t mlx_terminal_set_quiet(bool quiet, bool verbose) {
  if (quiet && verbose) {
    return mlx_status_hint(mlx_error(MLX_USAGE, "--quiet and --verbose were both given"),
                           "give one of them; --quiet=false overrides the configuration file");
  }
  is_quiet = quiet;
  return NULL;
}

// Messages quote names from untrusted files and servers: replaces control characters.
static void print_plain(const char *text, const char *end) {
  for (; *text; ++text)
    fputc((unsigned char)*text < 0x20 && *text != '\n' ? '?' : *text == 0x7f ? '?' : *text, stderr);
  fputs(end, stderr);
}

// The last column stays free: a terminal that has written there may be in the next row already.
static int row_columns(void) {
  const int columns = mlx_tty_columns(STDERR_FILENO);
  const char *text = getenv("COLUMNS");
  const long named = columns <= 0 && text ? strtol(text, NULL, 10) : columns;
  return (named > 0 && named < 10000 ? (int)named : DEFAULT_COLUMNS) - 1;
}

static void print_progress(const char *text) {
  mlx_text_t row = {0};
  mlx_row_fit(text, row_columns(), &row);
  mlx_status_t status = mlx_text_finish(&row);
  if (!status) fputs(row.data, stderr);
  mlx_status_free(status);
  mlx_text_clear(&row);
}

static void print_report(void *user, mlx_report_kind_t kind, const char *text) {
  (void)user;
  if (is_quiet) return;
  if (progress_shown) fputs("\r\033[K", stderr);
  progress_shown = false;
  if (kind == MLX_REPORT_NOTE) {
    print_plain(text, "\n");
  } else if (text[0] && mlx_tty_can_draw(STDERR_FILENO)) {
    print_progress(text);
    progress_shown = true;
  }
  fflush(stderr);
}

const mlx_report_t *mlx_terminal_report(void) {
  static const mlx_report_t report = {.emit = print_report};
  return &report;
}

void mlx_terminal_note(const char *fmt, ...) {
  if (is_quiet) return;
  va_list arguments;
  va_start(arguments, fmt);
  vfprintf(stderr, fmt, arguments);
  va_end(arguments);
}

mlx_status_t mlx_stdout_error(void) {
  return errno == EPIPE ? mlx_error(MLX_CANCELLED, "the reader of stdout closed the pipe")
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
