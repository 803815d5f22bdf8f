// Attributes, items and slices, with jinja2's rules: a.b is an attribute or else an item, and a['b'] is an
// item or else an attribute. A missing one is undefined, which is an error only when it is used. Names that
// the sandbox blocks (__names__, methods that change a list or dict) are undefined too.
#include "template/lookup.h"

#include "template/builtin.h"
#include "template/characters.h"
#include "template/node.h"
#include "template/value_repr.h"

// ----------------------------------------------------------------------------------------------------------
// Attributes and items

static bool is_blocked(const mlx_var_t *object, mlx_span_t name) {
  static const char *const of_list[] = {"append", "clear",   "extend", "insert", "pop",
                                        "remove", "reverse", "sort",   NULL};
  static const char *const of_dict[] = {"clear", "pop", "popitem", "setdefault", "update", NULL};
  const char *const *names = mlx_var_is_list(object, MLX_PY_LIST) ? of_list
                             : object->kind == MLX_VAR_DICT       ? of_dict
                                                                  : NULL;
  for (; names && *names; ++names) {
    if (mlx_span_is(name, *names)) return true;
  }
  return name.length > 4 && !memcmp(name.bytes, "__", 2) && !memcmp(name.bytes + name.length - 2, "__", 2);
}

static mlx_status_t loop_attribute(mlx_render_t *r, const mlx_template_loop_t *loop, mlx_span_t name,
                                   mlx_var_t *out, bool *out_found) {
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
    if (!index) return mlx_undefined_create(r, out, "there is no previous item");
    *out = loop->items[index - 1];
  } else if (mlx_span_is(name, "nextitem")) {
    if (index + 1 == count) return mlx_undefined_create(r, out, "there is no next item");
    *out = loop->items[index + 1];
  } else {
    *out_found = false;
  }
  return NULL;
}

static mlx_status_t macro_attribute(mlx_render_t *r, const mlx_template_node_t *macro, mlx_span_t name,
                                    mlx_var_t *out, bool *out_found) {
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
    MLX_TRY(mlx_list_create(r, MLX_PY_TUPLE, 0, out));
    for (const mlx_template_node_t *p = macro->first; p; p = p->next)
      MLX_TRY(mlx_list_push(r, out->list, mlx_string(p->text.bytes, p->text.length)));
  } else {
    *out_found = false;
  }
  return NULL;
}

// Python's getattr. A name that the sandbox blocks counts as found, with an undefined value.
static mlx_status_t get_attribute(mlx_render_t *r, const mlx_var_t *object, mlx_span_t name, mlx_var_t *out,
                                  bool *out_found) {
  const mlx_builtin_t *method = r->registry->find_method(object, name);
  *out_found = true;
  if (method) {
    mlx_template_function_t *function;
    MLX_TRY(mlx_arena_take(&r->arena, 1, sizeof *function, &function));
    *function = (mlx_template_function_t){.builtin = method, .self = *object};
    *out = (mlx_var_t){.kind = MLX_VAR_FUNCTION, .function = function};
    return NULL;
  }
  if (is_blocked(object, name)) {
    return mlx_undefined_create(r, out, "access to attribute '%.*s' of '%s' object is unsafe.",
                                (int)name.length, name.bytes, mlx_var_type(object));
  }
  if (object->kind == MLX_VAR_LOOP) return loop_attribute(r, object->loop, name, out, out_found);
  if (object->kind == MLX_VAR_FUNCTION && object->function->macro)
    return macro_attribute(r, object->function->macro, name, out, out_found);
  const mlx_var_t *named = object->kind == MLX_VAR_NAMESPACE ? mlx_dict_get(r, object->dict, name) : NULL;
  *out_found = named != NULL;
  if (named) *out = *named;
  return NULL;
}

static mlx_status_t missing_attribute(mlx_render_t *r, const mlx_var_t *object, mlx_span_t name,
                                      mlx_var_t *out) {
  return mlx_undefined_create(r, out, "'%s%s' has no attribute '%.*s'",
                              object->kind == MLX_VAR_NONE ? "None" : mlx_var_type(object),
                              object->kind == MLX_VAR_NONE ? "" : " object", (int)name.length, name.bytes);
}

mlx_status_t mlx_var_attribute(mlx_render_t *r, const mlx_var_t *object, mlx_span_t name, mlx_var_t *out) {
  bool found;
  MLX_TRY(mlx_var_expect_defined(r, object));
  MLX_TRY(get_attribute(r, object, name, out, &found));
  if (found) return NULL;
  const mlx_var_t *item = object->kind == MLX_VAR_DICT ? mlx_dict_get(r, object->dict, name) : NULL;
  if (!item) return missing_attribute(r, object, name, out);
  *out = *item;
  return NULL;
}

