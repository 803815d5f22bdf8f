// Filters of sequences: sorting, grouping, mapping, selecting. Where jinja2 returns a generator, the result
// is a list that can be read once.
#include "template/builtin.h"
#include "template/characters.h"
#include "template/filters.h"
#include "template/lookup.h"
#include "template/methods.h"
#include "template/operators.h"
#include "template/value_repr.h"

// ----------------------------------------------------------------------------------------------------------
// Attributes of items

// Looks up a path such as "function.name" or 0 in an item, as jinja2's make_attrgetter does. |fallback| (or
// NULL) replaces an undefined step.
static mlx_status_t get_path(mlx_render_t *r, const mlx_var_t *item, const mlx_var_t *path,
                             const mlx_var_t *fallback, mlx_var_t *out) {
  *out = *item;
  if (path->kind != MLX_VAR_STRING) {
    MLX_TRY(mlx_var_item(r, item, path, out));
    if (out->kind == MLX_VAR_UNDEFINED && fallback) *out = *fallback;
    return NULL;
  }
  for (size_t start = 0, at = 0; at <= path->text.length; ++at) {
    if (at < path->text.length && path->text.bytes[at] != '.') continue;
    mlx_var_t object = *out, key = mlx_string(path->text.bytes + start, at - start);
    bool digits = at > start && at - start < 18;
    int64_t index = 0;
    for (size_t i = start; i < at && digits; ++i) {
      digits = path->text.bytes[i] >= '0' && path->text.bytes[i] <= '9';
      index = index * 10 + (path->text.bytes[i] - '0');
    }
    if (digits) key = mlx_int(index);
    MLX_TRY(mlx_var_item(r, &object, &key, out));
    if (out->kind == MLX_VAR_UNDEFINED && fallback) *out = *fallback;
    start = at + 1;
  }
  return NULL;
}

static mlx_status_t ignore_case(mlx_render_t *r, mlx_var_t *inout) {
  if (inout->kind != MLX_VAR_STRING) return NULL;
  mlx_sink_t sink = {.arena = &r->arena};
  mlx_sink_case(&sink, inout->text, MLX_LOWER);
  return mlx_sink_to_string(r, &sink, inout);
}

// The key that an item is compared by: itself or an attribute, in lower case unless |case_sensitive|.
static mlx_status_t key_of(mlx_render_t *r, const mlx_var_t *item, const mlx_var_t *attribute,
                           bool case_sensitive, mlx_var_t *out) {
  *out = *item;
  if (attribute) MLX_TRY(get_path(r, item, attribute, NULL, out));
  return case_sensitive ? NULL : ignore_case(r, out);
}

// ----------------------------------------------------------------------------------------------------------
// Items

static mlx_status_t filter_length(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  int64_t length;
  MLX_TRY(mlx_var_length(r, &call->self, &length));
  *out = mlx_int(length);
  return NULL;
}

static mlx_status_t copy_items(mlx_render_t *r, const mlx_var_t *from, mlx_py_type_t type, mlx_var_t *out) {
  const mlx_var_t *items;
  size_t count;
  mlx_var_t list;
  MLX_TRY(mlx_var_items(r, from, &items, &count));
  MLX_TRY(mlx_list_create(r, type, count, &list));
  for (size_t i = 0; i < count; ++i) MLX_TRY(mlx_list_push(r, list.list, items[i]));
  *out = list;
  return NULL;
}

static mlx_status_t filter_list(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  return copy_items(r, &call->self, MLX_PY_LIST, out);
}

static mlx_status_t filter_items(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  if (call->self.kind == MLX_VAR_UNDEFINED) return mlx_list_create(r, MLX_PY_GENERATOR, 0, out);
  if (call->self.kind != MLX_VAR_DICT) MLX_FAIL(r, "Can only get item pairs from a mapping.");
  MLX_TRY(mlx_builtin_call(r, mlx_method_find(&call->self, (mlx_span_t){"items", 5}), &call->self,
                           &(mlx_args_t){0}, out));
  out->list->type = MLX_PY_GENERATOR;
  return NULL;
}

