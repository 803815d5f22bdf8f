// Attributes, items and slices, and the methods of lists and dicts. As jinja2 has it: a.b is an attribute or
// else an item, a['b'] an item or else an attribute, and neither is undefined, which is an error only once it
// is used. What the sandbox keeps back (underscored names, methods that change a list or dict) is undefined
// too.
#include "template/internal.h"

const mlx_builtin_t *mlx_builtin_find(const mlx_builtin_t *table, mlx_span_t name) {
  for (; table->name; ++table) {
    if (mlx_span_is(name, table->name)) return table;
  }
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Methods

static mlx_status_t dict_view(mlx_render_t *r, const mlx_call_t *call, mlx_list_shape_t shape,
                              mlx_var_t *out) {
  const mlx_dict_t *dict = call->self.dict;
  mlx_var_t view;
  MLX_TRY(mlx_new_list(r, shape, dict->count, &view));
  for (size_t i = 0; i < dict->count; ++i) {
    mlx_var_t item = shape == MLX_SHAPE_KEYS ? dict->entries[i].key : dict->entries[i].value;
    if (shape == MLX_SHAPE_ITEMS)
      MLX_TRY(mlx_new_tuple(r, dict->entries[i].key, dict->entries[i].value, &item));
    MLX_TRY(mlx_list_push(r, view.list, item));
  }
  *out = view;
  return NULL;
}

static mlx_status_t dict_keys(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  return dict_view(r, call, MLX_SHAPE_KEYS, out);
}
static mlx_status_t dict_values(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  return dict_view(r, call, MLX_SHAPE_VALUES, out);
}
static mlx_status_t dict_items(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  return dict_view(r, call, MLX_SHAPE_ITEMS, out);
}

static mlx_status_t dict_get(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  mlx_var_t *found;
  if (call->args->named) MLX_FAIL(r, "dict.get() takes no keyword arguments");
  MLX_TRY(mlx_dict_find(r, call->self.dict, &call->parameters[0], &found));
  *out = found ? *found : call->given[1] ? call->parameters[1] : mlx_none();
  return NULL;
}

static mlx_status_t dict_copy(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  MLX_TRY(mlx_new_dict(r, MLX_VAR_DICT, out));
  for (size_t i = 0; i < call->self.dict->count; ++i) {
    MLX_TRY(mlx_dict_put(r, out->dict, call->self.dict->entries[i].key, call->self.dict->entries[i].value));
  }
  return NULL;
}

static mlx_status_t list_count(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  int64_t count = 0;
  for (size_t i = 0; i < call->self.list->count; ++i) {
    bool equal;
    MLX_TRY(mlx_var_equal(r, &call->self.list->items[i], &call->parameters[0], &equal));
    count += equal;
  }
  *out = mlx_int(count);
  return mlx_render_charge(r, call->self.list->count);
}

static mlx_status_t list_index(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  MLX_TRY(mlx_render_charge(r, call->self.list->count));
  for (size_t i = 0; i < call->self.list->count; ++i) {
    bool equal;
    MLX_TRY(mlx_var_equal(r, &call->self.list->items[i], &call->parameters[0], &equal));
    if (!equal) continue;
    *out = mlx_int((int64_t)i);
    return NULL;
  }
  MLX_FAIL(r, "the value is not in the list");
}

static mlx_status_t list_copy(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  MLX_TRY(mlx_new_list(r, MLX_SHAPE_LIST, call->self.list->count, out));
  for (size_t i = 0; i < call->self.list->count; ++i)
    MLX_TRY(mlx_list_push(r, out->list, call->self.list->items[i]));
  return NULL;
}

static mlx_status_t loop_cycle(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  if (!call->args->count) MLX_FAIL(r, "no items for cycling given");
  *out = call->args->positional[call->self.loop->index % call->args->count];
  return NULL;
}

static mlx_status_t loop_changed(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out) {
  mlx_var_t now;
  bool same;
  MLX_TRY(mlx_new_list(r, MLX_SHAPE_TUPLE, call->args->count, &now));
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
      if (object->list->shape == MLX_SHAPE_LIST && mlx_span_is(name, "copy")) return &copy;
      return object->list->shape <= MLX_SHAPE_TUPLE ? mlx_builtin_find(of_list, name) : NULL;
    case MLX_VAR_LOOP: return mlx_builtin_find(of_loop, name);
    default: return NULL;
  }
}

// ----------------------------------------------------------------------------------------------------------
// Attributes and items

static bool is_kept_back(const mlx_var_t *object, mlx_span_t name) {
  static const char *const of_list[] = {"append", "clear",   "extend", "insert", "pop",
                                        "remove", "reverse", "sort",   NULL};
  static const char *const of_dict[] = {"clear", "pop", "popitem", "setdefault", "update", NULL};
  const char *const *names = mlx_is_list(object, MLX_SHAPE_LIST) ? of_list
                             : object->kind == MLX_VAR_DICT      ? of_dict
                                                                 : NULL;
  for (; names && *names; ++names) {
    if (mlx_span_is(name, *names)) return true;
  }
  return name.length > 4 && !memcmp(name.bytes, "__", 2) && !memcmp(name.bytes + name.length - 2, "__", 2);
}

