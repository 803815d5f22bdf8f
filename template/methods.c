// The methods of lists, dicts and loops. string_methods.c has the methods of strings.
#include "template/methods.h"

#include "template/string_methods.h"

static mlx_status_t dict_view(mlx_render_t *r, const mlx_template_call_t *call, mlx_py_type_t type,
                              mlx_var_t *out) {
  const mlx_dict_t *dict = call->self.dict;
  mlx_var_t view;
  MLX_TRY(mlx_list_create(r, type, dict->count, &view));
  for (size_t i = 0; i < dict->count; ++i) {
    mlx_var_t item = type == MLX_PY_KEYS ? dict->entries[i].key : dict->entries[i].value;
    if (type == MLX_PY_ITEMS)
      MLX_TRY(mlx_tuple_create(r, dict->entries[i].key, dict->entries[i].value, &item));
    MLX_TRY(mlx_list_push(r, view.list, item));
  }
  *out = view;
  return NULL;
}

static mlx_status_t dict_keys(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  return dict_view(r, call, MLX_PY_KEYS, out);
}

static mlx_status_t dict_values(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  return dict_view(r, call, MLX_PY_VALUES, out);
}

static mlx_status_t dict_items(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  return dict_view(r, call, MLX_PY_ITEMS, out);
}

static mlx_status_t dict_get(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  mlx_var_t *found;
  if (call->args->named) MLX_FAIL(r, "dict.get() takes no keyword arguments");
  MLX_TRY(mlx_dict_find(r, call->self.dict, &call->parameters[0], &found));
  *out = found ? *found : call->given[1] ? call->parameters[1] : mlx_none();
  return NULL;
}

static mlx_status_t dict_copy(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  MLX_TRY(mlx_dict_create(r, MLX_VAR_DICT, out));
  for (size_t i = 0; i < call->self.dict->count; ++i) {
    MLX_TRY(mlx_dict_put(r, out->dict, call->self.dict->entries[i].key, call->self.dict->entries[i].value));
  }
  return NULL;
}

static mlx_status_t list_count(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  int64_t count = 0;
  for (size_t i = 0; i < call->self.list->count; ++i) {
    bool equal;
    MLX_TRY(mlx_var_equal(r, &call->self.list->items[i], &call->parameters[0], &equal));
    count += equal;
  }
  *out = mlx_int(count);
  return mlx_render_charge(r, call->self.list->count * MLX_ITEM_WORK);
}

static mlx_status_t list_index(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  MLX_TRY(mlx_render_charge(r, call->self.list->count * MLX_ITEM_WORK));
  for (size_t i = 0; i < call->self.list->count; ++i) {
    bool equal;
    MLX_TRY(mlx_var_equal(r, &call->self.list->items[i], &call->parameters[0], &equal));
    if (!equal) continue;
    *out = mlx_int((int64_t)i);
    return NULL;
  }
  MLX_FAIL(r, "the value is not in the list");
}

static mlx_status_t list_copy(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  MLX_TRY(mlx_list_create(r, MLX_PY_LIST, call->self.list->count, out));
  for (size_t i = 0; i < call->self.list->count; ++i)
    MLX_TRY(mlx_list_push(r, out->list, call->self.list->items[i]));
  return NULL;
}

static mlx_status_t loop_cycle(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  if (!call->args->count) MLX_FAIL(r, "no items for cycling given");
  *out = call->args->positional[call->self.loop->index % call->args->count];
  return NULL;
}

static mlx_status_t loop_changed(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  mlx_var_t now;
  bool same;
  MLX_TRY(mlx_list_create(r, MLX_PY_TUPLE, call->args->count, &now));
  for (size_t i = 0; i < call->args->count; ++i)
    MLX_TRY(mlx_list_push(r, now.list, call->args->positional[i]));
  MLX_TRY(mlx_var_equal(r, &now, &call->self.loop->changed, &same));
  call->self.loop->changed = now;
  *out = mlx_bool(!same);
  return NULL;
}

const mlx_builtin_t *mlx_method_find(const mlx_var_t *object, mlx_span_t name) {
  static const mlx_builtin_t of_dict[] = {{"items", dict_items, ""},   {"keys", dict_keys, ""},
                                          {"values", dict_values, ""}, {"get", dict_get, "key |default"},
                                          {"copy", dict_copy, ""},     {0}};
  static const mlx_builtin_t of_list[] = {
      {"count", list_count, "value"}, {"index", list_index, "value"}, {0}};
  static const mlx_builtin_t copy = {"copy", list_copy, ""};
  static const mlx_builtin_t of_loop[] = {{"cycle", loop_cycle, "*"}, {"changed", loop_changed, "*"}, {0}};
  switch (object->kind) {
    case MLX_VAR_STRING: return mlx_string_method_find(name);
    case MLX_VAR_DICT: return mlx_builtin_find(of_dict, name);
    case MLX_VAR_LIST:
      if (object->list->type == MLX_PY_LIST && mlx_span_is(name, "copy")) return &copy;
      return object->list->type <= MLX_PY_TUPLE ? mlx_builtin_find(of_list, name) : NULL;
    case MLX_VAR_LOOP: return mlx_builtin_find(of_loop, name);
    default: return NULL;
  }
}
