// Values: creating, converting, iterating and comparing them as Python does. value_repr.c and value_json.c
// write them as text.
#include "template/value.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "template/characters.h"

// ----------------------------------------------------------------------------------------------------------
// Creating

mlx_status_t mlx_sink_to_string(mlx_render_t *r, mlx_sink_t *sink, mlx_var_t *out) {
  if (sink->failed)
    return mlx_render_error(r, MLX_UNSUPPORTED, "the template needs more than %zu bytes of memory",
                            r->arena.limit);
  *out = mlx_string(sink->data ? sink->data : "", sink->length);
  return mlx_render_charge(r, sink->length);
}

mlx_status_t mlx_undefined_create(mlx_render_t *r, mlx_var_t *out, const char *fmt, ...) {
  char message[256], *copy;
  va_list args;
  va_start(args, fmt);
  vsnprintf(message, sizeof message, fmt, args);
  va_end(args);
  const size_t length = strlen(message);
  MLX_TRY(mlx_arena_take(&r->arena, length + 1, 1, &copy));
  memcpy(copy, message, length);
  *out = (mlx_var_t){.kind = MLX_VAR_UNDEFINED, .text = {copy, length}};
  return NULL;
}

mlx_status_t mlx_var_expect_defined(const mlx_render_t *r, const mlx_var_t *v) {
  if (v->kind != MLX_VAR_UNDEFINED) return NULL;
  MLX_FAIL(r, "%.*s", (int)v->text.length, v->text.bytes);
}

mlx_status_t mlx_var_expect_number(const mlx_render_t *r, const mlx_var_t *v) {
  MLX_TRY(mlx_var_expect_defined(r, v));
  if (!mlx_var_is_number(v)) MLX_FAIL(r, "expected a number, not '%s'", mlx_var_type(v));
  return NULL;
}

static mlx_status_t grow(mlx_render_t *r, size_t size, size_t count, size_t *inout_capacity,
                         void *inout_items) {
  if (count < *inout_capacity) return NULL;
  void *old, *larger;
  const size_t capacity = count < 4 ? 4 : count * 2;
  memcpy(&old, inout_items, sizeof old);
  MLX_TRY(mlx_arena_take(&r->arena, capacity, size, &larger));
  if (count) memcpy(larger, old, count * size);
  memcpy(inout_items, &larger, sizeof larger);
  *inout_capacity = capacity;
  return NULL;
}

mlx_status_t mlx_list_create(mlx_render_t *r, mlx_py_type_t type, size_t capacity, mlx_var_t *out) {
  mlx_list_t *list;
  MLX_TRY(mlx_arena_take(&r->arena, 1, sizeof *list, &list));
  list->type = type;
  list->capacity = capacity;
  if (capacity) MLX_TRY(mlx_arena_take(&r->arena, capacity, sizeof *list->items, &list->items));
  *out = (mlx_var_t){.kind = MLX_VAR_LIST, .list = list};
  return NULL;
}

mlx_status_t mlx_list_push(mlx_render_t *r, mlx_list_t *list, mlx_var_t item) {
  MLX_TRY(grow(r, sizeof *list->items, list->count, &list->capacity, &list->items));
  list->items[list->count++] = item;
  return mlx_render_charge(r, 1);
}

mlx_status_t mlx_tuple_create(mlx_render_t *r, mlx_var_t first, mlx_var_t second, mlx_var_t *out) {
  MLX_TRY(mlx_list_create(r, MLX_PY_TUPLE, 2, out));
  out->list->items[0] = first;
  out->list->items[1] = second;
  out->list->count = 2;
  return NULL;
}

mlx_status_t mlx_dict_create(mlx_render_t *r, mlx_var_kind_t kind, mlx_var_t *out) {
  mlx_dict_t *dict;
  MLX_TRY(mlx_arena_take(&r->arena, 1, sizeof *dict, &dict));
  *out = (mlx_var_t){.kind = kind, .dict = dict};
  return NULL;
}

