// Calling a builtin: binds the arguments to its parameters, as Python does.
#include "template/builtin.h"

#include "template/value_repr.h"

const mlx_builtin_t *mlx_builtin_find(const mlx_builtin_t *table, mlx_span_t name) {
  for (; table->name; ++table) {
    if (mlx_span_is(name, table->name)) return table;
  }
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Calls

static const char *next_parameter(const char *cursor, mlx_span_t *out, bool *inout_required) {
  while (*cursor == ' ' || *cursor == '|') {
    if (*cursor++ == '|') *inout_required = false;
  }
  *out = (mlx_span_t){cursor, strcspn(cursor, " |")};
  return cursor + out->length;
}

// Assigns the arguments to the declared parameters.
static mlx_status_t bind(mlx_render_t *r, const mlx_builtin_t *builtin, const mlx_args_t *args,
                         mlx_template_call_t *call) {
  mlx_span_t name;
  bool required = true;
  size_t index = 0, named_used = 0;
  for (const char *cursor = next_parameter(builtin->parameters, &name, &required); name.length;
       cursor = next_parameter(cursor, &name, &required), ++index) {
    const mlx_var_t *named = mlx_dict_get(r, args->named, name);
    if (named && index < args->count)
      MLX_FAIL(r, "%s() got two values for '%.*s'", builtin->name, (int)name.length, name.bytes);
    named_used += named != NULL;
    call->given[index] = named || index < args->count;
    if (call->given[index]) {
      call->parameters[index] = named ? *named : args->positional[index];
    } else if (required) {
      MLX_FAIL(r, "%s() is missing the argument '%.*s'", builtin->name, (int)name.length, name.bytes);
    }
  }
  if (args->count > index)
    MLX_FAIL(r, "%s() takes at most %zu arguments, %zu were given", builtin->name, index, args->count);
  if (args->named && named_used < args->named->count)
    MLX_FAIL(r, "%s() got an unexpected keyword argument", builtin->name);
  return NULL;
}

mlx_status_t mlx_builtin_call(mlx_render_t *r, const mlx_builtin_t *builtin, const mlx_var_t *self,
                              const mlx_args_t *args, mlx_var_t *out) {
  mlx_template_call_t call = {.self = self ? *self : mlx_none(), .args = args};
  MLX_TRY(mlx_render_charge(r, 1));
  if (strcmp(builtin->parameters, "*")) MLX_TRY(bind(r, builtin, args, &call));
  return builtin->run(r, &call, out);
}

// ----------------------------------------------------------------------------------------------------------
// Arguments of a call

bool mlx_call_flag(const mlx_template_call_t *call, size_t index) {
  return call->given[index] && mlx_var_truth(&call->parameters[index]);
}

bool mlx_call_given(const mlx_template_call_t *call, size_t index) {
  return call->given[index] && call->parameters[index].kind != MLX_VAR_NONE;
}

mlx_status_t mlx_call_integer(mlx_render_t *r, const mlx_template_call_t *call, size_t index,
                              int64_t fallback, int64_t *out) {
  *out = fallback;
  if (!call->given[index]) return NULL;
  MLX_TRY(mlx_var_expect_defined(r, &call->parameters[index]));
  if (!mlx_var_is_integer(&call->parameters[index])) {
    MLX_FAIL(r, "'%s' object cannot be interpreted as an integer", mlx_var_type(&call->parameters[index]));
  }
  *out = mlx_var_integer(&call->parameters[index]);
  return NULL;
}

mlx_status_t mlx_call_text(mlx_render_t *r, const mlx_template_call_t *call, mlx_span_t *out) {
  return mlx_var_text(r, &call->self, out);
}

mlx_status_t mlx_call_items(mlx_render_t *r, const mlx_template_call_t *call, const mlx_var_t **out_items,
                            size_t *out_count) {
  return mlx_var_items(r, &call->self, out_items, out_count);
}
