// Variables by linear search: a scope of a chat template has few of them.
#include "template/scope.h"

mlx_status_t mlx_scope_create(mlx_render_t *r, mlx_scope_t *outer, mlx_scope_t **out) {
  MLX_TRY(mlx_arena_take(&r->arena, 1, sizeof **out, out));
  (*out)->outer = outer;
  return NULL;
}

mlx_var_t *mlx_scope_find_local(const mlx_scope_t *scope, mlx_span_t name) {
  for (size_t i = 0; i < scope->count; ++i) {
    if (mlx_span_equal(scope->variables[i].name, name)) return &scope->variables[i].value;
  }
  return NULL;
}

mlx_var_t *mlx_scope_find(const mlx_scope_t *scope, mlx_span_t name) {
  for (; scope; scope = scope->outer) {
    mlx_var_t *found = mlx_scope_find_local(scope, name);
    if (found) return found;
  }
  return NULL;
}

mlx_status_t mlx_scope_set(mlx_render_t *r, mlx_scope_t *scope, mlx_span_t name, mlx_var_t value) {
  mlx_var_t *found = mlx_scope_find_local(scope, name);
  if (found) {
    *found = value;
    return NULL;
  }
  if (scope->count == scope->capacity) {
    mlx_variable_t *larger;
    size_t capacity = scope->capacity ? scope->capacity * 2 : 4;
    MLX_TRY(mlx_arena_take(&r->arena, capacity, sizeof *larger, &larger));
    if (scope->count) memcpy(larger, scope->variables, scope->count * sizeof *larger);
    scope->variables = larger;
    scope->capacity = capacity;
  }
  scope->variables[scope->count++] = (mlx_variable_t){name, value};
  return NULL;
}
