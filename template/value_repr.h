// Python's str() and repr() of a value.
#ifndef MLXCEL_TEMPLATE_VALUE_REPR_H_
#define MLXCEL_TEMPLATE_VALUE_REPR_H_

#include "template/value.h"

mlx_status_t mlx_var_write(mlx_render_t *r, mlx_sink_t *sink, const mlx_var_t *v) MLX_MUST_USE;  // str()
mlx_status_t mlx_var_repr(mlx_render_t *r, mlx_sink_t *sink, const mlx_var_t *v) MLX_MUST_USE;   // repr()
mlx_status_t mlx_var_text(mlx_render_t *r, const mlx_var_t *v, mlx_span_t *out) MLX_MUST_USE;    // str()
void mlx_float_write(mlx_sink_t *sink, double number);                                           // repr()

#endif  // MLXCEL_TEMPLATE_VALUE_REPR_H_