// As in Python, except that a tuple inside a tuple is not hashable.
static bool hashable(const mlx_var_t *v) {
  if (v->kind == MLX_VAR_DICT) return false;
  if (v->kind != MLX_VAR_LIST) return true;
  if (v->list->type != MLX_PY_TUPLE) return v->list->type != MLX_PY_LIST;
  for (size_t i = 0; i < v->list->count; ++i) {
    if (v->list->items[i].kind == MLX_VAR_LIST || v->list->items[i].kind == MLX_VAR_DICT) return false;
  }
  return true;
}

mlx_status_t mlx_dict_find(mlx_render_t *r, const mlx_dict_t *dict, const mlx_var_t *key, mlx_var_t **out) {
  *out = NULL;
  MLX_TRY(mlx_render_charge(r, dict->count * MLX_ITEM_WORK));
  for (size_t i = 0; i < dict->count; ++i) {
    bool equal;
    MLX_TRY(mlx_var_equal(r, &dict->entries[i].key, key, &equal));
    if (!equal) continue;
    *out = &dict->entries[i].value;
    return NULL;
  }
  return NULL;
}

mlx_var_t *mlx_dict_get(mlx_render_t *r, const mlx_dict_t *dict, mlx_span_t name) {
  mlx_var_t *found = NULL;
  size_t work = 0;
  for (size_t i = 0; dict && i < dict->count && !found; ++i) {
    const mlx_var_t *key = &dict->entries[i].key;
    work += MLX_ITEM_WORK;
    if (key->kind != MLX_VAR_STRING || key->text.length != name.length) continue;
    work += name.length;
    if (mlx_span_equal(key->text, name)) found = &dict->entries[i].value;
  }
  mlx_render_spend(r, work);
  return found;
}