static mlx_status_t loop_attribute(mlx_render_t *r, const mlx_loop_t *loop, mlx_span_t name, mlx_var_t *out,
                                   bool *out_found) {
  const int64_t index = (int64_t)loop->index, count = (int64_t)loop->count;
  const struct {
    const char *name;
    mlx_var_t value;
  } values[] = {{"index", mlx_int(index + 1)},        {"index0", mlx_int(index)},
                {"revindex", mlx_int(count - index)}, {"revindex0", mlx_int(count - index - 1)},
                {"first", mlx_bool(index == 0)},      {"last", mlx_bool(index + 1 == count)},
                {"length", mlx_int(count)},           {"depth", mlx_int(loop->depth + 1)},
                {"depth0", mlx_int(loop->depth)}};
  *out_found = true;
  for (size_t i = 0; i < sizeof values / sizeof *values; ++i) {
    if (!mlx_span_is(name, values[i].name)) continue;
    *out = values[i].value;
    return NULL;
  }
  if (mlx_span_is(name, "previtem")) {
    if (!index) return mlx_undefined(r, out, "there is no previous item");
    *out = loop->items[index - 1];
  } else if (mlx_span_is(name, "nextitem")) {
    if (index + 1 == count) return mlx_undefined(r, out, "there is no next item");
    *out = loop->items[index + 1];
  } else {
    *out_found = false;
  }
  return NULL;
}

static mlx_status_t macro_attribute(mlx_render_t *r, const mlx_node_t *macro, mlx_span_t name, mlx_var_t *out,
                                    bool *out_found) {
  *out_found = true;
  if (mlx_span_is(name, "name")) {
    *out = mlx_string(macro->text.bytes, macro->text.length);
  } else if (mlx_span_is(name, "caller")) {
    *out = mlx_bool(macro->uses_caller);
  } else if (mlx_span_is(name, "catch_kwargs")) {
    *out = mlx_bool(macro->uses_kwargs);
  } else if (mlx_span_is(name, "catch_varargs")) {
    *out = mlx_bool(macro->uses_varargs);
  } else if (mlx_span_is(name, "arguments")) {
    MLX_TRY(mlx_new_list(r, MLX_SHAPE_TUPLE, 0, out));
    for (const mlx_node_t *p = macro->first; p; p = p->next)
      MLX_TRY(mlx_list_push(r, out->list, mlx_string(p->text.bytes, p->text.length)));
  } else {
    *out_found = false;
  }
  return NULL;
}

// Python's getattr; what the sandbox keeps back is found, and undefined.
static mlx_status_t get_attribute(mlx_render_t *r, const mlx_var_t *object, mlx_span_t name, mlx_var_t *out,
                                  bool *out_found) {
  const mlx_builtin_t *method = mlx_method_find(object, name);
  *out_found = true;
  if (method) {
    mlx_function_t *function;
    MLX_TRY(mlx_arena_take(&r->arena, 1, sizeof *function, &function));
    *function = (mlx_function_t){.builtin = method, .self = *object};
    *out = (mlx_var_t){.kind = MLX_VAR_FUNCTION, .function = function};
    return NULL;
  }
  if (is_kept_back(object, name)) {
    return mlx_undefined(r, out, "access to attribute '%.*s' of '%s' object is unsafe.", (int)name.length,
                         name.bytes, mlx_var_type(object));
  }
  if (object->kind == MLX_VAR_LOOP) return loop_attribute(r, object->loop, name, out, out_found);
  if (object->kind == MLX_VAR_FUNCTION && object->function->macro)
    return macro_attribute(r, object->function->macro, name, out, out_found);
  const mlx_var_t *named = object->kind == MLX_VAR_NAMESPACE ? mlx_dict_named(object->dict, name) : NULL;
  *out_found = named != NULL;
  if (named) *out = *named;
  return NULL;
}

static mlx_status_t nothing_there(mlx_render_t *r, const mlx_var_t *object, mlx_span_t name, mlx_var_t *out) {
  return mlx_undefined(r, out, "'%s%s' has no attribute '%.*s'",
                       object->kind == MLX_VAR_NONE ? "None" : mlx_var_type(object),
                       object->kind == MLX_VAR_NONE ? "" : " object", (int)name.length, name.bytes);
}

mlx_status_t mlx_var_attribute(mlx_render_t *r, const mlx_var_t *object, mlx_span_t name, mlx_var_t *out) {
  bool found;
  MLX_TRY(mlx_need_defined(r, object));
  MLX_TRY(get_attribute(r, object, name, out, &found));
  if (found) return NULL;
  const mlx_var_t *item = object->kind == MLX_VAR_DICT ? mlx_dict_named(object->dict, name) : NULL;
  if (!item) return nothing_there(r, object, name, out);
  *out = *item;
  return mlx_render_charge(r, object->dict->count);
}

