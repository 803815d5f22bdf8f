// Variables by linear search: a scope of a chat template has few of them.
#include "template/scope.h"

mlx_status_t mlx_scope_create(mlx_render_t *r, mlx_scope_t *outer, mlx_scope_t **out) {
  MLX_TRY(mlx_arena_take(&r->arena, 1, sizeof **out, out));
  (*out)->outer = outer;
  return NULL;
}

// A variable whose name has another length costs 2 bytes of work: templates have tens of variables in scope.
#define OTHER_NAME_WORK 2

mlx_var_t *mlx_scope_find_local(mlx_render_t *r, const mlx_scope_t *scope, mlx_span_t name) {
  mlx_var_t *found = NULL;
  size_t work = 0;
  for (size_t i = 0; i < scope->count && !found; ++i) {
    const mlx_scope_variable_t *variable = &scope->variables[i];
    work += variable->name.length == name.length ? name.length : OTHER_NAME_WORK;
    if (mlx_span_equal(variable->name, name)) found = &scope->variables[i].value;
  }
  mlx_render_spend(r, work);
  return found;
}

mlx_var_t *mlx_scope_find(mlx_render_t *r, const mlx_scope_t *scope, mlx_span_t name) {
  for (; scope; scope = scope->outer) {
    mlx_var_t *found = mlx_scope_find_local(r, scope, name);
    if (found) return found;
  }
  return NULL;
}

mlx_status_t mlx_scope_set(mlx_render_t *r, mlx_scope_t *scope, mlx_span_t name, mlx_var_t value) {
  mlx_var_t *found = mlx_scope_find_local(r, scope, name);
  MLX_TRY(mlx_render_charge(r, 0));
  if (found) {
    *found = value;
    return NULL;
  }
  if (scope->count == scope->capacity) {
    mlx_scope_variable_t *larger;
    size_t capacity = scope->capacity ? scope->capacity * 2 : 4;
    MLX_TRY(mlx_arena_take(&r->arena, capacity, sizeof *larger, &larger));
    if (scope->count) memcpy(larger, scope->variables, scope->count * sizeof *larger);
    scope->variables = larger;
    scope->capacity = capacity;
  }
  scope->variables[scope->count++] = (mlx_scope_variable_t){name, value};
  return NULL;
}
