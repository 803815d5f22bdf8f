// Text: operations on strings that return values.
#ifndef MLXCEL_TEMPLATE_TEXT_H_
#define MLXCEL_TEMPLATE_TEXT_H_

#include "template/value.h"

// HTML escaping; the result is Markup.
mlx_status_t mlx_span_escape(mlx_render_t *r, mlx_span_t text, mlx_var_t *out) MLX_MUST_USE;
mlx_status_t mlx_span_split_lines(mlx_render_t *r, mlx_span_t text, bool keep_ends,
                                  mlx_var_t *out) MLX_MUST_USE;
// Charges for mlx_span_strip: every character of |text| is searched in |characters|, or is whitespace if
// NULL.
mlx_status_t mlx_render_charge_strip(mlx_render_t *r, mlx_span_t text,
                                     const mlx_span_t *characters) MLX_MUST_USE;
// Replaces the first |count| occurrences of |old|; a negative |count|: all.
mlx_status_t mlx_span_replace(mlx_render_t *r, mlx_span_t text, mlx_span_t old, mlx_span_t new, int64_t count,
                              mlx_var_t *out) MLX_MUST_USE;

#endif  // MLXCEL_TEMPLATE_TEXT_H_