// Character |index| of a string, from the end if negative; false if out of range.
static bool character_at(mlx_span_t text, int64_t index, mlx_span_t *out) {
  if (index < 0) index += (int64_t)mlx_span_characters(text);
  if (index < 0) return false;
  for (size_t at = 0, length; at < text.length; at += length, --index) {
    mlx_character_at(text.bytes + at, &length);
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
  } else if (object->kind == MLX_VAR_LIST && object->list->type <= MLX_PY_RANGE && mlx_var_is_integer(key)) {
    int64_t index = mlx_var_integer(key), count = (int64_t)object->list->count;
    if (index < 0 && index >= -count) index += count;
    *out_found = index >= 0 && index < count;
    if (*out_found) *out = object->list->items[index];
  } else if (object->kind == MLX_VAR_STRING && mlx_var_is_integer(key)) {
    mlx_span_t character;
    MLX_TRY(mlx_render_charge(r, object->text.length));
    *out_found = character_at(object->text, mlx_var_integer(key), &character);
    if (*out_found) *out = mlx_string(character.bytes, character.length);
    if (*out_found) out->markup = object->markup;
  }
  return NULL;
}

mlx_status_t mlx_var_item(mlx_render_t *r, const mlx_var_t *object, const mlx_var_t *key, mlx_var_t *out) {
  bool found;
  mlx_span_t name;
  MLX_TRY(mlx_var_expect_defined(r, object));
  MLX_TRY(get_item(r, object, key, out, &found));
  if (!found && key->kind == MLX_VAR_STRING) MLX_TRY(get_attribute(r, object, key->text, out, &found));
  if (found) return NULL;
  MLX_TRY(mlx_var_text(r, key, &name));
  return missing_attribute(r, object, name, out);
}

// ----------------------------------------------------------------------------------------------------------
// Slices

// Reads a bound of a slice and clamps it to [lowest, highest].
static mlx_status_t read_bound(mlx_render_t *r, const mlx_var_t *bound, int64_t count, int64_t lowest,
                               int64_t highest, int64_t fallback, int64_t *out) {
  *out = fallback;
  if (bound->kind == MLX_VAR_NONE) return NULL;
  MLX_TRY(mlx_var_expect_defined(r, bound));
  if (!mlx_var_is_integer(bound)) MLX_FAIL(r, "slice indices must be integers or None");
  int64_t value = mlx_var_integer(bound);
  if (value < 0) value = value < -count ? lowest : value + count;
  *out = value < lowest ? lowest : value > highest ? highest : value;
  return NULL;
}

mlx_status_t mlx_var_slice(mlx_render_t *r, const mlx_var_t *object, const mlx_var_t *start,
                           const mlx_var_t *stop, const mlx_var_t *step, mlx_var_t *out) {
  const mlx_var_t *items;
  size_t item_count;
  MLX_TRY(mlx_var_expect_defined(r, object));
  const bool is_text = object->kind == MLX_VAR_STRING;
  if (!is_text && (object->kind != MLX_VAR_LIST || object->list->type > MLX_PY_RANGE)) {
    MLX_FAIL(r, "'%s' object cannot be sliced", mlx_var_type(object));
  }
  MLX_TRY(mlx_var_items(r, object, &items, &item_count));
  const int64_t count = (int64_t)item_count;
  int64_t by = 1, from, to;
  if (step->kind != MLX_VAR_NONE) {
    MLX_TRY(mlx_var_expect_defined(r, step));
    if (!mlx_var_is_integer(step)) MLX_FAIL(r, "slice indices must be integers or None");
    by = mlx_var_integer(step);
    if (!by) MLX_FAIL(r, "slice step cannot be zero");
    if (by < -count - 1) by = -count - 1;
    if (by > count + 1) by = count + 1;
  }
  MLX_TRY(read_bound(r, start, count, by < 0 ? -1 : 0, by < 0 ? count - 1 : count, by < 0 ? count - 1 : 0,
                     &from));
  MLX_TRY(read_bound(r, stop, count, by < 0 ? -1 : 0, by < 0 ? count - 1 : count, by < 0 ? -1 : count, &to));
  mlx_sink_t sink = {.arena = &r->arena};
  mlx_var_t list;
  if (!is_text) MLX_TRY(mlx_list_create(r, object->list->type, 0, &list));
  for (int64_t i = from; by < 0 ? i > to : i < to; i += by) {
    if (is_text) {
      mlx_sink_append(&sink, items[i].text.bytes, items[i].text.length);
    } else {
      MLX_TRY(mlx_list_push(r, list.list, items[i]));
    }
  }
  if (is_text) {
    MLX_TRY(mlx_sink_to_string(r, &sink, out));
    out->markup = object->markup;
  } else {
    *out = list;
  }
  return NULL;
}
