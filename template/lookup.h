// Lookup: attributes, items and slices of a value.
#ifndef MLXCEL_TEMPLATE_LOOKUP_H_
#define MLXCEL_TEMPLATE_LOOKUP_H_

#include "template/value.h"

mlx_status_t mlx_var_attribute(mlx_render_t *r, const mlx_var_t *object, mlx_span_t name,
                               mlx_var_t *out) MLX_MUST_USE;  // object.name
mlx_status_t mlx_var_item(mlx_render_t *r, const mlx_var_t *object, const mlx_var_t *key,
                          mlx_var_t *out) MLX_MUST_USE;  // object[key]
// object[start:stop:step]; None stands for a bound that is not given.
mlx_status_t mlx_var_slice(mlx_render_t *r, const mlx_var_t *object, const mlx_var_t *start,
                           const mlx_var_t *stop, const mlx_var_t *step, mlx_var_t *out) MLX_MUST_USE;

#endif  // MLXCEL_TEMPLATE_LOOKUP_H_