static mlx_status_t filter_first(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  const mlx_var_t *items;
  size_t count;
  const bool is_generator = mlx_var_is_list(&call->self, MLX_PY_GENERATOR);
  MLX_TRY(mlx_call_items(r, call, &items, &count));
  if (!count) return mlx_undefined_create(r, out, "No first item, sequence was empty.");
  *out = items[0];
  if (is_generator) {  // consumes only the first item
    ++call->self.list->items;
    call->self.list->count = count - 1;
    call->self.list->capacity = 0;
  }
  return NULL;
}

static mlx_status_t expect_reversible(mlx_render_t *r, const mlx_var_t *v) {
  if (!mlx_var_is_iterable(v) || mlx_var_is_list(v, MLX_PY_GENERATOR))
    MLX_FAIL(r, "'%s' object is not reversible", mlx_var_type(v));
  return NULL;
}

static mlx_status_t filter_last(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  const mlx_var_t *items;
  size_t count;
  MLX_TRY(expect_reversible(r, &call->self));
  MLX_TRY(mlx_call_items(r, call, &items, &count));
  if (!count) return mlx_undefined_create(r, out, "No last item, sequence was empty.");
  *out = items[count - 1];
  return NULL;
}

static mlx_status_t filter_reverse(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  const mlx_var_t none = mlx_none(), step = mlx_int(-1);
  if (call->self.kind == MLX_VAR_STRING) return mlx_var_slice(r, &call->self, &none, &none, &step, out);
  mlx_var_t list;
  const bool is_generator = mlx_var_is_list(&call->self, MLX_PY_GENERATOR);
  MLX_TRY(copy_items(r, &call->self, is_generator ? MLX_PY_LIST : MLX_PY_GENERATOR, &list));
  for (size_t i = 0, j = list.list->count; i + 1 < j; ++i) {
    mlx_var_t swapped = list.list->items[i];
    list.list->items[i] = list.list->items[--j];
    list.list->items[j] = swapped;
  }
  *out = list;
  return NULL;
}

static mlx_status_t filter_join(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  const mlx_var_t *items;
  size_t count;
  mlx_span_t separator = {"", 0};
  mlx_sink_t sink = {.arena = &r->arena};
  if (call->given[0]) MLX_TRY(mlx_var_text(r, &call->parameters[0], &separator));
  MLX_TRY(mlx_call_items(r, call, &items, &count));
  for (size_t i = 0; i < count; ++i) {
    mlx_var_t item = items[i];
    if (mlx_call_given(call, 1)) MLX_TRY(get_path(r, &items[i], &call->parameters[1], NULL, &item));
    if (i) mlx_sink_append(&sink, separator.bytes, separator.length);
    MLX_TRY(mlx_var_write(r, &sink, &item));
  }
  return mlx_sink_to_string(r, &sink, out);
}

// ----------------------------------------------------------------------------------------------------------
// Sorting

typedef struct keyed {
  mlx_var_t key, item;
} keyed_t;

// Stable merge sort. As in Python, a reverse sort keeps equal items in their order.
static mlx_status_t merge_sort(mlx_render_t *r, keyed_t *keyed, keyed_t *spare, size_t count, bool reverse) {
  for (size_t width = 1; width < count; width *= 2) {
    for (size_t start = 0; start < count; start += 2 * width) {
      const size_t middle = start + width < count ? start + width : count,
                   end = middle + width < count ? middle + width : count;
      size_t a = start, b = middle;
      for (size_t i = start; i < end; ++i) {
        int order = -1;
        if (a < middle && b < end) MLX_TRY(mlx_var_order(r, &keyed[a].key, &keyed[b].key, &order));
        if (reverse) order = -order;
        const bool take_a = a < middle && (b == end || (a < middle && order <= 0));
        spare[i] = take_a ? keyed[a++] : keyed[b++];
      }
    }
    memcpy(keyed, spare, count * sizeof *keyed);
  }
  return NULL;
}

static mlx_status_t sort_items(mlx_render_t *r, keyed_t *keyed, size_t count, bool reverse, mlx_var_t *out) {
  keyed_t *spare;
  MLX_TRY(mlx_arena_take(&r->arena, count ? count : 1, sizeof *spare, &spare));
  MLX_TRY(merge_sort(r, keyed, spare, count, reverse));
  MLX_TRY(mlx_list_create(r, MLX_PY_LIST, count, out));
  for (size_t i = 0; i < count; ++i) MLX_TRY(mlx_list_push(r, out->list, keyed[i].item));
  return NULL;
}

