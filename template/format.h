// Format: Python's str.format and its % operator on strings.
#ifndef MLXCEL_TEMPLATE_FORMAT_H_
#define MLXCEL_TEMPLATE_FORMAT_H_

#include "template/builtin.h"

mlx_status_t mlx_format_braces(mlx_render_t *r, mlx_span_t format, const mlx_args_t *args,
                               mlx_var_t *out) MLX_MUST_USE;
mlx_status_t mlx_format_percent(mlx_render_t *r, mlx_span_t format, const mlx_var_t *values,
                                mlx_var_t *out) MLX_MUST_USE;

#endif  // MLXCEL_TEMPLATE_FORMAT_H_
