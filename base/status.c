// Status objects. They use malloc directly: an error must work when mlx_alloc fails.
#include "base/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct mlx_status {
  mlx_code_t code;
  const char *file;
  int line;
  bool is_static;
  char *message;
  char *hint;
};

// Returned if allocating an error fails. It is shared, so it is never modified.
static struct mlx_status out_of_memory_status = {
    .code = MLX_OUT_OF_MEMORY,
    .file = __FILE__,
    .line = __LINE__,
    .is_static = true,
    .message = "out of memory",
};

static char *format_text(const char *fmt, va_list args) {
  va_list again;
  va_copy(again, args);
  int length = vsnprintf(NULL, 0, fmt, again);
  va_end(again);
  if (length < 0) return NULL;
  char *text = malloc((size_t)length + 1);
  if (text) vsnprintf(text, (size_t)length + 1, fmt, args);
  return text;
}

mlx_status_t mlx_error_at(const char *file, int line, mlx_code_t code, const char *fmt, ...) {
  struct mlx_status *status = calloc(1, sizeof *status);
  if (!status) return &out_of_memory_status;
  va_list args;
  va_start(args, fmt);
  status->message = format_text(fmt, args);
  va_end(args);
  if (!status->message) {
    free(status);
    return &out_of_memory_status;
  }
  status->code = code;
  status->file = file;
  status->line = line;
  return status;
}

mlx_status_t mlx_status_hint(mlx_status_t status, const char *fmt, ...) {
  if (!status || status->is_static || status->hint) return status;
  va_list args;
  va_start(args, fmt);
  status->hint = format_text(fmt, args);
  va_end(args);
  return status;
}

mlx_status_t mlx_status_rehint(mlx_status_t status, const char *fmt, ...) {
  if (!status || status->is_static) return status;
  va_list args;
  va_start(args, fmt);
  char *hint = format_text(fmt, args);
  va_end(args);
  if (!hint) return status;
  free(status->hint);
  status->hint = hint;
  return status;
}

mlx_status_t mlx_status_annotate(mlx_status_t status, const char *fmt, ...) {
  if (!status || status->is_static) return status;
  va_list args;
  va_start(args, fmt);
  char *context = format_text(fmt, args);
  va_end(args);
  if (!context) return status;
  size_t context_length = strlen(context), message_length = strlen(status->message);
  char *joined = malloc(context_length + 2 + message_length + 1);
  if (joined) {
    memcpy(joined, context, context_length);
    memcpy(joined + context_length, ": ", 2);
    memcpy(joined + context_length + 2, status->message, message_length + 1);
    free(status->message);
    status->message = joined;
  }
  free(context);
  return status;
}

mlx_code_t mlx_status_code(mlx_status_t status) { return status ? status->code : MLX_OK; }
const char *mlx_status_message(mlx_status_t status) { return status ? status->message : ""; }
const char *mlx_status_hint_text(mlx_status_t status) { return status && status->hint ? status->hint : ""; }
const char *mlx_status_file(mlx_status_t status) { return status ? status->file : ""; }
int mlx_status_line(mlx_status_t status) { return status ? status->line : 0; }

void mlx_status_free(mlx_status_t status) {
  if (!status || status->is_static) return;
  free(status->message);
  free(status->hint);
  free(status);
}

mlx_status_t mlx_status_join(mlx_status_t first, mlx_status_t second) {
  if (!first) return second;
  mlx_status_free(second);
  return first;
}
