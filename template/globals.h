// Globals: the functions that every template can call.
#ifndef MLXCEL_TEMPLATE_GLOBALS_H_
#define MLXCEL_TEMPLATE_GLOBALS_H_

#include "template/scope.h"

// Adds range, namespace, raise_exception ... to |scope|.
mlx_status_t mlx_globals_add(mlx_render_t *r, mlx_scope_t *scope) MLX_MUST_USE;

#endif  // MLXCEL_TEMPLATE_GLOBALS_H_