// Character |index| of a text; false past its end.
static bool character_at(mlx_span_t text, int64_t index, mlx_span_t *out) {
  if (index < 0) index += (int64_t)mlx_span_characters(text);
  if (index < 0) return false;
  for (size_t at = 0, length; at < text.length; at += length, --index) {
    mlx_template_character(text.bytes + at, &length);
    if (index) continue;
    *out = (mlx_span_t){text.bytes + at, length};
    return true;
  }
  return false;
}

static mlx_status_t get_item(mlx_render_t *r, const mlx_var_t *object, const mlx_var_t *key, mlx_var_t *out,
                             bool *out_found) {
  *out_found = false;
  if (object->kind == MLX_VAR_DICT) {
    mlx_var_t *value;
    MLX_TRY(mlx_dict_find(r, object->dict, key, &value));
    *out_found = value != NULL;
    if (value) *out = *value;
  } else if (object->kind == MLX_VAR_LIST && object->list->shape <= MLX_SHAPE_RANGE && mlx_is_whole(key)) {
    int64_t index = mlx_whole(key), count = (int64_t)object->list->count;
    if (index < 0 && index >= -count) index += count;
    *out_found = index >= 0 && index < count;
    if (*out_found) *out = object->list->items[index];
  } else if (object->kind == MLX_VAR_STRING && mlx_is_whole(key)) {
    mlx_span_t character;
    MLX_TRY(mlx_render_charge(r, object->text.length));
    *out_found = character_at(object->text, mlx_whole(key), &character);
    if (*out_found) *out = mlx_string(character.bytes, character.length);
    if (*out_found) out->markup = object->markup;
  }
  return NULL;
}

mlx_status_t mlx_var_item(mlx_render_t *r, const mlx_var_t *object, const mlx_var_t *key, mlx_var_t *out) {
  bool found;
  mlx_span_t name;
  MLX_TRY(mlx_need_defined(r, object));
  MLX_TRY(get_item(r, object, key, out, &found));
  if (!found && key->kind == MLX_VAR_STRING) MLX_TRY(get_attribute(r, object, key->text, out, &found));
  if (found) return NULL;
  MLX_TRY(mlx_var_text(r, key, &name));
  return nothing_there(r, object, name, out);
}

// ----------------------------------------------------------------------------------------------------------
// Slices

static mlx_status_t read_bound(mlx_render_t *r, const mlx_var_t *bound, int64_t count, int64_t lowest,
                               int64_t highest, int64_t fallback, int64_t *out) {
  *out = fallback;
  if (bound->kind == MLX_VAR_NONE) return NULL;
  MLX_TRY(mlx_need_defined(r, bound));
  if (!mlx_is_whole(bound)) MLX_FAIL(r, "slice indices must be integers or None");
  int64_t value = mlx_whole(bound);
  if (value < 0) value = value < -count ? lowest : value + count;
  *out = value < lowest ? lowest : value > highest ? highest : value;
  return NULL;
}

mlx_status_t mlx_var_slice(mlx_render_t *r, const mlx_var_t *object, const mlx_var_t *start,
                           const mlx_var_t *stop, const mlx_var_t *step, mlx_var_t *out) {
  const mlx_var_t *items;
  size_t item_count;
  MLX_TRY(mlx_need_defined(r, object));
  const bool is_text = object->kind == MLX_VAR_STRING;
  if (!is_text && (object->kind != MLX_VAR_LIST || object->list->shape > MLX_SHAPE_RANGE)) {
    MLX_FAIL(r, "'%s' object cannot be sliced", mlx_var_type(object));
  }
  MLX_TRY(mlx_var_items(r, object, &items, &item_count));
  const int64_t count = (int64_t)item_count;
  int64_t by = 1, from, to;
  if (step->kind != MLX_VAR_NONE) {
    MLX_TRY(mlx_need_defined(r, step));
    if (!mlx_is_whole(step)) MLX_FAIL(r, "slice indices must be integers or None");
    by = mlx_whole(step);
    if (!by) MLX_FAIL(r, "slice step cannot be zero");
    if (by < -count - 1) by = -count - 1;
    if (by > count + 1) by = count + 1;
  }
  MLX_TRY(read_bound(r, start, count, by < 0 ? -1 : 0, by < 0 ? count - 1 : count, by < 0 ? count - 1 : 0,
                     &from));
  MLX_TRY(read_bound(r, stop, count, by < 0 ? -1 : 0, by < 0 ? count - 1 : count, by < 0 ? -1 : count, &to));
  mlx_sink_t sink = {.arena = &r->arena};
  mlx_var_t list;
  if (!is_text) MLX_TRY(mlx_new_list(r, object->list->shape, 0, &list));
  for (int64_t i = from; by < 0 ? i > to : i < to; i += by) {
    if (is_text) {
      mlx_sink_append(&sink, items[i].text.bytes, items[i].text.length);
    } else {
      MLX_TRY(mlx_list_push(r, list.list, items[i]));
    }
  }
  if (is_text) {
    MLX_TRY(mlx_sink_take(r, &sink, out));
    out->markup = object->markup;
  } else {
    *out = list;
  }
  return NULL;
}
