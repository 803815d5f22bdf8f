// Scope: the variables of a block, and the scope around it.
#ifndef MLXCEL_TEMPLATE_SCOPE_H_
#define MLXCEL_TEMPLATE_SCOPE_H_

#include "template/value.h"

typedef struct mlx_scope_variable {
  mlx_span_t name;
  mlx_var_t value;
} mlx_scope_variable_t;

typedef struct mlx_scope {
  struct mlx_scope *outer;  // NULL: the globals
  mlx_scope_variable_t *variables;
  size_t count, capacity;
} mlx_scope_t;

mlx_status_t mlx_scope_create(mlx_render_t *r, mlx_scope_t *outer, mlx_scope_t **out) MLX_MUST_USE;
mlx_status_t mlx_scope_set(mlx_render_t *r, mlx_scope_t *scope, mlx_span_t name,
                           mlx_var_t value) MLX_MUST_USE;
mlx_var_t *mlx_scope_find_local(mlx_render_t *r, const mlx_scope_t *scope,
                                mlx_span_t name);  // in this scope; NULL: unset
mlx_var_t *mlx_scope_find(mlx_render_t *r, const mlx_scope_t *scope,
                          mlx_span_t name);  // in this scope or an outer one; NULL: unset

#endif  // MLXCEL_TEMPLATE_SCOPE_H_