mlx_status_t mlx_dict_put(mlx_render_t *r, mlx_dict_t *dict, mlx_var_t key, mlx_var_t value) {
  mlx_var_t *found;
  if (!hashable(&key)) MLX_FAIL(r, "unhashable type: '%s'", mlx_var_type(&key));
  MLX_TRY(mlx_dict_find(r, dict, &key, &found));
  if (found) {
    *found = value;
    return NULL;
  }
  MLX_TRY(grow(r, sizeof *dict->entries, dict->count, &dict->capacity, &dict->entries));
  dict->entries[dict->count++] = (mlx_entry_t){key, value};
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Types and items

const char *mlx_var_type(const mlx_var_t *v) {
  static const char *const kinds[] = {"Undefined", "NoneType", "bool",     "int",       "float",      "str",
                                      "list",      "dict",     "function", "Namespace", "LoopContext"};
  static const char *const list_types[] = {"list",        "tuple",      "range",    "dict_keys",
                                           "dict_values", "dict_items", "generator"};
  return v->kind == MLX_VAR_LIST ? list_types[v->list->type] : kinds[v->kind];
}

bool mlx_var_truth(const mlx_var_t *v) {
  switch (v->kind) {
    case MLX_VAR_UNDEFINED:
    case MLX_VAR_NONE: return false;
    case MLX_VAR_BOOL: return v->truth;
    case MLX_VAR_INT: return v->integer != 0;
    case MLX_VAR_FLOAT: return v->number != 0;
    case MLX_VAR_STRING: return v->text.length > 0;
    case MLX_VAR_LIST: return v->list->count > 0 || v->list->type == MLX_PY_GENERATOR;
    case MLX_VAR_DICT: return v->dict->count > 0;
    default: return true;
  }
}

bool mlx_var_is_iterable(const mlx_var_t *v) {
  return v->kind == MLX_VAR_UNDEFINED || v->kind == MLX_VAR_STRING || v->kind == MLX_VAR_LIST ||
         v->kind == MLX_VAR_DICT;
}

mlx_status_t mlx_var_length(mlx_render_t *r, const mlx_var_t *v, int64_t *out) {
  switch (v->kind) {
    case MLX_VAR_UNDEFINED: *out = 0; return NULL;
    case MLX_VAR_STRING:
      *out = (int64_t)mlx_span_characters(v->text);
      return mlx_render_charge(r, v->text.length);
    case MLX_VAR_DICT: *out = (int64_t)v->dict->count; return NULL;
    case MLX_VAR_LOOP: *out = (int64_t)v->loop->count; return NULL;
    case MLX_VAR_LIST:
      if (v->list->type == MLX_PY_GENERATOR) break;
      *out = (int64_t)v->list->count;
      return NULL;
    default: break;
  }
  MLX_FAIL(r, "object of type '%s' has no len()", mlx_var_type(v));
}

mlx_status_t mlx_var_items(mlx_render_t *r, const mlx_var_t *v, const mlx_var_t **out_items,
                           size_t *out_count) {
  mlx_var_t list;
  *out_items = NULL;
  *out_count = 0;
  switch (v->kind) {
    case MLX_VAR_UNDEFINED: return NULL;
    case MLX_VAR_LIST:
      *out_items = v->list->items;
      *out_count = v->list->count;
      if (v->list->type == MLX_PY_GENERATOR) v->list->count = 0;
      return NULL;
    case MLX_VAR_STRING:
      MLX_TRY(mlx_list_create(r, MLX_PY_LIST, v->text.length, &list));
      for (size_t at = 0, length; at < v->text.length; at += length) {
        mlx_character_at(v->text.bytes + at, &length);
        MLX_TRY(mlx_list_push(r, list.list, mlx_string(v->text.bytes + at, length)));
      }
      break;
    case MLX_VAR_DICT:
      MLX_TRY(mlx_list_create(r, MLX_PY_LIST, v->dict->count, &list));
      for (size_t i = 0; i < v->dict->count; ++i)
        MLX_TRY(mlx_list_push(r, list.list, v->dict->entries[i].key));
      break;
    default: MLX_FAIL(r, "'%s' object is not iterable", mlx_var_type(v));
  }
  *out_items = list.list->items;
  *out_count = list.list->count;
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Comparing

static mlx_status_t lists_equal(mlx_render_t *r, const mlx_list_t *a, const mlx_list_t *b, bool *out) {
  *out = a == b;
  if (*out || a->type != b->type || a->count != b->count || a->type == MLX_PY_GENERATOR ||
      a->type == MLX_PY_VALUES)
    return NULL;
  *out = true;
  MLX_TRY(mlx_render_enter(r));
  MLX_TRY(mlx_render_charge(r, a->count * MLX_ITEM_WORK));
  for (size_t i = 0; i < a->count && *out; ++i) MLX_TRY(mlx_var_equal(r, &a->items[i], &b->items[i], out));
  --r->depth;
  return NULL;
}

static mlx_status_t dicts_equal(mlx_render_t *r, const mlx_dict_t *a, const mlx_dict_t *b, bool *out) {
  *out = a->count == b->count;
  MLX_TRY(mlx_render_enter(r));
  for (size_t i = 0; i < a->count && *out; ++i) {
    mlx_var_t *other;
    MLX_TRY(mlx_dict_find(r, b, &a->entries[i].key, &other));
    *out = other != NULL;
    if (other) MLX_TRY(mlx_var_equal(r, &a->entries[i].value, other, out));
  }
  --r->depth;
  return NULL;
}

static int number_order(const mlx_var_t *a, const mlx_var_t *b) {
  if (mlx_var_is_integer(a) && mlx_var_is_integer(b))
    return (mlx_var_integer(a) > mlx_var_integer(b)) - (mlx_var_integer(a) < mlx_var_integer(b));
  return (mlx_var_number(a) > mlx_var_number(b)) - (mlx_var_number(a) < mlx_var_number(b));
}

mlx_status_t mlx_var_equal(mlx_render_t *r, const mlx_var_t *a, const mlx_var_t *b, bool *out) {
  if (mlx_var_is_number(a) && mlx_var_is_number(b)) {
    bool has_nan =
        (a->kind == MLX_VAR_FLOAT && isnan(a->number)) || (b->kind == MLX_VAR_FLOAT && isnan(b->number));
    *out = !has_nan && number_order(a, b) == 0;
    return NULL;
  }
  *out = a->kind == b->kind;
  if (!*out) return NULL;
  switch (a->kind) {
    case MLX_VAR_STRING:
      *out = a->text.length == b->text.length;
      if (!*out || a->text.bytes == b->text.bytes) return NULL;
      *out = mlx_span_equal(a->text, b->text);
      return mlx_render_charge(r, a->text.length);
    case MLX_VAR_LIST: return lists_equal(r, a->list, b->list, out);
    case MLX_VAR_DICT: return dicts_equal(r, a->dict, b->dict, out);
    case MLX_VAR_FUNCTION: *out = a->function == b->function; return NULL;
    case MLX_VAR_NAMESPACE: *out = a->dict == b->dict; return NULL;
    case MLX_VAR_LOOP: *out = a->loop == b->loop; return NULL;
    default: return NULL;
  }
}

static mlx_status_t list_order(mlx_render_t *r, const mlx_list_t *a, const mlx_list_t *b, int *out) {
  MLX_TRY(mlx_render_enter(r));
  for (size_t i = 0; i < a->count && i < b->count; ++i) {
    bool equal;
    MLX_TRY(mlx_render_charge(r, MLX_ITEM_WORK));
    MLX_TRY(mlx_var_equal(r, &a->items[i], &b->items[i], &equal));
    if (equal) continue;
    --r->depth;
    return mlx_var_order(r, &a->items[i], &b->items[i], out);
  }
  --r->depth;
  *out = (a->count > b->count) - (a->count < b->count);
  return NULL;
}

mlx_status_t mlx_var_order(mlx_render_t *r, const mlx_var_t *a, const mlx_var_t *b, int *out) {
  MLX_TRY(mlx_var_expect_defined(r, a));
  MLX_TRY(mlx_var_expect_defined(r, b));
  MLX_TRY(mlx_render_charge(r, 1));
  if (mlx_var_is_number(a) && mlx_var_is_number(b)) {
    *out = number_order(a, b);
    return NULL;
  }
  if (a->kind == MLX_VAR_STRING && b->kind == MLX_VAR_STRING) {
    size_t shorter = a->text.length < b->text.length ? a->text.length : b->text.length;
    int order = shorter ? memcmp(a->text.bytes, b->text.bytes, shorter) : 0;
    *out = order ? (order > 0) - (order < 0)
                 : (a->text.length > b->text.length) - (a->text.length < b->text.length);
    return mlx_render_charge(r, shorter);
  }
  if (a->kind == MLX_VAR_LIST && b->kind == MLX_VAR_LIST && a->list->type == b->list->type &&
      a->list->type <= MLX_PY_TUPLE) {
    return list_order(r, a->list, b->list, out);
  }
  MLX_FAIL(r, "'%s' and '%s' cannot be ordered", mlx_var_type(a), mlx_var_type(b));
}

mlx_status_t mlx_var_contains(mlx_render_t *r, const mlx_var_t *haystack, const mlx_var_t *needle,
                              bool *out) {
  const mlx_var_t *items;
  size_t count;
  *out = false;
  if (haystack->kind == MLX_VAR_STRING) {
    if (needle->kind != MLX_VAR_STRING) {
      MLX_TRY(mlx_var_expect_defined(r, needle));
      MLX_FAIL(r, "'in <string>' requires string as left operand, not %s", mlx_var_type(needle));
    }
    MLX_TRY(mlx_render_charge(r, haystack->text.length));
    *out = !needle->text.length ||
           memmem(haystack->text.bytes, haystack->text.length, needle->text.bytes, needle->text.length);
    return NULL;
  }
  if (haystack->kind == MLX_VAR_DICT) {
    mlx_var_t *found;
    if (!hashable(needle)) MLX_FAIL(r, "unhashable type: '%s'", mlx_var_type(needle));
    MLX_TRY(mlx_dict_find(r, haystack->dict, needle, &found));
    *out = found != NULL;
    return NULL;
  }
  MLX_TRY(mlx_var_items(r, haystack, &items, &count));
  MLX_TRY(mlx_render_charge(r, count * MLX_ITEM_WORK));
  for (size_t i = 0; i < count && !*out; ++i) MLX_TRY(mlx_var_equal(r, &items[i], needle, out));
  return NULL;
}
