// Reads passwords without leaving copies in buffers.
#include "cli/password.h"

#include <errno.h>
#include <sodium/utils.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "line/prompt.h"

static mlx_status_t no_password(void) {
  return mlx_status_hint(mlx_error(MLX_USAGE, "the secret key needs a password, and stdin is not a terminal"),
                         "run it at a terminal, set MLXCEL_PASSWORD, or write the password to stdin");
}

static mlx_status_t too_long(void) {
  return mlx_error(MLX_USAGE, "the password is longer than %d bytes", MLX_MAX_PASSWORD - 1);
}

// Uses read, because the buffer of stdio would keep a copy of the password.
static mlx_status_t read_line(char out[MLX_MAX_PASSWORD]) {
  size_t length = 0;
  for (char c;;) {
    const ssize_t got = read(STDIN_FILENO, &c, 1);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0 && !length) return no_password();
    if (got <= 0 || c == '\n') break;
    if (length + 1 == MLX_MAX_PASSWORD) return too_long();
    out[length++] = c;
  }
  if (length && out[length - 1] == '\r') --length;
  out[length] = 0;
  return NULL;
}

static mlx_status_t read_twice(mlx_prompt_t *prompt, const char *first, const char *again,
                               char out[MLX_MAX_PASSWORD]) {
  char second[MLX_MAX_PASSWORD];
  MLX_TRY(mlx_prompt_read_secret(prompt, first, out, MLX_MAX_PASSWORD));
  if (!again) return NULL;
  mlx_status_t status = mlx_prompt_read_secret(prompt, again, second, sizeof second);
  if (!status && strcmp(out, second)) status = mlx_error(MLX_USAGE, "the two passwords differ");
  sodium_memzero(second, sizeof second);
  return status;
}

static mlx_status_t read_terminal(const char *text, const char *again, char out[MLX_MAX_PASSWORD]) {
  mlx_prompt_t *prompt;
  MLX_TRY(mlx_prompt_open(NULL, NULL, &prompt));
  mlx_status_t status = read_twice(prompt, text, again, out);
  mlx_prompt_close(prompt);
  return status;
}

mlx_status_t mlx_cli_password(const char *prompt, const char *again, char out_password[MLX_MAX_PASSWORD]) {
  const char *given = getenv("MLXCEL_PASSWORD");
  if (given && *given) {
    if (strlen(given) >= MLX_MAX_PASSWORD) return too_long();
    strcpy(out_password, given);
    return NULL;
  }
  return mlx_prompt_is_possible() ? read_terminal(prompt, again, out_password) : read_line(out_password);
}
