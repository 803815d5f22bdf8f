// Formats the errors of a template.
#include "template/error.h"

#include <stdio.h>

mlx_status_t mlx_template_error_list(const char *name, int line, mlx_code_t code, const char *fmt,
                                     va_list args) {
  char message[1024];
  vsnprintf(message, sizeof message, fmt, args);
  return mlx_error(code, "%s, line %d: %s", name, line, message);
}

mlx_status_t mlx_template_error(const char *name, int line, mlx_code_t code, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  mlx_status_t status = mlx_template_error_list(name, line, code, fmt, args);
  va_end(args);
  return status;
}
