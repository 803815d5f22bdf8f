// Builtin: a filter, test, method or global function that is written in C.
#ifndef MLXCEL_TEMPLATE_BUILTIN_H_
#define MLXCEL_TEMPLATE_BUILTIN_H_

#include "template/value.h"

#define MLX_MAX_PARAMETERS 6

typedef struct mlx_args {
  mlx_var_t *positional;
  size_t count;
  mlx_dict_t *named;  // NULL: no keyword arguments
} mlx_args_t;

// The input of a builtin: the object that it works on (a filter's or test's operand, a method's object), and
// its arguments in the order of the declared parameters. A builtin declared with "*" reads |args| instead.
typedef struct mlx_template_call {
  mlx_var_t self;
  mlx_var_t parameters[MLX_MAX_PARAMETERS];  // UNDEFINED if not given
  bool given[MLX_MAX_PARAMETERS];
  const mlx_args_t *args;
} mlx_template_call_t;

typedef mlx_status_t (*mlx_builtin_fn_t)(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out);

typedef struct mlx_builtin {
  const char *name;
  mlx_builtin_fn_t run;
  const char *parameters;  // "old new |count": names before the bar are required; "*": any arguments
} mlx_builtin_t;

// How builtins, attribute lookup and the checker find builtins by name without depending on the files that
// define them. template.c fills it in. Each function returns NULL for an unknown name.
typedef struct mlx_builtin_registry {
  const mlx_builtin_t *(*find_filter)(mlx_span_t name);
  const mlx_builtin_t *(*find_test)(mlx_span_t name);
  const mlx_builtin_t *(*find_method)(const mlx_var_t *object, mlx_span_t name);
} mlx_builtin_registry_t;

// The row of |table| with that name, or NULL. A table ends with a row of zeros.
const mlx_builtin_t *mlx_builtin_find(const mlx_builtin_t *table, mlx_span_t name);
mlx_status_t mlx_builtin_call(mlx_render_t *r, const mlx_builtin_t *builtin, const mlx_var_t *self,
                              const mlx_args_t *args, mlx_var_t *out) MLX_MUST_USE;

// ---- arguments of a call ----

bool mlx_call_flag(const mlx_template_call_t *call, size_t index);   // given and true
bool mlx_call_given(const mlx_template_call_t *call, size_t index);  // given and not None
mlx_status_t mlx_call_integer(mlx_render_t *r, const mlx_template_call_t *call, size_t index,
                              int64_t fallback, int64_t *out) MLX_MUST_USE;
// str() of the object.
mlx_status_t mlx_call_text(mlx_render_t *r, const mlx_template_call_t *call, mlx_span_t *out) MLX_MUST_USE;
// The items of the object.
mlx_status_t mlx_call_items(mlx_render_t *r, const mlx_template_call_t *call, const mlx_var_t **out_items,
                            size_t *out_count) MLX_MUST_USE;

#endif  // MLXCEL_TEMPLATE_BUILTIN_H_