// The sort key of the attributes "a,b": a list of both.
static mlx_status_t multi_key(mlx_render_t *r, const mlx_var_t *item, const mlx_var_t *attribute,
                              bool case_sensitive, mlx_var_t *out) {
  if (!attribute || attribute->kind != MLX_VAR_STRING ||
      !memchr(attribute->text.bytes, ',', attribute->text.length)) {
    return key_of(r, item, attribute, case_sensitive, out);
  }
  mlx_var_t keys, key;
  MLX_TRY(mlx_list_create(r, MLX_PY_LIST, 0, &keys));
  for (size_t start = 0, at = 0; at <= attribute->text.length; ++at) {
    if (at < attribute->text.length && attribute->text.bytes[at] != ',') continue;
    const mlx_var_t part = mlx_string(attribute->text.bytes + start, at - start);
    MLX_TRY(key_of(r, item, &part, case_sensitive, &key));
    MLX_TRY(mlx_list_push(r, keys.list, key));
    start = at + 1;
  }
  *out = keys;
  return NULL;
}

static mlx_status_t filter_sort(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  const mlx_var_t *items;
  size_t count;
  keyed_t *keyed;
  MLX_TRY(mlx_call_items(r, call, &items, &count));
  MLX_TRY(mlx_arena_take(&r->arena, count ? count : 1, sizeof *keyed, &keyed));
  for (size_t i = 0; i < count; ++i) {
    keyed[i].item = items[i];
    MLX_TRY(multi_key(r, &items[i], mlx_call_given(call, 2) ? &call->parameters[2] : NULL,
                      mlx_call_flag(call, 1), &keyed[i].key));
  }
  return sort_items(r, keyed, count, mlx_call_flag(call, 0), out);
}

static mlx_status_t filter_dictsort(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  keyed_t *keyed;
  MLX_TRY(mlx_var_expect_defined(r, &call->self));
  if (call->self.kind != MLX_VAR_DICT)
    MLX_FAIL(r, "dictsort expects a mapping, not '%s'", mlx_var_type(&call->self));
  const mlx_dict_t *dict = call->self.dict;
  const mlx_var_t by = call->given[1] ? call->parameters[1] : mlx_literal("key");
  const bool by_value = by.kind == MLX_VAR_STRING && mlx_span_is(by.text, "value");
  if (!by_value && !(by.kind == MLX_VAR_STRING && mlx_span_is(by.text, "key")))
    MLX_FAIL(r, "You can only sort by either \"key\" or \"value\"");
  MLX_TRY(mlx_arena_take(&r->arena, dict->count ? dict->count : 1, sizeof *keyed, &keyed));
  for (size_t i = 0; i < dict->count; ++i) {
    MLX_TRY(mlx_tuple_create(r, dict->entries[i].key, dict->entries[i].value, &keyed[i].item));
    MLX_TRY(key_of(r, by_value ? &dict->entries[i].value : &dict->entries[i].key, NULL,
                   mlx_call_flag(call, 0), &keyed[i].key));
  }
  return sort_items(r, keyed, dict->count, mlx_call_flag(call, 2), out);
}

