// Errors of a template, each with the template's name and line.
#ifndef MLXCEL_TEMPLATE_ERROR_H_
#define MLXCEL_TEMPLATE_ERROR_H_

#include <stdarg.h>

#include "base/status.h"

// "NAME, line 3: ..."
mlx_status_t mlx_template_error(const char *name, int line, mlx_code_t code, const char *fmt, ...)
    MLX_PRINTF(4, 5) MLX_MUST_USE MLX_NEVER_NULL;
mlx_status_t mlx_template_error_list(const char *name, int line, mlx_code_t code, const char *fmt,
                                     va_list args) MLX_MUST_USE MLX_NEVER_NULL;

#endif  // MLXCEL_TEMPLATE_ERROR_H_