static mlx_status_t filter_groupby(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  const mlx_var_t *items, *fallback = mlx_call_given(call, 1) ? &call->parameters[1] : NULL;
  size_t count;
  keyed_t *keyed;
  mlx_var_t sorted, groups, group = mlx_none(), last = mlx_none(), entry;
  MLX_TRY(mlx_call_items(r, call, &items, &count));
  MLX_TRY(mlx_arena_take(&r->arena, count ? count : 1, sizeof *keyed, &keyed));
  for (size_t i = 0; i < count; ++i) {
    keyed[i].item = items[i];
    MLX_TRY(get_path(r, &items[i], &call->parameters[0], fallback, &keyed[i].key));
    if (!mlx_call_flag(call, 2)) MLX_TRY(ignore_case(r, &keyed[i].key));
  }
  MLX_TRY(sort_items(r, keyed, count, false, &sorted));
  MLX_TRY(mlx_list_create(r, MLX_PY_LIST, 0, &groups));
  for (size_t i = 0; i < count; ++i) {
    bool same = false;
    if (i) MLX_TRY(mlx_var_equal(r, &last, &keyed[i].key, &same));
    if (!same) {
      mlx_var_t name;
      MLX_TRY(get_path(r, &keyed[i].item, &call->parameters[0], fallback, &name));
      MLX_TRY(mlx_list_create(r, MLX_PY_LIST, 0, &group));
      MLX_TRY(mlx_tuple_create(r, name, group, &entry));
      MLX_TRY(mlx_list_push(r, groups.list, entry));
    }
    last = keyed[i].key;
    MLX_TRY(mlx_list_push(r, group.list, keyed[i].item));
  }
  *out = groups;
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Choosing

static mlx_status_t filter_unique(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  const mlx_var_t *items;
  size_t count;
  mlx_var_t seen, kept, key;
  MLX_TRY(mlx_call_items(r, call, &items, &count));
  MLX_TRY(mlx_dict_create(r, MLX_VAR_DICT, &seen));
  MLX_TRY(mlx_list_create(r, MLX_PY_GENERATOR, 0, &kept));
  for (size_t i = 0; i < count; ++i) {
    const size_t before = seen.dict->count;
    MLX_TRY(key_of(r, &items[i], mlx_call_given(call, 1) ? &call->parameters[1] : NULL,
                   mlx_call_flag(call, 0), &key));
    MLX_TRY(mlx_dict_put(r, seen.dict, key, mlx_none()));
    if (seen.dict->count > before) MLX_TRY(mlx_list_push(r, kept.list, items[i]));
  }
  *out = kept;
  return NULL;
}

// The item whose key is smallest (|expected_order| -1) or largest (1).
static mlx_status_t pick_extreme(mlx_render_t *r, const mlx_template_call_t *call, int expected_order,
                                 mlx_var_t *out) {
  const mlx_var_t *items, *attribute = mlx_call_given(call, 1) ? &call->parameters[1] : NULL;
  size_t count;
  mlx_var_t best, key;
  MLX_TRY(mlx_call_items(r, call, &items, &count));
  if (!count) return mlx_undefined_create(r, out, "No aggregated item, sequence was empty.");
  *out = items[0];
  MLX_TRY(key_of(r, &items[0], attribute, mlx_call_flag(call, 0), &best));
  for (size_t i = 1; i < count; ++i) {
    int order;
    MLX_TRY(key_of(r, &items[i], attribute, mlx_call_flag(call, 0), &key));
    MLX_TRY(mlx_var_order(r, &key, &best, &order));
    if (order != expected_order) continue;
    best = key;
    *out = items[i];
  }
  return NULL;
}

static mlx_status_t filter_min(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  return pick_extreme(r, call, -1, out);
}

static mlx_status_t filter_max(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  return pick_extreme(r, call, 1, out);
}

static mlx_status_t filter_default(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  (void)r;
  const bool replaces =
      call->self.kind == MLX_VAR_UNDEFINED || (mlx_call_flag(call, 1) && !mlx_var_truth(&call->self));
  *out = !replaces ? call->self : call->given[0] ? call->parameters[0] : mlx_literal("");
  return NULL;
}

static mlx_status_t filter_attr(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  mlx_span_t name;
  MLX_TRY(mlx_var_text(r, &call->parameters[0], &name));
  if (call->self.kind == MLX_VAR_DICT && !mlx_method_find(&call->self, name)) {  // attr never looks up items
    return mlx_undefined_create(r, out, "'dict object' has no attribute '%.*s'", (int)name.length,
                                name.bytes);
  }
  return mlx_var_attribute(r, &call->self, name, out);
}

// ----------------------------------------------------------------------------------------------------------
// Grouping and summing

static mlx_status_t filter_batch(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  const mlx_var_t *items;
  size_t count;
  int64_t size;
  mlx_var_t batches, batch = mlx_none();
  MLX_TRY(mlx_call_integer(r, call, 0, 0, &size));
  if (size < 1) MLX_FAIL(r, "batch expects a size of at least 1");
  MLX_TRY(mlx_call_items(r, call, &items, &count));
  MLX_TRY(mlx_list_create(r, MLX_PY_GENERATOR, 0, &batches));
  for (size_t i = 0; i < count; ++i) {
    if (i % (size_t)size == 0) {
      MLX_TRY(mlx_list_create(r, MLX_PY_LIST, 0, &batch));
      MLX_TRY(mlx_list_push(r, batches.list, batch));
    }
    MLX_TRY(mlx_list_push(r, batch.list, items[i]));
  }
  for (; count && mlx_call_given(call, 1) && (int64_t)batch.list->count < size;)
    MLX_TRY(mlx_list_push(r, batch.list, call->parameters[1]));
  *out = batches;
  return NULL;
}

static mlx_status_t filter_slice(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  const mlx_var_t *items;
  size_t count, at = 0;
  int64_t slices;
  mlx_var_t columns, slice;
  MLX_TRY(mlx_call_integer(r, call, 0, 0, &slices));
  if (slices < 1) MLX_FAIL(r, "slice expects at least 1 slice");
  MLX_TRY(mlx_call_items(r, call, &items, &count));
  MLX_TRY(mlx_list_create(r, MLX_PY_GENERATOR, 0, &columns));
  const size_t each = count / (size_t)slices, extra = count % (size_t)slices;
  for (size_t n = 0; n < (size_t)slices; ++n) {
    const size_t end = at + each + (n < extra);
    MLX_TRY(mlx_list_create(r, MLX_PY_LIST, 0, &slice));
    while (at < end) MLX_TRY(mlx_list_push(r, slice.list, items[at++]));
    if (mlx_call_given(call, 1) && n >= extra) MLX_TRY(mlx_list_push(r, slice.list, call->parameters[1]));
    MLX_TRY(mlx_list_push(r, columns.list, slice));
  }
  *out = columns;
  return NULL;
}

static mlx_status_t filter_sum(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  const mlx_var_t *items;
  size_t count;
  *out = call->given[1] ? call->parameters[1] : mlx_int(0);
  MLX_TRY(mlx_call_items(r, call, &items, &count));
  if (out->kind == MLX_VAR_STRING) MLX_FAIL(r, "sum() can't sum strings: use join");
  for (size_t i = 0; i < count; ++i) {
    mlx_var_t item = items[i], sum = *out;
    if (mlx_call_given(call, 0)) MLX_TRY(get_path(r, &items[i], &call->parameters[0], NULL, &item));
    MLX_TRY(mlx_var_binary(r, MLX_OP_ADD, &sum, &item, out));
  }
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Filters that call another filter or test by name

// Reads the arguments of map, select and the like: argument |first| names a filter or test, and the rest are
// its arguments.
static mlx_status_t named_builtin(mlx_render_t *r, const mlx_template_call_t *call, size_t first,
                                  bool is_filter, const mlx_builtin_t **out, mlx_args_t *out_args) {
  const mlx_var_t *name = &call->args->positional[first];
  if (name->kind != MLX_VAR_STRING)
    MLX_FAIL(r, "expected the name of a %s, not '%s'", is_filter ? "filter" : "test", mlx_var_type(name));
  *out = is_filter ? r->registry->find_filter(name->text) : r->registry->find_test(name->text);
  *out_args =
      (mlx_args_t){call->args->positional + first + 1, call->args->count - first - 1, call->args->named};
  if (*out) return NULL;
  return mlx_render_error(r, MLX_UNSUPPORTED, "there is no %s named '%.*s'", is_filter ? "filter" : "test",
                          (int)name->text.length, name->text.bytes);
}

static mlx_status_t filter_map(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  const mlx_var_t *items, *attribute = NULL, *fallback = NULL;
  const mlx_builtin_t *builtin = NULL;
  size_t count;
  mlx_args_t args;
  mlx_var_t mapped, value;
  MLX_TRY(mlx_list_create(r, MLX_PY_GENERATOR, 0, &mapped));
  *out = mapped;
  if (!mlx_var_truth(&call->self)) return NULL;
  if (call->args->count) {
    MLX_TRY(named_builtin(r, call, 0, true, &builtin, &args));
  } else {
    attribute = mlx_dict_get(r, call->args->named, (mlx_span_t){"attribute", 9});
    fallback = mlx_dict_get(r, call->args->named, (mlx_span_t){"default", 7});
    if (fallback && fallback->kind == MLX_VAR_NONE) fallback = NULL;
    if (!attribute) MLX_FAIL(r, "map requires a filter argument");
  }
  MLX_TRY(mlx_call_items(r, call, &items, &count));
  for (size_t i = 0; i < count; ++i) {
    MLX_TRY(builtin ? mlx_builtin_call(r, builtin, &items[i], &args, &value)
                    : get_path(r, &items[i], attribute, fallback, &value));
    MLX_TRY(mlx_list_push(r, mapped.list, value));
  }
  return NULL;
}

static mlx_status_t select_items(mlx_render_t *r, const mlx_template_call_t *call, bool by_attribute,
                                 bool expected, mlx_var_t *out) {
  const mlx_var_t *items;
  const mlx_builtin_t *test = NULL;
  size_t count;
  mlx_args_t args;
  mlx_var_t kept, value;
  MLX_TRY(mlx_list_create(r, MLX_PY_GENERATOR, 0, &kept));
  *out = kept;
  if (!mlx_var_truth(&call->self)) return NULL;
  if (by_attribute && !call->args->count) MLX_FAIL(r, "Missing parameter for attribute name");
  if (call->args->count > by_attribute)
    MLX_TRY(named_builtin(r, call, by_attribute ? 1 : 0, false, &test, &args));
  MLX_TRY(mlx_call_items(r, call, &items, &count));
  for (size_t i = 0; i < count; ++i) {
    mlx_var_t item = items[i];
    if (by_attribute) MLX_TRY(get_path(r, &items[i], &call->args->positional[0], NULL, &item));
    value = item;
    if (test) MLX_TRY(mlx_builtin_call(r, test, &item, &args, &value));
    if (mlx_var_truth(&value) == expected) MLX_TRY(mlx_list_push(r, kept.list, items[i]));
  }
  return NULL;
}

static mlx_status_t filter_select(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  return select_items(r, call, false, true, out);
}

static mlx_status_t filter_reject(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  return select_items(r, call, false, false, out);
}

static mlx_status_t filter_selectattr(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  return select_items(r, call, true, true, out);
}

static mlx_status_t filter_rejectattr(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  return select_items(r, call, true, false, out);
}

// ----------------------------------------------------------------------------------------------------------
// Table

const mlx_builtin_t *mlx_sequence_filter_find(mlx_span_t name) {
  static const mlx_builtin_t filters[] = {{"attr", filter_attr, "name"},
                                          {"batch", filter_batch, "linecount |fill_with"},
                                          {"count", filter_length, ""},
                                          {"d", filter_default, "|default_value boolean"},
                                          {"default", filter_default, "|default_value boolean"},
                                          {"dictsort", filter_dictsort, "|case_sensitive by reverse"},
                                          {"first", filter_first, ""},
                                          {"groupby", filter_groupby, "attribute |default case_sensitive"},
                                          {"items", filter_items, ""},
                                          {"join", filter_join, "|d attribute"},
                                          {"last", filter_last, ""},
                                          {"length", filter_length, ""},
                                          {"list", filter_list, ""},
                                          {"map", filter_map, "*"},
                                          {"max", filter_max, "|case_sensitive attribute"},
                                          {"min", filter_min, "|case_sensitive attribute"},
                                          {"reject", filter_reject, "*"},
                                          {"rejectattr", filter_rejectattr, "*"},
                                          {"reverse", filter_reverse, ""},
                                          {"select", filter_select, "*"},
                                          {"selectattr", filter_selectattr, "*"},
                                          {"slice", filter_slice, "slices |fill_with"},
                                          {"sort", filter_sort, "|reverse case_sensitive attribute"},
                                          {"sum", filter_sum, "|attribute start"},
                                          {"unique", filter_unique, "|case_sensitive attribute"},
                                          {0}};
  return mlx_builtin_find(filters, name);
}
